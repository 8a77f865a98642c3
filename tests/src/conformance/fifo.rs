//! For what promises the order of arrival.

use std::sync::{Arc, Mutex as Lock};
use std::time::Instant;

use tokio::task::JoinSet;

use super::rig::{NAME, queued, release, take};
use super::{Hold, Holdable, Lease, MACHINE, MS, Rig, SECOND, Site, scaled};
use crate::scene::SOON;

/// 8 waiters that arrive one after the other, a lease of 1 s, nobody releases: they hold in the order of
/// their arrival. 11 s are given to 8 leases there; here as much in proportion, and the machine's share.
pub async fn c34_silent_holders_are_followed_in_order_of_arrival<H: Holdable, S: Site>(
    rig: &Rig<H, S>,
) {
    // A grant that is not noticed for two thirds of its lease is as good as lost; a busy machine may take 200 ms.
    let (lease, waiters) = (scaled(SECOND).max(SECOND / 2), 8);
    let observer = rig.open(Lease::LONG).await;
    let first = take(&observer).await;
    let (order, mut tasks) = (Arc::new(Lock::new(Vec::new())), JoinSet::new());
    for number in 0..waiters {
        let (object, order) = (rig.open(Lease::Fixed(lease)).await, Arc::clone(&order));
        tasks.spawn(async move {
            let hold = object.acquire_within(6 * SOON).await.expect("it is granted");
            order.lock().expect("no panic inside").push((number, Instant::now()));
            // Returned and kept: nobody releases.
            hold
        });
        queued(&observer, number + 1).await;
    }
    release(first).await;
    let began = Instant::now();
    let mut silent = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        silent.push(ended.expect("no panic inside"));
    }
    let took = began.elapsed();
    let order = order.lock().expect("no panic inside").clone();
    println!("{waiters} leases of {lease:?} one after the other: the last began after {took:?}");
    let numbers: Vec<_> = order.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (0..waiters).collect::<Vec<_>>(), "not in order of arrival");
    let least = lease * 7 - 8 * 20 * MS;
    assert!(took >= least, "{took:?}: somebody's lease was cut short");
    assert!(took <= lease * 11 + 2 * MACHINE, "{took:?}: somebody was followed late");
}

/// Twice as many tasks as cores start 10 ms apart: each winner is the head of the queue as it stood.
pub async fn c35_each_winner_is_the_head_of_the_queue<H: Holdable, S: Site>(rig: &Rig<H, S>) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let waiters = (2 * cores).clamp(8, 64);
    let (client, observer) = (rig.client().await, rig.open(Lease::LONG).await);
    let first = take(&observer).await;
    let (won, mut tasks) = (Arc::new(Lock::new(Vec::new())), JoinSet::new());
    for _ in 0..waiters {
        let (object, won) = (H::open(&client, NAME, Lease::LONG), Arc::clone(&won));
        tasks.spawn(async move {
            let hold = object.acquire_within(6 * SOON).await.expect("it is granted");
            won.lock().expect("no panic inside").push(hold.trace());
            tokio::time::sleep(5 * MS).await;
            hold.release().await.expect("it was held until its release");
        });
        tokio::time::sleep(10 * MS).await;
    }
    queued(&observer, waiters).await;
    let arrived = observer.waiting().await;
    release(first).await;
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no panic inside");
    }
    assert_eq!(*won.lock().expect("no panic inside"), arrived);
}
