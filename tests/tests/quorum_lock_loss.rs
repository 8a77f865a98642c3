//! A lock at several servers that lose it: one by one nobody notices, and a majority is the end of it.

use std::time::Duration;

use leasehold_multi_lock::{AcquireError, LostReason, QuorumOptions, QuorumReleaseError};
use leasehold_tests::rig::Watch;
use leasehold_tests::scene::{SOON, say};
use leasehold_tests::{Worker, eventually};

#[path = "quorum_lock/farm.rs"]
mod farm;

use farm::{Farm, key, lock, patient};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// No test meets its end.
const LONG: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_hold_is_renewed_at_every_server() {
    let farm = Farm::start(3);
    let sessions = farm.sessions().await;
    let lock = lock(&sessions, patient(4 * SECOND));
    let guard = lock.acquire().await.unwrap();
    let lost = guard.while_held(tokio::time::sleep(6 * SECOND)).await;
    assert!(lost.is_ok(), "{lost:?}");
    assert_eq!(guard.nodes_held(), 3);
    assert_eq!(guard.release().await.unwrap().released(), 3);
}

/// One that forgot is asked again, while the majority stands; nobody notices.
#[tokio::test]
async fn a_server_that_lost_its_hold_is_asked_again() {
    let farm = Farm::start(3);
    let sessions = farm.sessions().await;
    let lock = lock(&sessions, patient(6 * SECOND));
    let guard = lock.acquire().await.unwrap();
    let token = guard.fencing_token();
    for at in 0..3 {
        say(&farm.servers[at], &["DEL", &key("a")]).await;
        eventually(SOON, "it is lost there", async || guard.nodes_held() == 2).await;
        eventually(SOON, "and taken again", async || guard.nodes_held() == 3).await;
        assert_eq!(farm.holds("a").await, 3);
        assert!(guard.is_held());
    }
    // Each of them has been replaced by now, and it never stopped to be one hold.
    assert_eq!(guard.fencing_token(), token);
    assert_eq!(guard.release().await.unwrap().released(), 3);
    farm.ends_clean(&sessions).await;
}

/// One that was down when the lock was taken joins when it is back.
#[tokio::test]
async fn a_server_that_comes_back_joins_the_hold() {
    let farm = Farm::start(3);
    let sessions = farm.sessions().await;
    let lock = lock(&sessions, patient(6 * SECOND));
    lock.acquire().await.unwrap().release().await.unwrap();
    farm.servers[2].kill();
    let guard = lock.acquire().await.unwrap();
    assert_eq!(guard.nodes_held(), 2);
    farm.servers[2].restart();
    eventually(SOON, "it joins", async || guard.nodes_held() == 3).await;
    // Now another one may go.
    farm.servers[0].kill();
    let work = guard.while_held(tokio::time::sleep(7 * SECOND)).await;
    assert!(work.is_ok() && guard.is_held(), "{work:?}");
    assert_eq!(guard.release().await.unwrap().released(), 2);
}

#[tokio::test]
async fn the_loss_of_the_majority_is_the_loss_of_the_lock_for_good() {
    let farm = Farm::start(3);
    let sessions = farm.sessions().await;
    let lock = lock(&sessions, patient(6 * SECOND));
    let guard = lock.acquire().await.unwrap();
    let lost = tokio::spawn(guard.lost());
    for at in [0, 1] {
        say(&farm.servers[at], &["DEL", &key("a")]).await;
    }
    let told = tokio::time::timeout(6 * SECOND, lost).await.expect("told").unwrap();
    assert_eq!((told.name.as_bytes(), told.reason), (&b"a"[..], LostReason::Expired));
    assert!(!guard.is_held() && guard.remaining().is_zero());
    eventually(SOON, "the rest is released", async || farm.holds("a").await == 0).await;
    tokio::time::sleep(2 * SECOND).await; // longer than any pause before it would be asked again
    assert_eq!((guard.is_held(), farm.holds("a").await), (false, 0));
    assert_eq!(guard.lost().await.reason, LostReason::Expired, "whoever asks later hears it too");
    match guard.release().await {
        Err(QuorumReleaseError::Lost { lost, nodes }) => {
            assert_eq!((lost.reason, nodes.len()), (LostReason::Expired, 3));
        }
        other => panic!("{other:?}"),
    }
    farm.ends_clean(&sessions).await;
}

/// A majority out of reach: the guard's own clock ends it, before any server lets anybody else in.
#[tokio::test]
async fn a_holder_that_is_cut_off_knows_before_the_next_one_holds() {
    let farm = Farm::start(3);
    let (proxies, sessions) = farm.proxies().await;
    let guard = lock(&sessions, patient(3 * SECOND)).acquire().await.unwrap();
    let theirs = lock(&farm.sessions().await, patient(3 * SECOND).retries(1000));
    proxies.iter().for_each(|proxy| proxy.black_hole(true));
    let next = theirs.acquire_within(20 * SECOND).await.expect("the lease ends");
    assert!(!guard.is_held());
    assert_eq!(guard.lost().await.reason, LostReason::Unreachable);
    next.release().await.unwrap();
}

#[tokio::test]
async fn an_extension_needs_a_majority() {
    let farm = Farm::start(3);
    let sessions = farm.sessions().await;
    let lock = lock(&sessions, QuorumOptions::default().fixed(10 * SECOND).node_timeout(SECOND));
    let guard = lock.acquire().await.unwrap();
    guard.extend(LONG).await.unwrap();
    assert!(guard.remaining() > 25 * SECOND);
    farm.servers[0].freeze();
    guard.extend(2 * LONG).await.expect("two of three");
    assert!(guard.remaining() > 50 * SECOND);
    farm.servers[1].freeze();
    assert!(guard.extend(3 * LONG).await.is_err());
    farm.servers[..2].iter().for_each(leasehold_tests::Server::thaw);
    guard.release().await.unwrap();
    farm.ends_clean(&sessions).await;
}

#[tokio::test]
async fn a_shutdown_of_the_sessions_releases_it() {
    let farm = Farm::start(3);
    let sessions = farm.sessions().await;
    let lock = lock(&sessions, patient(LONG));
    let guard = lock.acquire().await.unwrap();
    sessions[0].shutdown(SOON).await.unwrap();
    assert!(guard.is_held(), "two of three are left");
    sessions[1].shutdown(SOON).await.unwrap();
    assert!(!guard.is_held());
    assert_eq!(guard.lost().await.reason, LostReason::Shutdown);
    sessions[2].shutdown(SOON).await.unwrap();
    assert!(matches!(lock.acquire().await, Err(AcquireError::Closed)));
    farm.ends_clean(&sessions).await;
}

/// A holder that dies keeps it for its lease, and no longer.
#[tokio::test]
async fn a_killed_holder_is_followed_when_its_lease_is_over() {
    let farm = Farm::start(3);
    let urls: Vec<_> = farm.servers.iter().map(|server| server.url()).collect();
    let program = env!("CARGO_BIN_EXE_several_worker");
    let mut worker = Worker::start(program, &urls.join(","), "a", 2 * SECOND).await;
    assert!(worker.ask("acquire").await.starts_with("held "));
    worker.kill();
    let lock = lock(&farm.sessions().await, patient(2 * SECOND).retries(1000));
    assert!(lock.try_acquire().await.unwrap().is_none(), "it holds still");
    let begin = Watch::start();
    lock.acquire_within(20 * SECOND).await.unwrap().release().await.unwrap();
    // The lease and the longest pause, and a loaded machine.
    assert!(begin.awake() < 10 * SECOND, "{:?}", begin.awake());
}

/// One that never answered before it was needed joins all the same: it is told apart then.
#[tokio::test]
async fn a_server_that_was_down_from_the_start_joins() {
    let farm = Farm::start(3);
    let sessions = farm.sessions().await;
    farm.servers[0].kill();
    let lock = lock(&sessions, patient(6 * SECOND));
    let guard = lock.acquire().await.expect("two of three");
    farm.servers[0].restart();
    eventually(SOON, "it joins", async || guard.nodes_held() == 3).await;
    assert_eq!(guard.release().await.unwrap().released(), 3);
    farm.ends_clean(&sessions).await;
}

/// A fixed lease ends when it ends: nothing that joins later makes it longer.
#[tokio::test]
async fn a_fixed_lease_is_not_prolonged_by_who_joins_later() {
    let farm = Farm::start(3);
    let sessions = farm.sessions().await;
    let options = QuorumOptions::default().fixed(8 * SECOND).node_timeout(300 * MS);
    let lock = lock(&sessions, options);
    lock.acquire().await.unwrap().release().await.unwrap();
    farm.servers[0].freeze();
    let guard = lock.acquire().await.unwrap();
    farm.servers[0].thaw();
    let begin = Watch::start();
    // Longer than the pause after which a renewed one would be asked again.
    tokio::time::sleep(1500 * MS).await;
    assert_eq!(guard.nodes_held(), 2, "nobody joins");
    assert_eq!(guard.lost().await.reason, LostReason::Expired);
    assert!(begin.awake() < 8 * SECOND, "{:?}", begin.awake());
    assert_eq!(guard.nodes_held(), 0);
    farm.ends_clean(&sessions).await;
}
