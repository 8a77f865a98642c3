//! Rows A of the table of behaviours, for the mutex: an ambiguous reply, a blind repeat.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold_mutex::{AcquireError, Event, Guard, LostReason, Options, Owner, ReleaseError};
use leasehold_tests::rig::{Monitor, Watch};
use leasehold_tests::scene::{
    SOON, entries, hash_of, impatient, keys_left, lost, mutex, session, why,
};
use leasehold_tests::{FaultProxy, Pick, Server, eventually, rounds};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// I6: four copies of an acquire that nobody answered count once, and one release frees.
#[tokio::test]
async fn b25_copies_of_an_acquire_count_once() {
    let server = Server::start();
    let (session, told) = impatient(&server.url(), 500 * MS).await;
    let lock = mutex(&session, "a", Options::default());
    server.freeze();
    let acquiring = {
        let lock = lock.clone();
        tokio::spawn(async move { lock.acquire_within(SOON).await.unwrap() })
    };
    tokio::time::sleep(2 * SECOND).await;
    assert!(!acquiring.is_finished());
    let monitor_after_thaw = {
        server.thaw();
        Monitor::of(&server)
    };
    let guard = acquiring.await.unwrap();
    assert_eq!(entries(&mut server.connection().await, "a").await.len(), 1);
    assert_eq!(lock.holder().await.unwrap().unwrap().entries, 1);
    guard.release().await.unwrap();
    assert_eq!(keys_left(&server).await, [""; 0]);
    // Copies that arrive only now take nothing.
    tokio::time::sleep(SECOND).await;
    assert_eq!(keys_left(&server).await, [""; 0]);
    assert_eq!(monitor_after_thaw.count(&server, &hash_of("renew")).await, 0);
    assert_eq!(told.count(lost), 0);
}

/// The same where the answer is lost instead: an entry inside a hold, whose copies would be
/// entries too.
#[tokio::test]
async fn b25_copies_of_a_nested_acquire_count_once() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let (session, _told) = impatient(proxy.url(), 300 * MS).await;
    let lock = mutex(&session, "a", Options::default());
    let outer = lock.acquire().await.unwrap();
    proxy.drop_replies(Pick::next(1).containing(hash_of("acquire")));
    let inner = lock.by(outer.owner()).acquire_within(SOON).await.unwrap();
    assert_eq!(proxy.replies_dropped(), 1);
    let mut connection = server.connection().await;
    assert_eq!(entries(&mut connection, "a").await.len(), 2);
    inner.release().await.unwrap();
    assert_eq!(entries(&mut connection, "a").await.len(), 1);
    assert!(outer.is_held());
    outer.release().await.unwrap();
    assert_eq!(keys_left(&server).await, [""; 0]);
}

/// I9: one that gave up meanwhile leaves nothing, long before the lease of 30 s.
#[tokio::test]
async fn b25_an_acquire_that_gave_up_is_undone() {
    let server = Server::start();
    let (session, _told) = impatient(&server.url(), 500 * MS).await;
    let lock = mutex(&session, "a", Options::default());
    server.freeze();
    let error = lock.try_acquire().await.unwrap_err();
    assert!(matches!(error, AcquireError::Backend(_)), "{error:?}");
    server.thaw();
    let gone = async || session.statistics().tracked == 0 && keys_left(&server).await.is_empty();
    eventually(SOON, "it is undone", gone).await;
    lock.try_acquire().await.unwrap().unwrap().release().await.unwrap();
}

/// A leftover is nobody's re-entry, and nobody renews it. Here nothing arrives at all: the release is
/// swallowed, and so is what the thread sends after it.
#[tokio::test]
async fn b27_what_a_lost_release_leaves_only_runs_out() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let (session, told) = impatient(proxy.url(), 300 * MS).await;
    let lock = mutex(&session, "a", Options::default().lease(3 * SECOND));
    let guard = lock.acquire().await.unwrap();
    let token = guard.fencing_token();
    let left = entries(&mut server.connection().await, "a").await;
    proxy.black_hole(true);
    let monitor = Monitor::of(&server);
    let error = guard.release().await.unwrap_err();
    assert!(matches!(error, ReleaseError::Unknown { .. }), "{error:?}");
    let unknown = |event: &Event| matches!(event, Event::ReleaseUnknown { .. });
    assert_eq!((told.count(unknown), session.statistics().watched), (1, 0));
    // From elsewhere it looks like what it is: held until the lease ends.
    let elsewhere = leasehold_tests::scene::session(&server.url()).await;
    let other = mutex(&elsewhere, "a", Options::default().max_wait(SOON));
    assert!(other.try_acquire().await.unwrap().is_none());
    let next = other.acquire().await.unwrap();
    let since = entries(&mut server.connection().await, "a").await;
    assert_eq!((left.len(), since.len()), (1, 1));
    assert!(since[0].since_ms >= left[0].deadline_ms, "granted before the leftover had ended");
    assert!(next.fencing_token() > token);
    assert_eq!(monitor.count(&server, &left[0].id).await, 0, "no renewal, and nothing else of it");
    next.release().await.unwrap();
}

/// The same task of the same session: it waits like anybody else, and then holds once.
#[tokio::test]
async fn b27_the_same_task_waits_like_anybody_else() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let (session, _told) = impatient(proxy.url(), 300 * MS).await;
    let lock = mutex(&session, "a", Options::default().lease(3 * SECOND).max_wait(SOON));
    let guard = lock.acquire().await.unwrap();
    let token = guard.fencing_token();
    proxy.black_hole(true);
    assert!(matches!(guard.release().await, Err(ReleaseError::Unknown { .. })));
    let again = {
        let lock = lock.clone();
        tokio::spawn(async move { lock.acquire().await.unwrap() })
    };
    tokio::time::sleep(300 * MS).await;
    assert!(!again.is_finished());
    proxy.black_hole(false);
    let guard = again.await.unwrap();
    assert!(guard.fencing_token() > token, "a hold of its own, no re-entry");
    assert_eq!(lock.holder().await.unwrap().unwrap().entries, 1);
    guard.release().await.unwrap();
    let free = async || keys_left(&server).await.is_empty();
    eventually(SOON, "one release frees it", free).await;
}

/// Only the answer of the release is lost: the verdict is no guess, and the lock is free at once.
#[tokio::test]
async fn b27_a_release_without_its_answer_is_unknown_and_done() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let (session, _told) = impatient(proxy.url(), 300 * MS).await;
    let lock = mutex(&session, "a", Options::default());
    // The server knows the script then: else it is the answer "unknown script" that gets lost.
    lock.acquire().await.unwrap().release().await.unwrap();
    let guard = lock.acquire().await.unwrap();
    proxy.drop_replies(Pick::next(1).containing(hash_of("release")));
    let error = guard.release().await.unwrap_err();
    assert!(matches!(error, ReleaseError::Unknown { .. }), "{error:?}");
    assert_eq!(keys_left(&server).await, [""; 0]);
    lock.try_acquire().await.unwrap().unwrap().release().await.unwrap();
}

/// No renewal without a delivered guard: with a lease shorter than the pause, so that even its end
/// was given up meanwhile, and with one that is longer.
#[tokio::test]
async fn b28_an_acquire_that_ran_late_is_never_renewed() {
    for lease in [900 * MS, 30 * SECOND] {
        let server = Server::start();
        let (session, _told) = impatient(&server.url(), 500 * MS).await;
        let lock = mutex(&session, "a", Options::default().lease(lease));
        let monitor = Monitor::of(&server);
        let mut connection = server.connection().await;
        let mut pause = redis::cmd("CLIENT");
        pause.arg("PAUSE").arg(3000).arg("WRITE").exec_async(&mut connection).await.unwrap();
        let paused = Watch::start();
        let error = lock.try_acquire().await.unwrap_err();
        assert!(matches!(error, AcquireError::Backend(_)), "{error:?}");
        assert!(paused.awake() < 3 * SECOND);
        assert_eq!(session.statistics().watched, 0);
        tokio::time::sleep((3 * SECOND).saturating_sub(paused.elapsed())).await;
        // Sooner than a lease of 30 s: somebody ended it.
        let free = async || keys_left(&server).await.is_empty();
        eventually(SOON, "the late hold ends", free).await;
        eventually(SOON, "nothing is left", async || session.statistics().tracked == 0).await;
        tokio::time::sleep(SECOND).await;
        assert_eq!(keys_left(&server).await, [""; 0]);
        assert_eq!(monitor.count(&server, &hash_of("renew")).await, 0);
    }
}

/// I6 under a link that breaks behind each tenth call, after the server has run it: entries of one
/// owner on the server are as many as guards here, at every step.
#[tokio::test]
async fn b33_a_link_that_breaks_behind_calls_counts_nothing_twice() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let (session, told) = impatient(proxy.url(), 2 * SECOND).await;
    let owner = Owner::parse("one-owner").unwrap();
    let lock = mutex(&session, "a", Options::default());
    proxy.cut_after_request(Pick::every(10).containing("EVALSHA"));
    let (mut guards, mut unknown) = (Vec::new(), 0);
    let mut connection = server.connection().await;
    for step in 0..rounds(1000) {
        // Up and down between none and fifty, with steps back.
        let grows = step % 100 < 50 && step % 7 != 6;
        if grows || guards.is_empty() {
            guards.push(lock.by(&owner).acquire_within(SOON).await.unwrap());
        } else {
            match guards.swap_remove(step as usize % guards.len()).release().await {
                Ok(()) => {}
                Err(ReleaseError::Unknown { .. }) => unknown += 1,
                Err(error) => panic!("{error:?}"),
            }
        }
        assert_eq!(entries(&mut connection, "a").await.len(), guards.len(), "step {step}");
    }
    println!("{} links, {unknown} releases unknown", proxy.connections());
    assert!(proxy.connections() >= u64::from(rounds(1000) / 10), "the links did break");
    assert!(guards.iter().all(Guard::is_held));
    assert_eq!(told.count(lost), 0);
    proxy.cut_after_request(Pick::none());
    session.shutdown(SOON).await.unwrap();
    assert_eq!(keys_left(&server).await, [""; 0]);
}

/// The same for an adoption: its copies are one entry, with the token of the hold.
#[tokio::test]
async fn b33_an_adoption_behind_a_breaking_link_counts_once() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let (near, far) = (session(&server.url()).await, session(proxy.url()).await);
    let (first, second) =
        (mutex(&near, "a", Options::default()), mutex(&far, "a", Options::default()));
    for _ in 0..rounds(100) {
        let guard = first.acquire().await.unwrap();
        let nested = first.by(guard.owner()).acquire().await.unwrap();
        let (token, owner) = (guard.fencing_token(), guard.detach());
        proxy.cut_after_request(Pick::next(1).containing("EVALSHA"));
        let adopted = second.adopt(&owner).await.unwrap();
        assert_eq!(adopted.fencing_token(), token);
        assert_eq!(entries(&mut server.connection().await, "a").await.len(), 1);
        // Its predecessor's nested guard is told, and its release touches nothing.
        assert_eq!(why(nested.release().await), LostReason::NotOwner);
        assert!(adopted.is_held());
        adopted.release().await.unwrap();
        assert_eq!(keys_left(&server).await, [""; 0]);
    }
}

/// The same for waiters: nobody waits twice, nobody is forgotten, and nobody holds beside another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b33_waiters_behind_a_breaking_link_hold_one_at_a_time() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let session = session(proxy.url()).await;
    proxy.cut_after_request(Pick::every(10).containing("EVALSHA"));
    let (inside, mut tasks) = (Arc::new(AtomicBool::new(false)), tokio::task::JoinSet::new());
    for _ in 0..8 {
        let lock = mutex(&session, "a", Options::default().max_wait(60 * SECOND));
        let inside = Arc::clone(&inside);
        tasks.spawn(async move {
            for _ in 0..rounds(125) {
                let guard = lock.acquire().await.unwrap();
                assert!(!inside.swap(true, Ordering::SeqCst), "I1: two inside");
                tokio::task::yield_now().await;
                assert!(inside.swap(false, Ordering::SeqCst));
                drop(guard.release().await);
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let quiet = async || keys_left(&server).await.is_empty();
    eventually(SOON, "nobody is forgotten", quiet).await;
}
