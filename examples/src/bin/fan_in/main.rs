//! An import in shards by several processes, and others that wait until all of it is in. One importer is killed, and its
//! shards are imported again.
//! `scripts/with-redis cargo run -p leasehold-examples --bin fan_in`
//!
//! A coordinator arms a latch with the number of shards and deals them to four processes. Each imports its shard into
//! SQLite and counts down in the shard's name; three more processes wait, and go on when the latch opens: by one message a
//! process, without asking. Then they look: everything has to be in.
//!
//! One importer is killed with two shards. One it has imported by half. The other it has imported *and counted*, but the
//! coordinator does not know that yet, so both are dealt again. That is harmless for the database, which keeps an order
//! once, and harmless for the latch, which counts a *name* once (`count_down_as`). `--count-calls` counts calls instead
//! (`count_down`): then the latch opens one shard too early, the waiters find orders missing, and the status is 1.
//!
//! What to copy: `importer.rs` and `waiter.rs`.

mod coordinator;
mod importer;
mod store;
mod verdict;
mod waiter;

use std::process::ExitCode;
use std::time::Duration;

use leasehold::{ConfigError, Latch, LatchOptions, Session};
use leasehold_examples::orders::{self, Order};
use leasehold_examples::program::{self, exit, until_interrupted, with_session};
use leasehold_examples::report::grouped;
use leasehold_examples::{Failure, crew};

use crate::coordinator::Coordinator;
use crate::store::Store;

const USAGE: &str = "usage: fan_in [--count-calls]";
const IMPORTER: &str = "importer";
const WAITER: &str = "waiter";
/// Shards of the import.
const SHARDS: u32 = 12;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let words: Vec<_> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        // The program starts itself again as its own importers and waiters.
        [IMPORTER, how, name, store] => importer::run(how, name, store).await,
        [WAITER, name, store] => waiter::run(name, store).await,
        [] => fan_in("names").await,
        ["--count-calls"] => fan_in("calls").await,
        _ => Err(USAGE.into()),
    };
    exit("fan_in", done)
}

async fn fan_in(how: &str) -> Result<(), Failure> {
    with_session(program::session_builder()?, async |session| {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("import.sqlite");
        let store = Store::create(&file)?;
        let orders = orders::all();
        println!(
            "an import of {} orders in {SHARDS} shards:\n{}",
            grouped(orders.len()),
            orders::SOURCE
        );
        // A name of its own for each import: no other run can open it.
        let name = format!("import:{}", std::process::id());
        let latch = latch(session, &name)?;
        if !latch.arm(SHARDS).await? {
            return Err(format!("somebody else imports under the name {name}").into());
        }
        let ended = crew::with_crew(async |crew| {
            let coordinator = Coordinator::start(crew, how, &name, &file)?;
            until_interrupted(coordinator.run()).await
        })
        .await;
        let (left, reset) = (latch.count().await, latch.reset().await); // nobody waits for what failed
        let (story, left) = (ended?, left?);
        reset?;
        println!("\n{story}");
        program::verdict(&verdict::faults(&orders, &store.sums()?, left, &story))?;
        println!("The latch opened when all shards were in, and not before.");
        Ok(())
    })
    .await
}

/// The latch of this import. Whoever is to wait, to count or to arm makes it so.
fn latch(session: &Session, name: &str) -> Result<Latch, ConfigError> {
    // Should all importers die, whoever waits is told after a minute without a count.
    let options = LatchOptions::default().expires_after(Duration::from_secs(60));
    Latch::new(session, name, options)
}

/// The orders of a shard, from 1 to [`SHARDS`].
fn orders_of(shard: u32) -> Vec<Order> {
    let orders = orders::all();
    let size = orders.len().div_ceil(SHARDS as usize);
    orders.chunks(size).nth(shard as usize - 1).unwrap_or_default().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_order_is_in_one_shard() {
        let shards: Vec<_> = (1..=SHARDS).flat_map(orders_of).collect();
        assert_eq!(shards, orders::all());
    }
}
