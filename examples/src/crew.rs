//! Worker processes: the program starts itself again, speaks to its workers line by line, and kills one if it has to.

use std::ffi::OsStr;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::Failure;

/// How long workers may take to end in good order, before they are killed.
const PATIENCE: Duration = Duration::from_secs(8);

/// Workers, counted from 0. Dropped, they are killed, frozen or not.
#[derive(Debug)]
pub struct Crew {
    workers: Vec<Worker>,
    events: mpsc::UnboundedReceiver<Heard>,
    tell: mpsc::UnboundedSender<Heard>,
    listeners: JoinSet<()>,
}

#[derive(Debug)]
struct Worker {
    child: Child,
    /// Closed, it tells the worker to end.
    input: Option<ChildStdin>,
    killed: bool,
}

#[derive(Debug)]
enum Heard {
    Line(usize, String),
    End(usize),
}

/// What a worker did.
#[derive(Debug)]
pub enum Event {
    /// It wrote a line.
    Said {
        /// Which worker.
        worker: usize,
        /// What it wrote.
        line: String,
    },
    /// It has ended.
    Ended {
        /// Which worker.
        worker: usize,
        /// How.
        status: ExitStatus,
    },
}

impl Default for Crew {
    fn default() -> Self {
        let (tell, events) = mpsc::unbounded_channel();
        Self { workers: Vec::new(), events, tell, listeners: JoinSet::new() }
    }
}

impl Crew {
    /// Starts this program again with these arguments, as one worker more; answers which.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start<A: AsRef<OsStr>>(
        &mut self,
        arguments: impl IntoIterator<Item = A>,
    ) -> Result<usize, Failure> {
        let index = self.workers.len();
        let mut child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let output = output.ok_or("a worker without an output")?;
        self.listeners.spawn(listen(index, output, self.tell.clone()));
        self.workers.push(Worker { child, input, killed: false });
        Ok(index)
    }

    /// What happens next. With no worker left it waits for ever.
    ///
    /// # Errors
    /// How a worker ended cannot be told.
    ///
    /// # Cancel safety
    /// No line is lost; the end of a worker may be.
    pub async fn next(&mut self) -> Result<Event, Failure> {
        // `self` keeps a sender, so the channel never ends.
        match self.events.recv().await.ok_or("no worker can be heard")? {
            Heard::Line(worker, line) => Ok(Event::Said { worker, line }),
            Heard::End(worker) => {
                let status = self.worker(worker)?.child.wait().await?;
                Ok(Event::Ended { worker, status })
            }
        }
    }

    /// The next line of a worker.
    ///
    /// # Errors
    /// A worker failed that was not killed.
    ///
    /// # Cancel safety
    /// No line is lost.
    pub async fn next_line(&mut self) -> Result<(usize, String), Failure> {
        loop {
            match self.next().await? {
                Event::Said { worker, line } => return Ok((worker, line)),
                Event::Ended { worker, status } if !status.success() && !self.is_killed(worker) => {
                    return Err(format!("worker {worker}: {status}").into());
                }
                Event::Ended { .. } => {}
            }
        }
    }

    /// Writes a line to a worker.
    ///
    /// # Errors
    /// It has ended.
    pub async fn tell(&mut self, worker: usize, line: &str) -> Result<(), Failure> {
        let input = self.worker(worker)?.input.as_mut().ok_or("that worker was dismissed")?;
        Ok(input.write_all(format!("{line}\n").as_bytes()).await?)
    }

    /// Kills a worker (SIGKILL): it gets no chance to release anything.
    ///
    /// # Errors
    /// It cannot be killed, or has ended.
    pub fn kill(&mut self, worker: usize) -> Result<(), Failure> {
        let worker = self.worker(worker)?;
        worker.killed = true;
        // Its input stays open until then: closed a moment before, it would tell the worker to end in good order.
        worker.child.start_kill()?;
        worker.input = None;
        Ok(())
    }

    /// Sends a worker this signal.
    ///
    /// # Errors
    /// It has ended.
    pub fn signal(&mut self, worker: usize, signal: Signal) -> Result<(), Failure> {
        let id = self.worker(worker)?.child.id().ok_or("that worker has ended")?;
        let pid = Pid::from_raw(i32::try_from(id)?).ok_or("no process id")?;
        Ok(kill_process(pid, signal)?)
    }

    /// Whether it was killed.
    pub fn is_killed(&self, worker: usize) -> bool {
        self.workers.get(worker).is_some_and(|worker| worker.killed)
    }

    /// Closes the inputs, and returns when all have ended in good order; who does not is killed.
    ///
    /// # Errors
    /// A worker failed, or had to be killed.
    pub async fn dismiss(&mut self) -> Result<(), Failure> {
        for worker in &mut self.workers {
            worker.input = None;
        }
        let all = async {
            for (index, worker) in self.workers.iter_mut().enumerate() {
                let status = worker.child.wait().await?;
                if !status.success() && !worker.killed {
                    return Err::<_, Failure>(format!("worker {index}: {status}").into());
                }
            }
            Ok(())
        };
        let ended = tokio::time::timeout(PATIENCE, all).await;
        ended.map_err(|_| "the workers did not end in time")?
    }

    fn worker(&mut self, worker: usize) -> Result<&mut Worker, Failure> {
        self.workers.get_mut(worker).ok_or_else(|| "no such worker".into())
    }
}

/// Works with a crew, and dismisses it whatever comes of the work.
///
/// # Errors
/// Those of the work, and of the workers.
pub async fn with_crew<T>(
    work: impl AsyncFnOnce(&mut Crew) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut crew = Crew::default();
    let done = work(&mut crew).await;
    let dismissed = crew.dismiss().await;
    let done = done?;
    dismissed?;
    Ok(done)
}

/// Hands on what a worker says, until it closes its output.
async fn listen(worker: usize, output: ChildStdout, tell: mpsc::UnboundedSender<Heard>) {
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        tell.send(Heard::Line(worker, line)).ok();
    }
    tell.send(Heard::End(worker)).ok();
}
