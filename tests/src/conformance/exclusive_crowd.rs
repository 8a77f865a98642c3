//! For what shuts everybody else out, by many tasks at once: an unprotected counter stays exact.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::rig::NAME;
use super::{Hold, Holdable, Lease, MS, Rig, Site};
use crate::history::{self, overlaps, stale_tokens};
use crate::rounds;
use crate::scene::SOON;

/// Time for a crowd, far above what it needs.
const PATIENCE: Duration = SOON.saturating_mul(12);

/// 15 tasks, one client: the counter ends at 15.
pub async fn c19_fifteen_tasks_of_one_client_count_exactly<H: Holdable, S: Site>(rig: &Rig<H, S>) {
    let client = rig.client().await;
    let objects = (0..15).map(|_| H::open(&client, NAME, Lease::LONG)).collect();
    count(objects, 1, 2 * MS).await;
}

/// 16 clients, 100 loops each, with holds of 10 ms: the counter ends at 1 600.
pub async fn c20_sixteen_clients_count_exactly<H: Holdable, S: Site>(rig: &Rig<H, S>) {
    let mut objects = Vec::new();
    for _ in 0..16 {
        objects.push(rig.open(Lease::LONG).await);
    }
    count(objects, rounds(100), 10 * MS).await;
}

/// One task an object; each reads the counter, holds, and writes what it read and one more. I1, and
/// where holds have tokens I5.
async fn count<H: Holdable>(objects: Vec<H>, loops: u32, hold_for: Duration) {
    let expected = u32::try_from(objects.len()).expect("a small crowd") * loops;
    let (counter, epoch, mut tasks) = (Arc::new(AtomicU32::new(0)), Instant::now(), JoinSet::new());
    let now_ns = move || u64::try_from(epoch.elapsed().as_nanos()).expect("a short time");
    for (client, object) in objects.into_iter().enumerate() {
        let counter = Arc::clone(&counter);
        tasks.spawn(async move {
            let mut holds = Vec::new();
            for _ in 0..loops {
                let hold = object.acquire_within(PATIENCE).await.expect("it is granted");
                let from_ns = now_ns();
                let seen = counter.load(Ordering::Relaxed);
                tokio::time::sleep(hold_for).await;
                counter.store(seen + 1, Ordering::Relaxed);
                let (token, until_ns) = (H::token(&hold), now_ns());
                hold.release().await.expect("it was held until its release");
                holds.push((token, history::Hold { client, token: 0, from_ns, until_ns }));
            }
            holds
        });
    }
    let mut all = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        all.extend(ended.expect("no panic inside"));
    }
    assert_eq!(counter.load(Ordering::Relaxed), expected, "increments are lost");
    let holds: Vec<_> = all.iter().map(|(_, hold)| hold.clone()).collect();
    assert_eq!(overlaps(&holds), [], "I1: two hold at once");
    let with_tokens = all
        .into_iter()
        .filter_map(|(token, hold)| token.map(|token| history::Hold { token, ..hold }));
    assert_eq!(stale_tokens(&with_tokens.collect::<Vec<_>>()), [], "I5");
}
