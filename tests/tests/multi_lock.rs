//! Several locks as one, on real servers.

use std::time::{Duration, Instant};

use leasehold_multi_lock::engine::Holdable;
use leasehold_multi_lock::{AcquireError, ConfigError, MultiGuard, MultiLock};
use leasehold_mutex::{LostReason, Mutex, Name, Options, ReleaseError, Session};
use leasehold_tests::scene::{keys_left, mutex, say, session};
use leasehold_tests::{Server, eventually};

const SECOND: Duration = Duration::from_secs(1);

fn named(session: &Session, name: &str) -> Mutex {
    mutex(session, name, Options::default())
}

async fn taken(lock: &MultiLock) -> MultiGuard {
    lock.try_acquire().await.expect("an answer").expect("free")
}

#[tokio::test]
async fn all_that_are_free_are_taken_by_one_call() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let (a, b, c) = (named(&session, "a"), named(&session, "b"), named(&session, "c"));
    taken(&MultiLock::of(&a)).await.release().await.unwrap(); // the scripts are known
    server.reset_stats().await;
    let guard = taken(&MultiLock::of(&c).and(&a).and(&b)).await;
    assert_eq!(server.command_calls().await.of(&["evalsha", "eval"]), 1);
    let names: Vec<_> = guard.names().cloned().collect();
    assert_eq!(names, ["a", "b", "c"].map(Name::new), "in the global order");
    assert_eq!(guard.tokens().count(), 3);
    assert!(guard.is_held() && guard.remaining() > 20 * SECOND);
    for lock in [&a, &b, &c] {
        assert!(lock.try_acquire().await.unwrap().is_none());
    }
    guard.release().await.unwrap();
    assert!(keys_left(&server).await.is_empty(), "{:?}", keys_left(&server).await);
    assert_eq!(session.statistics().tracked, 0);
}

#[tokio::test]
async fn one_that_is_held_leaves_the_others_free() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let (a, b) = (named(&session, "a"), named(&session, "b"));
    let held = b.acquire().await.unwrap();
    assert!(MultiLock::of(&a).and(&b).try_acquire().await.unwrap().is_none());
    let free = a.try_acquire().await.unwrap().expect("nothing was taken");
    free.release().await.unwrap();
    held.release().await.unwrap();
}

#[tokio::test]
async fn a_busy_member_is_waited_for() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let (a, b) = (named(&session, "a"), named(&session, "b"));
    let held = b.acquire().await.unwrap();
    let both = MultiLock::of(&a).and(&b);
    let waiting = tokio::spawn(async move { both.acquire_within(5 * SECOND).await });
    eventually(SECOND, "it waits", async || b.queue().await.unwrap().length == 1).await;
    assert!(a.is_locked().await.unwrap(), "it holds the first meanwhile");
    held.release().await.unwrap();
    let guard = waiting.await.unwrap().unwrap();
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_wait_that_is_over_leaves_nothing_and_names_the_member() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let (a, b) = (named(&session, "a"), named(&session, "b"));
    let held = b.acquire().await.unwrap();
    let began = Instant::now();
    let refused = MultiLock::of(&a).and(&b).acquire_within(SECOND / 2).await;
    assert!(began.elapsed() < SECOND, "{:?}", began.elapsed());
    match refused {
        Err(AcquireError::TimedOut { name, waited, .. }) => {
            assert_eq!(name, Name::new("b"));
            assert!(waited >= SECOND / 2);
        }
        other => panic!("{other:?}"),
    }
    eventually(SECOND, "the first is free again", async || !a.is_locked().await.unwrap()).await;
    held.release().await.unwrap();
}

#[tokio::test]
async fn opposite_orders_never_wait_in_a_circle() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let run = |session: Session, turned: bool| async move {
        let (a, b) = (named(&session, "a"), named(&session, "b"));
        let both = if turned { MultiLock::of(&b).and(&a) } else { MultiLock::of(&a).and(&b) };
        for _ in 0..50 {
            let guard = both.acquire_within(5 * SECOND).await.expect("no dead-lock");
            assert!(guard.is_held());
            guard.release().await.expect("held");
        }
    };
    let (left, right) =
        tokio::join!(tokio::spawn(run(one.clone(), false)), tokio::spawn(run(two.clone(), true)));
    left.unwrap();
    right.unwrap();
}

#[tokio::test]
async fn the_loss_of_one_is_the_loss_of_all_and_frees_the_others() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let options = Options::default().lease(3 * SECOND);
    let (a, b) = (mutex(&session, "a", options.clone()), mutex(&session, "b", options));
    let guard = taken(&MultiLock::of(&a).and(&b)).await;
    say(&server, &["DEL", "lh1:mutex:{b}"]).await;
    let lost = tokio::time::timeout(3 * SECOND, guard.lost()).await.expect("told");
    assert_eq!((lost.name, lost.reason), (Name::new("b"), LostReason::Expired));
    assert!(!guard.is_held() && guard.remaining().is_zero());
    eventually(SECOND, "the other is free", async || !a.is_locked().await.unwrap()).await;
    let error = guard.release().await.unwrap_err();
    let failed: Vec<_> = error.failed().collect();
    assert!(matches!(failed[..], [(_, ReleaseError::Lost(_))]), "{error}");
}

#[tokio::test]
async fn a_member_named_twice_counts_once() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let (a, again) = (named(&session, "a"), named(&session, "a"));
    let guard = taken(&MultiLock::of(&a).and(&again)).await;
    assert_eq!(guard.names().count(), 1);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn what_is_wrong_with_the_members_is_told_by_the_verb() {
    let (one, two) = (Server::start(), Server::start());
    let (left, right) = (session(&one.url()).await, session(&two.url()).await);
    let none: [Mutex; 0] = [];
    let refused = MultiLock::all(none).try_acquire().await;
    assert!(matches!(refused, Err(AcquireError::Config(ConfigError::Members { count: 0 }))));
    let (a, b) = (named(&left, "a"), named(&right, "b"));
    let refused = MultiLock::of(&a).and(&b).acquire().await;
    let expected = matches!(
        refused,
        Err(AcquireError::Config(ConfigError::SessionNames { sessions: 2, names: 0 }))
    );
    assert!(expected, "{refused:?}");
    assert!(!a.is_locked().await.unwrap());
}

#[tokio::test]
async fn members_on_two_servers_are_held_together() {
    let (one, two) = (Server::start(), Server::start());
    let named_session = async |server: &Server, name: &str| {
        Session::builder(&server.url()).unwrap().named(name).connect().await.unwrap()
    };
    let (left, right) = (named_session(&one, "left").await, named_session(&two, "right").await);
    let (a, b) = (named(&left, "a"), named(&right, "a"));
    let guard = taken(&MultiLock::of(&b).and(&a)).await;
    assert!(a.is_locked().await.unwrap() && b.is_locked().await.unwrap());
    let third = named(&right, "c").member();
    assert!(MultiLock::all([a.member(), third]).try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    assert!(!a.is_locked().await.unwrap() && !b.is_locked().await.unwrap());
}
