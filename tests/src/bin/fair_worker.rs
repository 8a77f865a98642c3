//! A process that waits for fair locks, to be frozen and killed while it does. Its session is a
//! [`leasehold_tests::fair::brisk`] one.
//!
//! `fair_worker URL NAME LEASE_MS`, then on standard input, each answered by one line:
//!
//! - `wait COUNT`: so many waits for the lock begin; `begun`
//! - `position`: `BEFORE RETURNS` of the newest wait; BEFORE is `-` while it does not wait
//! - `await`: waits for the end of the oldest wait that has no answer yet; `held TOKEN` or `failed WHY`
//! - `release`: what was awaited last; `released`, `lost REASON` or `failed WHY`
//! - `crowd COUNT`: holds that many other names, each with a waiter; `crowded`

use std::collections::VecDeque;
use std::time::Duration;

use leasehold_fair_lock::{
    AcquireError, FairLock, Guard, Options, Position, ReleaseError, Session,
};
use leasehold_tests::fair::{brisk, queued};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::task::{JoinHandle, JoinSet};

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().expect("URL NAME LEASE_MS");
    let (url, name, lease_ms) = (next(), next(), next());
    let lease = Duration::from_millis(lease_ms.parse().expect("a number"));
    let session = brisk(&url).connect().await.expect("a session");
    let options = Options::default().lease(lease).wait_forever().label("worker");
    let lock = FairLock::new(&session, name, options.clone()).expect("legal options");
    println!("ready");
    let mut waits = VecDeque::new();
    let mut position = None;
    let mut guard = None;
    let mut crowds = Vec::new();
    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(order)) = orders.next_line().await {
        let words: Vec<_> = order.split_whitespace().collect();
        let answer = match *words.as_slice() {
            ["wait", count] => {
                for _ in 0..count.parse().expect("a number") {
                    let (wait, its_position) = begin(&lock);
                    waits.push_back(wait);
                    position = Some(its_position);
                }
                "begun".to_owned()
            }
            ["position"] => shown(position.as_ref().expect("wait first")),
            ["await"] => ended(waits.pop_front().expect("wait first"), &mut guard).await,
            ["release"] => release(guard.take()).await,
            ["crowd", count] => {
                crowds.push(crowd(&session, &options, count.parse().expect("a number")).await);
                "crowded".to_owned()
            }
            _ => panic!("not an order: {order}"),
        };
        println!("{answer}");
    }
}

type Wait = JoinHandle<Result<Guard, AcquireError>>;

fn begin(lock: &FairLock) -> (Wait, Position) {
    let (view, position) = lock.watched();
    (tokio::spawn(async move { view.acquire().await }), position)
}

fn shown(position: &Position) -> String {
    let before = position.now().map_or("-".to_owned(), |before| before.to_string());
    format!("{before} {}", position.returns())
}

async fn ended(wait: Wait, guard: &mut Option<Guard>) -> String {
    match wait.await.expect("no panic inside") {
        Ok(taken) => format!("held {}", guard.insert(taken).fencing_token()),
        Err(error) => format!("failed {error:?}"),
    }
}

async fn release(guard: Option<Guard>) -> String {
    match guard.expect("await first").release().await {
        Ok(()) => "released".to_owned(),
        Err(ReleaseError::Lost(lost)) => format!("lost {:?}", lost.reason),
        Err(error) => format!("failed {error:?}"),
    }
}

async fn crowd(session: &Session, options: &Options, count: u32) -> (Vec<Guard>, Vec<Wait>) {
    let lock = |number| {
        FairLock::new(session, format!("crowd{number}"), options.clone()).expect("legal options")
    };
    let mut acquiring = JoinSet::new();
    for number in 0..count {
        let lock = lock(number);
        acquiring.spawn(async move { lock.acquire().await.expect("a hold") });
    }
    let holds = acquiring.join_all().await;
    let waits = (0..count).map(|number| begin(&lock(number)).0).collect();
    for number in 0..count {
        queued(&lock(number), 1).await;
    }
    (holds, waits)
}
