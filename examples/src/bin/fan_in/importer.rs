//! An importer: a process that imports the shards that are dealt to it, and counts each.

use std::path::Path;
use std::sync::{Arc, Mutex as LocalMutex};
use std::time::Duration;

use leasehold::{Latch, LatchError};
use leasehold_examples::Failure;
use leasehold_examples::program::{self, Instructions, with_session};
use tokio::task::{JoinSet, spawn_blocking};

use crate::store::Store;

/// So many orders are imported at a time …
const BATCH: usize = 100;
/// … after so long a time for reading them.
const READING: Duration = Duration::from_millis(120);

/// What it is dealt: `import SHARD`; `half SHARD` and `silent SHARD` stop when the shard is imported by half, or imported and
/// counted but not reported.
///
/// What it tells, each with SHARD: `batch`, its number and size; `stopped`; `done` and how many are left.
pub(crate) async fn run(how: &str, name: &str, store: &str) -> Result<(), Failure> {
    let store = Arc::new(LocalMutex::new(Store::open(Path::new(store))?));
    with_session(program::session_builder()?, async |session| {
        let latch = crate::latch(session, name)?;
        let (mut instructions, mut shards) = (Instructions::new()?, JoinSet::new());
        loop {
            tokio::select! {
                line = instructions.next() => match line? {
                    Some(line) => {
                        let (latch, store) = (latch.clone(), store.clone());
                        let importer = Importer { latch, store, counts_calls: how == "calls" };
                        shards.spawn(importer.do_as_told(line));
                    }
                    None => return Ok(()),
                },
                Some(done) = shards.join_next() => done??,
            }
        }
    })
    .await
}

struct Importer {
    latch: Latch,
    store: Arc<LocalMutex<Store>>,
    counts_calls: bool,
}

impl Importer {
    async fn do_as_told(self, line: String) -> Result<(), Failure> {
        let (verb, shard) = line.split_once(' ').ok_or("no shard")?;
        let shard: u32 = shard.parse()?;
        let orders = crate::orders_of(shard);
        for (number, batch) in orders.chunks(BATCH).map(<[_]>::to_vec).enumerate() {
            if verb == "half" && number == orders.len() / BATCH / 2 {
                stop(shard).await;
            }
            tokio::time::sleep(READING).await;
            let orders = batch.len();
            self.with_store(move |store| store.import(&batch)).await?;
            println!("batch {shard} {number} {orders}");
        }
        // Only now, when the database has it: whoever waits reads there.
        let left = self.count(shard).await?;
        if verb == "silent" {
            stop(shard).await;
        }
        println!("done {shard} {left}");
        Ok(())
    }

    /// A name counts once, so this can be repeated: here after a lost answer, elsewhere by whoever gets the shard again.
    async fn count(&self, shard: u32) -> Result<u64, Failure> {
        loop {
            let counted = if self.counts_calls {
                self.latch.count_down().await // the wrong way
            } else {
                self.latch.count_down_as(format!("shard {shard}")).await
            };
            match counted {
                Err(LatchError::Unknown { .. }) => {}
                counted => return Ok(counted?),
            }
        }
    }

    /// SQLite blocks, so it runs beside the shards and not in them.
    async fn with_store<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Store) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let store = self.store.clone();
        spawn_blocking(move || work(&mut store.lock().expect("no panic in it"))).await?
    }
}

/// Stands still until this process is killed.
async fn stop(shard: u32) {
    println!("stopped {shard}");
    std::future::pending().await
}
