//! Rows C of the table of behaviours, for the mutex: futures dropped at any moment, guards dropped
//! anywhere, and the end of a session.

use std::future::Future;
use std::time::{Duration, Instant};

use leasehold_mutex::{AcquireError, AdoptError, Guard, LostReason, Mutex, Options, Session};
use leasehold_tests::rig::{awake, dropped_after, waiter};
use leasehold_tests::scene::{SOON, entries, inboxes, keys_left, mutex, queued, session};
use leasehold_tests::{FaultProxy, Server, eventually, rounds};
use tokio::task::JoinSet;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// What the table calls half a second or a second, on two cores that do other work too (but not
/// while the machine stands still); far below the leases here.
const SHORTLY: Duration = Duration::from_millis(1500);

/// [`eventually`], and shortly.
async fn shortly(what: &str, fact: impl AsyncFnMut() -> bool) {
    let begin = awake();
    eventually(SOON, what, fact).await;
    let took = awake() - begin;
    assert!(took < SHORTLY, "{what}: only after {took:?}");
}

async fn is_free(server: &Server, session: &Session) -> bool {
    session.statistics().tracked == 0 && keys_left(server).await.is_empty()
}

/// Runs a future for so long, finer than a timer does, and drops it then.
async fn dropped_within<F: Future>(within: Duration, future: F) -> Option<F::Output> {
    let begin = Instant::now();
    tokio::select! {
        biased;
        output = future => Some(output),
        () = async {
            while begin.elapsed() < within {
                tokio::task::yield_now().await;
            }
        } => None,
    }
}

/// The first poll sends the release; it arrives whatever becomes of its future.
#[tokio::test]
async fn b34_a_dropped_release_releases() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let lock = mutex(&session, "a", Options::default().lease(60 * SECOND));
    for round in 0..rounds(500) {
        let guard = lock.acquire().await.unwrap();
        tokio::time::sleep(MS * (round % 3)).await;
        let done = match round % 4 {
            // Never polled, polled once, or given up in the middle.
            0 => {
                drop(guard.release());
                None
            }
            1 => dropped_after(1, guard.release()).await,
            _ => dropped_after(round % 17, guard.release()).await,
        };
        assert_eq!(session.statistics().watched, 0, "I3");
        shortly("it is released", async || is_free(&server, &session).await).await;
        drop(done);
    }
}

/// The same where the runtime that drives the connection is blocked right after the first poll.
#[test]
fn b34_a_dropped_release_releases_beside_a_blocked_runtime() {
    let control = tokio::runtime::Runtime::new().unwrap();
    let server = control.block_on(async { Server::start() });
    let blocked = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let session = blocked.block_on(session(&server.url()));
    let lock = mutex(&session, "a", Options::default().lease(60 * SECOND));
    let (goes_on, waits) = std::sync::mpsc::channel::<()>();
    let busy = std::thread::spawn(move || {
        blocked.block_on(async {
            let guard = lock.acquire().await.unwrap();
            drop(dropped_after(1, guard.release()).await);
            // Blocks the only thread of this runtime until the test has seen what it wanted.
            waits.recv().unwrap();
        });
    });
    control.block_on(async {
        let free =
            async || keys_left(&server).await.is_empty() && session.statistics().tracked == 0;
        shortly("it is released", free).await;
    });
    goes_on.send(()).unwrap();
    busy.join().unwrap();
}

/// In a task, on a plain thread, inside `block_on`, while unwinding, and after its runtime has ended.
#[test]
fn b36_a_guard_may_be_dropped_anywhere() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(async { Server::start() });
    let session = runtime.block_on(session(&server.url()));
    let lock = mutex(&session, "a", Options::default().lease(60 * SECOND));
    let take = || runtime.block_on(lock.acquire()).unwrap();
    let released = |how: &str| {
        runtime.block_on(shortly(how, async || is_free(&server, &session).await));
    };

    let guard = take();
    runtime.block_on(runtime.spawn(async move { drop(guard) })).unwrap();
    released("in a task");

    let guard = take();
    std::thread::spawn(move || drop(guard)).join().unwrap();
    released("on a plain thread");

    let guard = take();
    let single = tokio::runtime::Builder::new_current_thread().build().unwrap();
    single.block_on(async move { drop(guard) });
    released("inside block_on, without any driver");

    let guard = take();
    let panicked = std::thread::spawn(move || {
        let _guard = guard;
        panic!("a panic that the test wants");
    });
    assert!(panicked.join().is_err());
    released("while unwinding");

    let single = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let guard = single.block_on(lock.acquire()).unwrap();
    drop(single);
    drop(guard);
    released("after the end of its runtime");

    // The guard is the last thing that is left of its session: it takes the thread along.
    let short_lived = runtime.block_on(leasehold_tests::scene::session(&server.url()));
    let last = mutex(&short_lived, "a", Options::default().lease(60 * SECOND));
    let guard = runtime.block_on(last.acquire()).unwrap();
    drop((short_lived, last));
    assert_eq!(runtime.block_on(inboxes(&server)), 2);
    std::thread::spawn(move || drop(guard)).join().unwrap();
    released("as the last of its session");
    let ended = async || inboxes(&server).await == 1;
    runtime.block_on(eventually(SOON, "its inbox has closed", ended));
}

/// I9: the acquire and its end lie there when the server goes on. Whoever comes after is served.
#[tokio::test]
async fn b39_a_cancelled_acquire_is_undone_when_the_server_goes_on() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    for round in 0..rounds(20) {
        let lock = mutex(&one, "a", Options::default().lease(60 * SECOND));
        let other = mutex(&two, "a", Options::default().max_wait(SOON));
        server.freeze();
        let given_up = match round % 2 {
            0 => tokio::time::timeout(100 * MS, lock.acquire()).await.is_err(),
            _ => tokio::time::timeout(100 * MS, lock.try_acquire()).await.is_err(),
        };
        assert!(given_up);
        // Its call arrives behind the one that was given up: it queues, or finds the lock free again.
        let waiting = tokio::spawn(async move { other.acquire().await.unwrap() });
        tokio::time::sleep(50 * MS).await;
        server.thaw();
        let thawed = awake();
        waiting.await.unwrap().release().await.unwrap();
        assert!(awake() - thawed < SHORTLY, "{:?}", awake() - thawed);
        shortly("it is undone", async || is_free(&server, &one).await).await;
    }
}

/// I9 at every moment of an acquire, 50 us apart: of a free lock, and of one that another session
/// has and gives up just then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b40_an_acquire_dropped_at_any_moment_leaves_nothing() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let options = Options::default().lease(60 * SECOND).max_wait(SOON);
    let (mut given_up, mut taken) = (0, 0);
    for round in 0..rounds(5000) {
        let after = MS / 20 * (round / 2 % 60);
        let lock = mutex(&one, &format!("a{}", round % 7), options.clone());
        let contended = match round % 2 {
            0 => None,
            _ => Some(mutex(&two, &format!("a{}", round % 7), options.clone()).acquire().await),
        };
        // The other's release runs beside: the grant arrives about when the future is dropped.
        let releasing = contended.map(|held| tokio::spawn(held.unwrap().release()));
        match dropped_within(after, lock.acquire()).await {
            Some(guard) => {
                drop(guard.unwrap());
                taken += 1;
            }
            None => given_up += 1,
        }
        if let Some(releasing) = releasing {
            releasing.await.unwrap().unwrap();
        }
    }
    println!("{given_up} given up, {taken} taken");
    assert!(given_up > 0 && taken > 0, "{given_up} given up, {taken} taken");
    shortly("nothing is left", async || is_free(&server, &one).await).await;
    assert_eq!((one.statistics().watched, two.statistics().tracked), (0, 0));
}

/// The same for an adoption: the hold was adopted and is given back, or it is the owner's as before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b40_an_adoption_dropped_at_any_moment_leaves_one_hold_or_none() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let options = Options::default().lease(60 * SECOND).max_wait(SOON);
    let (mut adopted, mut given_up, mut kept) = (0, 0, 0);
    for round in 0..rounds(2000) {
        let name = format!("a{round}");
        let (first, second) =
            (mutex(&one, &name, options.clone()), mutex(&two, &name, options.clone()));
        let owner = first.acquire().await.unwrap().detach();
        match dropped_within(MS / 20 * (round % 30), second.adopt(&owner)).await {
            Some(guard) => {
                guard.unwrap().release().await.unwrap();
                adopted += 1;
            }
            None => given_up += 1,
        }
        shortly("it has ended", async || two.statistics().tracked == 0).await;
        let entries = entries(&mut server.connection().await, &name).await;
        assert!(entries.len() <= 1, "{entries:?}");
        // What is left is the owner's first hold: he gets it whole, and one release frees it.
        match (first.adopt(&owner).await, entries.len()) {
            (Ok(guard), 1) => {
                guard.release().await.unwrap();
                kept += 1;
            }
            (Err(AdoptError::Lost(_)), 0) => {}
            (outcome, found) => panic!("{outcome:?} with {found} entries"),
        }
    }
    println!("{adopted} adopted, {given_up} given up, {kept} kept by the owner");
    assert!(adopted > 0 && given_up > 0);
    assert_eq!(keys_left(&server).await, [""; 0]);
}

/// The negative control of the rows above: a future that is just forgotten does strand its key.
#[tokio::test]
async fn b40_a_forgotten_hold_is_seen() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let lock = mutex(&session, "a", Options::default());
    std::mem::forget(lock.acquire().await.unwrap());
    assert!(!is_free(&server, &session).await);
}

/// I20: holds, waiters, and the guards that were dropped just before; a waiter elsewhere is served at
/// once, with a lease of 60 s to go.
#[tokio::test]
async fn b42_a_shutdown_gives_everything_back() {
    let server = Server::start();
    let (leaving, staying) = (session(&server.url()).await, session(&server.url()).await);
    let options = Options::default().lease(60 * SECOND).max_wait(60 * SECOND);
    let mut held = Vec::new();
    for number in 0..25 {
        let lock = mutex(&leaving, &format!("held{number}"), options.clone());
        held.push(lock.acquire().await.unwrap());
    }
    let (mut theirs, mut waiting) = (Vec::new(), JoinSet::new());
    for number in 0..3 {
        let name = format!("theirs{number}");
        theirs.push(mutex(&staying, &name, options.clone()).acquire().await.unwrap());
        let lock = mutex(&leaving, &name, options.clone());
        waiting.spawn(async move { lock.acquire().await });
        queued(&server, &name, 1).await;
    }
    let elsewhere = waiter(&server, &mutex(&staying, "held7", options.clone()), "held7", 1).await;
    drop(held.split_off(20));
    let begin = awake();
    leaving.shutdown(SOON).await.unwrap();
    let (next, _) = elsewhere.await.unwrap();
    println!("shut down, and served elsewhere, after {:?}", awake() - begin);
    assert!(awake() - begin < SHORTLY, "{:?}", awake() - begin);
    for guard in &held {
        assert!(!guard.is_held());
        assert_eq!(guard.lost().await, LostReason::Shutdown);
    }
    while let Some(outcome) = waiting.join_next().await {
        assert!(matches!(outcome.unwrap(), Err(AcquireError::Closed)));
    }
    next.release().await.unwrap();
    for guard in theirs {
        guard.release().await.unwrap();
    }
    assert_eq!(keys_left(&server).await, [""; 0]);
    eventually(SOON, "its inbox has closed", async || inboxes(&server).await == 1).await;
    // What remains in the hands of the user is harmless.
    drop(held);
    leaving.shutdown(SECOND).await.unwrap();
    let lock = mutex(&leaving, "a", Options::default());
    assert!(matches!(lock.acquire().await, Err(AcquireError::Closed)));
    assert!(matches!(lock.try_acquire().await, Err(AcquireError::Closed)));
}

/// Acquires that are under way when the session ends: each ends as a hold that is given back, or as
/// `Closed`; none is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b42_a_shutdown_meets_acquires_under_way() {
    let server = Server::start();
    for round in 0..rounds(100) {
        let session = session(&server.url()).await;
        let mut acquiring = JoinSet::new();
        for number in 0..16u32 {
            let lock = mutex(&session, &format!("a{}", number / 2), Options::default());
            acquiring.spawn(async move { lock.acquire().await });
        }
        let ending = session.clone();
        let pause = dropped_within(MS / 10 * (round % 30), std::future::pending::<()>());
        assert!(pause.await.is_none());
        ending.shutdown(SOON).await.unwrap();
        assert_eq!(keys_left(&server).await, [""; 0], "round {round}");
        for outcome in acquiring.join_all().await {
            match outcome {
                Ok(guard) => assert!(!guard.is_held()),
                Err(error) => assert!(matches!(error, AcquireError::Closed), "{error:?}"),
            }
        }
        assert_eq!(keys_left(&server).await, [""; 0], "round {round}");
    }
}

/// A server that does not answer makes it no longer than was asked for, and it says how much is open.
#[tokio::test]
async fn b42_a_shutdown_is_bounded() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let session = session(proxy.url()).await;
    let options = Options::default().lease(5 * SECOND);
    let guards = [
        mutex(&session, "a", options.clone()).acquire().await.unwrap(),
        mutex(&session, "b", options).acquire().await.unwrap(),
    ];
    proxy.black_hole(true);
    let (begin, woken) = (Instant::now(), awake());
    let error = session.shutdown(500 * MS).await.unwrap_err();
    println!("gave up after {:?}", begin.elapsed());
    assert!(begin.elapsed() >= 500 * MS && awake() - woken < SHORTLY, "{:?}", begin.elapsed());
    assert_eq!(error.unanswered, 2);
    assert!(guards.iter().all(|guard| !guard.is_held()));
    // What it could not give back ends with its lease: nobody renews.
    eventually(SOON, "the leases end", async || keys_left(&server).await.is_empty()).await;
}

/// A server that stands still for a moment and goes on within that time: all is confirmed.
#[tokio::test]
async fn b42_a_shutdown_outlasts_a_pause_of_the_server() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let options = Options::default().lease(60 * SECOND);
    let _held = mutex(&session, "a", options.clone()).acquire().await.unwrap();
    drop(mutex(&session, "b", options).acquire().await.unwrap());
    server.freeze();
    let ending = tokio::spawn(async move { session.shutdown(SOON).await });
    tokio::time::sleep(500 * MS).await;
    assert!(!ending.is_finished());
    server.thaw();
    ending.await.unwrap().unwrap();
    assert_eq!(keys_left(&server).await, [""; 0]);
}

/// A waiter that is dropped leaves the queue; those behind it do not wait for it.
#[tokio::test]
async fn b39_a_dropped_waiter_leaves_the_queue() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let options = Options::default().lease(60 * SECOND).max_wait(60 * SECOND);
    let lock = mutex(&one, "a", options.clone());
    let guard = lock.acquire().await.unwrap();
    let leaving = tokio::spawn(wait(lock.clone()));
    queued(&server, "a", 1).await;
    let staying = waiter(&server, &mutex(&two, "a", options), "a", 2).await;
    leaving.abort();
    queued(&server, "a", 1).await;
    let released = awake();
    guard.release().await.unwrap();
    let (next, _) = staying.await.unwrap();
    assert!(awake() - released < SHORTLY, "{:?}", awake() - released);
    assert_eq!(entries(&mut server.connection().await, "a").await.len(), 1);
    next.release().await.unwrap();
    shortly("nothing is left", async || is_free(&server, &one).await).await;
}

async fn wait(lock: Mutex) -> Guard {
    lock.acquire().await.expect("a hold")
}
