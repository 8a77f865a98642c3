//! What permits cost in client commands (DESIGN §9, see `leasehold_tests::cost`), and how soon they are handed on.

use std::sync::Arc;
use std::time::Duration;

use leasehold_semaphore::{Options, Semaphore};
use leasehold_tests::conformance::{AllPermits, Permits};
use leasehold_tests::cost::{self, sent_by_clients};
use leasehold_tests::permits::{idle, seen, semaphore, waiting};
use leasehold_tests::rig::awake;
use leasehold_tests::scene::session;
use leasehold_tests::{FaultProxy, Server};
use tokio::task::JoinSet;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// What a hand-over may take on two cores that do other work too; far below a check (0.75 s and more).
const MACHINE: Duration = Duration::from_millis(500);

fn patient() -> Options {
    Options::default().max_wait(120 * SECOND)
}

#[tokio::test]
async fn an_uncontended_pair_is_exactly_two_commands() {
    cost::an_uncontended_pair_is_exactly_two_commands(AllPermits::<1>::of).await;
    cost::an_uncontended_pair_is_exactly_two_commands(Permits::<3, 5>::of).await;
}

/// Flat: a thousand waiters cost no more than one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_contended_permit_is_two_commands_however_many_wait() {
    for waiters in [1, 10, 100, 1000] {
        let cost = cost::contended(AllPermits::<1>::of, waiters, 1).await;
        cost.judge(&format!("one permit, {waiters} waiters of one session"));
    }
}

/// Where several hold at once, and one release may grant to several or to none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_at_once_cost_two_commands_each_too() {
    let server = Server::start();
    let session = session(&server.url()).await;
    cost::warm(&session, AllPermits::<1>::of).await;
    for tasks in [10_u32, 300] {
        server.reset_stats().await;
        let checks = session.statistics().checks;
        let (turns, mut all) = (2000_u32.div_ceil(tasks).max(5), JoinSet::new());
        for task in 0..tasks {
            let many = semaphore(&session, "a", 5, patient()).many(1 + task % 3);
            all.spawn(async move {
                for _ in 0..turns {
                    many.acquire().await.expect("a hold").release().await.expect("still held");
                }
            });
        }
        while let Some(done) = all.join_next().await {
            done.unwrap();
        }
        let sent = server.command_calls().await.of(&sent_by_clients());
        let checks = session.statistics().checks - checks;
        let cost = (sent - checks) as f64 / f64::from(tasks * turns);
        println!("{tasks} tasks on 5 permits: {cost:.4} commands an acquisition, {checks} checks");
        assert!((2.0..=2.02).contains(&cost), "{cost}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_contended_permit_across_sessions_is_two_commands_too() {
    for (waiters, sessions) in [(1, 2), (10, 4), (100, 4)] {
        let cost = cost::contended(AllPermits::<3>::of, waiters, sessions).await;
        cost.judge(&format!("three of three, {waiters} waiters of {sessions} sessions"));
    }
}

#[tokio::test]
async fn idle_waiters_of_one_process_send_two_commands_a_second_at_most() {
    cost::idle_waiters_of_one_process_send_two_commands_a_second_at_most(AllPermits::<1>::of).await;
}

/// So many tasks of one session that take one each, tell when, and hold until the end.
async fn crowd(
    semaphore: &Semaphore,
    waiters: u64,
) -> JoinSet<(leasehold_semaphore::Permit, Duration)> {
    let mut tasks = JoinSet::new();
    for _ in 0..waiters {
        let semaphore = semaphore.clone();
        tasks.spawn(async move { (semaphore.acquire().await.expect("a hold"), awake()) });
    }
    waiting(semaphore, waiters).await;
    tasks
}

/// One release, or one change of the limit, grants to as many as fit: one command, and a message each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_command_grants_to_as_many_as_fit_at_once() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    for raise in [false, true] {
        let name = format!("{raise}");
        let (mine, theirs) =
            (semaphore(&one, &name, 100, patient()), semaphore(&two, &name, 100, patient()));
        let all = mine.many(100).acquire().await.unwrap();
        // 120 wait for the 100 that one release frees, or that a higher limit adds.
        let mut tasks = crowd(&theirs, 120).await;
        let pushed = two.statistics().pushed_grants;
        server.reset_stats().await;
        let begun = awake();
        let held = if raise {
            mine.set_limit(200).await.unwrap();
            Some(all)
        } else {
            all.release().await.unwrap();
            None
        };
        let (mut permits, mut last) = (Vec::new(), Duration::ZERO);
        for _ in 0..100 {
            let (permit, at) = tasks.join_next().await.unwrap().unwrap();
            permits.push(permit);
            last = last.max(at.saturating_sub(begun));
        }
        let sent = server.command_calls().await.of(&sent_by_clients());
        let checks = two.statistics().checks;
        println!("raised {raise}: 100 grants, the last after {last:?}, {sent} commands");
        assert!(last < MACHINE, "{last:?}");
        assert_eq!(two.statistics().pushed_grants - pushed, 100, "all by messages");
        // The command itself, and what checks and renewals there were in so short a time.
        assert!(sent <= 4, "{sent} commands, {checks} checks");
        assert_eq!(
            seen(&mine).await,
            (if raise { 200 } else { 100 }, if raise { 200 } else { 100 }, 20)
        );
        tasks.shutdown().await;
        assert!(mine.release_all(permits).await.unwrap().is_clean());
        drop(held);
        idle(&two).await;
    }
}

/// The releaser's way and the message: a hand-over at a round trip of 4 ms costs about one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_permit_is_handed_over_in_one_way_there_and_one_back() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    proxy.delay(2 * MS);
    let (one, two) = (session(proxy.url()).await, session(proxy.url()).await);
    let (mine, theirs) = (semaphore(&one, "a", 3, patient()), semaphore(&two, "a", 3, patient()));
    let mut took = Vec::new();
    for _ in 0..30 {
        let held = mine.many(2).acquire().await.unwrap();
        let waits = tokio::spawn({
            let many = theirs.many(3);
            async move { (many.acquire().await.expect("a hold"), std::time::Instant::now()) }
        });
        waiting(&mine, 1).await;
        let released = std::time::Instant::now();
        held.release().await.unwrap();
        let (next, at) = waits.await.unwrap();
        took.push(at - released);
        next.release().await.unwrap();
    }
    let p50 = leasehold_tests::measure::p50(&took);
    println!("handed over after {p50:?} (p50), the round trip is 4 ms");
    assert!(p50 >= 4 * MS, "{p50:?}: no delay at all");
    // A second round trip would be 8 ms.
    assert!(p50 < 7500 * MS / 1000 + 2 * MS, "{p50:?}");
    let both = Arc::new([one, two]);
    for session in both.iter() {
        idle(session).await;
    }
}
