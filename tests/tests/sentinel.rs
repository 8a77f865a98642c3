//! A session at a master that sentinels watch.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leasehold_mutex::{ConfigError, Options, ReleaseError, Session};
use leasehold_tests::scene::{SOON, keys, mutex};
use leasehold_tests::topology::Sentinels;
use leasehold_tests::{Server, eventually};

const SECOND: Duration = Duration::from_secs(1);

async fn session(all: &Sentinels) -> Session {
    let builder = Session::sentinel_builder(all.urls(), all.service()).expect("URLs");
    builder.connect().await.expect("a session")
}

#[tokio::test]
async fn the_master_is_found_and_locks_are_handed_over_there() {
    let all = Sentinels::start().await;
    let (one, two) = (session(&all).await, session(&all).await);
    let first = mutex(&one, "a", Options::default()).acquire().await.unwrap();
    assert_eq!(all.servers()[0].keys().await.len(), 2, "the hold and its token");
    let second = mutex(&two, "a", Options::default());
    let waiting = tokio::spawn(async move { second.acquire().await });
    let queue = keys("a").queue;
    eventually(SOON, "it queues", async || {
        all.servers()[0].keys().await.iter().any(|key| **key == *queue)
    })
    .await;
    first.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(two.statistics().pushed_grants, 1);
    one.shutdown(SOON).await.unwrap();
    two.shutdown(SOON).await.unwrap();
}

/// A sentinel that is dead, or no sentinel at all, costs nothing; one is enough.
#[tokio::test]
async fn one_sentinel_that_answers_is_enough() {
    let all = Sentinels::start().await;
    let stranger = Server::start();
    all.sentinels()[0].kill();
    let mut urls = vec![stranger.url()];
    urls.extend(all.urls());
    let builder = Session::sentinel_builder(urls, all.service()).unwrap();
    let session = builder.connect().await.unwrap();
    mutex(&session, "a", Options::default()).acquire().await.unwrap().release().await.unwrap();
    assert_eq!(stranger.dbsize().await, 0);
    session.shutdown(SOON).await.unwrap();
}

/// The name of the master as the host of an address: with its user, password and database.
#[tokio::test]
async fn the_masters_own_user_and_database_are_told_by_an_address() {
    let all = Sentinels::start().await;
    let master = format!("redis://{}/3", all.service());
    let session = Session::sentinel_builder(all.urls(), &master).unwrap().connect().await.unwrap();
    let guard = mutex(&session, "a", Options::default()).acquire().await.unwrap();
    let mut connection = all.servers()[0].connection().await;
    let () = redis::cmd("SELECT").arg(3).query_async(&mut connection).await.unwrap();
    let found: u32 = redis::cmd("DBSIZE").query_async(&mut connection).await.unwrap();
    assert_eq!((found, all.servers()[0].dbsize().await), (2, 0));
    guard.release().await.unwrap();
    session.shutdown(SOON).await.unwrap();
}

#[tokio::test]
async fn what_leads_nowhere_is_told() {
    let none: [&str; 0] = [];
    assert!(matches!(Session::sentinel_builder(none, "orders"), Err(ConfigError::Url)));
    assert!(matches!(Session::sentinel_builder(["redis://a"], ""), Err(ConfigError::Url)));
    assert!(matches!(Session::sentinel_builder(["http://a"], "orders"), Err(ConfigError::Url)));
    let all = Sentinels::start().await;
    let unknown = Session::sentinel_builder(all.urls(), "nobody").unwrap().connect().await;
    let Err(ConfigError::Connect(error)) = unknown else { panic!("{unknown:?}") };
    assert!(error.to_string().contains("no sentinel knows"), "{error}");
    let given = all.servers()[0].connection().await;
    let given = Session::sentinel_builder(all.urls(), all.service()).unwrap().commands(given);
    let refused = given.connect().await;
    assert!(
        matches!(refused, Err(ConfigError::SessionOption { option: "commands", .. })),
        "{refused:?}"
    );
}

async fn fail_over(all: &Sentinels) {
    let mut sentinel = all.sentinels()[0].connection().await;
    let mut failover = redis::cmd("SENTINEL");
    failover.arg("FAILOVER").arg(all.service());
    failover.exec_async(&mut sentinel).await.expect("SENTINEL FAILOVER");
    eventually(SOON, "another is the master", async || all.master().await != 0).await;
}

/// CONFORMANCE 115: no acquire fails (they are sent again), no release without a reason, and all goes on at the new
/// master. What is allowed: a hold that only the old master heard of is lost, and one whose release only the old master
/// heard of stands until its lease ends.
#[tokio::test]
async fn c115_five_tasks_over_a_hundred_names_go_on_through_a_failover() {
    let all = Sentinels::start().await;
    let session = session(&all).await;
    let stop = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..5)
        .map(|task| {
            let (session, stop) = (session.clone(), Arc::clone(&stop));
            tokio::spawn(async move {
                let (mut rounds, mut lost) = (0, 0);
                while !stop.load(Ordering::Relaxed) {
                    let name = format!("name-{}", rounds % 20 * 5 + task);
                    let options = Options::default().lease(2 * SECOND).max_wait(3 * SOON);
                    let lock = mutex(&session, &name, options);
                    let guard = lock.acquire().await.expect("it waits for the new master");
                    match guard.release().await {
                        Ok(()) | Err(ReleaseError::Unknown { .. }) => {}
                        Err(ReleaseError::Lost(_)) => lost += 1,
                        Err(other) => panic!("{other:?}"),
                    }
                    rounds += 1;
                }
                (rounds, lost)
            })
        })
        .collect();
    fail_over(&all).await;
    let began = Instant::now();
    let new = &all.servers()[all.master().await];
    let arrived = async || {
        let clients: String = redis::cmd("CLIENT")
            .arg(&["LIST", "TYPE", "normal"])
            .query_async(&mut new.connection().await)
            .await
            .expect("CLIENT LIST");
        clients.lines().any(|line| line.contains("cmd=evalsha"))
    };
    eventually(SOON, "the session is at the new master", arrived).await;
    println!("the session is there {:?} after a sentinel named it", began.elapsed());
    all.settled().await;
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        let (rounds, lost) = task.await.expect("no panic inside");
        println!("{rounds} rounds, {lost} lost");
        assert!(rounds > 20 && lost <= 1);
    }
    assert!(new.command_calls().await.of(&["evalsha", "eval"]) > 100);
    session.shutdown(SOON).await.unwrap();
}

/// CONFORMANCE 68 and B105: the master is demoted on purpose, and its links stay open.
#[tokio::test]
async fn a_planned_failover_is_followed_by_holds_and_waiters() {
    let all = Sentinels::start().await;
    let (one, two) = (session(&all).await, session(&all).await);
    let lock = mutex(&one, "a", Options::default().lease(10 * SECOND));
    let guard = lock.acquire().await.unwrap();
    let second = mutex(&two, "a", Options::default().max_wait(3 * SOON));
    let waiting = tokio::spawn(async move { second.acquire().await });
    let queue = keys("a").queue;
    eventually(SOON, "it queues", async || {
        all.servers()[0].keys().await.iter().any(|key| **key == *queue)
    })
    .await;
    fail_over(&all).await;
    all.settled().await;
    assert!(guard.is_held());
    guard.extend(20 * SECOND).await.unwrap();
    guard.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    let master = &all.servers()[all.master().await];
    assert!(master.keys().await.iter().any(|key| **key == *keys("a").holds));
    next.release().await.unwrap();
    one.shutdown(SOON).await.unwrap();
    two.shutdown(SOON).await.unwrap();
}
