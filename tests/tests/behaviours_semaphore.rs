//! Rows of BEHAVIOURS.md of the kind S: what a semaphore counts; and of those that look at it from outside. Rows of the
//! general kinds: `behaviours_permits.rs`.

use std::time::Duration;

use leasehold_semaphore::{LostReason, Options, Session};
use leasehold_tests::permits::{WORKERS_LIMIT, idle, keys, seen, semaphore, waiter, waiting};
use leasehold_tests::rig::{Watch, awake};
use leasehold_tests::scene::{SOON, server_ms, session};
use leasehold_tests::{Server, Worker, eventually};
use redis::AsyncCommands;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// What a hand-over or an answer may take on two cores that do other work too.
const MACHINE: Duration = Duration::from_millis(500);
const WORKER: &str = env!("CARGO_BIN_EXE_permit_worker");

fn patient() -> Options {
    Options::default().max_wait(60 * SECOND)
}

/// Limit 2; A holds 2 for 300 ms; B wants 2: at 300 ms.
#[tokio::test]
async fn b78_a_waiter_for_two_is_woken_when_both_are_back() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let (mine, theirs) = (semaphore(&one, "a", 2, patient()), semaphore(&two, "a", 2, patient()));
    for together in [true, false] {
        let held = if together {
            vec![mine.many(2).acquire().await.unwrap()]
        } else {
            vec![mine.acquire().await.unwrap(), mine.acquire().await.unwrap()]
        };
        let waits = waiter(&theirs, 2, 1).await;
        tokio::time::sleep(300 * MS).await;
        assert!(!waits.is_finished());
        let released = awake();
        for permit in held {
            permit.release().await.unwrap();
        }
        let next = waits.await.unwrap();
        assert!(awake() - released < MACHINE, "{:?}", awake() - released);
        next.release().await.unwrap();
    }
}

/// A second first use changes nothing, also while nothing is free.
#[tokio::test]
async fn b80_a_limit_is_not_initialised_twice() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let semaphore_of = |limit| semaphore(&session, "a", limit, patient());
    let mut held = Vec::new();
    for _ in 0..10 {
        held.push(semaphore_of(10).acquire().await.unwrap());
    }
    for limit in [10, 11, 100] {
        assert!(semaphore_of(limit).try_acquire().await.unwrap().is_none(), "the 11th");
    }
    assert_eq!(seen(&semaphore_of(100)).await, (10, 10, 0));
}

/// Three permits of a killed process are free a lease later, and the numbers say so without anybody acquiring.
#[tokio::test]
async fn b81_permits_of_a_killed_process_come_back() {
    let server = Server::start();
    let (lease, session) = (SECOND, session(&server.url()).await);
    let semaphore = semaphore(&session, "a", WORKERS_LIMIT, patient());
    let mut worker = Worker::start(WORKER, &server.url(), "a", lease).await;
    assert_eq!(worker.ask("take 1").await, "held 1");
    assert_eq!(worker.ask("take 2").await, "held 2");
    // It is renewed as long as it lives.
    tokio::time::sleep(lease * 2).await;
    assert_eq!(seen(&semaphore).await, (3, 3, 0));
    worker.kill();
    let killed = awake();
    let free = async || semaphore.available().await.unwrap() == 3;
    eventually(SOON, "they are free", free).await;
    let took = awake() - killed;
    println!("free {took:?} after the kill, the lease is {lease:?}");
    assert!(took <= lease + 200 * MS + MACHINE, "{took:?}");
    assert!(semaphore.holders().await.unwrap().is_empty());
}

/// A killed process that waited is skipped; one that held is followed within its lease, by as many as fit.
#[tokio::test]
async fn b81_those_who_wait_behind_a_killed_process_are_served() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let semaphore = semaphore(&session, "a", WORKERS_LIMIT, patient());
    let held = semaphore.acquire().await.unwrap();
    let mut worker = Worker::start(WORKER, &server.url(), "a", SECOND).await;
    assert_eq!(worker.ask("take 2").await, "held 2");
    assert_eq!(worker.ask("wait 3").await, "begun");
    waiting(&semaphore, 1).await;
    let (next, last) = (waiter(&semaphore, 2, 2).await, waiter(&semaphore, 1, 3).await);
    worker.kill();
    let killed = awake();
    held.release().await.unwrap();
    let (next, last) = (next.await.unwrap(), last.await.unwrap());
    let took = awake() - killed;
    println!("two waiters held {took:?} after the kill");
    assert!(took <= SECOND + MACHINE, "{took:?}");
    assert_eq!(seen(&semaphore).await, (3, 3, 0));
    next.release().await.unwrap();
    last.release().await.unwrap();
}

/// 2 with a lease of 300 ms, 3 with one of 60 s; 500 ms later all five are released: 3 freed, 2 lost.
#[tokio::test]
async fn b83_a_release_of_many_frees_the_live_ones_and_reports_the_others() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let brief = semaphore(&session, "a", 5, patient().fixed(300 * MS));
    let lasting = semaphore(&session, "a", 5, patient().lease(60 * SECOND));
    for by_id in [false, true] {
        let mut permits = Vec::new();
        for from in [&brief, &lasting, &lasting, &brief, &lasting] {
            permits.push(from.acquire().await.unwrap());
        }
        let owners: Vec<_> = permits.iter().map(|permit| permit.owner().clone()).collect();
        tokio::time::sleep(500 * MS).await;
        let report = if by_id {
            lasting.release_by(&owners).await.unwrap()
        } else {
            lasting.release_all(permits).await.unwrap()
        };
        let of = |which: [usize; 3]| which.map(|at| owners[at].clone());
        let mut released = report.released.clone();
        released.sort_by_key(|owner| owners.iter().position(|known| known == owner));
        assert_eq!(released, of([1, 2, 4]), "by id: {by_id}");
        assert_eq!((report.lost.len(), report.unknown.len()), (2, 0));
        assert!(report.lost.iter().all(|(_, reason)| *reason == LostReason::Expired));
        assert_eq!(lasting.available().await.unwrap(), 5);
    }
}

/// A name that was never used: the acquire brings its limit along.
#[tokio::test]
async fn b84_a_semaphore_that_nobody_used_grants_at_once() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let begun = awake();
    let semaphore = semaphore(&session, "a", 2, patient().max_wait(10 * SECOND));
    assert_eq!(seen(&semaphore).await, (2, 0, 0), "what it would be");
    semaphore.many(2).acquire().await.unwrap().release().await.unwrap();
    assert!(awake() - begun < 200 * MS + MACHINE, "{:?}", awake() - begun);
}

/// Limit 10, 10 held, limit 5: releases of 4 grant nothing, 2 more grant one; growth wakes at once.
#[tokio::test]
async fn b85_a_limit_below_its_use_grants_nothing_and_a_higher_one_at_once() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let (mine, theirs) = (semaphore(&one, "a", 10, patient()), semaphore(&two, "a", 10, patient()));
    let mut held = Vec::new();
    for _ in 0..10 {
        held.push(mine.acquire().await.unwrap());
    }
    let mut waits = Vec::new();
    for standing in 1..=4 {
        waits.push(waiter(&theirs, 1, standing).await);
    }
    mine.set_limit(5).await.unwrap();
    assert!(held.iter().all(|permit| permit.is_held()), "nobody is killed");
    for permit in held.drain(..4) {
        permit.release().await.unwrap();
    }
    assert_eq!(seen(&mine).await, (5, 6, 4), "0 grants");
    for permit in held.drain(..2) {
        permit.release().await.unwrap();
    }
    assert_eq!(seen(&mine).await, (5, 5, 3), "1 grant");
    let raised = awake();
    mine.set_limit(8).await.unwrap();
    for waits in waits {
        waits.await.unwrap().release().await.unwrap();
    }
    assert!(awake() - raised < MACHINE, "woken after {:?}", awake() - raised);
    assert_eq!(seen(&mine).await, (8, 4, 0));
}

/// Cap, expiry and order are the server's: two clients whose clocks are ten minutes apart.
#[tokio::test]
async fn b87_the_clocks_of_the_clients_do_not_matter() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let program = |name, shift_s| Worker::with_wall_clock(WORKER, folder.path(), name, shift_s);
    let mut fast = Worker::start(program("ahead", 300), &server.url(), "a", 2 * SECOND).await;
    let mut slow = Worker::start(program("behind", -300), &server.url(), "a", 2 * SECOND).await;
    let session = session(&server.url()).await;
    let observer = semaphore(&session, "a", WORKERS_LIMIT, patient());
    let held = observer.many(3).acquire().await.unwrap();
    // By turns: by their own clocks, all of one would come before all of the other.
    for standing in 1..=6 {
        let worker = if standing % 2 == 0 { &mut fast } else { &mut slow };
        assert_eq!(worker.ask("wait 3").await, "begun");
        waiting(&observer, standing).await;
    }
    held.release().await.unwrap();
    for turn in 1..=6 {
        let worker = if turn % 2 == 0 { &mut fast } else { &mut slow };
        assert_eq!(worker.ask("await").await, "held 3");
        assert_eq!(seen(&observer).await, (3, 3, 6 - turn));
        let holders = observer.holders().await.unwrap();
        assert!(holders[0].holder.remaining <= 2 * SECOND && holders[0].holder.held_for < SOON);
        if turn < 6 {
            assert_eq!(worker.ask("release").await, "released 1 lost 0");
        }
    }
    // The expiry of the one is noticed by the other, after the lease and not five minutes.
    fast.kill();
    let killed = awake();
    assert_eq!(slow.ask("take 1").await, "held 1");
    assert!(awake() - killed < 2 * SECOND + MACHINE, "{:?}", awake() - killed);
}

/// Deletes one key of a semaphore that is idle, held, or waited for; then it works within the lease (1 s) and the check
/// (1 s), and its limit is kept.
async fn loses_a_key(server: &Server, session: &Session, which: usize, held: bool, queued: bool) {
    let name = format!("{which} {held} {queued}");
    let semaphore = semaphore(session, &name, 2, patient().lease(SECOND));
    let earlier = semaphore.many(2).acquire().await.expect("a hold");
    let next = if queued { Some(waiter(&semaphore, 2, 1).await) } else { None };
    let earlier = if held {
        Some(earlier)
    } else {
        earlier.release().await.expect("still held");
        None
    };
    let all = keys(&name);
    let key = [&all.holds, &all.queue, &all.timeouts, &all.gone, &all.notes][which];
    let _: u64 = server.connection().await.del(&**key).await.expect("DEL");
    let bound = 2 * SECOND + MACHINE;
    match earlier {
        Some(earlier) if which == 0 => {
            let reason = tokio::time::timeout(bound, earlier.lost()).await.expect("told in time");
            assert_eq!(reason, LostReason::Expired, "{name}");
        }
        Some(earlier) => earlier.release().await.expect("still held"),
        None => {}
    }
    if let Some(next) = next {
        let next = tokio::time::timeout(bound, next).await.expect("in time").expect("no panic");
        next.release().await.expect("still held");
    }
    let begun = Watch::start();
    let all =
        semaphore.many(2).acquire_within(bound).await.unwrap_or_else(|e| panic!("{name}: {e}"));
    assert!(begun.awake() < bound, "{name}");
    assert!(semaphore.try_acquire().await.expect("an answer").is_none(), "{name}: I14");
    assert_eq!(seen(&semaphore).await, (2, 2, 0), "{name}");
    all.release().await.expect("still held");
}

#[tokio::test]
async fn b90_a_semaphore_recovers_from_the_loss_of_any_of_its_keys() {
    let server = std::rc::Rc::new(Server::start());
    let session = session(&server.url()).await;
    let trials = tokio::task::LocalSet::new();
    let mut all = Vec::new();
    for which in 0..5 {
        for (held, queued) in [(false, false), (true, false), (true, true)] {
            let (server, session) = (server.clone(), session.clone());
            all.push(trials.spawn_local(async move {
                loses_a_key(&server, &session, which, held, queued).await;
            }));
        }
    }
    trials.await;
    for trial in all {
        trial.await.unwrap();
    }
    idle(&session).await;
}

/// The server's clock is the only one: what is listed is true by it.
#[tokio::test]
async fn b24_everybody_sees_the_same_state() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let options = patient().fixed(10 * SECOND).label("observed");
    let permit = semaphore(&one, "a", 3, options).many(2).acquire().await.unwrap();
    let began = server_ms(&mut server.connection().await).await;
    let there = semaphore(&two, "a", 3, patient());
    assert_eq!((seen(&there).await, there.available().await.unwrap()), ((3, 2, 0), 1));
    let found = there.holders().await.unwrap().remove(0);
    assert_eq!((found.weight, found.holder.trace), (2, permit.trace()));
    assert!((9 * SECOND..=10 * SECOND).contains(&found.holder.remaining), "{found:?}");
    let passed = server_ms(&mut server.connection().await).await - began;
    assert!(found.holder.held_for <= Duration::from_millis(passed) + MACHINE, "{found:?}");
}

/// By its id another process releases a permit, once; nothing is created.
#[tokio::test]
async fn b135_a_permit_is_released_by_another_process_once() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let id = semaphore(&one, "a", 3, patient()).many(2).acquire().await.unwrap().detach();
    let there = semaphore(&two, "a", 3, patient());
    assert_eq!(seen(&there).await, (3, 2, 0), "given away, not released");
    let owners = [id];
    assert_eq!(there.release_by(&owners).await.unwrap().released, owners);
    let again = there.release_by(&owners).await.unwrap();
    assert_eq!((again.released.len(), again.lost.len()), (0, 1));
    assert!(there.adopt(&owners[0]).await.is_err());
    assert_eq!(seen(&there).await, (3, 0, 0));
}
