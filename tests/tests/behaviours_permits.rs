//! Rows of BEHAVIOURS.md of the general kinds that permits meet in their own way. What a semaphore counts:
//! `behaviours_semaphore.rs`; lost replies: `semaphore_faults.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold_mutex::Mutex;
use leasehold_semaphore::{
    AcquireError, BackendErrorKind, ConfigError, LostReason, Options, ReleaseError, Semaphore,
    Session,
};
use leasehold_tests::permits::{WORKERS_LIMIT, idle, keys, seen, semaphore, used, waiter, waiting};
use leasehold_tests::rig::{Watch, awake, dropped_after, kill_connections, moment};
use leasehold_tests::scene::{SOON, Told, inboxes, lost, session, why};
use leasehold_tests::{FaultProxy, Server, Worker, eventually, rounds};
use redis::AsyncCommands;
use tokio::task::JoinSet;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// What a hand-over or an answer may take on two cores that do other work too.
const MACHINE: Duration = Duration::from_millis(500);
const WORKER: &str = env!("CARGO_BIN_EXE_permit_worker");

fn patient() -> Options {
    Options::default().max_wait(60 * SECOND)
}

/// What the holders hold together never exceeds this, at any instant.
#[derive(Debug, Default)]
struct Meter {
    now: AtomicU32,
    most: AtomicU32,
}

impl Meter {
    fn enter(&self, weight: u32) {
        let now = self.now.fetch_add(weight, Ordering::SeqCst) + weight;
        self.most.fetch_max(now, Ordering::SeqCst);
    }

    fn leave(&self, weight: u32) {
        self.now.fetch_sub(weight, Ordering::SeqCst);
    }
}

/// 32 tasks of two sessions, limit 8, holds of 0 to 3 ms: nobody is told of a loss, and the limit is kept (I14).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b07_many_short_holds_signal_no_loss_and_keep_the_limit() {
    let (server, told, meter) = (Server::start(), Told::default(), Arc::new(Meter::default()));
    let mut sessions = Vec::new();
    for _ in 0..2 {
        let builder = told.by(Session::builder(&server.url()).unwrap());
        sessions.push(builder.connect().await.unwrap());
    }
    let mut tasks = JoinSet::new();
    for task in 0..32_u32 {
        let semaphore =
            semaphore(&sessions[task as usize % 2], "a", 8, patient().lease(3 * SECOND));
        tasks.spawn(short_holds(semaphore, task, Arc::clone(&meter)));
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let most = meter.most.load(Ordering::SeqCst);
    println!("at most {most} of 8 were out at once");
    assert!((5..=8).contains(&most), "{most} at once");
    assert!(sessions[0].statistics().pushed_grants > 0);
    assert_eq!(told.count(lost), 0, "{:?}", told.all());
    for session in &sessions {
        idle(session).await;
    }
    assert_eq!(seen(&semaphore(&sessions[0], "a", 8, patient())).await, (8, 0, 0));
}

async fn short_holds(semaphore: Semaphore, task: u32, meter: Arc<Meter>) {
    for round in 0..rounds(20_000) / 32 {
        let weight = 1 + (task + round) % 3;
        let permit = semaphore.many(weight).acquire().await.expect("a hold");
        meter.enter(weight);
        tokio::time::sleep(MS * (round % 4)).await;
        // Extensions are renewals too; one that is given up is still under way at the release.
        drop(dropped_after(round % 3, permit.extend(3 * SECOND)).await);
        meter.leave(weight);
        match (task + round) % 4 {
            0 => drop(permit),
            _ => permit.release().await.expect("still held"),
        }
    }
}

/// The control of the meter: without a limit it goes higher.
#[tokio::test]
async fn b07_the_meter_sees_what_exceeds_a_limit() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let (meter, wide) = (Meter::default(), semaphore(&session, "a", 9, patient()));
    let permits = [wide.many(8).acquire().await.unwrap(), wide.acquire().await.unwrap()];
    permits.iter().for_each(|permit| meter.enter(permit.weight()));
    assert_eq!(meter.most.load(Ordering::SeqCst), 9);
}

/// A permit whose key is gone is told within a renewal; so is one that somebody released by its id.
#[tokio::test]
async fn b16_a_loss_is_told_with_its_reason() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let semaphore = semaphore(&session, "a", 3, patient().lease(900 * MS));
    let told_within = |begun: Watch| assert!(begun.awake() < 400 * MS + MACHINE);
    let (one, two) = (semaphore.acquire().await.unwrap(), semaphore.acquire().await.unwrap());
    let begun = Watch::start();
    assert!(semaphore.release_by(&[one.owner().clone()]).await.unwrap().is_clean());
    assert_eq!(one.lost().await, LostReason::Expired);
    told_within(begun);
    assert!(two.is_held(), "the others are not touched");
    let begun = Watch::start();
    let _: u64 = server.connection().await.del(&*keys("a").holds).await.unwrap();
    assert_eq!(two.lost().await, LostReason::Expired);
    told_within(begun);
    assert_eq!(why(two.release().await), LostReason::Expired);
}

/// A late release frees nobody else's permit.
#[tokio::test]
async fn b20_a_late_release_changes_nothing() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let brief = semaphore(&session, "a", 1, Options::default().fixed(200 * MS));
    let lasting = semaphore(&session, "a", 1, patient());
    let late = brief.acquire().await.unwrap();
    let owner = late.owner().clone();
    let next = lasting.acquire().await.unwrap();
    assert_eq!(why(late.release().await), LostReason::Expired);
    let report = lasting.release_by(&[owner]).await.unwrap();
    assert_eq!(report.lost.len(), 1);
    assert!(next.is_held());
    assert_eq!(seen(&lasting).await, (1, 1, 0));
    assert!(brief.try_acquire().await.unwrap().is_none());
    next.release().await.unwrap();
}

/// I17: a client killed at any moment leaves no key without an end, and all permits come back.
#[tokio::test]
async fn b22_a_killed_client_leaves_no_key_without_an_end() {
    let server = Server::start();
    let mut kinds = std::collections::BTreeSet::new();
    for round in 0..rounds(200) {
        let mut worker = Worker::start(WORKER, &server.url(), "a", 300 * MS).await;
        assert_eq!(worker.ask("churn").await, "churning");
        tokio::time::sleep(MS / 10 * (round * 37 % 200)).await;
        worker.kill();
        let mut connection = server.connection().await;
        for key in server.keys().await {
            let ttl: i64 = connection.pttl(&key).await.unwrap();
            let key = String::from_utf8(key).unwrap();
            assert_ne!(ttl, -1, "{key} has no end");
            kinds.insert(key.rsplit(['}', ':']).next().unwrap_or_default().to_owned());
        }
    }
    println!("kinds of keys that were seen: {kinds:?}");
    for kind in ["", "queue", "timeout", "notes"] {
        assert!(kinds.contains(kind), "{kind} was never there: {kinds:?}");
    }
    let session = session(&server.url()).await;
    for number in 0..8 {
        let semaphore = semaphore(&session, &format!("a{number}"), WORKERS_LIMIT, patient());
        // A lease of 300 ms, and waiters of 3 s that may be granted once more.
        used(&semaphore, 0).await;
        let all = semaphore.many(WORKERS_LIMIT).acquire().await.unwrap();
        all.release().await.unwrap();
    }
}

/// The release of a dropped release, and of a dropped permit, is sent all the same.
#[tokio::test]
async fn b34_a_release_that_is_dropped_still_releases() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let semaphore = semaphore(&session, "a", 4, patient());
    for round in 0..rounds(500) {
        let permit = semaphore.many(3).acquire().await.unwrap();
        let other = semaphore.acquire().await.unwrap();
        match round % 3 {
            0 => drop(dropped_after(round % 7, permit.release()).await),
            1 => drop(dropped_after(round % 7, semaphore.release_all(vec![permit])).await),
            _ => drop(permit),
        }
        used(&semaphore, 1).await;
        other.release().await.unwrap();
    }
    idle(&session).await;
}

/// Acquires of any weight, dropped at any moment, free and handed over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b40_an_acquire_dropped_at_any_moment_leaves_nothing() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let options = patient().lease(60 * SECOND);
    let (mut given_up, mut taken) = (0, 0);
    for round in 0..rounds(4000) {
        let name = format!("a{}", round % 7);
        let (mine, theirs) = (
            semaphore(&one, &name, 3, options.clone()),
            semaphore(&two, &name, 3, options.clone()),
        );
        let held = match round % 2 {
            0 => None,
            _ => Some(theirs.many(2).acquire().await.unwrap()),
        };
        // The other's release runs beside: the grant arrives about when the future is dropped.
        let releasing = held.map(|held| tokio::spawn(held.release()));
        let many = mine.many(1 + round % 3);
        match dropped_after(moment(round / 2), many.acquire()).await {
            Some(permit) => {
                drop(permit.unwrap());
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
    idle(&one).await;
    for number in 0..7 {
        let semaphore = semaphore(&two, &format!("a{number}"), 3, options.clone());
        assert_eq!(seen(&semaphore).await, (3, 0, 0), "a{number}");
    }
}

/// The negative control of the row above: a permit that is just forgotten does stay.
#[tokio::test]
async fn b40_a_forgotten_permit_is_seen() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let semaphore = semaphore(&session, "a", 2, patient());
    std::mem::forget(semaphore.acquire().await.unwrap());
    assert_eq!((seen(&semaphore).await, session.statistics().tracked), ((2, 1, 0), 1));
}

/// I20: five permits and three places in queues are given back, with leases of 60 s to go; whoever waits elsewhere is
/// served at once.
#[tokio::test]
async fn b42_a_shutdown_gives_everything_back() {
    let server = Server::start();
    let (leaving, staying) = (session(&server.url()).await, session(&server.url()).await);
    let options = patient().lease(60 * SECOND);
    let (mine, theirs) = (
        semaphore(&leaving, "a", 7, options.clone()),
        semaphore(&staying, "a", 7, options.clone()),
    );
    let mut held = Vec::new();
    for weight in [1, 2, 1, 1] {
        held.push(mine.many(weight).acquire().await.unwrap());
    }
    let mut part = mine.many(2).acquire().await.unwrap();
    held.push(mine.split(&mut part, 1).await.unwrap());
    held.push(part);
    let mut queued = JoinSet::new();
    for standing in 1..=3 {
        let many = mine.many(standing);
        queued.spawn(async move { many.acquire().await });
        waiting(&theirs, standing.into()).await;
    }
    let elsewhere = waiter(&theirs, 7, 4).await;
    let begun = awake();
    leaving.shutdown(SOON).await.unwrap();
    let next = elsewhere.await.unwrap();
    println!("shut down, and served elsewhere, after {:?}", awake() - begun);
    assert!(awake() - begun < MACHINE, "{:?}", awake() - begun);
    for permit in &held {
        assert_eq!(permit.lost().await, LostReason::Shutdown);
    }
    while let Some(outcome) = queued.join_next().await {
        assert!(matches!(outcome.unwrap(), Err(AcquireError::Closed)));
    }
    assert_eq!(seen(&theirs).await, (7, 7, 0));
    next.release().await.unwrap();
    assert!(matches!(mine.try_acquire().await, Err(AcquireError::Closed)));
}

/// A cut inbox comes back, and a server that starts anew is subscribed to again; waiters are checked at once. After a
/// restart the limit is what the waiters go by.
#[tokio::test]
async fn b50_subscriptions_come_back() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let (held, wanted) = (semaphore(&one, "a", 2, patient()), semaphore(&two, "a", 2, patient()));
    for (restart, pause) in [(false, 0), (false, 200), (true, 200), (false, 5)] {
        let permit = held.acquire().await.unwrap();
        let waits = waiter(&wanted, 2, 1).await;
        if restart {
            server.restart();
        } else {
            assert_eq!(kill_connections(&server, "pubsub").await, 2);
        }
        tokio::time::sleep(pause * MS).await;
        let released = awake();
        let outcome = permit.release().await;
        assert!(restart || outcome.is_ok(), "{outcome:?}");
        let next = waits.await.unwrap();
        let took = awake() - released;
        println!("restart {restart}, released {pause} ms after it: served after {took:?}");
        assert!(took < if restart { 1500 * MS } else { 600 * MS }, "{took:?}");
        eventually(SOON, "both inboxes are back", async || inboxes(&server).await == 2).await;
        next.release().await.unwrap();
    }
    assert_eq!(seen(&held).await, (2, 0, 0));
}

/// 500 tasks of four sessions, holds of 2 ms: all are served, and nothing stays but the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b59_a_crowd_is_served_to_the_last() {
    let server = Server::start();
    let mut sessions = Vec::new();
    for _ in 0..4 {
        sessions.push(session(&server.url()).await);
    }
    let (served, mut tasks) = (Arc::new(AtomicU32::new(0)), JoinSet::new());
    for task in 0..500_u32 {
        let semaphore = semaphore(&sessions[task as usize % 4], "a", 5, patient());
        let (many, served) = (semaphore.many(1 + task % 5), Arc::clone(&served));
        tasks.spawn(async move {
            let permit = many.acquire().await.expect("a hold");
            tokio::time::sleep(2 * MS).await;
            permit.release().await.expect("still held");
            served.fetch_add(1, Ordering::Relaxed);
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert_eq!(served.load(Ordering::Relaxed), 500);
    assert_eq!(seen(&semaphore(&sessions[0], "a", 5, patient())).await, (5, 0, 0));
    // A grant may overtake the answer of its acquire: then the release leaves a mark for a minute.
    let mut names = server.keys().await;
    names.retain(|name| !name.ends_with(b":gone"));
    assert_eq!(names, [keys("a").holds.to_vec()], "queue, timeouts and notes are gone");
}

/// Every verb, with scripts that vanish all the time: no error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b103_scripts_that_vanish_all_the_time_cost_no_error() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let mut tasks = JoinSet::new();
    for task in 0..8_u32 {
        let semaphore = semaphore(&session, &format!("a{}", task / 2), 4, patient().lease(SECOND));
        tasks.spawn(async move {
            for round in 0..rounds(300) {
                let mut permit = semaphore.many(3).acquire().await.expect("a hold");
                let part = semaphore.split(&mut permit, 1).await.expect("a part");
                let merged = semaphore.merge(permit, part).await.expect("one permit");
                let adopted = semaphore.adopt(&merged.detach()).await.expect("an adoption");
                semaphore.set_limit(4).await.expect("a limit");
                drop(semaphore.holders().await.expect("an answer"));
                match round % 3 {
                    0 => adopted.release().await.expect("still held"),
                    1 => {
                        let report = semaphore.release_all(vec![adopted]).await.expect("an answer");
                        assert!(report.is_clean());
                    }
                    _ => drop(adopted),
                }
            }
        });
    }
    let mut flushes = 0;
    while !tasks.is_empty() {
        let mut flush = redis::cmd("SCRIPT");
        flush.arg("FLUSH").exec_async(&mut server.connection().await).await.unwrap();
        flushes += 1;
        tokio::time::sleep(5 * MS).await;
        while let Some(done) = tasks.try_join_next() {
            done.unwrap();
        }
    }
    println!("{flushes} times all scripts vanished");
    assert!(flushes >= 10, "{flushes}");
    idle(&session).await;
}

/// A lease of 0 is refused before anything is sent.
#[tokio::test]
async fn b119_a_lease_of_nothing_is_refused() {
    let server = Server::start();
    let session = session(&server.url()).await;
    for options in [Options::default().lease(Duration::ZERO), Options::default().fixed(MS / 2)] {
        let made = Semaphore::new(&session, "a", 1, options);
        assert!(matches!(made, Err(ConfigError::Lease { .. })), "{made:?}");
    }
    assert_eq!(server.dbsize().await, 0);
}

/// A key that holds something else: told at once by kind, and left as it is.
#[tokio::test]
async fn b124_a_key_that_is_not_ours_is_told_and_left_alone() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let mut connection = server.connection().await;
    let all = keys("a");
    for key in [&all.holds, &all.queue, &all.timeouts, &all.gone, &all.notes] {
        let _: () = connection.set(&**key, "x").await.unwrap();
        let semaphore = semaphore(&session, "a", 2, patient().max_wait(5 * SECOND));
        let begun = awake();
        match semaphore.many(2).acquire().await {
            Err(AcquireError::Backend(error)) => {
                assert_eq!(error.kind(), BackendErrorKind::WrongType, "{}", key.escape_ascii());
            }
            // The usual case has no need of the deadlines of waiters.
            Ok(permit) => {
                assert_eq!(key, &all.timeouts, "{}", key.escape_ascii());
                permit.release().await.unwrap();
            }
            Err(error) => panic!("{error}"),
        }
        assert!(awake() - begun < 200 * MS + MACHINE, "{:?}", awake() - begun);
        let kept: String = connection.get(&**key).await.unwrap();
        assert_eq!(kept, "x");
        server.flushall().await;
    }
    idle(&session).await;
}

/// The kind is a part of the key: a mutex and a semaphore of one name do not meet.
#[tokio::test]
async fn b125_a_mutex_of_the_same_name_is_another_object() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let semaphore = semaphore(&session, "a", 1, patient());
    let permit = semaphore.acquire().await.unwrap();
    let mutex = Mutex::new(&session, "a", patient()).unwrap();
    let guard = mutex.try_acquire().await.unwrap().expect("nobody holds the mutex");
    guard.release().await.unwrap();
    assert!(permit.is_held());
    permit.release().await.unwrap();
}

/// Released, lost, unknown: four ways of a release, told apart.
#[tokio::test]
async fn b129_a_release_says_what_became_of_it() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let semaphore = semaphore(&session, "a", 2, patient().fixed(300 * MS));
    semaphore.acquire().await.unwrap().release().await.unwrap();
    let expired = semaphore.acquire().await.unwrap();
    assert_eq!(expired.lost().await, LostReason::Expired);
    assert_eq!(why(expired.release().await), LostReason::Expired);
    let gone = semaphore.acquire().await.unwrap();
    server.flushall().await;
    assert_eq!(why(gone.release().await), LostReason::Expired);
    let unsent = semaphore.acquire().await.unwrap();
    server.kill();
    let verdict = unsent.release().await;
    assert!(
        matches!(verdict, Err(ReleaseError::Unknown { .. } | ReleaseError::Backend { .. })),
        "{verdict:?}"
    );
}

/// The wait bounds everything: refused connections, and a server that is silent.
#[tokio::test]
async fn b136_a_wait_ends_in_time_whatever_the_server_does() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let session = session(proxy.url()).await;
    let semaphore = semaphore(&session, "a", 2, patient());
    for silent in [true, false] {
        proxy.black_hole(silent);
        if !silent {
            proxy.refuse(true);
            proxy.cut();
        }
        let begun = Watch::start();
        let error = semaphore.many(2).acquire_within(500 * MS).await.unwrap_err();
        let took = begun.elapsed();
        let AcquireError::Backend(error) = error else { panic!("{error}") };
        assert_eq!(error.kind(), BackendErrorKind::Unreachable);
        assert!((500 * MS..800 * MS + MACHINE).contains(&took), "silent {silent}: {took:?}");
    }
}
