//! Instruments that look at a server from outside while a suite runs: every command it gets
//! ([`Monitor`]), how far from its end a key ever was ([`PttlSampler`]), who is connected
//! ([`connections`], [`kill_connections`]); and waiters that surely stand in the queue ([`waiter`]).

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex as Lock, OnceLock};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use leasehold_mutex::{Guard, Mutex};

use crate::scene::{SOON, keys, queued};
use crate::{Server, eventually, rounds};

/// Every command that a server without a password gets, those inside scripts included, in its order.
#[derive(Debug)]
pub struct Monitor {
    socket: TcpStream,
    lines: Arc<Lock<Vec<String>>>,
    reader: Option<JoinHandle<()>>,
}

impl Monitor {
    /// Begins to listen; what is sent after this call is heard.
    #[must_use]
    pub fn of(server: &Server) -> Self {
        let mut socket = TcpStream::connect(server.addr()).expect("a running server");
        socket.write_all(b"MONITOR\r\n").expect("an open connection");
        let mut input = BufReader::new(socket.try_clone().expect("a socket")).lines();
        assert_eq!(input.next().expect("an answer").expect("an answer"), "+OK");
        let lines = Arc::new(Lock::new(Vec::new()));
        let heard = Arc::clone(&lines);
        let reader = std::thread::spawn(move || {
            for line in input.map_while(Result::ok) {
                heard.lock().expect("no panic inside").push(line);
            }
        });
        Self { socket, lines, reader: Some(reader) }
    }

    /// All lines until now, those still under way included: it waits for a mark of its own.
    pub async fn heard(&self, server: &Server) -> Vec<String> {
        let mark = format!("mark-{}", uuid::Uuid::new_v4().simple());
        let mut connection = server.connection().await;
        redis::cmd("ECHO").arg(&mark).exec_async(&mut connection).await.expect("ECHO");
        let marked = async || self.lines().iter().any(|line| line.contains(&mark));
        eventually(SOON, "the monitor hears the mark", marked).await;
        self.lines().into_iter().take_while(|line| !line.contains(&mark)).collect()
    }

    /// How many lines until now contain this, such as a script's hash.
    pub async fn count(&self, server: &Server, part: &str) -> usize {
        self.heard(server).await.iter().filter(|line| line.contains(part)).count()
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().expect("no panic inside").clone()
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // An error means that the server has ended.
        self.socket.shutdown(Shutdown::Both).ok();
        if let Some(reader) = self.reader.take() {
            reader.join().ok();
        }
    }
}

/// Looks at the time to live of keys, again and again, on a thread and a connection of its own: it
/// goes on while the test's runtime is blocked.
#[derive(Debug)]
pub struct PttlSampler {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Sampled>,
}

/// What a [`PttlSampler`] saw.
#[derive(Clone, Debug, Default)]
pub struct Sampled {
    /// How often it looked at all keys.
    pub looks: u64,
    /// The shortest time to live of a key that was there.
    pub least: Option<Duration>,
    /// The longest time to live of a key that was there.
    pub most: Option<Duration>,
    /// How often a key was not there.
    pub absent: u64,
    /// How often a key was there without an end.
    pub endless: u64,
    /// The longest pause between two looks: shorter gaps than this may have gone unseen.
    pub blind: Duration,
}

impl PttlSampler {
    /// Looks at the holds of mutexes of these names, with this pause between two looks.
    #[must_use]
    pub fn of_holds<'a>(
        server: &Server,
        names: impl IntoIterator<Item = &'a str>,
        pause: Duration,
    ) -> Self {
        let looked_at: Vec<_> = names.into_iter().map(|name| keys(name).holds.to_vec()).collect();
        let mut connection = server.client().get_connection().expect("a running server");
        connection.set_read_timeout(Some(SOON)).expect("a timeout");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let (mut sampled, mut last) = (Sampled::default(), Instant::now());
            while !stopped.load(Ordering::Relaxed) {
                sampled.look(&mut connection, &looked_at);
                sampled.blind = sampled.blind.max(last.elapsed());
                last = Instant::now();
                std::thread::sleep(pause);
            }
            sampled
        });
        Self { stop, thread }
    }

    /// Ends it and tells what it saw.
    #[must_use]
    pub fn stop(self) -> Sampled {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("no panic inside")
    }
}

impl Sampled {
    fn look(&mut self, connection: &mut redis::Connection, looked_at: &[Vec<u8>]) {
        let mut pipeline = redis::pipe();
        for key in looked_at {
            pipeline.pttl(key);
        }
        let found: Vec<i64> = pipeline.query(connection).expect("PTTL");
        self.looks += 1;
        for left in found {
            match u64::try_from(left).map(Duration::from_millis) {
                Ok(left) => {
                    self.least = Some(self.least.map_or(left, |least| least.min(left)));
                    self.most = self.most.max(Some(left));
                }
                Err(_) if left == -1 => self.endless += 1,
                Err(_) => self.absent += 1,
            }
        }
    }
}

/// Closes all connections of this type, `normal` or `pubsub`, but for the one that asks; answers how
/// many there were. Among the normal ones are those of the test's own helpers.
pub async fn kill_connections(server: &Server, kind: &str) -> u64 {
    let mut kill = redis::cmd("CLIENT");
    kill.arg(&["KILL", "TYPE", kind, "SKIPME", "yes"]);
    kill.query_async(&mut server.connection().await).await.expect("CLIENT KILL")
}

/// How many connections the server has, without the one that asks.
pub async fn connections(server: &Server) -> usize {
    let list: String = redis::cmd("CLIENT")
        .arg("LIST")
        .query_async(&mut server.connection().await)
        .await
        .expect("CLIENT LIST");
    list.lines().count() - 1
}

/// A task that acquires, and when it did. It stands in the queue of this name, the last of `standing`,
/// when this returns.
pub async fn waiter(
    server: &Server,
    lock: &Mutex,
    name: &str,
    standing: u64,
) -> tokio::task::JoinHandle<(Guard, Instant)> {
    let lock = lock.clone();
    let acquired = tokio::spawn(async move {
        let guard = lock.acquire().await.expect("a hold");
        (guard, Instant::now())
    });
    queued(server, name, standing).await;
    acquired
}

/// A clock that stands still while the machine does: a virtual machine that is paused for seconds, or
/// a core that nobody gives us, makes no test late that measures with it. Exact to some 5 ms.
///
/// For upper bounds only: what may not come too early is measured with [`Instant`].
#[must_use]
pub fn awake() -> Duration {
    const TICK: Duration = Duration::from_millis(5);
    static AWAKE_US: OnceLock<Arc<AtomicU64>> = OnceLock::new();
    let awake = AWAKE_US.get_or_init(|| {
        let awake = Arc::new(AtomicU64::new(0));
        let ticked = Arc::clone(&awake);
        std::thread::spawn(move || {
            let mut last = Instant::now();
            loop {
                std::thread::sleep(TICK);
                // Ticks that come up to four times too late are the scheduler's usual business.
                let passed = last.elapsed().min(TICK * 4);
                last = Instant::now();
                let passed = u64::try_from(passed.as_micros()).expect("20 ms at the most");
                ticked.fetch_add(passed, Ordering::Relaxed);
            }
        });
        awake
    });
    Duration::from_micros(awake.load(Ordering::Relaxed))
}

/// What has passed since it was started.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    wall: Instant,
    awake: Duration,
}

impl Watch {
    /// Begins now.
    #[must_use]
    pub fn start() -> Self {
        Self { wall: Instant::now(), awake: awake() }
    }

    /// For lower bounds.
    #[must_use]
    pub fn elapsed(self) -> Duration {
        self.wall.elapsed()
    }

    /// For upper bounds: see [`awake`].
    #[must_use]
    pub fn awake(self) -> Duration {
        awake() - self.awake
    }
}

/// How long a thing is done whose length is its subject: `full` with `scripts/test --soak`, else
/// `short`.
#[must_use]
pub fn span(full: Duration, short: Duration) -> Duration {
    if rounds(2) == 2 { full } else { short }
}

/// How often a future is polled at a step, for [`dropped_after`]: each of the first counts, then twice as
/// often at each, and last to the end, every [`MOMENTS`] steps. How many polls an exchange takes is the machine's
/// affair; over all steps its beginning, its middle and its end are met on any.
#[must_use]
pub fn moment(step: u32) -> u32 {
    let step = step % MOMENTS;
    match step {
        0..FINE => step,
        FINE..LAST => FINE << (step - FINE),
        _ => u32::MAX,
    }
}

/// After so many steps [`moment`] begins again.
pub const MOMENTS: u32 = LAST + 1;
const FINE: u32 = 24;
const LAST: u32 = 36;

/// Polls a future at most so often, with other tasks in between, then drops it: `None` if it was not
/// ready. The same count meets about the same moment of an exchange, far finer than a timer.
pub async fn dropped_after<F: Future>(polls: u32, future: F) -> Option<F::Output> {
    let mut future = Box::pin(future);
    for _ in 0..polls {
        let ready = std::future::poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => Poll::Ready(None),
        });
        match ready.await {
            Some(output) => return Some(output),
            None => tokio::task::yield_now().await,
        }
    }
    None
}
