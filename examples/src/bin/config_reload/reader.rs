//! A process that serves: many tasks, each of which reads the configuration for what it does.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold::rwlock::ReadGuard;
use leasehold::{AcquireError, RwLock};
use leasehold_examples::Failure;
use leasehold_examples::program::{self, Instructions, with_session};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::config::Config;

/// Tasks of a process.
pub(crate) const TASKS: usize = 6;
/// How long a task works between two looks at the configuration.
const SERVING: Duration = Duration::from_millis(3);
/// How often the process tells how many reads there were.
const REPORT: Duration = Duration::from_millis(100);

/// What it is told, a word a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Wait.
    Pause,
    /// Serve.
    Read,
    /// One task stands still while it reads, the others serve.
    Halt,
    /// Stop serving, and report.
    End,
}

/// What it tells: `sees` and a version, once for each; `torn`, a read of two versions; `stale`, one older than the lock's last
/// writer; `lost`, a hold that had ended before its release; `stopped`; `reads`, how many there were and the longest wait in
/// ms; `ended`.
pub(crate) async fn run(is_locked: bool, folder: &str) -> Result<(), Failure> {
    with_session(program::session_builder()?, async |session| {
        let lock = crate::lock(session, "reader")?;
        let (tell, mode) = watch::channel(Mode::Pause);
        let server = Arc::new(Server {
            folder: folder.into(),
            lock: is_locked.then_some(lock),
            seen: AtomicU32::new(0),
            stopped: AtomicBool::new(false),
            reads: AtomicU64::new(0),
            longest_ms: AtomicU64::new(0),
        });
        let (mut instructions, mut tasks) = (Instructions::new()?, JoinSet::new());
        for _ in 0..TASKS {
            tasks.spawn(server.clone().serve(mode.clone()));
        }
        let mut report = tokio::time::interval(REPORT);
        loop {
            tokio::select! {
                line = instructions.next() => {
                    let Some(line) = line? else { return Ok(()) };
                    tell.send_replace(line.parse()?);
                }
                _ = report.tick() => server.report(),
                ended = tasks.join_next() => match ended {
                    Some(ended) => ended??,
                    None => break,
                }
            }
        }
        server.report();
        println!("ended");
        while instructions.next().await?.is_some() {}
        Ok(())
    })
    .await
}

struct Server {
    folder: PathBuf,
    lock: Option<RwLock>,
    /// The newest version that was seen here.
    seen: AtomicU32,
    /// Whether a task stands still.
    stopped: AtomicBool,
    reads: AtomicU64,
    longest_ms: AtomicU64,
}

impl Server {
    async fn serve(self: Arc<Self>, mut mode: watch::Receiver<Mode>) -> Result<(), Failure> {
        loop {
            let now = *mode.borrow_and_update();
            match now {
                Mode::Pause => mode.changed().await?,
                Mode::End => return Ok(()),
                Mode::Read | Mode::Halt => {
                    let halts = now == Mode::Halt && !self.stopped.swap(true, Ordering::Relaxed);
                    match &self.lock {
                        Some(lock) => self.read_guarded(lock, halts).await?,
                        None => self.look(Config::read(&self.folder).await?, halts).await,
                    }
                    tokio::time::sleep(SERVING).await;
                }
            }
        }
    }

    /// Both files are read under one hold.
    async fn read_guarded(&self, lock: &RwLock, halts: bool) -> Result<(), Failure> {
        let asked = Instant::now();
        let guard = match lock.read().acquire().await {
            Ok(guard) => guard,
            // Granted, but this process was too slow to notice: it looks again later.
            Err(AcquireError::ValidityTooShort { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let waited = u64::try_from(asked.elapsed().as_millis())?;
        self.longest_ms.fetch_max(waited, Ordering::Relaxed);
        // Stops the reading when the hold is known to be lost: somebody may be writing then.
        let read = guard.while_held(Config::read(&self.folder)).await;
        if let Ok(config) = read {
            let config = config?;
            if is_stale(lock, &guard, &config) {
                println!("stale");
            }
            self.look(config, halts).await;
        }
        if guard.release().await.is_err() {
            println!("lost"); // an alarm
        }
        Ok(())
    }

    async fn look(&self, config: Config, halts: bool) {
        match config.version() {
            None => println!("torn"),
            Some(version) if self.seen.fetch_max(version, Ordering::Relaxed) < version => {
                println!("sees {version}");
            }
            Some(_) => {}
        }
        self.reads.fetch_add(1, Ordering::Relaxed);
        if halts {
            println!("stopped");
            std::future::pending().await // until this process is killed
        }
    }

    fn report(&self) {
        let [reads, longest_ms] =
            [&self.reads, &self.longest_ms].map(|number| number.load(Ordering::Relaxed));
        println!("reads {reads} {longest_ms}");
    }
}

/// Whether a later writer than that of these files held the lock before this reader: then they are not what it left.
fn is_stale(lock: &RwLock, guard: &ReadGuard, config: &Config) -> bool {
    lock.last_token(guard).is_some_and(|last| config.token() < last.get())
}

impl std::str::FromStr for Mode {
    type Err = Failure;

    fn from_str(word: &str) -> Result<Self, Failure> {
        Ok(match word {
            "pause" => Self::Pause,
            "read" => Self::Read,
            "halt" => Self::Halt,
            "end" => Self::End,
            _ => return Err(format!("no mode is called {word}").into()),
        })
    }
}
