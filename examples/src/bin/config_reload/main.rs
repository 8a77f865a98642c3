//! A configuration in two files that many processes serve with, and that one process replaces again and again.
//! `scripts/with-redis cargo run -p leasehold-examples --bin config_reload`
//!
//! Either file is replaced at once, but not both: who reads one before and the other after serves with half of each. So
//! the writer takes a read-write lock for writing, and the readers, dozens at a time, take it for reading. They never see
//! half, and neither side starves: the writer gets in though there is always somebody reading, since a writer that waits
//! stops new readers; and the next reload begins only when every process has read the last one. When it has written, the
//! writer *downgrades*: it goes on as a reader, beside the others, and checks what it wrote before anybody can write again.
//!
//! In the middle a reader is killed while it reads. The others read on, but the writer has to wait for the dead one's lease,
//! and new readers wait behind the writer: choose the lease with that in mind.
//!
//! Files cannot check a fencing token as a database does. So the writer leaves its token in both, and a reader compares
//! that with the token of the last writer, which it knows from the lock (`last_token`).
//!
//! What to copy: `reader.rs` and `writer.rs`. The exit status says whether it went so. `--no-lock` does the same without the
//! lock: then readers see half, and the status is 1.

mod config;
mod reader;
mod run;
mod verdict;
mod writer;

use std::process::ExitCode;
use std::time::Duration;

use leasehold::{ConfigError, Options, RwLock, Session};
use leasehold_examples::program::{self, exit, until_interrupted, with_session};
use leasehold_examples::{Failure, crew};

use crate::run::Run;

const USAGE: &str = "usage: config_reload [--no-lock]";
const READER: &str = "reader";
const WRITER: &str = "writer";
/// How long a hold outlives its process. In life 30 s, the default.
const LEASE: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let words: Vec<_> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        // The program starts itself again as its own readers and writer.
        [READER, how, folder] => reader::run(*how == "locked", folder).await,
        [WRITER, how, folder] => writer::run(*how == "locked", folder).await,
        [] => config_reload("locked").await,
        ["--no-lock"] => config_reload("unlocked").await,
        _ => Err(USAGE.into()),
    };
    exit("config_reload", done)
}

async fn config_reload(how: &str) -> Result<(), Failure> {
    // Before anything else: is there a server?
    with_session(program::session_builder()?, async |_| Ok(())).await?;
    let folder = tempfile::tempdir()?;
    println!(
        "{} processes with {} tasks each read a configuration of two files, one process replaces them",
        run::READERS,
        reader::TASKS
    );
    let story = crew::with_crew(async |crew| {
        let run = Run::start(crew, how, folder.path())?;
        until_interrupted(run.run()).await
    })
    .await?;
    println!("\n{story}\n");
    program::verdict(&verdict::faults(&story))?;
    println!("Nobody saw half of a configuration, and nobody starved.");
    Ok(())
}

/// The lock of the configuration, as each process makes it.
fn lock(session: &Session, label: &str) -> Result<RwLock, ConfigError> {
    let options = Options::default().lease(LEASE).max_wait(Duration::from_secs(30)).label(label);
    RwLock::new(session, "config", options)
}
