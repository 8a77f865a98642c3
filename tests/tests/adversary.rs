//! What a hostile reader of the protocol and the runtime tried: each test is a way to make it lie, stall or leak.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold_mutex::{
    AcquireError, BackendErrorKind, ConfigError, Event, LostReason, Mutex, Options, Session,
    SessionBuilder,
};
use leasehold_tests::rig::Watch;
use leasehold_tests::{FaultProxy, Server, eventually};

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);
/// Far above what any step takes on a loaded machine, below what a stall takes.
const SOON: Duration = Duration::from_secs(4);

async fn session(server: &Server) -> Session {
    Session::connect(&server.url()).await.expect("a session")
}

fn builder(url: &str) -> SessionBuilder {
    Session::builder(url).expect("a URL")
}

fn mutex(session: &Session, name: &str, options: Options) -> Mutex {
    Mutex::new(session, name, options).expect("a mutex")
}

async fn set_maxmemory(server: &Server, bytes: &str) {
    let mut command = redis::cmd("CONFIG");
    command.arg("SET").arg("maxmemory").arg(bytes);
    command.exec_async(&mut server.connection().await).await.expect("CONFIG SET");
}

// I9: a waiter that is told an error stands in no queue, where it would be granted and hold for nobody.
#[tokio::test]
async fn waiter_refused_by_its_check_leaves_the_queue() {
    let server = Server::start();
    let (one, two) = (session(&server).await, session(&server).await);
    let (first, second) =
        (mutex(&one, "a", Options::default()), mutex(&two, "a", Options::default()));
    let guard = first.acquire().await.unwrap();
    let waiting = tokio::spawn(async move { second.acquire_within(20 * SECOND).await });
    eventually(SOON, "it waits", async || first.queue().await.unwrap().length == 1).await;
    set_maxmemory(&server, "1").await;
    let error = waiting.await.unwrap().unwrap_err();
    let AcquireError::Backend(error) = error else { panic!("{error}") };
    assert_eq!(error.kind(), BackendErrorKind::OutOfMemory);
    eventually(SOON, "it left", async || first.queue().await.unwrap().length == 0).await;
    eventually(SOON, "nothing is tracked", async || two.statistics().tracked == 0).await;
    guard.release().await.unwrap();
}

// I9: what nobody held leaves no cool-down; the job that it would have started did not run.
#[tokio::test]
async fn dropped_acquire_does_not_close_the_lock() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let (far, near) = (builder(proxy.url()).connect().await.unwrap(), session(&server).await);
    let options = Options::default().hold_at_least(300 * SECOND);
    let (lock, other) = (mutex(&far, "a", options.clone()), mutex(&near, "a", options));
    // The server knows the script then: the dropped future has nothing more to send.
    mutex(&near, "b", Options::default()).acquire().await.unwrap().release().await.unwrap();
    proxy.delay(100 * MS);
    assert!(tokio::time::timeout(20 * MS, lock.acquire()).await.is_err());
    let ended = async || far.statistics().tracked == 0;
    eventually(SOON, "the acquire that took it is ended", ended).await;
    // The control: what was held does close it.
    let guard = other.try_acquire().await.unwrap().expect("nobody held it");
    guard.release().await.unwrap();
    assert!(other.try_acquire().await.unwrap().is_none());
}

// I2, trap 28: a server clock that went back makes what is left there longer than any lease.
#[tokio::test]
async fn server_clock_set_back_does_not_lengthen_a_guard() {
    let server = Server::builder().clock_shim().start();
    let session = session(&server).await;
    let lock = mutex(&session, "a", Options::default().lease(3 * SECOND));
    let guard = lock.acquire().await.unwrap();
    server.clock().back(3600 * SECOND);
    eventually(SOON, "it is renewed", async || session.statistics().renewals > 1).await;
    assert!(guard.remaining() <= 3 * SECOND, "{:?}", guard.remaining());
    guard.extend(5 * SECOND).await.unwrap();
    assert!(guard.remaining() <= 5 * SECOND, "{:?}", guard.remaining());
    assert!(guard.remaining() > 4 * SECOND, "{:?}", guard.remaining());
}

#[tokio::test]
async fn longest_hold_is_told_as_such() {
    let server = Server::start();
    let limits = Arc::new(AtomicU32::new(0));
    let seen = limits.clone();
    let told = move |event: &Event| {
        seen.fetch_add(u32::from(matches!(event, Event::HoldLimit { .. })), Ordering::Relaxed);
    };
    let session = builder(&server.url()).on_event(told).connect().await.unwrap();
    let options = Options::default().lease(SECOND).hold_at_most(2 * SECOND);
    let guard = mutex(&session, "a", options).acquire().await.unwrap();
    let reason = tokio::time::timeout(SOON, guard.lost()).await.unwrap();
    assert_eq!(reason, LostReason::HoldLimit);
    eventually(SOON, "it is told", async || limits.load(Ordering::Relaxed) == 1).await;
}

// A stuck holder does not keep the lock for ever, whatever it asked for while it was well.
#[tokio::test]
async fn extension_does_not_outlive_the_longest_hold() {
    let server = Server::start();
    let (one, two) = (session(&server).await, session(&server).await);
    let options = Options::default().lease(SECOND).hold_at_most(2 * SECOND);
    let guard = mutex(&one, "a", options).acquire().await.unwrap();
    guard.extend(3600 * SECOND).await.unwrap();
    let next = mutex(&two, "a", Options::default()).acquire_within(SOON).await.unwrap();
    assert!(!guard.is_held() && next.is_held());
}

#[tokio::test]
async fn inbox_of_an_idle_session_comes_back_after_a_cut() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let ups = Arc::new(AtomicU32::new(0));
    let seen = ups.clone();
    let told = move |event: &Event| {
        seen.fetch_add(u32::from(matches!(event, Event::InboxUp)), Ordering::Relaxed);
    };
    let _session = builder(proxy.url()).on_event(told).connect().await.unwrap();
    proxy.cut();
    eventually(SOON, "the inbox is back", async || ups.load(Ordering::Relaxed) == 1).await;
}

// I1: an adopted hold is no longer the earlier guard's, at once and not at its next renewal (which a fixed one never has).
#[tokio::test]
async fn guard_of_a_hold_adopted_elsewhere_is_told() {
    let server = Server::start();
    let (one, two) = (session(&server).await, session(&server).await);
    let fixed = mutex(&one, "a", Options::default().fixed(60 * SECOND));
    let earlier = fixed.acquire().await.unwrap();
    let second = mutex(&two, "a", Options::default());
    let adopted = second.adopt(earlier.owner()).await.unwrap();
    let reason = tokio::time::timeout(SOON, earlier.lost()).await.unwrap();
    assert_eq!(reason, LostReason::NotOwner);
    assert!(adopted.is_held());
    adopted.release().await.unwrap();
}

// A server with no room for one more connection has room soon: no reason to send the waiters away.
#[tokio::test]
async fn waiter_outlasts_a_server_that_is_full_of_clients() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let mut control = server.connection().await;
    let mut set_maxclients = async |most: &str| {
        let mut command = redis::cmd("CONFIG");
        command.arg("SET").arg("maxclients").arg(most);
        command.exec_async(&mut control).await.expect("CONFIG SET");
    };
    let (near, far) = (session(&server).await, builder(proxy.url()).connect().await.unwrap());
    let (first, second) =
        (mutex(&near, "a", Options::default()), mutex(&far, "a", Options::default()));
    let guard = first.acquire().await.unwrap();
    let waiting = tokio::spawn(async move { second.acquire_within(30 * SECOND).await });
    eventually(SOON, "it waits", async || first.queue().await.unwrap().length == 1).await;
    set_maxclients("1").await;
    let (checks, connections) = (far.statistics().checks, proxy.connections());
    proxy.cut();
    let refused =
        async || far.statistics().checks > checks + 2 && proxy.connections() > connections + 2;
    eventually(SOON, "it is refused", refused).await;
    assert!(!waiting.is_finished());
    set_maxclients("1000").await;
    guard.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

// The turn to connect is held by a task of a runtime that nobody drives any more.
#[test]
fn frozen_runtime_does_not_keep_others_from_connecting() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let single = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (frozen, other) = (single(), single());
    let session = other.block_on(builder(proxy.url()).connect()).unwrap();
    let lock = mutex(&session, "a", Options::default());
    proxy.cut();
    proxy.black_hole(true);
    // This one meets the cut, so that the next has to connect.
    let impatient = async { tokio::time::timeout(300 * MS, lock.acquire()).await.is_err() };
    assert!(other.block_on(impatient));
    let stuck = lock.clone();
    let before = proxy.connections();
    let task = frozen.spawn(async move { stuck.acquire_within(60 * SECOND).await.map(drop) });
    let connects = async || proxy.connections() > before;
    frozen.block_on(eventually(SOON, "it has the turn", connects));
    proxy.black_hole(false);
    let guard = other.block_on(lock.acquire_within(SOON + SOON)).unwrap();
    assert!(guard.is_held() && !task.is_finished());
    other.block_on(guard.release()).unwrap();
}

// I20: what a dropped guard left behind counts as well.
#[tokio::test]
async fn shutdown_that_could_not_release_a_dropped_guard_says_so() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let session = builder(proxy.url()).connect().await.unwrap();
    let guard = mutex(&session, "a", Options::default()).acquire().await.unwrap();
    proxy.black_hole(true);
    drop(guard);
    assert_eq!(session.shutdown(200 * MS).await.unwrap_err().unanswered, 1);
}

#[tokio::test]
async fn second_shutdown_answers_no_better_than_the_first() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let session = builder(proxy.url()).connect().await.unwrap();
    let _guard = mutex(&session, "a", Options::default()).acquire().await.unwrap();
    proxy.black_hole(true);
    let started = Watch::start();
    let (one, two) = tokio::join!(session.shutdown(300 * MS), session.shutdown(300 * MS));
    assert!(one.is_err() && two.is_err(), "{one:?} {two:?}");
    assert!(started.elapsed() >= 300 * MS);
}

// A lease that the clock margin eats up is refused at once: waiting for it would ask the server without pause.
#[tokio::test]
async fn lease_below_the_clock_margin_is_refused_at_once() {
    let server = Server::start();
    let session = session(&server).await;
    let holder = mutex(&session, "a", Options::default()).acquire().await.unwrap();
    let tiny = mutex(&session, "a", Options::default().lease(MS));
    let started = Watch::start();
    let waited = async {
        let refused = tiny.acquire_within(SECOND).await.unwrap_err();
        assert!(matches!(refused, AcquireError::ValidityTooShort { .. }), "{refused}");
    };
    let released = async {
        tokio::time::sleep(100 * MS).await;
        holder.release().await.unwrap();
    };
    tokio::join!(waited, released);
    assert!(started.awake() < SECOND / 2);
    assert!(session.statistics().checks < 10, "{:?}", session.statistics());
}

// An impatient caller says nothing about the connection that all others share.
#[tokio::test]
async fn short_waits_do_not_cost_connections() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let session = builder(proxy.url()).connect().await.unwrap();
    let lock = mutex(&session, "a", Options::default());
    let before = proxy.connections();
    proxy.delay(20 * MS);
    for _ in 0..10 {
        assert!(lock.acquire_within(MS).await.is_err());
    }
    proxy.delay(Duration::ZERO);
    lock.acquire().await.unwrap().release().await.unwrap();
    assert_eq!(proxy.connections(), before);
}

#[tokio::test]
async fn clock_margin_has_a_bound() {
    let server = Server::start();
    let refused = builder(&server.url()).clock_drift(10_000, Duration::MAX).connect().await;
    assert!(matches!(refused, Err(ConfigError::SessionOption { option: "clock_drift", .. })));
}

#[tokio::test]
async fn every_future_can_move_between_threads() {
    fn moves<T: Send>(value: T) -> T {
        value
    }
    let server = Server::start();
    let session = session(&server).await;
    let lock = mutex(&session, "a", Options::default());
    let guard = moves(lock.acquire()).await.unwrap();
    moves(guard.extend(SECOND)).await.unwrap();
    moves(guard.while_held(async {})).await.unwrap();
    moves(lock.queue()).await.unwrap();
    let guard = moves(lock.adopt(&guard.detach())).await.unwrap();
    moves(guard.release()).await.unwrap();
    moves(lock.force_release()).await.unwrap();
    moves(session.shutdown(SECOND)).await.unwrap();
}

// Callbacks run with no lock of ours held, on whatever thread; what they do to holds is an ordinary use.
#[tokio::test]
async fn callback_may_drop_guards_and_panic() {
    let server = Server::start();
    let kept = Arc::new(std::sync::Mutex::new(Vec::new()));
    let drops = kept.clone();
    let told = move |event: &Event| {
        if matches!(event, Event::Lost { .. }) {
            drops.lock().unwrap().clear();
            panic!("a callback that panics");
        }
    };
    let session = builder(&server.url()).on_event(told).connect().await.unwrap();
    let fixed = mutex(&session, "a", Options::default().fixed(200 * MS)).acquire().await.unwrap();
    for name in ["b", "c"] {
        let guard = mutex(&session, name, Options::default()).acquire().await.unwrap();
        kept.lock().unwrap().push(guard);
    }
    tokio::time::timeout(SOON, fixed.lost()).await.unwrap();
    drop(fixed);
    eventually(SOON, "all are released", async || session.statistics().tracked == 0).await;
    assert!(mutex(&session, "b", Options::default()).try_acquire().await.unwrap().is_some());
}

// Unwinding drops a guard whose loss is told to a callback that panics: a second panic, inside the drop.
#[tokio::test]
async fn panicking_callback_while_unwinding_aborts_nothing() {
    let server = Server::start();
    let told = |_: &Event| panic!("a callback that panics");
    let session = builder(&server.url()).on_event(told).connect().await.unwrap();
    let guard = mutex(&session, "a", Options::default().fixed(50 * MS)).acquire().await.unwrap();
    tokio::time::sleep(100 * MS).await;
    let task = tokio::spawn(async move {
        let _guard = guard;
        panic!("the work fails");
    });
    assert!(task.await.unwrap_err().is_panic());
    assert!(session.statistics().watched == 0);
}
