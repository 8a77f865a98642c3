//! For everything that can be held, by many tasks at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use leasehold_runtime::AcquireError;
use tokio::task::JoinSet;

use super::rig::{release, take};
use super::{Hold, Holdable, Lease, MS, Rig, SECOND, Site};
use crate::scene::SOON;
use crate::{eventually, rounds};

/// One subscription for 5 names, 32 tasks and 5 000 jobs: no error but that a wait may end, and no
/// channel left subscribed at the end.
pub async fn c22_one_inbox_serves_many_tasks_and_names<H: Holdable, S: Site>(rig: &Rig<H, S>) {
    let client = rig.client().await;
    let jobs = Arc::new(AtomicU32::new(0));
    let (full, mut tasks) = (rounds(5_000), JoinSet::new());
    for _ in 0..32 {
        let objects = ["a", "b", "c", "d", "e"]
            .map(|name| H::open(&client, name, Lease::Renewed(SECOND * 5)));
        let jobs = Arc::clone(&jobs);
        tasks.spawn(async move {
            let mut taken = 0;
            loop {
                let job = jobs.fetch_add(1, Ordering::Relaxed);
                if job >= full {
                    return taken;
                }
                let object = &objects[job as usize % objects.len()];
                match object.acquire_within(SECOND).await {
                    Ok(hold) => {
                        tokio::time::sleep(MS).await;
                        hold.release().await.expect("it was held until its release");
                        taken += 1;
                    }
                    Err(AcquireError::TimedOut { .. }) => {}
                    Err(error) => panic!("{error:?}"),
                }
            }
        });
    }
    let mut taken = 0;
    while let Some(ended) = tasks.join_next().await {
        taken += ended.expect("no panic inside");
        assert_eq!(rig.site.channels().await, 1, "one subscription, however many wait");
    }
    println!("{taken} of {full} jobs taken, the others gave up");
    assert!(taken > full / 2, "{taken} of {full}: hardly anybody is served");
    client.session().shutdown(SOON).await.expect("all is confirmed");
    // The server hears of the closed connection a moment after the session has closed it.
    let silent = async || rig.site.channels().await == 0;
    eventually(SOON, "no channel is left subscribed", silent).await;
}

/// 2 and 20 tasks that take two objects one inside the other and send commands of their own in between,
/// all over one connection: they finish, and every command was run once.
pub async fn c26_a_connection_shared_with_other_commands_finishes<H: Holdable, S: Site>(
    rig: &Rig<H, S>,
) {
    let shared = rig.site.connection().await;
    let given = shared.clone();
    let client = rig.client_with(|builder| builder.commands(given)).await;
    for (number, loops) in [(2, rounds(5_000)), (20, rounds(500))] {
        let mut tasks = JoinSet::new();
        for _ in 0..number {
            let [outer, inner] = ["outer", "inner"].map(|name| H::open(&client, name, Lease::LONG));
            let mut shared = shared.clone();
            tasks.spawn(async move {
                for _ in 0..loops {
                    let hold = take(&outer).await;
                    redis::cmd("INCR").arg("count").exec_async(&mut shared).await.expect("INCR");
                    let nested = take(&inner).await;
                    redis::cmd("GET").arg("count").exec_async(&mut shared).await.expect("GET");
                    release(nested).await;
                    release(hold).await;
                }
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended.expect("no panic inside");
        }
        let (mut shared, full) = (shared.clone(), number * loops);
        let count: u32 =
            redis::cmd("GETDEL").arg("count").query_async(&mut shared).await.expect("GETDEL");
        assert_eq!(count, full);
    }
}
