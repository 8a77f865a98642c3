//! Servers that are not what a client expects: one that answers what a test has written, and an
//! address behind which the server changes.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::Server;

/// Answers the scripts of the mutex as a test says, without running them, and notes when each was
/// asked for. Greeting, subscription and messages work as on a real server.
///
/// Unlike a proxy that replaces a reply it leaves nothing done: what it refuses has surely not run.
#[derive(Debug)]
pub struct FakeServer {
    addr: SocketAddr,
    shared: Arc<Shared>,
}

/// One call of a script.
#[derive(Clone, Debug)]
pub struct Asked {
    /// `acquire`, `release`, `renew`, …: the script's file.
    pub verb: String,
    /// By its digest (`EVALSHA`), not by its text.
    pub by_digest: bool,
    /// When.
    pub at: Instant,
}

/// What to answer to the script of this verb; `None` is the usual answer: taken, released, renewed.
type Answer = dyn Fn(&Asked) -> Option<String> + Send + Sync;

struct Shared {
    answer: Box<Answer>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    asked: Vec<Asked>,
    subscribers: HashMap<Vec<u8>, TcpStream>,
    open: Vec<TcpStream>,
    stopping: bool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("asked", &self.state().asked.len()).finish_non_exhaustive()
    }
}

impl FakeServer {
    /// A server whose scripts answer this, in RESP without the last line's end, such as
    /// `-LOADING later`.
    #[must_use]
    pub fn start(answer: impl Fn(&Asked) -> Option<String> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let addr = listener.local_addr().expect("a bound socket");
        let shared = Arc::new(Shared { answer: Box::new(answer), state: Mutex::default() });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if accepting.state().stopping {
                    return;
                }
                accepting.state().open.push(client.try_clone().expect("a socket"));
                let serving = Arc::clone(&accepting);
                // An error ends this connection, as it would on a real server.
                thread::spawn(move || serving.serve(&client).ok());
            }
        });
        Self { addr, shared }
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}/", self.addr)
    }

    /// All calls of this script until now.
    #[must_use]
    pub fn asked(&self, verb: &str) -> Vec<Asked> {
        self.shared.state().asked.iter().filter(|asked| asked.verb == verb).cloned().collect()
    }

    /// The most calls of this script within any `window`.
    #[must_use]
    pub fn most_within(&self, verb: &str, window: Duration) -> usize {
        let asked = self.asked(verb);
        let from = |begin: usize| {
            asked[begin..].iter().take_while(|later| later.at - asked[begin].at < window).count()
        };
        (0..asked.len()).map(from).max().unwrap_or(0)
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.stopping = true;
        for socket in state.open.drain(..) {
            // An error means closed already.
            socket.shutdown(Shutdown::Both).ok();
        }
        drop(state);
        // The acceptor looks at `stopping` when something connects.
        TcpStream::connect(self.addr).ok();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic inside")
    }

    fn serve(&self, client: &TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        let mut input = BufReader::new(client.try_clone()?);
        loop {
            let command = read_command(&mut input)?;
            let reply = self.reply(&command, client)?;
            (&*client).write_all(format!("{reply}\r\n").as_bytes())?;
        }
    }

    fn reply(&self, command: &[Vec<u8>], client: &TcpStream) -> io::Result<String> {
        let word = |at: usize| command.get(at).map_or(&b""[..], Vec::as_slice);
        let name = String::from_utf8_lossy(word(0)).to_uppercase();
        Ok(match name.as_str() {
            "HELLO" => "%1\r\n$5\r\nproto\r\n:3".to_owned(),
            "SUBSCRIBE" => {
                self.state().subscribers.insert(word(1).to_vec(), client.try_clone()?);
                format!(">3\r\n$9\r\nsubscribe\r\n{}\r\n:1", bulk(word(1)))
            }
            "PUBLISH" => {
                let push =
                    format!(">3\r\n$7\r\nmessage\r\n{}\r\n{}\r\n", bulk(word(1)), bulk(word(2)));
                let state = self.state();
                let receiver = state.subscribers.get(word(1));
                receiver.map(|mut socket| socket.write_all(push.as_bytes())).transpose()?;
                ":1".to_owned()
            }
            "EVALSHA" | "EVAL" => self.run(name == "EVALSHA", word(1), command),
            _ => "+OK".to_owned(),
        })
    }

    fn run(&self, by_digest: bool, script: &[u8], command: &[Vec<u8>]) -> String {
        let known = leasehold_lua::mutex::scripts();
        let is_it = |script_of: &&leasehold_lua::Script| {
            let digest = script_of.hash(|source| redis::Script::new(source).get_hash().to_owned());
            if by_digest {
                digest.as_bytes() == script
            } else {
                script_of.source().as_bytes() == script
            }
        };
        let found = known.into_iter().find(is_it).expect("a script of the mutex");
        let verb = found.name().rsplit('/').next().unwrap_or_default().to_owned();
        let asked = Asked { verb, by_digest, at: Instant::now() };
        self.state().asked.push(asked.clone());
        (self.answer)(&asked).unwrap_or_else(|| usual(&asked.verb, command))
    }
}

/// As a server whose clock is true and whose locks are always free.
fn usual(verb: &str, command: &[Vec<u8>]) -> String {
    match verb {
        "acquire" => {
            // The lease is the fourth argument, behind the digest, the number of keys and five keys.
            let lease = String::from_utf8_lossy(&command[11]).into_owned();
            format!("*4\r\n:1\r\n{now}\r\n:{lease}\r\n{now}", now = bulk(now_us().as_bytes()))
        }
        "release" => "*2\r\n:1\r\n:0".to_owned(),
        "renew" => {
            // Two arguments a hold, behind the digest, the number of keys and two keys a hold.
            let holds = (command.len() - 3) / 4;
            let renewed = "\r\n:1\r\n:30000".repeat(holds);
            format!("*{}\r\n{}{renewed}", 1 + 2 * holds, bulk(now_us().as_bytes()))
        }
        other => format!("-ERR the fake server has no usual answer to {other}"),
    }
}

/// The answer to an acquire that has to wait, and asks again after a second.
#[must_use]
pub fn queued() -> String {
    let now = bulk(now_us().as_bytes());
    format!("*6\r\n:0\r\n:0\r\n:1000\r\n{now}\r\n:0\r\n{now}")
}

fn now_us() -> String {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros().to_string()
}

fn bulk(bytes: &[u8]) -> String {
    format!("${}\r\n{}", bytes.len(), String::from_utf8_lossy(bytes))
}

/// One command: an array of bulk strings.
fn read_command(input: &mut impl BufRead) -> io::Result<Vec<Vec<u8>>> {
    let words = read_length(input, '*')?;
    (0..words)
        .map(|_| {
            let length = read_length(input, '$')?;
            let mut word = vec![0; length + 2];
            input.read_exact(&mut word)?;
            word.truncate(length);
            Ok(word)
        })
        .collect()
}

fn read_length(input: &mut impl BufRead, sign: char) -> io::Result<usize> {
    let mut line = String::new();
    input.read_line(&mut line)?;
    let number = line.trim_end().strip_prefix(sign).and_then(|number| number.parse().ok());
    number.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// An address behind which the server changes, as behind a failover: connections that are open stay
/// with their server, new ones reach the one that was turned to last.
#[derive(Debug)]
pub struct Switch {
    addr: SocketAddr,
    target: Arc<Mutex<Option<SocketAddr>>>,
}

impl Switch {
    /// An address for this server.
    #[must_use]
    pub fn to(server: &Server) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let addr = listener.local_addr().expect("a bound socket");
        let target = Arc::new(Mutex::new(Some(server.addr())));
        let current = Arc::clone(&target);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let target = *current.lock().expect("no panic inside");
                let Some(target) = target else { return };
                // A server that is down refuses: dropping the client's socket says so.
                if let Ok(server) = TcpStream::connect(target) {
                    relay(&client, &server);
                    relay(&server, &client);
                }
            }
        });
        Self { addr, target }
    }

    /// Leads new connections to this server.
    pub fn turn_to(&self, server: &Server) {
        *self.target.lock().expect("no panic inside") = Some(server.addr());
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}/", self.addr)
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        *self.target.lock().expect("no panic inside") = None;
        // The acceptor looks at the target when something connects.
        TcpStream::connect(self.addr).ok();
    }
}

/// Carries one direction until it ends, then closes both sides.
fn relay(from: &TcpStream, to: &TcpStream) {
    let mut from = from.try_clone().expect("a socket");
    let mut to = to.try_clone().expect("a socket");
    to.set_nodelay(true).expect("a socket");
    thread::spawn(move || {
        let mut chunk = [0; 16 * 1024];
        while let Ok(read @ 1..) = from.read(&mut chunk) {
            if to.write_all(&chunk[..read]).is_err() {
                break;
            }
        }
        from.shutdown(Shutdown::Both).ok();
        to.shutdown(Shutdown::Both).ok();
    });
}
