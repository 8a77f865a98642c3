//! One process with many locks: connections, commands and keys stay few.

use std::sync::Arc;
use std::time::Duration;

use leasehold_mutex::{Guard, Mutex, Options, Session};
use leasehold_tests::rig::connections;
use leasehold_tests::{Server, eventually};
use tokio::task::JoinSet;

const SECOND: Duration = Duration::from_secs(1);

/// Acquires so many names at once, a few hundred under way at a time.
async fn hold_names(session: &Session, count: u32, options: &Options) -> Vec<Guard> {
    let room = Arc::new(tokio::sync::Semaphore::new(256));
    let mut tasks = JoinSet::new();
    for number in 0..count {
        let lock = Mutex::new(session, format!("name-{number}"), options.clone()).expect("a mutex");
        let room = room.clone();
        tasks.spawn(async move {
            let _turn = room.acquire().await.expect("it stays open");
            lock.acquire().await.expect("a free lock")
        });
    }
    tasks.join_all().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_names_and_a_thousand_waiters_take_three_connections() {
    let server = Server::start();
    let builder = Session::builder(&server.url()).unwrap();
    let session = builder.fence_memory(SECOND).connect().await.unwrap();
    let options = Options::default().lease(6 * SECOND);
    let guards = hold_names(&session, 10_000, &options).await;
    let waited = Mutex::new(&session, "waited", options.clone().max_wait(60 * SECOND)).unwrap();
    let first = waited.acquire().await.unwrap();
    let mut waiters = JoinSet::new();
    for _ in 0..1_000 {
        let lock = waited.clone();
        waiters
            .spawn(async move { lock.acquire().await.expect("granted in turn").release().await });
    }
    eventually(10 * SECOND, "all wait", async || waited.queue().await.unwrap().length == 1_000)
        .await;
    assert_eq!(connections(&server).await, 3);

    // Longer than the lease: 10 001 holds are renewed by one thread, in batches.
    let before = session.statistics();
    tokio::time::sleep(9 * SECOND).await;
    assert!(guards.iter().all(Guard::is_held), "a hold was lost");
    let renewals = session.statistics().renewals - before.renewals;
    println!("renewal calls for 10 001 holds of 6 s in 9 s: {renewals}");
    assert!(renewals > 0 && renewals < 4_000, "{renewals} calls for about 45 000 renewals");

    first.release().await.unwrap();
    while let Some(done) = waiters.join_next().await {
        done.unwrap().unwrap();
    }
    drop(guards);
    eventually(30 * SECOND, "nothing is tracked", async || session.statistics().tracked == 0).await;
    eventually(5 * SECOND, "no key is left", async || server.dbsize().await == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_idle_waiters_send_two_commands_a_second() {
    let server = Server::start();
    let session = Session::connect(&server.url()).await.unwrap();
    let lock = Mutex::new(&session, "a", Options::default().max_wait(60 * SECOND)).unwrap();
    let guard = lock.acquire().await.unwrap();
    let mut waiters = JoinSet::new();
    for _ in 0..100 {
        let lock = lock.clone();
        waiters
            .spawn(async move { lock.acquire().await.expect("granted in turn").release().await });
    }
    eventually(10 * SECOND, "all wait", async || lock.queue().await.unwrap().length == 100).await;
    server.reset_stats().await;
    tokio::time::sleep(6 * SECOND).await;
    let sent =
        server.command_calls().await.of(&["eval", "evalsha", "subscribe", "publish", "ping"]);
    println!("commands of 100 idle waiters in 6 s, renewals included: {sent}");
    assert!(sent >= 5, "the check runs: {sent}");
    assert!(sent <= 12, "{sent} commands in 6 s");
    drop(guard);
    while let Some(done) = waiters.join_next().await {
        done.unwrap().unwrap();
    }
}
