//! What a quorum lock stands on: each of its assumptions taken away makes two holders, and what helps then. The
//! documentation of `QuorumLock` names them; Redis' documentation, Kleppmann and Sanfilippo (2016) argue about them.

use std::time::{Duration, Instant};

use leasehold_multi_lock::{LostReason, QuorumGuard, QuorumLock};
use leasehold_mutex::Session;
use leasehold_tests::scene::{SOON, session};
use leasehold_tests::{FaultProxy, Server, Worker, eventually};

#[path = "quorum_lock/farm.rs"]
mod farm;

use farm::{Farm, lock, patient};

const SECOND: Duration = Duration::from_secs(1);
/// No test meets its end.
const LONG: Duration = Duration::from_secs(30);

/// A store that refuses what is older than what it has seen: the second layer.
#[derive(Default)]
struct Fenced {
    highest: u64,
}

impl Fenced {
    fn write(&mut self, token: u64) -> bool {
        let accepted = token >= self.highest;
        self.highest = self.highest.max(token);
        accepted
    }
}

/// A holder of three of five: it is cut off from the other two before it takes the lock.
struct Barely {
    farm: Farm,
    proxies: Vec<FaultProxy>,
    guard: QuorumGuard,
    _sessions: Vec<Session>,
}

impl Barely {
    async fn hold(lease: Duration) -> Self {
        let farm = Farm::start(5);
        let (proxies, sessions) = farm.proxies().await;
        let lock = lock(&sessions, patient(lease));
        let first = lock.acquire().await.expect("five of five");
        first.release().await.expect("held");
        for proxy in &proxies[3..] {
            cut_off(proxy);
        }
        let guard = lock.acquire().await.expect("three of five");
        assert_eq!((guard.nodes_held(), farm.holds("a").await), (3, 3));
        Self { farm, proxies, guard, _sessions: sessions }
    }

    /// Somebody who reaches all five.
    async fn other(&self, lease: Duration) -> QuorumLock {
        lock(&self.farm.sessions().await, patient(lease).retries(0))
    }
}

fn cut_off(proxy: &FaultProxy) {
    proxy.refuse(true);
    proxy.cut();
}

/// A server that comes back without its data grants anew what it had granted.
#[tokio::test]
async fn one_of_three_that_restarts_without_its_data_makes_two_holders() {
    let barely = Barely::hold(LONG).await;
    let first = &barely.guard;
    assert!(barely.other(LONG).await.try_acquire().await.unwrap().is_none(), "the control");
    cut_off(&barely.proxies[2]);
    barely.farm.servers[2].restart();
    let other = barely.other(LONG).await;
    let second = other.try_acquire().await.unwrap().expect("a majority grants it once more");
    assert!(first.is_held() && second.is_held(), "two holders");
    // What helps: the data refuses the older one. (All these servers have one clock.)
    let mut data = Fenced::default();
    assert!(data.write(second.fencing_token().get()));
    assert!(!data.write(first.fencing_token().get()));
    second.release().await.unwrap();
}

/// One that stays away for longer than the lease does no harm: by then the hold is over.
#[tokio::test]
async fn one_that_stays_away_for_a_lease_makes_no_second_holder() {
    let lease = 3 * SECOND;
    let barely = Barely::hold(lease).await;
    barely.farm.servers[2].kill();
    let killed = Instant::now();
    let two_of_five = [0, 1, 3, 4].map(|at| barely.farm.servers[at].url());
    // Until it is back nobody else has a majority: two servers hold, two are free.
    let mut sessions = Vec::new();
    for url in &two_of_five[..3] {
        sessions.push(session(url).await);
    }
    let hindered = lock(&sessions, patient(lease).retries(0));
    assert!(hindered.try_acquire().await.unwrap().is_none());
    eventually(SOON, "the holder knows that it is over", async || !barely.guard.is_held()).await;
    assert_eq!(barely.guard.lost().await.reason, LostReason::Unreachable);
    tokio::time::sleep((lease * 3 / 2).saturating_sub(killed.elapsed())).await;
    barely.farm.servers[2].restart();
    let second = barely.other(lease).await.try_acquire().await.unwrap().expect("free");
    assert!(second.is_held() && !barely.guard.is_held());
    second.release().await.unwrap();
}

/// The control of both: where more than a majority holds, one forgetful server is no majority.
#[tokio::test]
async fn one_of_five_that_restarts_without_its_data_does_no_harm() {
    let farm = Farm::start(5);
    let (mine, theirs) = (farm.sessions().await, farm.sessions().await);
    let guard = lock(&mine, patient(LONG)).acquire().await.unwrap();
    assert_eq!(guard.nodes_held(), 5);
    farm.servers[2].restart();
    let theirs = lock(&theirs, patient(LONG));
    assert!(theirs.try_acquire().await.unwrap().is_none());
    assert!(guard.is_held());
    guard.release().await.unwrap();
    farm.ends_clean(&mine).await;
}

/// A pause may outlast any lease: the writer finds out too late, unless the data checks.
#[tokio::test]
async fn a_client_paused_beyond_its_validity_is_refused_by_the_fencing_check() {
    let farm = Farm::start(5);
    let urls: Vec<_> = farm.servers.iter().map(Server::url).collect();
    let program = env!("CARGO_BIN_EXE_several_worker");
    let mut paused = Worker::start(program, &urls.join(","), "a", SECOND).await;
    let held = paused.ask("acquire").await;
    let token: u64 = held.strip_prefix("held ").expect("a hold").parse().expect("a number");
    let mut data = Fenced::default();
    assert!(data.write(token), "the control: before the pause it writes");
    paused.freeze();
    let other = lock(&farm.sessions().await, patient(SECOND).retries(1000));
    let next = other.acquire_within(20 * SECOND).await.expect("its lease ends");
    assert!(data.write(next.fencing_token().get()));
    paused.thaw();
    // It was just about to write, and writes.
    assert!(!data.write(token));
    assert_eq!(paused.ask("is_held").await, "false", "whoever looks before writing knows too");
    assert!(paused.ask("release").await.starts_with("failed Lost"));
    assert!(next.is_held());
    next.release().await.unwrap();
}

/// A clock that is set forward ends leases early, and the holder does not know.
#[tokio::test]
async fn clocks_that_jump_at_a_majority_make_two_holders() {
    let farm = Farm::start_as(3, || Server::builder().clock_shim().start());
    let (mine, theirs) = (farm.sessions().await, farm.sessions().await);
    let first = lock(&mine, patient(LONG)).acquire().await.unwrap();
    let other = lock(&theirs, patient(LONG));
    farm.servers[0].clock().forward(2 * LONG);
    assert!(other.try_acquire().await.unwrap().is_none(), "one of three is no majority");
    farm.servers[1].clock().forward(2 * LONG);
    let second = other.acquire().await.expect("two of three have forgotten it");
    assert!(first.is_held() && second.is_held(), "two holders, until the first renews");
    let mut data = Fenced::default();
    assert!(data.write(second.fencing_token().get()));
    assert!(!data.write(first.fencing_token().get()));
}

/// Why the token is best effort: it follows the clocks of whoever grants, and majorities differ.
#[tokio::test]
async fn tokens_may_fall_where_clocks_differ_by_more_than_the_time_between_grants() {
    let farm = Farm::start_as(3, || Server::builder().clock_shim().start());
    farm.servers[0].clock().forward(60 * SECOND);
    let ((to_here, here), (to_there, there)) = (farm.proxies().await, farm.proxies().await);
    let (here, there) = (lock(&here, patient(LONG)), lock(&there, patient(LONG)));
    let first = here.acquire().await.unwrap();
    let (token, _) = (first.fencing_token(), first.release().await.unwrap());
    // Another client, which does not reach the server whose clock is ahead.
    cut_off(&to_there[0]);
    let second = there.acquire().await.expect("two of three");
    assert!(second.fencing_token() < token, "it fell");
    second.release().await.unwrap();
    // The same client remembers the largest that it has seen.
    cut_off(&to_here[0]);
    let third = here.acquire().await.expect("two of three");
    assert!(third.fencing_token() > token);
    third.release().await.unwrap();
}
