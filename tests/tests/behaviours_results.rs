//! BEHAVIOURS.md, kind X: how each end is told, and when. One test a row, named after it.

use std::sync::{Arc, Mutex as Lock};
use std::time::Duration;

use leasehold_mutex::{
    AcquireError, AdoptError, BackendErrorKind, ConfigError, Guard, LostReason, Mutex, Options,
    Owner, ReleaseError, Session,
};
use leasehold_tests::rig::Watch;
use leasehold_tests::scene::{SOON, hash_of, impatient, keys, keys_left, mutex, session};
use leasehold_tests::{FaultProxy, Pick, Server, acl, eventually, rounds};
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// For two cores that build something meanwhile.
const MACHINE: Duration = Duration::from_millis(500);

fn kind_of(error: &AcquireError) -> Option<BackendErrorKind> {
    if let AcquireError::Backend(cause) = error { Some(cause.kind()) } else { None }
}

fn lost(released: Result<(), ReleaseError>) -> LostReason {
    match released {
        Err(ReleaseError::Lost(lost)) => lost.reason,
        other => panic!("{other:?}"),
    }
}

/// I7.
#[tokio::test]
async fn b129_the_ends_of_a_release_are_told_apart() {
    let server = Server::start();
    let (one, _) = impatient(&server.url(), 300 * MS).await;
    let two = session(&server.url()).await;
    let (first, second) =
        (mutex(&one, "a", Options::default()), mutex(&two, "a", Options::default()));
    let holds = keys("a").holds;
    let mut connection = server.connection().await;
    let delete = async |connection: &mut MultiplexedConnection| {
        assert_eq!(connection.del::<_, u64>(&*holds).await.unwrap(), 1);
    };
    let guard = first.acquire().await.unwrap();
    delete(&mut connection).await;
    assert_eq!(lost(guard.release().await), LostReason::Expired);
    let guard = first.acquire().await.unwrap();
    delete(&mut connection).await;
    let thief = second.acquire().await.unwrap();
    assert_eq!(lost(guard.release().await), LostReason::NotOwner);
    // A guard is released once: `release` takes it. A second release is one by its owner.
    let owner = thief.detach();
    second.adopt(&owner).await.unwrap().release().await.unwrap();
    assert!(matches!(second.adopt(&owner).await, Err(AdoptError::Lost(_))));
    let guard = first.acquire().await.unwrap();
    server.freeze();
    let unanswered = guard.release().await.unwrap_err();
    assert!(matches!(unanswered, ReleaseError::Unknown { .. }), "{unanswered:?}");
    server.thaw();
    let guard = second.acquire().await.unwrap();
    server.kill();
    let mut released = guard.release().await.unwrap_err();
    // The first copy may have gone out on the dying link; a refused connection is surely not sent.
    if let ReleaseError::Unknown { source, .. } | ReleaseError::Backend { source, .. } =
        &mut released
    {
        assert_eq!(source.kind(), BackendErrorKind::Unreachable);
    } else {
        panic!("{released:?}");
    }
}

#[tokio::test]
async fn b130_busy_unreachable_and_refused_are_different_kinds() {
    let server = Server::start();
    acl::user(&server, "limited", "").await;
    let (holder, waits) =
        (session(&server.url()).await, session(&acl::url(&server, "limited")).await);
    let wait = 300 * MS;
    let lock = mutex(&waits, "a", Options::default());
    let guard = mutex(&holder, "a", Options::default().label("the other")).acquire().await.unwrap();
    let busy = lock.acquire_within(wait).await.unwrap_err();
    let AcquireError::TimedOut { holder: Some(who), remaining: Some(left), .. } = &busy else {
        panic!("{busy:?}")
    };
    assert_eq!((who.label.as_str(), *left > SECOND), ("the other", true));
    acl::change(&server, "limited", "-evalsha").await;
    let refused = lock.acquire_within(wait).await.unwrap_err();
    assert_eq!(kind_of(&refused), Some(BackendErrorKind::NoPermission));
    acl::change(&server, "limited", "+evalsha").await;
    server.kill();
    let begin = Watch::start();
    let down = lock.acquire_within(wait).await.unwrap_err();
    assert_eq!(kind_of(&down), Some(BackendErrorKind::Unreachable));
    assert!(begin.elapsed() >= wait && begin.awake() < wait + MACHINE, "{:?}", begin.awake());
    drop(guard);
}

/// B132 is a matter of types: see `leasehold_tests::refused`. Here: busy yields no guard.
#[tokio::test]
async fn b132_busy_yields_nothing_to_work_under() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let lock = mutex(&session, "a", Options::default());
    let guard = lock.acquire().await.unwrap();
    assert!(lock.try_acquire().await.unwrap().is_none());
    assert!(lock.acquire_within(Duration::ZERO).await.is_err());
    // A guard that has lost does not start the work either.
    let _: u64 = server.connection().await.del(&*keys("a").holds).await.unwrap();
    assert!(guard.extend(SECOND).await.is_err());
    let mut ran = false;
    let worked = guard.while_held(async { ran = true }).await;
    assert!(worked.is_err() && !ran);
}

#[tokio::test]
async fn b134_a_wait_that_is_over_is_one_kind_and_a_cancelled_one_nothing() {
    let server = Server::start();
    let (session, told) = impatient(&server.url(), 2 * SECOND).await;
    let lock = mutex(&session, "a", Options::default());
    let guard = lock.acquire().await.unwrap();
    let begin = Watch::start();
    let error = lock.acquire_within(200 * MS).await.unwrap_err();
    let took = begin.elapsed();
    let AcquireError::TimedOut { waited, position, held_by_this_session, .. } = error else {
        panic!("{error:?}")
    };
    assert!(took >= 200 * MS && took < 300 * MS + MACHINE, "{took:?}");
    assert!(waited >= 200 * MS && waited <= took, "{waited:?}");
    assert_eq!((position, held_by_this_session), (Some(0), true));
    // The caller's own time-out: nothing comes back, nothing stays, nothing is told.
    assert!(tokio::time::timeout(50 * MS, lock.acquire()).await.is_err());
    eventually(SOON, "it left", async || lock.queue().await.unwrap().length == 0).await;
    assert!(told.all().is_empty(), "{:?}", told.all());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn b135_a_hold_given_away_is_ended_elsewhere_once_and_never_made() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let options = Options::default().lease(5 * SECOND);
    let (first, second) = (mutex(&one, "a", options.clone()), mutex(&two, "a", options));
    let text = first.acquire().await.unwrap().detach().as_str().to_owned();
    let owner = Owner::parse(&text).unwrap();
    let adopted = second.adopt(&owner).await.unwrap();
    adopted.extend(6 * SECOND).await.unwrap();
    adopted.release().await.unwrap();
    for session in [&first, &second] {
        assert!(
            matches!(session.adopt(&owner).await, Err(AdoptError::Lost(lost)) if lost.reason == LostReason::Expired)
        );
        assert_eq!(keys_left(&server).await, [""; 0]);
    }
    let other = first.acquire().await.unwrap();
    assert!(
        matches!(second.adopt(&owner).await, Err(AdoptError::Lost(lost)) if lost.reason == LostReason::NotOwner)
    );
    assert!(other.is_held());
    other.release().await.unwrap();
}

/// Every verb, with its bound: the wait for those that wait, the response timeout for the others.
async fn every_verb_ends_in_time(lock: &Mutex, guard: Guard, wait: Duration) {
    let mut spans = Vec::new();
    let begin = Watch::start();
    let error = lock.acquire_within(wait).await.expect_err("no server");
    assert_eq!(kind_of(&error), Some(BackendErrorKind::Unreachable), "{error:?}");
    assert!(begin.elapsed() >= wait, "{:?}", begin.elapsed());
    spans.push(("acquire_within", begin.elapsed()));
    let begin = Watch::start();
    assert_eq!(
        kind_of(&lock.try_acquire().await.expect_err("no server")),
        Some(BackendErrorKind::Unreachable)
    );
    spans.push(("try_acquire", begin.elapsed()));
    let begin = Watch::start();
    assert_eq!(
        lock.is_locked().await.expect_err("no server").kind(),
        BackendErrorKind::Unreachable
    );
    spans.push(("is_locked", begin.elapsed()));
    let begin = Watch::start();
    assert!(matches!(lock.adopt(guard.owner()).await, Err(AdoptError::Backend(_))));
    spans.push(("adopt", begin.elapsed()));
    let begin = Watch::start();
    assert!(guard.extend(SECOND).await.is_err());
    spans.push(("extend", begin.elapsed()));
    for (verb, took) in spans {
        assert!(took < wait + 300 * MS + MACHINE, "{verb} took {took:?}");
    }
    let begin = Watch::start();
    assert!(guard.release().await.is_err());
    assert!(begin.awake() < wait * 2 + 300 * MS + MACHINE, "release took {:?}", begin.awake());
}

async fn no_call_outlasts_its_bound(stop: impl FnOnce(&Server)) {
    let wait = 500 * MS;
    let server = Server::start();
    let (session, _) = impatient(&server.url(), wait).await;
    let lock = mutex(&session, "a", Options::default().lease(60 * SECOND));
    let guard = lock.acquire().await.expect("a hold");
    stop(&server);
    every_verb_ends_in_time(&lock, guard, wait).await;
    let begin = Watch::start();
    let builder = Session::builder(&server.url()).expect("a URL");
    let builder = builder.connect_timeout(wait).response_timeout(wait);
    let refused = builder.connect().await.expect_err("no server");
    assert!(matches!(refused, ConfigError::Connect(_)), "{refused:?}");
    assert!(begin.awake() < wait * 3 + MACHINE, "connect took {:?}", begin.awake());
}

#[tokio::test]
async fn b136_no_call_outlasts_its_bound_while_redis_is_down() {
    no_call_outlasts_its_bound(Server::kill).await;
}

#[tokio::test]
async fn b136_no_call_outlasts_its_bound_while_redis_is_silent() {
    no_call_outlasts_its_bound(Server::freeze).await;
}

/// The sibling of B136: the server falls silent while the waiter already stands in the queue.
#[tokio::test]
async fn b136_a_queued_waiter_is_not_held_up_by_a_silent_server() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let lock = mutex(&session, "a", Options::default());
    let guard = lock.acquire().await.unwrap();
    let waits = tokio::spawn({
        let lock = lock.clone();
        async move {
            let begin = Watch::start();
            (lock.acquire_within(SECOND).await.unwrap_err(), begin.elapsed())
        }
    });
    eventually(SOON, "it waits", async || lock.queue().await.unwrap().length == 1).await;
    server.freeze();
    let (error, took) = waits.await.unwrap();
    assert!(matches!(error, AcquireError::TimedOut { .. }), "{error:?}");
    assert!(took < 1300 * MS + MACHINE, "{took:?}");
    server.thaw();
    guard.release().await.unwrap();
}

/// A lost hold is not released again: with a frozen server any call would show.
#[tokio::test]
async fn b138_after_a_loss_nothing_is_waited_for() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let lock = mutex(&session, "a", Options::default().lease(900 * MS));
    let guard = lock.acquire().await.unwrap();
    let stolen = guard
        .while_held(async {
            let _: u64 = server.connection().await.del(&*keys("a").holds).await.unwrap();
            std::future::pending::<()>().await;
        })
        .await;
    assert!(stolen.is_err());
    server.freeze();
    let begin = Watch::start();
    assert_eq!(lost(guard.release().await), LostReason::Expired);
    assert!(begin.awake() < 100 * MS, "{:?}", begin.awake());
    server.thaw();
}

fn moves_anywhere<T: Send + Sync + 'static>(value: T) -> T {
    value
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn b140_a_guard_is_released_wherever_it_was_carried() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let lock = moves_anywhere(mutex(&session, "a", Options::default()));
    for round in 0..40 {
        let guard = tokio::spawn({
            let lock = lock.clone();
            async move { lock.acquire().await.unwrap() }
        });
        let guard = moves_anywhere(guard.await.unwrap());
        tokio::task::yield_now().await;
        let released = match round % 3 {
            0 => guard.release().await,
            1 => tokio::spawn(guard.release()).await.unwrap(),
            _ => std::thread::spawn(|| {
                tokio::runtime::Runtime::new().unwrap().block_on(guard.release())
            })
            .join()
            .unwrap(),
        };
        released.unwrap();
    }
    assert_eq!(session.statistics().tracked, 0);
}

type Tokens = Arc<Lock<Vec<u64>>>;

/// Takes one turn; every tenth hold ends otherwise than by a release.
async fn turn(lock: &Mutex, fixed: &Mutex, url: &str, tokens: &Tokens, round: u32) {
    let guard =
        if round.is_multiple_of(10) { fixed } else { lock }.acquire().await.expect("a hold");
    let inner = lock.by(guard.owner()).acquire().await.expect("re-entry");
    assert_eq!(inner.fencing_token(), guard.fencing_token(), "re-entry mints none");
    // In the order of the grants, as long as this hold lasts.
    let place = guard.is_held().then(|| {
        let mut tokens = tokens.lock().expect("no panic inside");
        tokens.push(guard.fencing_token().get());
    });
    assert!(place.is_some(), "paused for more than a lease: this machine cannot run the test");
    inner.release().await.ok();
    match round % 20 {
        0 => drop(guard.detach()), // runs out
        10 => {
            let client = redis::Client::open(url).expect("a URL");
            let mut connection = client.get_multiplexed_async_connection().await.expect("a server");
            let _: u64 = connection.del(&*keys("a").holds).await.expect("DEL");
            drop(guard);
        }
        15 => drop(guard),
        _ => drop(guard.release().await),
    }
}

/// I5, I6: replies are lost (the acquire is sent again), holds expire, are deleted and dropped.
#[tokio::test]
async fn b142_tokens_rise_strictly_in_the_order_of_the_grants() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let tokens = Tokens::default();
    let per_client = rounds(1000) / 4 + 20;
    let mut clients = Vec::new();
    for _ in 0..4 {
        let session = session(proxy.url()).await;
        let options = Options::default().max_wait(60 * SECOND);
        let lock = mutex(&session, "a", options.clone());
        let fixed = mutex(&session, "a", options.fixed(300 * MS));
        let (tokens, url) = (tokens.clone(), server.url());
        clients.push(tokio::spawn(async move {
            for round in 0..per_client {
                turn(&lock, &fixed, &url, &tokens, round).await;
            }
        }));
    }
    proxy.cut_after_request(Pick::every(31).containing(hash_of("acquire")));
    for client in clients {
        client.await.unwrap();
    }
    let tokens = tokens.lock().unwrap();
    assert_eq!(tokens.len(), 4 * per_client as usize);
    let fallen = tokens.windows(2).filter(|pair| pair[1] <= pair[0]).count();
    assert_eq!(fallen, 0, "{tokens:?}");
    assert!(proxy.connections() > 20, "acquires were sent again: {}", proxy.connections());
}
