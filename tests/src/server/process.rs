//! The process of a server: how it is started, awaited and surely ended.

use std::ffi::OsString;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Generous: a loaded CI machine starts a server in 150 ms.
const START_WITHIN: Duration = Duration::from_secs(20);

/// Everything needed to start the server, and to start it again.
#[derive(Debug)]
pub(super) struct Launch {
    pub(super) binary: PathBuf,
    pub(super) port: u16,
    pub(super) folder: PathBuf,
    /// The port speaks TLS.
    pub(super) tls: bool,
    /// Before all others: the file that a sentinel keeps.
    pub(super) first: Vec<OsString>,
    pub(super) arguments: Vec<OsString>,
    pub(super) environment: Vec<(&'static str, PathBuf)>,
}

impl Launch {
    /// Chooses a port; another process may take it before the server does, then another one.
    pub(super) fn start_on_a_free_port(&mut self) -> Process {
        let mut failure = String::new();
        for _ in 0..20 {
            self.port = free_port();
            match self.start() {
                Ok(process) => return process,
                Err(text) => failure = text,
            }
            if !failure.contains("in use") {
                break;
            }
        }
        panic!("{failure}");
    }

    /// Starts the server and waits until it answers; an error holds the end of its log.
    pub(super) fn start(&self) -> Result<Process, String> {
        let log = self.folder.join("log");
        let process = self.spawn(&log).map_err(|error| {
            format!("{} cannot be started as a Redis server: {error}", self.binary.display())
        })?;
        process.wait_until_it_answers(self, &log)
    }

    /// Whether PING is answered; a server that wants a password first answers as well, and one that wants
    /// TLS is only asked to listen.
    fn answers(&self) -> io::Result<bool> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        if self.tls {
            return Ok(true);
        }
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(b"PING\r\n")?;
        let mut answer = [0; 5];
        stream.read_exact(&mut answer)?;
        Ok(matches!(&answer, b"+PONG" | b"-NOAU"))
    }

    fn spawn(&self, log: &Path) -> io::Result<Process> {
        let (output, port) = (File::create(log)?, self.port.to_string());
        let server = Command::new(&self.binary)
            .args(&self.first)
            .args(["--bind", "127.0.0.1"])
            .args([if self.tls { "--tls-port" } else { "--port" }, &port])
            .args(if self.tls { &["--port", "0"][..] } else { &[] })
            .args(["--save", "", "--appendonly", "no", "--dir"])
            .arg(&self.folder)
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stderr(output.try_clone()?)
            .stdout(output)
            .spawn()?;
        let keeper = keeper_of(&server, &self.folder);
        Ok(Process { keeper, server })
    }
}

/// A running server. Dropping it kills the process.
#[derive(Debug)]
pub(super) struct Process {
    keeper: Child,
    server: Child,
}

/// Kills the server and removes its folder when this process is gone, whatever ended it: it waits
/// on a pipe that only this process holds open. (The kernel's parent-death signal would need
/// unsafe code.)
fn keeper_of(server: &Child, folder: &Path) -> Child {
    Command::new("sh")
        .args(["-c", "read -r _; kill -KILL \"$1\"; rm -rf \"$2\"", "keeper"])
        .arg(server.id().to_string())
        .arg(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("a shell")
}

impl Process {
    pub(super) fn id(&self) -> u32 {
        self.server.id()
    }

    pub(super) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.server), signal).expect("a process of our own");
    }

    fn wait_until_it_answers(mut self, launch: &Launch, log: &Path) -> Result<Self, String> {
        let begin = Instant::now();
        loop {
            // Its own log says that it has the port; a PING alone could be answered by a stranger.
            let text = std::fs::read_to_string(log).unwrap_or_default();
            let ready = ["Ready to accept connections", "Sentinel ID is"];
            if ready.iter().any(|words| text.contains(words)) && launch.answers().unwrap_or(false) {
                return Ok(self);
            }
            let ended = self.server.try_wait().expect("a child of our own").is_some();
            if ended || begin.elapsed() > START_WITHIN {
                let text = std::fs::read_to_string(log).unwrap_or_default();
                return Err(format!("the Redis server did not start:\n{text}"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Process {
    /// The keeper first: it must not kill a stranger that gets the server's id later.
    fn drop(&mut self) {
        for child in [&mut self.keeper, &mut self.server] {
            // An error means that it has ended already.
            child.kill().ok();
            child.wait().ok();
        }
    }
}

/// Below the range that the system gives to outgoing connections (from 32768): a client that
/// retries while the server is dead could otherwise be given the server's own port and keep it.
/// So is the port of the cluster bus, which is 10 000 higher and so nobody else's either.
fn free_port() -> u16 {
    loop {
        let random = RandomState::new().hash_one(std::process::id()) % 10_000;
        let port = 10_000 + u16::try_from(random).expect("below 10 000");
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}
