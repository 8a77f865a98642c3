//! A process that takes permits, to be killed while it holds and waits. Its semaphore has a limit of
//! [`LIMIT`](leasehold_tests::permits::WORKERS_LIMIT).
//!
//! `permit_worker URL NAME LEASE_MS`, then on standard input, each answered by one line:
//!
//! - `take WEIGHT`: `held WEIGHT` or `failed WHY`
//! - `wait WEIGHT`: a wait begins; `begun`
//! - `await`: waits for the end of the oldest wait that has no answer yet; as `take`
//! - `release`: all that is held, in one call; `released COUNT lost COUNT`
//! - `churn`: `churning`, then all verbs, by many tasks on the names `NAME0` to `NAME7`, until it is killed

use std::collections::VecDeque;
use std::time::Duration;

use leasehold_semaphore::{AcquireError, Options, Permit, Semaphore, Session};
use leasehold_tests::permits::WORKERS_LIMIT;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::task::JoinHandle;

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().expect("URL NAME LEASE_MS");
    let (url, name, lease_ms) = (next(), next(), next());
    let lease = Duration::from_millis(lease_ms.parse().expect("a number"));
    let builder = Session::builder(&url).expect("a URL");
    let builder = builder.waiter_deadline(Duration::from_secs(3));
    let session = builder.connect().await.expect("a session");
    let options = Options::default().lease(lease).wait_forever().label("worker");
    let semaphore = |name: &str| {
        Semaphore::new(&session, name, WORKERS_LIMIT, options.clone()).expect("legal options")
    };
    let own = semaphore(&name);
    println!("ready");
    let (mut held, mut waits) = (Vec::new(), VecDeque::new());
    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(order)) = orders.next_line().await {
        let weight = |text: &str| text.parse().expect("a number");
        let answer = match *order.split_whitespace().collect::<Vec<_>>().as_slice() {
            ["take", text] => taken(own.many(weight(text)).acquire().await, &mut held),
            ["wait", text] => {
                waits.push_back(begin(&own, weight(text)));
                "begun".to_owned()
            }
            ["await"] => {
                let wait = waits.pop_front().expect("wait first");
                taken(wait.await.expect("no panic inside"), &mut held)
            }
            ["release"] => {
                let report = own.release_all(std::mem::take(&mut held)).await.expect("an answer");
                format!("released {} lost {}", report.released.len(), report.lost.len())
            }
            ["churn"] => {
                (0..16).for_each(|task| {
                    drop(tokio::spawn(churn(semaphore(&format!("{name}{}", task / 2)), task)));
                });
                "churning".to_owned()
            }
            _ => panic!("not an order: {order}"),
        };
        println!("{answer}");
    }
}

fn begin(semaphore: &Semaphore, weight: u32) -> JoinHandle<Result<Permit, AcquireError>> {
    let many = semaphore.many(weight);
    tokio::spawn(async move { many.acquire().await })
}

fn taken(outcome: Result<Permit, AcquireError>, held: &mut Vec<Permit>) -> String {
    match outcome {
        Ok(permit) => {
            let answer = format!("held {}", permit.weight());
            held.push(permit);
            answer
        }
        Err(error) => format!("failed {error:?}"),
    }
}

async fn churn(semaphore: Semaphore, task: u32) {
    loop {
        let mut permit = semaphore.many(1 + task % WORKERS_LIMIT).acquire().await.expect("a hold");
        if permit.weight() > 1
            && let Ok(part) = semaphore.split(&mut permit, 1).await
        {
            // Lost on a machine that stood still for a lease: no matter here.
            if let Ok(merged) = semaphore.merge(permit, part).await {
                drop(semaphore.adopt(&merged.detach()).await);
            }
        } else {
            drop(permit.release().await);
        }
    }
}
