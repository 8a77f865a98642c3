//! Rows of the table of behaviours for the read-write lock: those of its own kind, and the general ones that apply. Its
//! rights, lost keys and clocks are in `behaviours_rwlock_server.rs`, lines of conformance in
//! `conformance_rwlock_lines.rs`, lost replies call by call in `rwlock_faults.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leasehold_rwlock::{
    AcquireError, LostReason, Options, ReadGuard, ReleaseError, RwLock, UpgradeError,
};
use leasehold_tests::fair::{CHECK, WAITER_DEADLINE, brisk};
use leasehold_tests::rig::{Watch, awake, dropped_after, kill_connections, moment};
use leasehold_tests::rwlock::{keys, lock, queued, waiter};
use leasehold_tests::scene::{SOON, inboxes, keys_left, session};
use leasehold_tests::{FaultProxy, Pick, Server, Worker, eventually, rounds};
use redis::AsyncCommands;
use tokio::task::JoinSet;

const WORKER: &str = env!("CARGO_BIN_EXE_rwlock_worker");
const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// For two cores that do other work too.
const MACHINE: Duration = Duration::from_millis(600);

fn plain() -> Options {
    Options::default()
}

/// The row's leases of 5 s and 300 ms, in proportion.
#[tokio::test]
async fn b67_a_short_lease_ends_no_other_readers() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let lease = 2 * SECOND;
    let began = Instant::now();
    let long = lock(&one, "a", plain().fixed(lease)).read().acquire().await.unwrap();
    let brief = lock(&two, "a", plain().fixed(120 * MS)).read().acquire().await.unwrap();
    let theirs = lock(&two, "a", plain());
    let writer = waiter(&theirs, theirs.write(), 1).await;
    let brief_ended = async || theirs.holders().await.unwrap().readers.len() == 1;
    eventually(SOON, "the brief one has ended", brief_ended).await;
    // 80 % of the lease, if the machine got here in time.
    tokio::time::sleep((lease * 4 / 5).saturating_sub(began.elapsed())).await;
    assert!(long.is_held() || began.elapsed() > lease * 9 / 10, "its own lease counts");
    let (guard, at) = writer.await.unwrap();
    assert!(at - began + 2 * MS >= lease, "I13: beside a reader, after {:?}", at - began);
    assert!(at - began < lease + MACHINE, "{:?}", at - began);
    guard.release().await.unwrap();
    drop(brief);
}

/// 100 readers at once (20 in the row), of three sessions, for three leases.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b69_all_of_many_readers_are_renewed() {
    let server = Server::start();
    let lease = 1200 * MS;
    let mut tasks = JoinSet::new();
    for _ in 0..3 {
        let session = session(&server.url()).await;
        for _ in 0..34 {
            let lock = lock(&session, "a", plain().lease(lease));
            tasks.spawn(async move {
                let guard = lock.read().acquire().await.expect("a hold");
                tokio::time::sleep(lease * 3).await;
                guard.release().await.expect("renewed until its release");
            });
        }
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert_eq!(keys_left(&server).await, [""; 0]);
}

#[tokio::test]
async fn b71_what_was_downgraded_is_renewed() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let lease = SECOND;
    let [ours, theirs] = [&one, &two].map(|session| lock(session, "a", plain().lease(lease)));
    let writing = ours.write().acquire().await.unwrap();
    let reading = ours.downgrade(writing).await.unwrap();
    let began = Instant::now();
    while began.elapsed() < lease * 3 {
        assert!(theirs.write().try_acquire().await.unwrap().is_none());
        theirs.read().try_acquire().await.unwrap().expect("admitted").release().await.unwrap();
        tokio::time::sleep(50 * MS).await;
    }
    reading.release().await.unwrap();
    theirs.write().try_acquire().await.unwrap().expect("free").release().await.unwrap();
}

fn refused(outcome: Result<leasehold_rwlock::WriteGuard, UpgradeError>) -> ReadGuard {
    match outcome {
        Err(UpgradeError::Refused(guard)) => guard,
        other => panic!("{other:?}"),
    }
}

/// Two readers that both want to write: both are refused at once, whoever stays is upgraded when the other has left, past
/// a writer that waits.
#[tokio::test]
async fn b73_two_upgraders_never_wait_for_each_other() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let [ours, theirs] = [&one, &two].map(|session| lock(session, "a", plain()));
    let (first, second) =
        (ours.read().acquire().await.unwrap(), theirs.read().acquire().await.unwrap());
    let writer = waiter(&ours, ours.write(), 1).await;
    let began = Watch::start();
    let (first, second) = tokio::join!(ours.try_upgrade(first), theirs.try_upgrade(second));
    let (first, second) = (refused(first), refused(second));
    assert!(began.awake() < 200 * MS + MACHINE, "{:?}", began.awake());
    first.release().await.unwrap();
    let writing = theirs.try_upgrade(second).await.unwrap();
    assert!(writing.is_held() && !writer.is_finished());
    let token = writing.fencing_token();
    writing.release().await.unwrap();
    let guard = writer.await.unwrap().0;
    assert!(guard.fencing_token() > token, "I5");
    guard.release().await.unwrap();
}

/// A stream of readers that overlap for ever: a writer gets in within half a second (W25).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b74_w25_a_stream_of_readers_does_not_starve_a_writer() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let (goes_on, reads) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
    let mut readers = JoinSet::new();
    for number in 0..10 {
        let (lock, goes_on, reads) = (lock(&one, "a", plain()), goes_on.clone(), reads.clone());
        readers.spawn(async move {
            tokio::time::sleep(5 * MS * number).await;
            while goes_on.load(Ordering::Relaxed) {
                let guard = lock.read().acquire().await.expect("a hold");
                reads.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(50 * MS).await;
                guard.release().await.expect("still held");
            }
        });
    }
    let theirs = lock(&two, "a", plain());
    for turn in 1..=5 {
        let before = reads.load(Ordering::Relaxed);
        let read = async || reads.load(Ordering::Relaxed) >= before + 10;
        eventually(SOON, "readers read, after each writer too", read).await;
        let began = awake();
        let writing = theirs.write().acquire().await.unwrap();
        let waited = awake() - began;
        assert!(waited < 500 * MS + MACHINE, "turn {turn}: {waited:?}");
        writing.release().await.unwrap();
    }
    goes_on.store(false, Ordering::Relaxed);
    while let Some(done) = readers.join_next().await {
        done.unwrap();
    }
}

/// A writer that waits and is killed stops new readers no longer than its deadline, and a check.
#[tokio::test]
async fn b74_a_killed_writer_stops_readers_no_longer_than_its_deadline() {
    let server = Server::start();
    let session = brisk(&server.url()).connect().await.unwrap();
    let lock = lock(&session, "a", plain().max_wait(SOON));
    let reading = lock.read().acquire().await.unwrap();
    let mut worker = Worker::start(WORKER, &server.url(), "a", SECOND).await;
    assert_eq!(worker.ask("wait").await, "begun");
    queued(&lock, 1).await;
    assert!(lock.read().try_acquire().await.unwrap().is_none(), "the control: it stops readers");
    worker.kill();
    let killed = awake();
    let other = lock.read().acquire().await.unwrap();
    let waited = awake() - killed;
    assert!(waited < WAITER_DEADLINE + CHECK + MACHINE, "{waited:?}");
    assert!(reading.is_held());
    // Freed, a dead writer at the head costs no wait at all: its inbox has no listener.
    let mut worker = Worker::start(WORKER, &server.url(), "a", SECOND).await;
    assert_eq!(worker.ask("wait").await, "begun");
    queued(&lock, 1).await;
    let late = waiter(&lock, lock.read(), 2).await;
    worker.kill();
    reading.release().await.unwrap();
    other.release().await.unwrap();
    let released = awake();
    late.await.unwrap().0.release().await.unwrap();
    assert!(awake() - released < MACHINE, "{:?}", awake() - released);
}

/// 10 tasks of 3 clients read and stop reading together: no error, and nothing is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b75_the_readers_are_counted_exactly() {
    let server = Server::start();
    let mut tasks = JoinSet::new();
    for number in 0..3 {
        let session = session(&server.url()).await;
        for _ in 0..if number == 0 { 4 } else { 3 } {
            let view = lock(&session, "a", plain()).read();
            tasks.spawn(async move {
                for _ in 0..rounds(1000) {
                    view.acquire().await.expect("a hold").release().await.expect("still held");
                }
            });
        }
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert_eq!(keys_left(&server).await, [""; 0]);
}

/// Who writes asks to read: as its owner at once; as nobody in particular it waits for itself and is told that it does. What
/// it is told agrees with the server.
#[tokio::test]
async fn b77_a_writer_that_asks_to_read_is_answered() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let lock = lock(&session, "a", plain());
    let writing = lock.write().acquire().await.unwrap();
    let began = Watch::start();
    let reading = lock.read().by(writing.owner()).acquire_within(2 * SECOND).await.unwrap();
    assert!(began.awake() < MACHINE, "at once: {:?}", began.awake());
    let holders = lock.holders().await.unwrap();
    assert_eq!((holders.readers.len(), holders.writers.len()), (1, 1));
    reading.release().await.unwrap();
    let waited = lock.read().acquire_within(300 * MS).await.unwrap_err();
    let AcquireError::TimedOut { held_by_this_session, .. } = waited else { panic!("{waited:?}") };
    assert!(held_by_this_session && lock.is_write_locked().await.unwrap());
    writing.release().await.unwrap();
}

/// Told within one renewal interval, and why: gone, forced, adopted, out of reach.
#[tokio::test]
async fn b16_each_loss_is_told_on_either_side_with_its_reason() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let lease = 900 * MS;
    let [ours, theirs] = [&one, &two].map(|session| lock(session, "a", plain().lease(lease)));
    let told = async |lost: leasehold_rwlock::LostFuture, within: Duration| {
        let began = awake();
        let reason = tokio::time::timeout(SOON, lost).await.expect("it is told");
        assert!(awake() - began < within + 100 * MS + MACHINE, "{reason:?}: {:?}", awake() - began);
        reason
    };
    let mut connection = server.connection().await;
    for write in [false, true] {
        let take = async || match write {
            true => ours.write().acquire().await.unwrap().into_any(),
            false => ours.read().acquire().await.unwrap().into_any(),
        };
        let guard = take().await;
        let _: u64 = connection.del(&*keys("a").holds).await.unwrap();
        assert_eq!(told(guard.lost(), lease / 3).await, LostReason::Expired);
        assert!(matches!(guard.release().await, Err(ReleaseError::Lost(_))));
        let guard = take().await;
        let adopted = match write {
            true => theirs.adopt_write(guard.owner()).await.unwrap().into_any(),
            false => theirs.adopt_read(guard.owner()).await.unwrap().into_any(),
        };
        assert_eq!(told(guard.lost(), lease / 3).await, LostReason::NotOwner);
        adopted.release().await.unwrap();
        let guard = take().await;
        server.freeze();
        let reason = told(guard.lost(), lease).await;
        server.thaw();
        assert_eq!(reason, LostReason::Unreachable);
        let free = async || !ours.is_locked().await.unwrap_or(true);
        eventually(SOON, "it is free again", free).await;
    }
}

/// A process is killed at moments of its own choosing: no key of it is ever without an end (I17), and all of them end.
#[tokio::test]
async fn b22_a_killed_process_leaves_no_key_without_an_end() {
    let server = Server::start();
    let mut connection = server.connection().await;
    for round in 0..rounds(60).max(6) {
        let mut worker = Worker::start(WORKER, &server.url(), "a", 500 * MS).await;
        assert_eq!(worker.ask("churn").await, "churning");
        let busy = async || server.dbsize().await > 10;
        eventually(SOON, "it is in the middle of it", busy).await;
        tokio::time::sleep(MS * (round % 7)).await;
        worker.kill();
        for key in server.keys().await {
            let ttl: i64 = connection.pttl(&key).await.unwrap();
            assert_ne!(ttl, -1, "I17: {}", key.escape_ascii());
        }
    }
    let left = async || keys_left(&server).await.is_empty();
    eventually(SOON, "all ends", left).await;
}

/// The link breaks behind each tenth call: what is held is what the guards say (I6).
#[tokio::test]
async fn b33_a_link_that_breaks_behind_calls_counts_nothing_twice() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let session = session(proxy.url()).await;
    let (lock, near) =
        (lock(&session, "a", plain()), leasehold_tests::scene::session(&server.url()).await);
    let observer = leasehold_tests::rwlock::lock(&near, "a", plain());
    proxy.cut_after_request(Pick::every(10).containing("EVALSHA"));
    let (mut guards, steps) = (Vec::new(), rounds(1000));
    for step in 0..steps {
        if (step % 60 < 30 && step % 7 != 6) || guards.is_empty() {
            guards.push(lock.read().acquire_within(SOON).await.unwrap());
        } else {
            match guards.swap_remove(step as usize % guards.len()).release().await {
                Ok(()) | Err(ReleaseError::Unknown { .. }) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
        assert_eq!(observer.holders().await.unwrap().readers.len(), guards.len(), "step {step}");
        if guards.len() == 1 {
            // One alone changes sides, there and back.
            let writing = lock.try_upgrade(guards.pop().expect("one")).await.unwrap();
            assert_eq!(observer.holders().await.unwrap().writers.len(), 1, "step {step}");
            guards.push(lock.downgrade(writing).await.unwrap());
            assert_eq!(observer.holders().await.unwrap().readers.len(), 1, "step {step}");
        }
    }
    assert!(proxy.connections() >= u64::from(steps / 20), "the links did break");
    assert!(guards.iter().all(ReadGuard::is_held));
    proxy.cut_after_request(Pick::none());
    session.shutdown(SOON).await.unwrap();
    assert_eq!(keys_left(&server).await, [""; 0]);
}

/// I9 at every moment of an acquire of either side: free, busy, and handed over just then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b40_an_acquire_dropped_at_any_moment_leaves_nothing() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let [ours, theirs] = [&one, &two].map(|session| lock(session, "a", plain().lease(60 * SECOND)));
    let (mut given_up, mut taken) = (0, 0);
    for round in 0..rounds(5000) {
        let polls = moment(round / 6);
        let other = match round % 3 {
            0 => None,
            1 => Some(theirs.read().acquire_within(SOON).await.unwrap().into_any()),
            _ => Some(theirs.write().acquire_within(SOON).await.unwrap().into_any()),
        };
        let releasing = other.map(|held| tokio::spawn(held.release()));
        let got = if round % 2 == 0 {
            dropped_after(polls, ours.write().acquire_within(SOON))
                .await
                .map(|got| drop(got.unwrap()))
        } else {
            dropped_after(polls, ours.read().acquire_within(SOON))
                .await
                .map(|got| drop(got.unwrap()))
        };
        if got.is_some() {
            taken += 1
        } else {
            given_up += 1
        }
        if let Some(releasing) = releasing {
            releasing.await.unwrap().unwrap();
        }
    }
    println!("{given_up} given up, {taken} taken");
    assert!(given_up > 0 && taken > 0, "{given_up} given up, {taken} taken");
    let left = async || keys_left(&server).await.is_empty() && one.statistics().tracked == 0;
    eventually(2 * SECOND + MACHINE, "nothing is left", left).await;
}

/// A shutdown releases both sides and leaves the queues, within its bound; whoever waits elsewhere goes on.
#[tokio::test]
async fn b42_a_shutdown_leaves_nothing() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let options = || plain().lease(60 * SECOND).max_wait(60 * SECOND);
    let named = |session, number: u32| lock(session, &format!("b42-{number}"), options());
    let (mut holds, mut waits) = (Vec::new(), JoinSet::new());
    for number in 0..20 {
        let lock = named(&one, number);
        holds.push(match number % 2 {
            0 => lock.read().acquire().await.unwrap().into_any(),
            _ => lock.write().acquire().await.unwrap().into_any(),
        });
    }
    let writing = named(&two, 20).write().acquire().await.unwrap();
    for side in 0..3 {
        let lock = named(&one, 20);
        waits.spawn(async move {
            match side {
                0 => lock.read().acquire().await.map(drop),
                _ => lock.write().acquire().await.map(drop),
            }
        });
    }
    queued(&named(&two, 20), 3).await;
    let (first, second) = (named(&two, 0), named(&two, 1));
    let elsewhere =
        [waiter(&first, first.write(), 1).await, waiter(&second, second.write(), 1).await];
    let began = Instant::now();
    one.shutdown(2 * SECOND).await.unwrap();
    for next in elsewhere {
        let (guard, at) = next.await.unwrap();
        assert!(at - began < 500 * MS + MACHINE, "{:?}", at - began);
        guard.release().await.unwrap();
    }
    while let Some(ended) = waits.join_next().await {
        assert!(matches!(ended.unwrap(), Err(AcquireError::Closed)));
    }
    assert_eq!(named(&two, 20).queue().await.unwrap().length, 0, "I20");
    writing.release().await.unwrap();
    assert_eq!(keys_left(&server).await, [""; 0], "I20");
    assert!(holds.iter().all(|hold| !hold.is_held()));
}

async fn leaves(lock: RwLock, way: u32) {
    let wait = 30 * MS;
    match way {
        0 => drop(lock.read().acquire_within(wait).await),
        1 => drop(lock.write().acquire_within(wait).await),
        _ => drop(tokio::time::timeout(wait, lock.write().acquire()).await),
    }
}

/// One channel a session, whatever waits and however it leaves.
#[tokio::test]
async fn b47_no_channel_and_no_place_outlives_a_wait() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let (mut tasks, mut holds) = (JoinSet::new(), Vec::new());
    for number in 0..rounds(300) {
        let name = format!("b47-{number}");
        holds.push(lock(&one, &name, plain()).write().acquire().await.unwrap());
        (0..3).for_each(|way| drop(tasks.spawn(leaves(lock(&two, &name, plain()), way))));
    }
    while let Some(left) = tasks.join_next().await {
        left.unwrap();
        assert_eq!(inboxes(&server).await, 2);
    }
    let nobody = async || !server.keys().await.iter().any(|key| key.ends_with(b":queue"));
    eventually(2 * SECOND + MACHINE, "no queue is left", nobody).await;
    assert_eq!(two.statistics().tracked, 0);
    drop(holds);
    one.shutdown(SOON).await.unwrap();
    two.shutdown(SOON).await.unwrap();
    assert_eq!(inboxes(&server).await, 0);
}

/// Killed inboxes, and a restart: waiters of both sides are served, one after the other, within a second each.
#[tokio::test]
async fn b50_waiters_are_served_after_their_inbox_was_killed() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let [ours, theirs] = [&one, &two].map(|session| lock(session, "a", plain()));
    for restarted in [false, true] {
        let writing = ours.write().acquire_within(SOON).await.unwrap();
        let reader = waiter(&theirs, theirs.read(), 1).await;
        let writer = waiter(&theirs, theirs.write(), 2).await;
        let began = match restarted {
            true => {
                server.restart();
                drop(writing);
                awake()
            }
            false => {
                kill_connections(&server, "pubsub").await;
                tokio::time::sleep(200 * MS).await;
                let began = awake();
                writing.release().await.unwrap();
                began
            }
        };
        // In which order they are back after a restart is not said.
        let (read, written) =
            tokio::join!(async { reader.await.unwrap().0.release().await.unwrap() }, async {
                writer.await.unwrap().0.release().await.unwrap()
            },);
        assert_eq!((read, written), ((), ()));
        let took = awake() - began;
        assert!(took < 2 * SECOND + MACHINE, "restarted {restarted}: {took:?}");
        eventually(SOON, "the inboxes are back", async || inboxes(&server).await == 2).await;
    }
}
