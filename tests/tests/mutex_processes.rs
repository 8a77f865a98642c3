//! The mutex between processes: exclusion, and what becomes of it when one is frozen or ends.

use std::path::Path;
use std::time::Duration;

use leasehold_mutex::Options;
use leasehold_tests::scene::{SOON, entries, keys, keys_left, mutex, queued, session};
use leasehold_tests::{Server, Worker, eventually};
use redis::AsyncCommands;

const WORKER: &str = env!("CARGO_BIN_EXE_mutex_worker");
const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

const WORKERS: u32 = 4;
const ROUNDS: u32 = 50;

/// What a counter stands at after `WORKERS` processes incremented it `ROUNDS` times each.
async fn counted(how: &str) -> u32 {
    let server = Server::start();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("counter");
    std::fs::write(&file, "0").expect("a folder of our own");
    let mut workers = Vec::new();
    for _ in 0..WORKERS {
        workers.push(Worker::start(WORKER, &server.url(), "counter", 10 * SECOND).await);
    }
    for worker in &mut workers {
        worker.say(&format!("count {} {ROUNDS} {how}", path(&file)));
    }
    for worker in &mut workers {
        assert_eq!(worker.hear().await, "counted");
    }
    std::fs::read_to_string(&file).expect("the counter").parse().expect("a number")
}

fn path(file: &Path) -> &str {
    file.to_str().expect("a temporary folder without blanks")
}

/// I1, seen from outside: no increment of an unprotected counter is lost.
#[tokio::test]
async fn processes_increment_an_unprotected_counter_exactly() {
    assert_eq!(counted("locked").await, WORKERS * ROUNDS);
}

/// The negative control of the test above: it would notice.
#[tokio::test]
async fn without_the_lock_processes_lose_increments() {
    let count = counted("unlocked").await;
    assert!(count < WORKERS * ROUNDS, "{count}: the counter proves nothing");
}

/// I2: the guard's own clock goes on while its process does not.
#[tokio::test]
async fn a_process_frozen_beyond_its_lease_knows_at_once_that_it_lost() {
    let server = Server::start();
    let other = session(&server.url()).await;
    let lock = mutex(&other, "a", Options::default().max_wait(SOON));
    let mut frozen = Worker::start(WORKER, &server.url(), "a", SECOND).await;
    let stale: u64 = frozen.ask("acquire").await.strip_prefix("held ").unwrap().parse().unwrap();
    assert_eq!(frozen.ask("is_held").await, "true");
    frozen.freeze();
    let next = lock.acquire().await.unwrap();
    // The question lies there when the process goes on: nothing tells it of its loss before.
    frozen.say("is_held");
    frozen.thaw();
    assert_eq!(frozen.hear().await, "false");
    let verdict = frozen.ask("release").await;
    // By its own clock, or by the watchdog's renewal if that was faster.
    assert!(
        ["lost Expired", "lost NotOwner", "lost Unreachable"].contains(&&*verdict),
        "{verdict}"
    );
    assert!(next.is_held() && lock.is_locked().await.unwrap(), "I8: the next hold is untouched");
    assert!(next.fencing_token().get() > stale, "the stale token is the smaller one (I5)");
    next.release().await.unwrap();
}

/// A short freeze is no loss: the lease is for that.
#[tokio::test]
async fn a_process_frozen_within_its_lease_still_holds() {
    let server = Server::start();
    let mut worker = Worker::start(WORKER, &server.url(), "a", 20 * SECOND).await;
    worker.ask("acquire").await;
    worker.freeze();
    tokio::time::sleep(300 * MS).await;
    worker.thaw();
    assert_eq!(worker.ask("is_held").await, "true");
    assert_eq!(worker.ask("release").await, "released");
}

/// I20.
#[tokio::test]
async fn a_process_that_shuts_down_leaves_nothing() {
    let server = Server::start();
    let mut holder = Worker::start(WORKER, &server.url(), "a", 60 * SECOND).await;
    let mut waiter = Worker::start(WORKER, &server.url(), "a", 60 * SECOND).await;
    holder.ask("acquire").await;
    waiter.say("acquire");
    queued(&server, "a", 1).await;
    assert_eq!(holder.ask("shutdown").await, "down");
    assert!(waiter.hear().await.starts_with("held "), "the shutdown hands the lock on");
    assert_eq!(waiter.ask("shutdown").await, "down");
    assert_eq!(keys_left(&server).await, [""; 0]);
    holder.say("exit");
    assert!(holder.wait().success());
}

/// The cost of not shutting down: the lease, and not more (I9, I17).
#[tokio::test]
async fn a_process_that_just_exits_leaves_a_hold_that_ends_with_its_lease() {
    let server = Server::start();
    let mut holder = Worker::start(WORKER, &server.url(), "a", SECOND).await;
    holder.ask("acquire").await;
    holder.say("exit");
    assert!(holder.wait().success());
    assert_eq!(keys_left(&server).await, [String::from_utf8_lossy(&keys("a").holds)]);
    let mut connection = server.connection().await;
    let ttl: i64 = connection.pttl(&*keys("a").holds).await.unwrap();
    assert!((1..=1000).contains(&ttl), "{ttl} ms of a lease of 1 s");
    eventually(SOON, "the hold ends", async || entries(&mut connection, "a").await.is_empty())
        .await;
    assert_eq!(keys_left(&server).await, [""; 0]);
}
