//! What a lock costs in client commands (DESIGN §9), as the server counts them; for anything that can be
//! held.
//!
//! The server counts scripts and what they do inside alike; a client of ours sends scripts and, when
//! it opens, a subscription. Connecting (HELLO and the like) is over when counting begins.

use std::time::Duration;

use leasehold_runtime::{Options, Session};

use crate::conformance::{Hold, Holdable};
use crate::scene::{SOON, session};
use crate::{Server, eventually};

const SECOND: Duration = Duration::from_secs(1);
/// No wait of a measurement ends by itself.
const PATIENCE: Duration = Duration::from_secs(120);

/// Makes a lock of this session, name and options.
pub type Open<H> = fn(&Session, &str, Options) -> H;

/// What clients send: every way to run a script, and to subscribe.
pub const SENT: [&str; 7] =
    ["eval", "evalsha", "eval_ro", "evalsha_ro", "script|load", "subscribe", "publish"];

/// Those of [`SENT`] that scripts never call themselves (they publish).
#[must_use]
pub fn sent_by_clients() -> Vec<&'static str> {
    SENT.into_iter().filter(|name| *name != "publish").collect()
}

async fn queued<H: Holdable>(lock: &H, waiters: usize) {
    eventually(SOON, "they queue", async || lock.waiting().await.len() == waiters).await;
}

async fn take<H: Holdable>(lock: &H) -> H::Hold {
    lock.acquire_within(PATIENCE).await.expect("a hold")
}

/// All scripts of a hold have run once, so that none is sent a second time for being unknown: also a
/// renewal and a check, which come by themselves where they come at all.
pub async fn warm<H: Holdable>(session: &Session, open: Open<H>) {
    let brief = open(session, "warm", Options::default().lease(SECOND));
    let hold = take(&brief).await;
    let (checks, renewals) = (session.statistics().checks, session.statistics().renewals);
    let waiting = tokio::spawn(async move { take(&brief).await });
    let ran = async || {
        let now = session.statistics();
        now.checks > checks && now.renewals > renewals
    };
    eventually(SOON, "a check and a renewal", ran).await;
    hold.release().await.expect("still held");
    let hold = waiting.await.expect("no panic inside");
    hold.release().await.expect("still held");
}

/// An uncontended acquire and its release are a command each, and nothing else is sent.
pub async fn an_uncontended_pair_is_exactly_two_commands<H: Holdable>(open: Open<H>) {
    let server = Server::start();
    let session = session(&server.url()).await;
    warm(&session, open).await;
    let checks = session.statistics().checks;
    server.reset_stats().await;
    let lock = open(&session, "a", Options::default());
    for _ in 0..500 {
        take(&lock).await.release().await.expect("still held");
    }
    let calls = server.command_calls().await;
    assert_eq!(calls.of(&["evalsha"]), 1000, "{calls:?}");
    assert_eq!(calls.of(&SENT), 1000, "nothing else is sent, and nobody is told: {calls:?}");
    assert_eq!(session.statistics().checks, checks);
}

/// What so many acquisitions cost.
#[derive(Debug)]
pub struct Cost {
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

    /// Prints the cost and holds it to the target.
    pub fn judge(&self, what: &str) {
        println!(
            "{what}: {:.4} commands an acquisition (raw {:.4}; {} acquisitions, {} checks)",
            self.per_acquisition(),
            self.raw(),
            self.acquisitions,
            self.checks
        );
        assert!(self.acquisitions >= 2000, "{self:?}");
        assert!(self.per_acquisition() <= 2.02, "{what}: {self:?}");
        // The control of the count itself: fewer than an acquire and a release cannot be.
        assert!(self.per_acquisition() >= 2.0, "{what}: {self:?}");
    }
}

fn checks(sessions: &[Session]) -> u64 {
    sessions.iter().map(|session| session.statistics().checks).sum()
}

fn renewals(sessions: &[Session]) -> u64 {
    sessions.iter().map(|session| session.statistics().renewals).sum()
}

/// At least 2 000 acquisitions with an empty section, one holding and `waiters` waiting, until each
/// has had its turns.
pub async fn contended<H: Holdable>(open: Open<H>, waiters: u64, sessions: usize) -> Cost {
    let server = Server::start();
    let mut all = Vec::new();
    for _ in 0..sessions {
        all.push(session(&server.url()).await);
    }
    // The server keeps the scripts for all of them.
    warm(&all[0], open).await;
    server.reset_stats().await;
    let (checks_before, renewals_before) = (checks(&all), renewals(&all));
    let turns = 2000_u64.div_ceil(waiters + 1).max(3);
    let tasks: Vec<_> = (0..=waiters)
        .zip(all.iter().cycle())
        .map(|(_, session)| {
            let lock = open(session, "a", Options::default());
            tokio::spawn(async move {
                for _ in 0..turns {
                    take(&lock).await.release().await.expect("still held");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic inside");
    }
    let commands = server.command_calls().await.of(&sent_by_clients());
    assert_eq!(renewals(&all), renewals_before, "an empty section");
    Cost { acquisitions: turns * (waiters + 1), commands, checks: checks(&all) - checks_before }
}

/// A hundred waiters of one process ask together, about once a second. The holder does not renew.
pub async fn idle_waiters_of_one_process_send_two_commands_a_second_at_most<H: Holdable>(
    open: Open<H>,
) {
    const SECONDS: u64 = 10;
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    warm(&two, open).await;
    let holder = take(&open(&one, "a", Options::default().fixed(PATIENCE))).await;
    let lock = open(&two, "a", Options::default());
    let waiters: Vec<_> = (0..100)
        .map(|_| {
            let lock = lock.clone();
            tokio::spawn(async move { drop(take(&lock).await) })
        })
        .collect();
    queued(&lock, 100).await;
    server.reset_stats().await;
    tokio::time::sleep(SECOND * 10).await;
    let sent = server.command_calls().await.of(&sent_by_clients());
    println!("100 idle waiters: {sent} commands in {SECONDS} s (target {})", 2 * SECONDS);
    assert!(sent <= 2 * SECONDS, "{sent} commands in {SECONDS} s");
    assert!(sent >= SECONDS / 2, "{sent}: they must ask at all");
    // And they are still there.
    queued(&lock, 100).await;
    holder.release().await.expect("still held");
    for waiter in waiters {
        waiter.await.expect("no panic inside");
    }
}
