//! A process whose tasks need the whole import.

use std::path::PathBuf;
use std::time::Duration;

use leasehold::Latch;
use leasehold_examples::Failure;
use leasehold_examples::program::{self, Instructions, with_session};
use tokio::task::{JoinSet, spawn_blocking};

use crate::store::Store;

/// Tasks of a process that wait. They share one inbox, which is told once.
pub(crate) const TASKS: usize = 4;

/// What it tells: `waits`; for each task `opened` and how many orders it found.
pub(crate) async fn run(name: &str, store: &str) -> Result<(), Failure> {
    let mut instructions = Instructions::new()?;
    with_session(program::session_builder()?, async |session| {
        let latch = crate::latch(session, name)?;
        let mut tasks = JoinSet::new();
        for _ in 0..TASKS {
            tasks.spawn(wait_and_look(latch.clone(), store.into()));
        }
        println!("waits");
        loop {
            tokio::select! {
                Some(done) = tasks.join_next() => done??,
                line = instructions.next() => if line?.is_none() {
                    return Ok(());
                },
            }
        }
    })
    .await
}

async fn wait_and_look(latch: Latch, store: PathBuf) -> Result<(), Failure> {
    // An error is not "open": the import was given up (Reset), died (Expired), or takes too long (TimedOut).
    latch.wait_within(Duration::from_secs(60)).await?;
    let orders = spawn_blocking(move || Store::open(&store)?.orders()).await??;
    println!("opened {orders}");
    Ok(())
}
