//! One session and many runtimes: of either kind, one after the other, none at all, blocked.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use leasehold_mutex::{
    AcquireError, AdoptError, BackendErrorKind, ConfigError, ExtendError, Options, Session,
};
use leasehold_tests::rig::{PttlSampler, Watch, connections, waiter};
use leasehold_tests::scene::{SOON, keys_left, mutex, session};
use leasehold_tests::{Server, Worker, eventually};
use tokio::runtime::{Builder, Runtime};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn multi_thread(workers: usize) -> Runtime {
    Builder::new_multi_thread().worker_threads(workers).enable_all().build().expect("a runtime")
}

/// Takes, waits, is granted by a push, extends, drops.
async fn works(server: &Server, session: &Session, name: &str) {
    let lock = mutex(session, name, Options::default().max_wait(SOON));
    let guard = lock.acquire().await.expect("a hold");
    let next = waiter(server, &lock, name, 1).await;
    guard.extend(SECOND).await.expect("an extension");
    guard.release().await.expect("still held");
    drop(next.await.expect("no panic").0);
    let free = async || !lock.is_locked().await.expect("an answer");
    eventually(SOON, "the drop released", free).await;
}

#[test]
fn a_session_works_in_either_kind_of_runtime() {
    for runtime in [current_thread(), multi_thread(1), multi_thread(4)] {
        runtime.block_on(async {
            let server = Server::start();
            let session = session(&server.url()).await;
            works(&server, &session, "a").await;
            session.shutdown(SOON).await.unwrap();
        });
    }
}

/// The runtime in which it was opened is gone, and the next one too.
#[test]
fn a_session_outlives_the_runtimes_that_use_it() {
    let server = Server::start();
    let session = current_thread().block_on(session(&server.url()));
    let held = current_thread().block_on(async {
        let lock = mutex(&session, "held", Options::default().lease(600 * MS));
        lock.acquire().await.unwrap()
    });
    let first = multi_thread(2);
    for runtime in [current_thread(), multi_thread(2), current_thread()] {
        runtime.block_on(works(&server, &session, "a"));
    }
    first.block_on(works(&server, &session, "a"));
    // Renewed all along, and between two runtimes.
    std::thread::sleep(SECOND);
    assert!(held.is_held());
    current_thread().block_on(async {
        held.release().await.unwrap();
        session.shutdown(SOON).await.unwrap();
    });
}

/// A session and its server for all tests of a program, each of which has a runtime of its own.
fn shared() -> &'static (Server, Session) {
    static SHARED: OnceLock<(Server, Session)> = OnceLock::new();
    SHARED.get_or_init(|| {
        let open = || {
            let server = Server::start();
            let session = current_thread().block_on(session(&server.url()));
            (server, session)
        };
        // A thread of its own: the test that comes first has a runtime already.
        std::thread::spawn(open).join().expect("a session")
    })
}

#[tokio::test]
async fn a_static_session_serves_one_test() {
    let (server, session) = shared();
    for _ in 0..10 {
        works(server, session, "one").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_static_session_serves_another_test_at_the_same_time() {
    let (server, session) = shared();
    for _ in 0..10 {
        works(server, session, "two").await;
    }
}

/// Each runtime drives a connection of its own: one that nobody drives any more, though it lives,
/// holds no other up.
#[test]
fn a_runtime_that_rests_keeps_no_other_waiting() {
    let server = Server::start();
    let (resting, other) = (current_thread(), current_thread());
    let session = resting.block_on(session(&server.url()));
    let began = Watch::start();
    other.block_on(works(&server, &session, "a"));
    assert!(began.awake() < Duration::from_millis(1_500), "{:?}", began.awake());
    resting.block_on(works(&server, &session, "a"));
}

#[test]
fn a_static_session_serves_many_runtimes_at_once_and_in_turn() {
    let (server, session) = shared();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for _ in 0..5 {
                    current_thread().block_on(works(server, session, &format!("thread {thread}")));
                }
            });
        }
    });
}

#[test]
fn without_a_runtime_calls_say_so_and_drops_work() {
    let runtime = current_thread();
    let server = Server::start();
    let session = runtime.block_on(session(&server.url()));
    let lock = mutex(&session, "a", Options::default());
    let [guard, other] = runtime.block_on(async {
        let guard = lock.acquire().await.unwrap();
        let other = mutex(&session, "b", Options::default()).acquire().await.unwrap();
        [guard, other]
    });
    drop(runtime);
    let alone = tokio_free(lock.acquire());
    assert!(matches!(alone, Err(AcquireError::Config(ConfigError::NoRuntime))), "{alone:?}");
    let alone = tokio_free(lock.adopt(guard.owner()));
    assert!(matches!(alone, Err(AdoptError::Config(ConfigError::NoRuntime))), "{alone:?}");
    let alone = tokio_free(guard.extend(SECOND));
    assert!(matches!(alone, Err(ExtendError::Config(ConfigError::NoRuntime))), "{alone:?}");
    let alone = tokio_free(Session::connect(&server.url()));
    assert!(matches!(alone, Err(ConfigError::NoRuntime)));
    for alone in [tokio_free(lock.is_locked()).err(), tokio_free(lock.force_release()).err()] {
        assert_eq!(alone.map(|error| error.kind()), Some(BackendErrorKind::Unsupported));
    }
    // Dropped, and released where no call can be sent: both are the thread's work.
    drop(guard);
    drop(tokio_free(other.release()));
    current_thread().block_on(async {
        let free = async || keys_left(&server).await.is_empty();
        eventually(SOON, "both are released", free).await;
    });
}

/// Polls a future that is ready at once, or panics, without any runtime.
fn tokio_free<F: Future>(future: F) -> F::Output {
    let mut future = Box::pin(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.as_mut().poll(&mut context) {
        std::task::Poll::Ready(output) => output,
        std::task::Poll::Pending => panic!("it waits, without a runtime that could wake it"),
    }
}

/// Two sessions of one process are strangers: they wait for each other, and each has its own end.
#[tokio::test]
async fn two_sessions_in_one_process_are_two_clients() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let (first, second) =
        (mutex(&one, "a", Options::default()), mutex(&two, "a", Options::default()));
    let guard = first.acquire().await.unwrap();
    let busy = second.acquire_within(100 * MS).await.unwrap_err();
    assert!(matches!(busy, AcquireError::TimedOut { held_by_this_session: false, .. }), "{busy:?}");
    let busy = first.acquire_within(100 * MS).await.unwrap_err();
    assert!(matches!(busy, AcquireError::TimedOut { held_by_this_session: true, .. }), "{busy:?}");
    let next = waiter(&server, &second, "a", 1).await;
    one.shutdown(SOON).await.unwrap();
    assert!(!guard.is_held());
    let (next, _) = next.await.unwrap();
    assert!(matches!(first.try_acquire().await, Err(AcquireError::Closed)));
    next.release().await.unwrap();
    drop((guard, first, one));
    eventually(SOON, "its connections close", async || connections(&server).await == 3).await;
    two.shutdown(SOON).await.unwrap();
}

/// B10's sibling over both kinds of runtime: every worker blocks for three leases.
fn holds_outlast(runtime: &Runtime) {
    let server = Server::start();
    let session = runtime.block_on(session(&server.url()));
    let names = ["a", "b"];
    let guards = runtime.block_on(async {
        let mut guards = Vec::new();
        for name in names {
            let lock = mutex(&session, name, Options::default().lease(900 * MS));
            guards.push(lock.acquire().await.expect("in time"));
        }
        guards
    });
    let sampler = PttlSampler::of_holds(&server, names, 10 * MS);
    let begin = Instant::now();
    runtime.block_on(async {
        let blocked: Vec<_> =
            (0..2).map(|_| tokio::spawn(async { std::thread::sleep(2700 * MS) })).collect();
        for worker in blocked {
            worker.await.expect("in time");
        }
    });
    assert!(begin.elapsed() >= 2700 * MS && guards.iter().all(leasehold_mutex::Guard::is_held));
    let seen = sampler.stop();
    assert_eq!((seen.absent, seen.endless), (0, 0), "{seen:?}");
    runtime.block_on(async { session.shutdown(SOON).await.expect("in time") });
}

#[test]
fn holds_outlast_a_blocked_current_thread_runtime() {
    holds_outlast(&current_thread());
}

#[test]
fn holds_outlast_a_runtime_whose_workers_are_all_blocked() {
    holds_outlast(&multi_thread(2));
}

/// With a shutdown nothing is left; without one the hold ends with its lease (I9, I20). How both look
/// to another process is in `mutex_processes.rs`; here a waiter of this one is told at once, or then.
#[tokio::test]
async fn the_end_of_a_process_frees_its_lock_at_once_or_after_its_lease() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let lock = mutex(&session, "a", Options::default().max_wait(SOON));
    for (order, least, most) in [("shutdown", 0, 1000), ("exit", 700, 3000)] {
        let program = env!("CARGO_BIN_EXE_mutex_worker");
        let mut worker = Worker::start(program, &server.url(), "a", 2 * SECOND).await;
        assert!(worker.ask("acquire").await.starts_with("held "));
        let waits = waiter(&server, &lock, "a", 1).await;
        let begin = Instant::now();
        worker.say(order);
        let (guard, at) = waits.await.unwrap();
        let taken = at - begin;
        assert!((MS * least..MS * most).contains(&taken), "{order}: {taken:?}");
        guard.release().await.unwrap();
    }
}
