//! Rows W of the table of behaviours whose subject is time: leases of a second and less that are
//! never late, though much is held, much comes and goes, or all workers are blocked.
//!
//! Bounds are those of the table where they are the subject (`is_held`, the end of a key); where a
//! quiet machine is meant the test states its margin.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold_mutex::{Event, Guard, LostReason, Options, ReleaseError, Session};
use leasehold_tests::rig::{PttlSampler, kill_connections, span, waiter};
use leasehold_tests::scene::{SOON, Told, keys, keys_left, mutex, session};
use leasehold_tests::{Server, eventually};
use redis::AsyncCommands;
use tokio::task::JoinSet;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// For two cores that do other work too.
const MACHINE: Duration = Duration::from_millis(300);

fn lost(event: &Event) -> bool {
    matches!(event, Event::Lost { .. } | Event::ReleaseLost { .. })
}

async fn listening(server: &Server) -> (Session, Told) {
    let told = Told::default();
    let builder = Session::builder(&server.url()).expect("a URL");
    (told.by(builder).connect().await.expect("a session"), told)
}

/// Entries are by acquisition: the one that died with the outage does not hinder the next. The server
/// stands still for longer than the lease, or it starts anew and has forgotten the hold.
#[tokio::test]
async fn b02_the_watchdog_works_after_an_outage() {
    for restart in [false, true] {
        let server = Server::start();
        let (session, told) = listening(&server).await;
        let lock = mutex(&session, "a", Options::default().lease(900 * MS).max_wait(SOON));
        let first = lock.acquire().await.unwrap();
        if restart {
            server.restart();
            assert!([LostReason::Expired, LostReason::Unreachable].contains(&first.lost().await));
        } else {
            server.freeze();
            assert_eq!(first.lost().await, LostReason::Unreachable);
            tokio::time::sleep(2 * SECOND).await;
            server.thaw();
        }
        // The first guard is still there, and so is whatever it left in the watchdog.
        let second = lock.acquire().await.unwrap();
        let sampler = PttlSampler::of_holds(&server, ["a"], 20 * MS);
        tokio::time::sleep(span(4 * SECOND, 2 * SECOND)).await;
        let sampled = sampler.stop();
        println!("second hold: {sampled:?}");
        assert!(second.is_held() && !first.is_held());
        assert_eq!((sampled.absent, sampled.endless), (0, 0));
        assert!(sampled.least.unwrap() >= 300 * MS, "{sampled:?}");
        assert_eq!(session.statistics().watched, 1);
        assert_eq!(told.count(|event| matches!(event, Event::Lost { .. })), 1);
        assert!(matches!(first.release().await, Err(ReleaseError::Lost(_))));
        second.release().await.unwrap();
    }
}

/// 150 stable holds and 50 that come and go: nobody's end is another's trouble.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b04_holds_that_come_and_go_harm_no_other() {
    let server = Server::start();
    let (session, told) = listening(&server).await;
    let options = Options::default().lease(900 * MS);
    let stable = hold_many(&session, "stable", 150, &options).await;
    let ends = Instant::now() + span(10 * SECOND, 4 * SECOND);
    let mut tasks = JoinSet::new();
    for number in 0..50u64 {
        let lock = mutex(&session, &format!("loose{number}"), options.clone());
        tasks.spawn(async move {
            let mut held = 0;
            while Instant::now() < ends {
                let guard = lock.acquire().await.expect("a hold");
                // Around a renewal, before it, and beyond several.
                tokio::time::sleep(MS * u32::try_from(number * 17 % 700).expect("small")).await;
                guard.release().await.expect("still held");
                held += 1;
            }
            held
        });
    }
    let mut held = 0;
    while let Some(done) = tasks.join_next().await {
        held += done.unwrap();
    }
    assert!(held > 200, "{held}");
    assert!(stable.iter().all(Guard::is_held));
    assert_eq!(told.count(lost), 0, "{:?}", told.all());
    assert_eq!(session.statistics().watched, 150);
    session.shutdown(SOON).await.unwrap();
}

async fn hold_many(session: &Session, name: &str, count: u32, options: &Options) -> Vec<Guard> {
    let mut acquiring = JoinSet::new();
    for number in 0..count {
        let lock = mutex(session, &format!("{name}{number}"), options.clone());
        acquiring.spawn(async move { lock.acquire().await.expect("a hold") });
    }
    acquiring.join_all().await
}

/// Whoever waits is served at the cap, whatever the holder did to its lease: nothing, or a long
/// extension.
#[tokio::test]
async fn b08_the_longest_hold_ends_it_and_a_waiter_gets_it() {
    for extended in [false, true] {
        let server = Server::start();
        let (one, told) = listening(&server).await;
        let two = session(&server.url()).await;
        let capped = Options::default().lease(500 * MS).hold_at_most(2 * SECOND);
        let begin = Instant::now();
        let guard = mutex(&one, "a", capped).acquire().await.unwrap();
        if extended {
            guard.extend(20 * SECOND).await.unwrap();
        }
        let lock = mutex(&two, "a", Options::default().max_wait(SOON));
        let waiting = waiter(&server, &lock, "a", 1).await;
        let reason = guard.lost().await;
        let ended = begin.elapsed();
        let (next, at) = waiting.await.unwrap();
        println!("extended: {extended}; ended after {ended:?}, next after {:?}", at - begin);
        assert_eq!(reason, LostReason::HoldLimit);
        let bounds = 2000 * MS - 50 * MS..2600 * MS;
        assert!(bounds.contains(&ended), "{ended:?}");
        assert!(bounds.contains(&(at - begin)), "{:?}", at - begin);
        assert!(next.is_held() && !guard.is_held());
        assert_eq!(told.count(|event| matches!(event, Event::HoldLimit { .. })), 1);
        // A stuck holder is not stuck for ever: it learns what happened.
        assert!(matches!(guard.release().await, Err(ReleaseError::Lost(_))));
        next.release().await.unwrap();
    }
}

/// 5 000 leases of 3 s: a renewal a second each, in far fewer calls, none of them late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b09_many_leases_are_renewed_in_few_calls() {
    const HELD: u32 = 5000;
    let server = Server::start();
    let (session, told) = listening(&server).await;
    let guards = hold_many(&session, "a", HELD, &Options::default().lease(3 * SECOND)).await;
    let names: Vec<_> = (0..HELD).map(|number| format!("a{number}")).collect();
    let sampler = PttlSampler::of_holds(&server, names.iter().map(String::as_str), 100 * MS);
    let (begin, before) = (Instant::now(), session.statistics().renewals);
    tokio::time::sleep(span(12 * SECOND, 4 * SECOND)).await;
    let calls = session.statistics().renewals - before;
    let renewed = f64::from(HELD) * begin.elapsed().as_secs_f64();
    let sampled = sampler.stop();
    println!("{calls} calls for some {renewed:.0} renewals; {sampled:?}");
    assert!(calls as f64 <= renewed / 25.0, "{calls} calls for some {renewed:.0} renewals");
    assert_eq!((sampled.absent, sampled.endless), (0, 0));
    assert!(sampled.least.unwrap() > SECOND, "{sampled:?}");
    assert!(guards.iter().all(Guard::is_held));
    assert_eq!(told.count(lost), 0);
    // The one release of all: as many calls as holds, all at once.
    session.shutdown(SOON).await.unwrap();
    assert_eq!(keys_left(&server).await, [""; 0]);
}

/// The alarm of the row: a thread that cannot keep up says so. A listener that blocks it (which it
/// must not) is what makes it late here.
#[tokio::test]
async fn b09_a_round_that_is_late_is_told() {
    let server = Server::start();
    let (told, blocked) = (Arc::new(std::sync::Mutex::new(Vec::new())), 2200 * MS);
    let heard = Arc::clone(&told);
    let builder = Session::builder(&server.url()).unwrap().on_event(move |event| {
        if matches!(event, Event::InboxDown) {
            std::thread::sleep(blocked);
        }
        heard.lock().expect("no panic inside").push(event.clone());
    });
    let session = builder.connect().await.unwrap();
    let lock = mutex(&session, "a", Options::default().lease(3 * SECOND));
    let guard = lock.acquire().await.unwrap();
    // The renewal that is due after 1 s is at least 1.1 s late, and 0.8 s before the lease is over.
    assert_eq!(kill_connections(&server, "pubsub").await, 1);
    let late = async || {
        let told = told.lock().expect("no panic inside");
        told.iter().any(|event| matches!(event, Event::Late { by, .. } if *by > SECOND))
    };
    eventually(SOON, "it is told", late).await;
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

/// Both workers of the runtime are blocked for four seconds while two guards of it hold, and while a
/// third one is handed over to it: the session's own thread renews all three.
#[test]
fn b10_renewals_go_on_while_all_workers_are_blocked() {
    let quiet = tokio::runtime::Runtime::new().unwrap();
    let busy =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let server = quiet.block_on(async { Server::start() });
    let here = quiet.block_on(session(&server.url()));
    let there = busy.block_on(session(&server.url()));
    let options = Options::default().lease(900 * MS).max_wait(60 * SECOND);
    let handed_over = quiet.block_on(mutex(&here, "c", options.clone()).acquire()).unwrap();
    let waits = busy.spawn({
        let lock = mutex(&there, "c", options.clone());
        async move {
            let guard = lock.acquire().await.expect("a hold");
            let held = guard.is_held();
            guard.release().await.expect("still held");
            held
        }
    });
    quiet.block_on(leasehold_tests::scene::queued(&server, "c", 1));
    let blocked = span(4 * SECOND, 2500 * MS);
    let blocking = Arc::new(AtomicU32::new(0));
    let tasks = ["a", "b"].map(|name| {
        let guard = busy.block_on(mutex(&there, name, options.clone()).acquire()).unwrap();
        // From outside, so that each worker takes one of them.
        busy.spawn(blocks_its_worker(guard, blocked, Arc::clone(&blocking)))
    });
    quiet.block_on(async {
        let both = async || blocking.load(Ordering::SeqCst) == 2;
        eventually(SOON, "both workers are blocked", both).await;
        let sampler = PttlSampler::of_holds(&server, ["a", "b", "c"], 10 * MS);
        handed_over.release().await.unwrap();
        tokio::time::sleep(blocked - 500 * MS).await;
        assert!(!waits.is_finished(), "its worker is blocked: nothing of this was tested");
        let sampled = sampler.stop();
        println!("blocked for {blocked:?}: {sampled:?}");
        assert_eq!((sampled.absent, sampled.endless), (0, 0), "{sampled:?}");
        for task in tasks {
            assert!(task.await.unwrap(), "still held after the block");
        }
        assert!(waits.await.unwrap(), "the hand-over lasted through the block");
        assert_eq!(keys_left(&server).await, [""; 0]);
    });
}

async fn blocks_its_worker(guard: Guard, blocked: Duration, blocking: Arc<AtomicU32>) -> bool {
    blocking.fetch_add(1, Ordering::SeqCst);
    std::thread::sleep(blocked);
    let held = guard.is_held();
    guard.release().await.expect("still held");
    held
}

/// The negative control of the row above: without renewal the key is gone long before the end of the
/// block, the sampler sees it, and the guard knows at once on its return.
#[test]
fn b10_without_renewal_a_blocked_holder_knows_on_return() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(async { Server::start() });
    let session = runtime.block_on(session(&server.url()));
    let lock = mutex(&session, "a", Options::default().fixed(900 * MS));
    let guard = runtime.block_on(lock.acquire()).unwrap();
    let sampler = PttlSampler::of_holds(&server, ["a"], 10 * MS);
    std::thread::sleep(900 * MS + MACHINE);
    assert!(!guard.is_held());
    assert!(sampler.stop().absent > 0);
    runtime.block_on(async {
        let gone: bool = server.connection().await.exists(&*keys("a").holds).await.unwrap();
        assert!(!gone);
    });
}
