//! A process with many locks at once, to be killed in the middle of what it does.
//!
//! `crowd_worker URL PREFIX LEASE_MS`, then on standard input:
//!
//! - `churn`: answers `churning`, then acquires, waits, extends and releases until it is killed
//! - `crowd COUNT`: holds that many names, each with a waiter, and answers `crowded`

use std::time::Duration;

use leasehold_mutex::{Mutex, Options, Session};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::task::JoinSet;

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().expect("URL PREFIX LEASE_MS");
    let (url, prefix, lease_ms) = (next(), next(), next());
    let lease = Duration::from_millis(lease_ms.parse().expect("a number"));
    let builder = Session::builder(&url).expect("a URL").fence_memory(Duration::from_secs(1));
    let builder = builder.waiter_deadline(Duration::from_secs(3));
    let session = builder.connect().await.expect("a session");
    let options = Options::default().lease(lease).wait_forever();
    let lock = |number: u32| {
        Mutex::new(&session, format!("{prefix}{number}"), options.clone()).expect("legal options")
    };
    println!("ready");
    let mut guards = Vec::new();
    let mut tasks = JoinSet::new();
    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(order)) = orders.next_line().await {
        match order.split_whitespace().collect::<Vec<_>>().as_slice() {
            ["churn"] => {
                // Two tasks a name, so that half of the acquires queue.
                (0..16).for_each(|task| drop(tasks.spawn(churn(lock(task / 2)))));
                println!("churning");
            }
            ["crowd", count] => {
                let count = count.parse().expect("a number");
                guards.extend(hold((0..count).map(&lock)).await);
                (0..count).for_each(|number| {
                    let lock = lock(number);
                    drop(tasks.spawn(async move { drop(lock.acquire().await) }));
                });
                for number in 0..count {
                    while queued(&lock(number)).await < 1 {}
                }
                println!("crowded");
            }
            _ => panic!("not an order: {order}"),
        }
    }
}

async fn hold(locks: impl Iterator<Item = Mutex>) -> Vec<leasehold_mutex::Guard> {
    let mut acquiring = JoinSet::new();
    for lock in locks {
        acquiring.spawn(async move { lock.acquire().await.expect("a hold") });
    }
    acquiring.join_all().await
}

async fn queued(lock: &Mutex) -> u64 {
    lock.queue().await.expect("an answer").length
}

async fn churn(lock: Mutex) {
    loop {
        let guard = lock.acquire().await.expect("a hold");
        // Lost on a machine that stood still for a lease: no matter here.
        drop(guard.extend(Duration::from_secs(1)).await);
        drop(guard.release().await);
    }
}
