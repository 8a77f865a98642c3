//! A caller: one process of the fleet. This is how a service keeps a limit that all its processes share.

use std::net::SocketAddr;
use std::time::Duration;

use leasehold::Semaphore;
use leasehold::semaphore::Permit;
use leasehold_examples::Failure;
use leasehold_examples::program::{self, Instructions, with_session};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Tasks of a process that call.
const TASKS: u32 = 4;
/// So many of them stand still with a permit when they are told to halt.
pub(crate) const STOPPED: u32 = 2;
/// How long a task waits after a refusal.
const BACK_OFF: Duration = Duration::from_millis(20);

/// What it is told, a word a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Make no calls.
    Pause,
    /// Call without a permit.
    Free,
    /// Call with a permit.
    Permits,
    /// Take a permit and stand still, two tasks; make no calls, the others.
    Halt,
}

/// What it tells: `stopped`, for each task that stands still with a permit; `lost`, a permit had ended before its release.
pub(crate) async fn run(label: &str, address: &str) -> Result<(), Failure> {
    let address = address.parse()?;
    with_session(program::session_builder()?, async |session| {
        let (mut instructions, mut tasks) = (Instructions::new()?, JoinSet::new());
        let (tell, mode) = watch::channel(Mode::Pause);
        for index in 0..TASKS {
            let semaphore = crate::semaphore(session, label)?;
            tasks.spawn(Caller { index, address, semaphore, mode: mode.clone() }.call_on());
        }
        loop {
            tokio::select! {
                line = instructions.next() => {
                    let Some(line) = line? else { return Ok(()) };
                    tell.send_replace(line.parse()?);
                }
                Some(ended) = tasks.join_next() => ended??,
            }
        }
    })
    .await
}

struct Caller {
    index: u32,
    address: SocketAddr,
    semaphore: Semaphore,
    mode: watch::Receiver<Mode>,
}

impl Caller {
    async fn call_on(mut self) -> Result<(), Failure> {
        loop {
            let mode = *self.mode.borrow_and_update();
            match mode {
                Mode::Pause => self.mode.changed().await?,
                Mode::Free => self.call().await?,
                Mode::Permits => {
                    let permit = self.semaphore.acquire().await?;
                    self.call_with(permit).await?;
                }
                Mode::Halt if self.index >= STOPPED => self.mode.changed().await?,
                Mode::Halt => {
                    let permit = self.semaphore.acquire().await?;
                    println!("stopped");
                    std::future::pending::<()>().await; // until this process is killed
                    drop(permit);
                }
            }
        }
    }

    /// The permit is held for just as long as the call runs.
    async fn call_with(&self, permit: Permit) -> Result<(), Failure> {
        // Stops the call when the permit is known to be lost: somebody else may have it.
        let called = permit.while_held(self.call()).await;
        if permit.release().await.is_err() {
            println!("lost"); // an alarm: more calls may have run than there are permits
        }
        called.unwrap_or(Ok(()))
    }

    async fn call(&self) -> Result<(), Failure> {
        let mut stream = TcpStream::connect(self.address).await?;
        stream.write_all(b"GET /price HTTP/1.1\r\nhost: api\r\nconnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        if answer.starts_with("HTTP/1.1 200") {
            return Ok(());
        }
        tokio::time::sleep(BACK_OFF).await;
        Ok(())
    }
}

impl std::str::FromStr for Mode {
    type Err = Failure;

    fn from_str(word: &str) -> Result<Self, Failure> {
        Ok(match word {
            "pause" => Self::Pause,
            "free" => Self::Free,
            "permits" => Self::Permits,
            "halt" => Self::Halt,
            _ => return Err(format!("no mode is called {word}").into()),
        })
    }
}
