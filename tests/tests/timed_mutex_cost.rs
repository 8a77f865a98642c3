//! What the mutex costs in client commands (DESIGN §9), as the server counts them.
//!
//! The server counts scripts and what they do inside alike; a client of ours sends scripts and, when
//! it opens, a subscription. Connecting (HELLO and the like) is over when counting begins.

use std::time::Duration;

use leasehold_mutex::{Options, Session};
use leasehold_tests::Server;
use leasehold_tests::scene::{mutex, queued, session};

const SECOND: Duration = Duration::from_secs(1);

/// What clients send: every way to run a script, and to subscribe.
const SENT: [&str; 7] =
    ["eval", "evalsha", "eval_ro", "evalsha_ro", "script|load", "subscribe", "publish"];

/// Those of [`SENT`] that scripts never call themselves (they publish).
fn sent_by_clients() -> Vec<&'static str> {
    SENT.into_iter().filter(|name| *name != "publish").collect()
}

fn patient() -> Options {
    Options::default().max_wait(120 * SECOND)
}

/// All scripts of a hold have run once, so that none is sent a second time for being unknown.
async fn warm(server: &Server, session: &Session) {
    let lock = mutex(session, "warm", patient());
    let guard = lock.acquire().await.expect("a hold");
    let waiting = tokio::spawn(async move { lock.acquire().await });
    queued(server, "warm", 1).await;
    guard.extend(40 * SECOND).await.expect("still held");
    guard.release().await.expect("still held");
    let guard = waiting.await.expect("no panic inside").expect("a hold");
    guard.release().await.expect("still held");
}

#[tokio::test]
async fn an_uncontended_pair_is_exactly_two_commands() {
    let server = Server::start();
    let session = session(&server.url()).await;
    warm(&server, &session).await;
    server.reset_stats().await;
    let lock = mutex(&session, "a", Options::default());
    for _ in 0..500 {
        lock.acquire().await.unwrap().release().await.unwrap();
    }
    let calls = server.command_calls().await;
    assert_eq!(calls.of(&["evalsha"]), 1000, "{calls:?}");
    assert_eq!(calls.of(&SENT), 1000, "nothing else is sent, and nobody is told: {calls:?}");
    assert_eq!(session.statistics().checks, 0);
}

/// What so many acquisitions cost.
#[derive(Debug)]
struct Cost {
    acquisitions: u64,
    commands: u64,
    checks: u64,
}

impl Cost {
    /// Without the checks, as DESIGN §9 counts.
    fn per_acquisition(&self) -> f64 {
        (self.commands - self.checks) as f64 / self.acquisitions as f64
    }

    fn raw(&self) -> f64 {
        self.commands as f64 / self.acquisitions as f64
    }
}

fn checks(sessions: &[Session]) -> u64 {
    sessions.iter().map(|session| session.statistics().checks).sum()
}

/// At least 2 000 acquisitions with an empty section, one holding and `waiters` waiting, until each
/// has had its turns.
async fn contended(waiters: u64, sessions: usize) -> Cost {
    let server = Server::start();
    let mut all = Vec::new();
    for _ in 0..sessions {
        all.push(session(&server.url()).await);
        warm(&server, &all[all.len() - 1]).await;
    }
    server.reset_stats().await;
    let checks_before = checks(&all);
    let turns = 2000_u64.div_ceil(waiters + 1).max(3);
    let tasks: Vec<_> = (0..=waiters)
        .zip(all.iter().cycle())
        .map(|(_, session)| {
            let lock = mutex(session, "a", patient());
            tokio::spawn(async move {
                for _ in 0..turns {
                    lock.acquire().await.expect("a hold").release().await.expect("still held");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic inside");
    }
    let commands = server.command_calls().await.of(&sent_by_clients());
    assert!(all.iter().all(|session| session.statistics().renewals == 0), "an empty section");
    Cost { acquisitions: turns * (waiters + 1), commands, checks: checks(&all) - checks_before }
}

/// Prints the cost and holds it to the target.
fn judge(what: &str, cost: &Cost) {
    println!(
        "{what}: {:.4} commands an acquisition (raw {:.4}; {} acquisitions, {} checks)",
        cost.per_acquisition(),
        cost.raw(),
        cost.acquisitions,
        cost.checks
    );
    assert!(cost.acquisitions >= 2000, "{cost:?}");
    assert!(cost.per_acquisition() <= 2.02, "{what}: {cost:?}");
    // The control of the count itself: fewer than an acquire and a release cannot be.
    assert!(cost.per_acquisition() >= 2.0, "{what}: {cost:?}");
}

/// Flat: a thousand waiters cost no more than one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_contended_acquisition_is_two_commands_however_many_wait() {
    for waiters in [1, 10, 100, 1000] {
        judge(&format!("{waiters} waiters of one session"), &contended(waiters, 1).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_contended_acquisition_across_sessions_is_two_commands_too() {
    for (waiters, sessions) in [(1, 2), (10, 4), (100, 4)] {
        let what = format!("{waiters} waiters of {sessions} sessions");
        judge(&what, &contended(waiters, sessions).await);
    }
}

/// A hundred waiters of one process ask together, about once a second. The holder does not renew.
#[tokio::test]
async fn idle_waiters_of_one_process_send_two_commands_a_second_at_most() {
    const SECONDS: u64 = 10;
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    warm(&server, &two).await;
    let holder = mutex(&one, "a", Options::default().fixed(120 * SECOND)).acquire().await.unwrap();
    let lock = mutex(&two, "a", patient());
    let waiters: Vec<_> = (0..100)
        .map(|_| {
            let lock = lock.clone();
            tokio::spawn(async move { lock.acquire().await.map(drop) })
        })
        .collect();
    queued(&server, "a", 100).await;
    server.reset_stats().await;
    tokio::time::sleep(SECOND * 10).await;
    let sent = server.command_calls().await.of(&sent_by_clients());
    println!("100 idle waiters: {sent} commands in {SECONDS} s (target {})", 2 * SECONDS);
    assert!(sent <= 2 * SECONDS, "{sent} commands in {SECONDS} s");
    assert!(sent >= SECONDS / 2, "{sent}: they must ask at all");
    // And they are still there.
    queued(&server, "a", 100).await;
    holder.release().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap().unwrap();
    }
}
