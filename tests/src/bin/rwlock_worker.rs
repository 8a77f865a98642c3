//! A process that reads and writes under one lock, to be killed while it does. Its session is a
//! [`leasehold_tests::fair::brisk`] one.
//!
//! `rwlock_worker URL NAME LEASE_MS`, then on standard input, each answered by one line:
//!
//! - `read`, `write`: takes one side; `held`
//! - `again COUNT`: reads so many times more as the owner of what it reads; `held`
//! - `wait`: begins to wait as a writer; `begun`
//! - `release`: releases all, the last first; `released`
//! - `churn`: `churning`, then takes and releases both sides of eight names until it is killed

use std::time::Duration;

use leasehold_rwlock::{Any, Guard, Options, RwLock, Session};
use leasehold_tests::fair::brisk;
use tokio::io::{AsyncBufReadExt, BufReader};

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().expect("URL NAME LEASE_MS");
    let (url, name, lease_ms) = (next(), next(), next());
    let lease = Duration::from_millis(lease_ms.parse().expect("a number"));
    let session = brisk(&url).connect().await.expect("a session");
    let options = Options::default().lease(lease).wait_forever().label("worker");
    let lock = RwLock::new(&session, name, options.clone()).expect("legal options");
    println!("ready");
    let mut guards: Vec<Guard<Any>> = Vec::new();
    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(order)) = orders.next_line().await {
        let answer = match *order.split_whitespace().collect::<Vec<_>>().as_slice() {
            ["read"] => {
                guards.push(lock.read().acquire().await.expect("a hold").into_any());
                "held"
            }
            ["write"] => {
                guards.push(lock.write().acquire().await.expect("a hold").into_any());
                "held"
            }
            ["again", count] => {
                let owner = guards.last().expect("read first").owner().clone();
                for _ in 0..count.parse().expect("a number") {
                    let again = lock.read().by(&owner).acquire().await.expect("a hold");
                    guards.push(again.into_any());
                }
                "held"
            }
            ["wait"] => {
                let view = lock.write();
                tokio::spawn(async move { drop(view.acquire().await) });
                "begun"
            }
            ["release"] => {
                while let Some(guard) = guards.pop() {
                    guard.release().await.expect("still held");
                }
                "released"
            }
            ["churn"] => {
                churn(&session, &options);
                "churning"
            }
            _ => panic!("not an order: {order}"),
        };
        println!("{answer}");
    }
}

/// Four tasks a name, so that many of the acquires queue.
fn churn(session: &Session, options: &Options) {
    for task in 0..32 {
        let name = format!("churn{}", task / 4);
        let lock = RwLock::new(session, name, options.clone()).expect("legal options");
        tokio::spawn(async move {
            loop {
                // Lost on a machine that stood still for a lease: no matter here.
                if task % 2 == 0 {
                    drop(lock.read().acquire().await.expect("a hold").release().await);
                } else {
                    let writing = lock.write().acquire().await.expect("a hold");
                    drop(lock.downgrade(writing).await);
                }
            }
        });
    }
}
