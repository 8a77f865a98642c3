//! A process that holds, waits for and counts under one mutex, as it is told line by line.
//!
//! `mutex_worker URL NAME LEASE_MS`, then on standard input, each answered by one line:
//!
//! - `acquire`: `held TOKEN`, or `failed WHY`
//! - `is_held`: `true` or `false`
//! - `release`: `released`, `lost REASON` or `failed WHY`
//! - `count FILE ROUNDS locked|unlocked`: `counted`
//! - `shutdown`: `down`
//!
//! and `exit`, which ends the process as `std::process::exit` does: nothing is dropped.

use std::path::Path;
use std::time::Duration;

use leasehold_mutex::{Guard, Mutex, Options, ReleaseError, Session};
use tokio::io::{AsyncBufReadExt, BufReader};

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().expect("URL NAME LEASE_MS");
    let (url, name, lease_ms) = (next(), next(), next());
    let lease = Duration::from_millis(lease_ms.parse().expect("a number"));
    let session = Session::connect(&url).await.expect("a session");
    let options = Options::default().lease(lease).max_wait(Duration::from_secs(60)).label("worker");
    let lock = Mutex::new(&session, name, options).expect("a mutex");
    println!("ready");
    let mut guard = None;
    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(order)) = orders.next_line().await {
        let words: Vec<_> = order.split_whitespace().collect();
        let answer = match *words.as_slice() {
            ["acquire"] => acquire(&lock, &mut guard).await,
            ["is_held"] => guard.as_ref().is_some_and(Guard::is_held).to_string(),
            ["release"] => release(guard.take()).await,
            ["count", file, rounds, how] => {
                let rounds = rounds.parse().expect("a number");
                count(&lock, Path::new(file), rounds, how == "locked").await;
                "counted".to_owned()
            }
            ["shutdown"] => {
                session.shutdown(Duration::from_secs(5)).await.expect("all is confirmed");
                "down".to_owned()
            }
            ["exit"] => std::process::exit(0),
            _ => panic!("not an order: {order}"),
        };
        println!("{answer}");
    }
}

async fn acquire(lock: &Mutex, guard: &mut Option<Guard>) -> String {
    match lock.acquire().await {
        Ok(taken) => format!("held {}", guard.insert(taken).fencing_token()),
        Err(error) => format!("failed {error:?}"),
    }
}

async fn release(guard: Option<Guard>) -> String {
    match guard.expect("acquire first").release().await {
        Ok(()) => "released".to_owned(),
        Err(ReleaseError::Lost(lost)) => format!("lost {:?}", lost.reason),
        Err(error) => format!("failed {error:?}"),
    }
}

/// Reads, pauses, writes: without exclusion increments get lost.
async fn count(lock: &Mutex, file: &Path, rounds: u32, locked: bool) {
    for _ in 0..rounds {
        let guard = if locked { Some(lock.acquire().await.expect("a hold")) } else { None };
        let text = std::fs::read_to_string(file).expect("the counter");
        let count: u32 = text.trim().parse().expect("a number");
        tokio::time::sleep(Duration::from_millis(1)).await;
        // Another process never sees half a number: the new file takes the place of the old one.
        let fresh = file.with_extension(std::process::id().to_string());
        std::fs::write(&fresh, (count + 1).to_string()).expect("a folder of the test");
        std::fs::rename(&fresh, file).expect("a folder of the test");
        if let Some(guard) = guard {
            guard.release().await.expect("still held");
        }
    }
}
