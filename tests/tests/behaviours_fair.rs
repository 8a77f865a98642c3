//! Rows of the tables of behaviours and of conformance for the fair lock, which has the mutex's scripts under keys of its
//! own: keys that are left or lost, clocks, rights, and deadlines of waiters that nobody moves. Rows about time are in
//! `timed_fair_rows.rs`; lines 34, 35, 41, 43 and 44 are scenarios of `conformance_fair_lock.rs`.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use leasehold_fair_lock::{AcquireError, BackendErrorKind, FairLock, LostReason, Options, Session};
use leasehold_tests::fair::{brisk, keys, lock, queued, waiter};
use leasehold_tests::rig::{Watch, awake};
use leasehold_tests::scene::{SOON, keys_left, session};
use leasehold_tests::{Server, Worker, acl, eventually, rounds};
use redis::AsyncCommands;
use tokio::task::JoinSet;

const WORKER: &str = env!("CARGO_BIN_EXE_fair_worker");
const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// For two cores that build something meanwhile.
const MACHINE: Duration = Duration::from_millis(600);

fn patient() -> Options {
    Options::default().max_wait(30 * SECOND)
}

/// 500 tasks of four clients on one name: all of them hold, and nothing is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b59_five_hundred_tasks_all_get_their_turn() {
    let server = Server::start();
    let (mut tasks, mut sessions) = (JoinSet::new(), Vec::new());
    let inside = Arc::new(tokio::sync::Semaphore::new(1));
    for _ in 0..4 {
        let session = session(&server.url()).await;
        for _ in 0..125 {
            let (lock, inside) = (lock(&session, "a", patient()), Arc::clone(&inside));
            tasks.spawn(async move {
                let guard = lock.acquire().await.expect("a hold");
                let alone = inside.try_acquire().expect("I1: one at a time");
                tokio::time::sleep(2 * MS).await;
                drop(alone);
                guard.release().await.expect("still held");
            });
        }
        sessions.push(session);
    }
    assert_eq!(tasks.join_all().await.len(), 500);
    assert_eq!(keys_left(&server).await, [""; 0]);
    assert!(sessions.iter().all(|session| session.statistics().tracked == 0));
}

/// I10, I17: names that were used once, each with a waiter, by a process that is killed: all of it ends by itself, with a
/// lease of 2 s, waiters of 3 s and a fence memory of 1 s.
#[tokio::test]
async fn b65_a_killed_crowd_leaves_nothing() {
    let server = Server::start();
    let names = rounds(5_000);
    let mut worker = Worker::start(WORKER, &server.url(), "a", 2 * SECOND).await;
    assert_eq!(worker.ask(&format!("crowd {names}")).await, "crowded");
    let before = server.dbsize().await;
    // Holds, queues and timeouts; tokens may have ended already.
    assert!(before >= u64::from(3 * names), "{before} keys of {names} names");
    worker.kill();
    let killed = awake();
    eventually(SOON, "all of it ends", async || server.dbsize().await == 0).await;
    let took = awake() - killed;
    println!("{before} keys were gone {took:?} after the kill");
    assert!(took < 4 * SECOND + SECOND / 2, "the longest of them and a second: {took:?}");
}

/// Order, expiry and tokens are the server's: two clients whose clocks are ten minutes apart.
#[tokio::test]
async fn b87_the_clocks_of_the_clients_do_not_matter() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let program = |name, shift_s| Worker::with_wall_clock(WORKER, folder.path(), name, shift_s);
    let mut fast = Worker::start(program("ahead", 300), &server.url(), "a", 2 * SECOND).await;
    let mut slow = Worker::start(program("behind", -300), &server.url(), "a", 2 * SECOND).await;
    let observer = lock(&session(&server.url()).await, "a", patient());
    let guard = observer.acquire().await.unwrap();
    let mut tokens = vec![guard.fencing_token().get()];
    // By turns: by their own clocks, all of one would come before all of the other.
    for standing in 1..=6 {
        let worker = if standing % 2 == 0 { &mut fast } else { &mut slow };
        assert_eq!(worker.ask("wait 1").await, "begun");
        queued(&observer, standing).await;
    }
    guard.release().await.unwrap();
    for turn in 1..=6 {
        let worker = if turn % 2 == 0 { &mut fast } else { &mut slow };
        let held = worker.ask("await").await;
        tokens.push(held.strip_prefix("held ").expect("in its turn").parse().unwrap());
        assert!(observer.remaining().await.unwrap().unwrap() <= 2 * SECOND);
        if turn < 6 {
            assert_eq!(worker.ask("release").await, "released");
        }
    }
    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "I5: {tokens:?}");
    // The expiry of the one is noticed by the other, after the lease and not five minutes.
    fast.kill();
    let killed = Watch::start();
    assert_eq!(slow.ask("wait 1").await, "begun");
    assert!(slow.ask("await").await.starts_with("held "));
    assert!(killed.awake() < 2 * SECOND + MACHINE, "{:?}", killed.awake());
}

/// How the lock is used when one of its keys is lost.
#[derive(Clone, Copy, Debug)]
enum Use {
    Idle,
    Held,
    Queued,
}

/// Deletes one key; then the lock is taken within the lease (1 s) and the check (1 s).
async fn loses_a_key(server: &Server, session: &Session, which: usize, used: Use) {
    let name = format!("{which} {used:?}");
    let (lock, keys) = (lock(session, &name, patient().lease(SECOND)), keys(&name));
    let key = [&keys.holds, &keys.queue, &keys.timeouts, &keys.token, &keys.gone][which];
    let earlier = lock.acquire().await.expect("a hold");
    let token = earlier.fencing_token();
    let mut waiting = Vec::new();
    if let Use::Queued = used {
        waiting.push(waiter(&lock, 1).await);
        waiting.push(waiter(&lock, 2).await);
    }
    let held = match used {
        Use::Idle => earlier.release().await.map(|()| None).expect("still held"),
        Use::Held | Use::Queued => Some(earlier),
    };
    let _: u64 = server.connection().await.del(&**key).await.expect("DEL");
    let bound = 2 * SECOND + MACHINE;
    match held {
        Some(held) if which == 0 => {
            let reason = tokio::time::timeout(bound, held.lost()).await.expect("told in time");
            assert!(matches!(reason, LostReason::Expired | LostReason::NotOwner), "{name}");
        }
        Some(held) => held.release().await.expect("still held"),
        None => {}
    }
    let mut last = None;
    for task in waiting {
        let granted = tokio::time::timeout(bound, task).await.expect("in time");
        let (next, at) = granted.expect("no panic inside");
        assert!(last.replace(at).is_none_or(|earlier| earlier < at), "{name}: in order");
        assert!(next.fencing_token() > token, "{name}: I5");
        next.release().await.expect("still held");
    }
    let guard = lock.acquire_within(bound).await.unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(guard.fencing_token() > token, "{name}: I5");
    guard.release().await.expect("still held");
}

#[tokio::test]
async fn b90_a_lock_recovers_from_the_loss_of_any_of_its_keys_and_keeps_the_order() {
    let server = Rc::new(Server::start());
    let session = session(&server.url()).await;
    let trials = tokio::task::LocalSet::new();
    let mut all = Vec::new();
    for which in 0..5 {
        for used in [Use::Idle, Use::Held, Use::Queued] {
            let (server, session) = (server.clone(), session.clone());
            let trial = async move { loses_a_key(&server, &session, which, used).await };
            all.push(trials.spawn_local(trial));
        }
    }
    trials.await;
    for trial in all {
        trial.await.unwrap();
    }
    eventually(SOON, "nothing stays", async || session.statistics().tracked == 0).await;
}

/// The waiters' deadlines by the server's clock, by their ids.
async fn deadlines(server: &Server) -> BTreeMap<String, u64> {
    let mut connection = server.connection().await;
    let all: BTreeMap<String, String> =
        connection.hgetall(&*keys("a").timeouts).await.expect("HGETALL");
    let deadline = |value: &str| value.split('|').next()?.parse().ok();
    all.into_iter()
        .filter_map(|(id, value)| Some((id, deadline(&value)?)))
        .filter(|(id, _)| id != "#")
        .collect()
}

/// A holder, a first waiter, and three frozen ones behind it, which refresh nothing while the test lasts.
async fn three_frozen(server: &Server) -> (FairLock, leasehold_fair_lock::Guard, Worker, Worker) {
    let session = brisk(&server.url()).connect().await.expect("a session");
    let lock = lock(&session, "a", patient());
    let guard = lock.acquire().await.expect("a hold");
    let mut first = Worker::start(WORKER, &server.url(), "a", 30 * SECOND).await;
    let mut others = Worker::start(WORKER, &server.url(), "a", 30 * SECOND).await;
    assert_eq!(first.ask("wait 1").await, "begun");
    queued(&lock, 1).await;
    assert_eq!(others.ask("wait 3").await, "begun");
    queued(&lock, 4).await;
    others.freeze();
    (lock, guard, first, others)
}

/// Line 38, ours: when the first waiter dies, the deadlines of the others stay what they are.
#[tokio::test]
async fn c38_the_death_of_the_first_waiter_moves_no_deadline() {
    let server = Server::start();
    let (lock, guard, mut first, _others) = three_frozen(&server).await;
    let before = deadlines(&server).await;
    assert_eq!(before.len(), 4);
    first.kill();
    let closed = async || leasehold_tests::scene::inboxes(&server).await == 2;
    eventually(SOON, "the server has noticed", closed).await;
    // Granted past the dead one to a frozen one, which is told nothing that it hears.
    guard.release().await.unwrap();
    let after = deadlines(&server).await;
    assert_eq!(after.len(), 2, "the dead one has left, and the next is granted");
    assert!(after.iter().all(|(id, deadline)| before[id] == *deadline), "{before:?} {after:?}");
    assert!(lock.is_locked().await.unwrap());
}

/// Line 40, ours: when the head acquires, nothing falls behind it.
#[tokio::test]
async fn c40_deadlines_stay_when_the_head_acquires() {
    let server = Server::start();
    let (_lock, guard, mut first, _others) = three_frozen(&server).await;
    let before = deadlines(&server).await;
    guard.release().await.unwrap();
    assert!(first.ask("await").await.starts_with("held "));
    let after = deadlines(&server).await;
    assert_eq!((before.len(), after.len()), (4, 3));
    assert!(after.iter().all(|(id, deadline)| before[id] == *deadline), "{before:?} {after:?}");
}

/// Lines 46 and 50: what holds for the mutex holds for the fair lock, as far as a suite can say it: all of it runs.
#[test]
fn c46_c50_every_scenario_of_the_mutex_runs_for_the_fair_lock() {
    let parts = |suite: &str| {
        let list = suite.split("conformance!(").nth(1).expect("the suite");
        let list = list.split_once(": ").expect("the kind").1;
        list.split(')').next().expect("an end").trim().to_owned()
    };
    let mutex = parts(include_str!("conformance_mutex.rs"));
    assert!(mutex.contains("fifo") && mutex.contains("exclusive"), "{mutex}");
    assert_eq!(parts(include_str!("conformance_fair_lock.rs")), mutex);
}

async fn limited(server: &Server) -> FairLock {
    acl::user(server, "limited", "app:").await;
    let builder = Session::builder(&acl::url(server, "limited")).expect("a URL");
    let session = builder.prefix("app:").connect().await.expect("a session");
    lock(&session, "a", patient())
}

#[tokio::test]
async fn b111_b112_the_rights_of_the_mutex_are_enough_for_every_verb() {
    let server = Server::start();
    assert_eq!(acl::FAIR_LOCK_COMMANDS, acl::MUTEX_COMMANDS);
    let lock = limited(&server).await;
    let guard = lock.acquire().await.unwrap();
    let inner = lock.by(guard.owner()).acquire().await.unwrap();
    inner.release().await.unwrap();
    let first = waiter(&lock, 1).await;
    let waiting = lock.clone();
    let second = tokio::spawn(async move { waiting.acquire().await.map(drop) });
    queued(&lock, 2).await;
    let listed = lock.queue().await.unwrap().waiters;
    assert!(lock.cancel(&listed[1]).await.unwrap());
    assert!(matches!(second.await.unwrap(), Err(AcquireError::Cancelled)));
    guard.release().await.unwrap();
    let adopted = lock.adopt(&first.await.unwrap().0.detach()).await.unwrap();
    assert!(lock.force_release().await.unwrap().is_some());
    assert_eq!(adopted.lost().await, LostReason::ForceReleased);
    assert_eq!(acl::refused(&server, "limited").await, Vec::<String>::new());
    let keys = server.keys().await;
    assert!(keys.iter().all(|key| key.starts_with(b"app:lh1:fair:{a}")), "{keys:?}");
}

/// The control of the test above: a right of the list that is missing is told.
#[tokio::test]
async fn b112_a_missing_right_is_told() {
    let server = Server::start();
    let lock = limited(&server).await;
    acl::change(&server, "limited", "-zrange").await;
    let waiter = lock.acquire().await.unwrap();
    let error = lock.acquire_within(SECOND).await.unwrap_err();
    let AcquireError::Backend(cause) = error else { panic!("{error:?}") };
    assert_eq!(cause.kind(), BackendErrorKind::NoPermission);
    drop(waiter);
}
