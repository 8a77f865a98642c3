//! The mutex on a real server: what it promises when nothing goes wrong, and when a holder goes away.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold_mutex::{
    AcquireError, AdoptError, LostReason, Mutex, Options, Owner, ReleaseError, Session,
};
use leasehold_tests::rig::Watch;
use leasehold_tests::{Server, eventually};

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

async fn session(server: &Server) -> Session {
    Session::connect(&server.url()).await.expect("a session")
}

fn mutex(session: &Session, name: &str, options: Options) -> Mutex {
    Mutex::new(session, name, options).expect("a mutex")
}

#[tokio::test]
async fn take_and_release_again_and_again() {
    let server = Server::start();
    let session = session(&server).await;
    let lock = mutex(&session, "a", Options::default());
    for _ in 0..3 {
        assert!(!lock.is_locked().await.unwrap());
        let guard = lock.acquire().await.unwrap();
        assert!(guard.is_held() && lock.is_locked().await.unwrap());
        guard.release().await.unwrap();
    }
    assert_eq!(session.statistics().watched, 0);
    assert_eq!(session.statistics().tracked, 0);
}

#[tokio::test]
async fn a_second_one_is_busy_and_is_granted_by_release() {
    let server = Server::start();
    let (one, two) = (session(&server).await, session(&server).await);
    let (first, second) =
        (mutex(&one, "a", Options::default().label("first")), mutex(&two, "a", Options::default()));
    let guard = first.acquire().await.unwrap();
    assert!(second.try_acquire().await.unwrap().is_none());
    assert_eq!(second.holder().await.unwrap().unwrap().label, "first");
    let waiting = tokio::spawn(async move { second.acquire().await });
    eventually(SECOND, "the waiter queues", async || first.queue().await.unwrap().length == 1)
        .await;
    let token = guard.fencing_token();
    let released = Watch::start();
    guard.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    assert!(released.awake() < SECOND / 4, "handed over in {:?}", released.awake());
    assert!(next.fencing_token() > token);
    assert_eq!(two.statistics().pushed_grants, 1);
    next.release().await.unwrap();
}

#[tokio::test]
async fn waiting_ends_in_time_and_says_who_holds() {
    let server = Server::start();
    let session = session(&server).await;
    let lock = mutex(&session, "a", Options::default().label("me"));
    let _guard = lock.acquire().await.unwrap();
    let started = Instant::now();
    let error = lock.acquire_within(200 * MS).await.unwrap_err();
    assert!((200 * MS..300 * MS).contains(&started.elapsed()), "{:?}", started.elapsed());
    let AcquireError::TimedOut { position, holder, held_by_this_session, .. } = error else {
        panic!("{error}")
    };
    assert_eq!((position, held_by_this_session), (Some(0), true));
    assert_eq!(holder.unwrap().label, "me");
    assert_eq!(lock.queue().await.unwrap().length, 0);
}

#[tokio::test]
async fn a_hundred_tasks_increment_an_unprotected_counter_exactly() {
    let server = Server::start();
    let session = session(&server).await;
    let counter = Arc::new(AtomicU32::new(0));
    let tasks: Vec<_> = (0..100)
        .map(|_| {
            let (lock, counter) =
                (mutex(&session, "a", Options::default().max_wait(30 * SECOND)), counter.clone());
            tokio::spawn(async move {
                for _ in 0..5 {
                    let guard = lock.acquire().await.unwrap();
                    let seen = counter.load(Ordering::Relaxed);
                    tokio::task::yield_now().await;
                    counter.store(seen + 1, Ordering::Relaxed);
                    guard.release().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(counter.load(Ordering::Relaxed), 500);
    eventually(SECOND, "nothing is left", async || session.statistics().tracked == 0).await;
}

#[tokio::test]
async fn an_owner_enters_again_with_the_same_token() {
    let server = Server::start();
    let session = session(&server).await;
    let lock = mutex(&session, "a", Options::default());
    let outer = lock.acquire().await.unwrap();
    let inner = lock.by(outer.owner()).acquire().await.unwrap();
    assert_eq!(outer.fencing_token(), inner.fencing_token());
    assert_eq!(lock.holder().await.unwrap().unwrap().entries, 2);
    outer.release().await.unwrap();
    assert!(lock.is_locked().await.unwrap());
    inner.release().await.unwrap();
    assert!(!lock.is_locked().await.unwrap());
}

#[tokio::test]
async fn the_watchdog_holds_beyond_the_lease() {
    let server = Server::start();
    let session = session(&server).await;
    let lock = mutex(&session, "a", Options::default().lease(300 * MS));
    let guard = lock.acquire().await.unwrap();
    tokio::time::sleep(1500 * MS).await;
    assert!(guard.is_held());
    assert!(lock.try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_fixed_lease_ends_and_the_waiter_follows_at_once() {
    let server = Server::start();
    let session = session(&server).await;
    let fixed = mutex(&session, "a", Options::default().fixed(500 * MS));
    let lock = mutex(&session, "a", Options::default());
    let guard = fixed.acquire().await.unwrap();
    let started = Instant::now();
    let next = lock.acquire().await.unwrap();
    assert!((480 * MS..700 * MS).contains(&started.elapsed()), "{:?}", started.elapsed());
    assert!(!guard.is_held());
    let lost = guard.release().await.unwrap_err();
    assert!(
        matches!(lost, ReleaseError::Lost(ref lost) if lost.reason == LostReason::Expired),
        "{lost}"
    );
    assert!(next.is_held() && lock.is_locked().await.unwrap());
    next.release().await.unwrap();
}

#[tokio::test]
async fn dropping_guards_and_futures_leaves_nothing() {
    let server = Server::start();
    let session = session(&server).await;
    let lock = mutex(&session, "a", Options::default());
    drop(lock.acquire().await.unwrap());
    eventually(SECOND, "the drop released", async || !lock.is_locked().await.unwrap()).await;
    let guard = lock.acquire().await.unwrap();
    assert!(tokio::time::timeout(50 * MS, lock.acquire()).await.is_err());
    eventually(SECOND, "the waiter left", async || lock.queue().await.unwrap().length == 0).await;
    guard.release().await.unwrap();
    eventually(SECOND, "nothing is tracked", async || session.statistics().tracked == 0).await;
}

#[tokio::test]
async fn force_release_tells_the_holder_and_grants_the_next() {
    let server = Server::start();
    let (one, two) = (session(&server).await, session(&server).await);
    let (first, second) =
        (mutex(&one, "a", Options::default()), mutex(&two, "a", Options::default()));
    let guard = first.acquire().await.unwrap();
    assert!(second.force_release().await.unwrap().is_some());
    let reason = tokio::time::timeout(SECOND, guard.lost()).await.unwrap();
    assert_eq!(reason, LostReason::ForceReleased);
    assert!(second.force_release().await.unwrap().is_none());
    let next = second.try_acquire().await.unwrap().unwrap();
    assert!(matches!(guard.release().await, Err(ReleaseError::Lost(_))));
    assert!(next.is_held() && second.is_locked().await.unwrap());
}

#[tokio::test]
async fn a_hold_is_adopted_by_its_owner_only() {
    let server = Server::start();
    let (one, two) = (session(&server).await, session(&server).await);
    let (first, second) =
        (mutex(&one, "a", Options::default()), mutex(&two, "a", Options::default()));
    let guard = first.acquire().await.unwrap();
    let token = guard.fencing_token();
    let owner = guard.detach();
    assert!(matches!(second.adopt(&Owner::new()).await, Err(AdoptError::Lost(_))));
    let adopted = second.adopt(&Owner::parse(owner.as_str()).unwrap()).await.unwrap();
    assert_eq!(adopted.fencing_token(), token);
    adopted.release().await.unwrap();
    assert!(matches!(second.adopt(&owner).await, Err(AdoptError::Lost(_))));
    assert!(!first.is_locked().await.unwrap());
}

#[tokio::test]
async fn shutdown_ends_holds_and_waiters() {
    let server = Server::start();
    let (one, two) = (session(&server).await, session(&server).await);
    let (first, second) =
        (mutex(&one, "a", Options::default()), mutex(&two, "b", Options::default()));
    let held = first.acquire().await.unwrap();
    let other = second.acquire().await.unwrap();
    let waiter = mutex(&one, "b", Options::default());
    let waiting = tokio::spawn(async move { waiter.acquire().await });
    eventually(SECOND, "the waiter queues", async || second.queue().await.unwrap().length == 1)
        .await;
    one.shutdown(SECOND).await.unwrap();
    assert_eq!(held.lost().await, LostReason::Shutdown);
    assert!(matches!(waiting.await.unwrap(), Err(AcquireError::Closed)));
    assert_eq!(second.queue().await.unwrap().length, 0);
    assert!(mutex(&two, "a", Options::default()).try_acquire().await.unwrap().is_some());
    assert!(matches!(first.acquire().await, Err(AcquireError::Closed)));
    other.release().await.unwrap();
}

#[tokio::test]
async fn a_release_by_force_passes_over_any_number_of_dead_waiters() {
    let server = Server::start();
    let session = session(&server).await;
    let lock = mutex(&session, "a", Options::default().max_wait(20 * SECOND));
    let guard = lock.acquire().await.unwrap();
    let waiter = lock.clone();
    let waiting = tokio::spawn(async move { waiter.acquire().await });
    eventually(SECOND, "it waits", async || lock.queue().await.unwrap().length == 1).await;
    let mut pipeline = redis::pipe();
    for number in 0..100 {
        // Before it, and without a deadline: dead.
        let member = format!("dead-{number}|30000|w|nobody");
        pipeline.zadd("lh1:mutex:{a}:queue", member, number).ignore();
    }
    let () = pipeline.query_async(&mut server.connection().await).await.unwrap();
    let began = Watch::start();
    assert!(lock.force_release().await.unwrap().is_some());
    let next = waiting.await.unwrap().unwrap();
    assert!(began.awake() < SECOND / 2, "by the push and not by a check: {:?}", began.awake());
    next.release().await.unwrap();
    drop(guard);
}
