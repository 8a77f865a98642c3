//! What each program needs: its server, a session that is shut down on every way out, an end in good order when it is
//! interrupted, and an exit status.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use leasehold::{Session, SessionBuilder};
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::Failure;

/// How long the end of a session may take.
const SHUTDOWN: Duration = Duration::from_secs(5);

/// The Redis server that `REDIS_URL` names.
///
/// # Errors
/// It names none.
pub fn redis_url() -> Result<String, Failure> {
    std::env::var("REDIS_URL").map_err(|_| {
        "REDIS_URL is not set. Run this by scripts/with-redis (the flash sale by scripts/demo), \
         which starts a server, or set it to redis://host:port/"
            .into()
    })
}

/// A session to that server, with default options so far.
///
/// # Errors
/// No server is named, or not by a URL.
pub fn session_builder() -> Result<SessionBuilder, Failure> {
    Ok(Session::builder(&redis_url()?)?)
}

/// Works with a session, and shuts it down whatever comes of the work: a process that just ends leaves its holds to their
/// leases.
///
/// # Errors
/// Those of the work, and of the session's beginning and end.
pub async fn with_session<T>(
    builder: SessionBuilder,
    work: impl AsyncFnOnce(&Session) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let session = builder.connect().await?;
    let done = work(&session).await;
    let closed = session.shutdown(SHUTDOWN).await;
    let done = done?;
    closed?;
    Ok(done)
}

/// The same work, dropped at its next await point when the program is interrupted or terminated. What has to end in good
/// order stands around this call.
///
/// # Errors
/// Those of the work, and the interruption.
pub async fn until_interrupted<T>(
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    // Whole programs are large futures: one copy of this is enough.
    let (work, mut signals) = (Box::pin(work), Signals::new()?);
    tokio::select! {
        done = work => done,
        what = signals.next() => Err(what.into()),
    }
}

/// The exit status that says how it ended. A failure is printed with its causes.
pub fn exit(program: &str, done: Result<(), Failure>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{program}: {}", with_causes(&*failure));
            ExitCode::FAILURE
        }
    }
}

/// An error and its causes, in one line.
pub fn with_causes(failure: &(dyn Error + 'static)) -> String {
    let mut text = failure.to_string();
    let mut cause = failure.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

/// Nothing is wrong, or all that is.
///
/// # Errors
/// With any fault.
pub fn verdict(faults: &[String]) -> Result<(), Failure> {
    if faults.is_empty() {
        return Ok(());
    }
    Err(format!("not as it should be:\n  {}", faults.join("\n  ")).into())
}

/// What a worker is told by its parent: one line after the other.
#[derive(Debug)]
pub struct Instructions {
    lines: Lines<BufReader<Stdin>>,
    signals: Signals,
}

impl Instructions {
    /// From the standard input.
    ///
    /// # Errors
    /// Signals cannot be handled here.
    pub fn new() -> Result<Self, Failure> {
        let lines = BufReader::new(tokio::io::stdin()).lines();
        Ok(Self { lines, signals: Signals::new()? })
    }

    /// The next line; `None` if the worker is to end: its parent has closed the input, or is gone, or a signal says so.
    ///
    /// # Errors
    /// The input cannot be read.
    pub async fn next(&mut self) -> Result<Option<String>, Failure> {
        tokio::select! {
            line = self.lines.next_line() => Ok(line?),
            _ = self.signals.next() => Ok(None),
        }
    }
}

#[derive(Debug)]
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> Result<Self, Failure> {
        let (interrupt, terminate) = (SignalKind::interrupt(), SignalKind::terminate());
        Ok(Self { interrupt: signal(interrupt)?, terminate: signal(terminate)? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "interrupted",
            _ = self.terminate.recv() => "terminated",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_names_each_fault() {
        assert!(verdict(&[]).is_ok());
        let faults = verdict(&["one".to_owned(), "two".to_owned()]).unwrap_err().to_string();
        assert!(faults.contains("one") && faults.contains("two"), "{faults}");
    }
}
