//! Lines of conformance about both sides of a read-write lock at once (what they are: `tests/src/conformance/mod.rs`), and
//! what the reference is known to do worse (`w<number>_…`). Leases of seconds are shorter here, in proportion.
//!
//! W27's cost of a reader's release is measured in `timed_rwlock.rs`; that a stream of readers starves nobody (W25) is
//! `b74_…` in `behaviours_rwlock.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold_rwlock::{LostReason, Options, ReleaseError, RwLock};
use leasehold_tests::rig::awake;
use leasehold_tests::rwlock::{keys, lock, queued, waiter};
use leasehold_tests::scene::{SOON, keys_left, session};
use leasehold_tests::{Server, Worker, eventually, rounds};
use redis::AsyncCommands;
use tokio::task::JoinSet;

const WORKER: &str = env!("CARGO_BIN_EXE_rwlock_worker");
const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// For two cores that do other work too; below one check, so that nothing which only a check puts right passes for a wake-up.
const MACHINE: Duration = Duration::from_millis(600);
/// The server's clock in whole milliseconds may end a lease so much earlier than ours sees it.
const ROUNDING: Duration = Duration::from_millis(2);

fn plain() -> Options {
    Options::default()
}

/// How many hold each side: readers, writers.
async fn counts(lock: &RwLock) -> (usize, usize) {
    let holders = lock.holders().await.expect("an answer");
    (holders.readers.len(), holders.writers.len())
}

/// 50 read holds of 10 tasks outlast their lease: all releases succeed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c31_fifty_read_holds_outlast_their_lease() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let (lease, mut tasks) = (1500 * MS, JoinSet::new());
    for _ in 0..10 {
        let lock = lock(&session, "a", plain().lease(lease));
        tasks.spawn(async move {
            let mut guards = Vec::new();
            for _ in 0..5 {
                guards.push(lock.read().acquire().await.expect("a hold"));
            }
            tokio::time::sleep(lease * 2).await;
            for guard in guards {
                guard.release().await.expect("still held");
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert_eq!(keys_left(&server).await, [""; 0]);
}

/// Write, then read, by one owner: both are renewed, and the read hold is still there when the write hold has ended.
#[tokio::test]
async fn c32_both_sides_of_one_owner_are_renewed() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let lease = 3 * SECOND;
    let lock = lock(&session, "a", plain().lease(lease));
    let writing = lock.write().acquire().await.unwrap();
    let reading = lock.read().by(writing.owner()).acquire().await.unwrap();
    let began = Instant::now();
    while began.elapsed() < lease * 3 / 2 {
        let holders = lock.holders().await.unwrap();
        for side in [&holders.readers, &holders.writers] {
            // Renewed at each third: two thirds are left, less what the machine needs.
            assert!(side.len() == 1 && side[0].remaining > lease / 3, "{holders:?}");
        }
        tokio::time::sleep(50 * MS).await;
    }
    writing.release().await.unwrap();
    assert_eq!(counts(&lock).await, (1, 0));
    assert!(reading.is_held());
    reading.release().await.unwrap();
}

/// A writer shuts out readers and writers; it enters again.
#[tokio::test]
async fn c52_a_writer_excludes_all_but_itself() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let [ours, theirs] = [&one, &two].map(|session| lock(session, "a", plain()));
    let writing = ours.write().acquire().await.unwrap();
    for stranger in [&ours, &theirs] {
        assert!(stranger.read().try_acquire().await.unwrap().is_none());
        assert!(stranger.write().try_acquire().await.unwrap().is_none());
    }
    let again = ours.write().by(writing.owner()).try_acquire().await.unwrap().expect("re-entry");
    writing.release().await.unwrap();
    assert!(theirs.read().try_acquire().await.unwrap().is_none(), "one entry is left");
    again.release().await.unwrap();
    theirs.read().try_acquire().await.unwrap().expect("free").release().await.unwrap();
}

/// Who writes may read; a stranger may not. When only the read hold is left a writer is still refused.
#[tokio::test]
async fn c53_who_writes_may_read_and_keeps_reading() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let [ours, theirs] = [&one, &two].map(|session| lock(session, "a", plain()));
    let writing = ours.write().acquire().await.unwrap();
    let reading = ours.read().by(writing.owner()).try_acquire().await.unwrap().expect("re-entry");
    assert!(theirs.read().try_acquire().await.unwrap().is_none());
    writing.release().await.unwrap();
    assert!(theirs.write().try_acquire().await.unwrap().is_none(), "it is still read");
    reading.release().await.unwrap();
    theirs.write().try_acquire().await.unwrap().expect("free").release().await.unwrap();
}

/// Write, read, release the read: still written. Then release the write: free.
#[tokio::test]
async fn c55_the_end_of_the_read_leaves_the_write() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let lock = lock(&session, "a", plain());
    let writing = lock.write().acquire().await.unwrap();
    let reading = lock.read().by(writing.owner()).acquire().await.unwrap();
    reading.release().await.unwrap();
    assert!(writing.is_held() && lock.is_write_locked().await.unwrap());
    assert!(lock.read().try_acquire().await.unwrap().is_none());
    writing.release().await.unwrap();
    assert!(!lock.is_locked().await.unwrap());
}

/// While it is written nobody is shown as a reader; when its owner reads too, that one is.
#[tokio::test]
async fn c56_each_side_is_shown_by_itself() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let lock = lock(&session, "a", plain());
    let writing = lock.write().acquire().await.unwrap();
    assert_eq!(counts(&lock).await, (0, 1));
    let reading = lock.read().by(writing.owner()).acquire().await.unwrap();
    let holders = lock.holders().await.unwrap();
    assert_eq!(holders.readers[0].trace, reading.trace());
    assert_eq!(holders.writers[0].trace, writing.trace());
    reading.release().await.unwrap();
    writing.release().await.unwrap();
}

/// Waits as a writer; answers when it was granted, counted from `began`.
async fn writes_after(lock: &RwLock, began: Instant) -> Duration {
    let guard = lock.write().acquire_within(SOON).await.expect("a hold");
    let after = began.elapsed();
    guard.release().await.expect("still held");
    after
}

/// Two read leases, the shorter one released (58), or released late by another (59): a writer enters when the longer one
/// ends, neither sooner nor much later.
#[tokio::test]
async fn c58_c59_a_writer_waits_for_the_longer_read_lease_only() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    for pause in [Duration::ZERO, 500 * MS] {
        let lease = 2 * SECOND;
        let (long, short) =
            (lock(&one, "a", plain().fixed(lease)), lock(&two, "a", plain().fixed(lease * 2 / 5)));
        let began = Instant::now();
        let silent = long.read().acquire().await.unwrap();
        tokio::time::sleep(pause).await;
        let brief = short.read().acquire().await.unwrap();
        let took = Instant::now();
        let write = tokio::spawn({
            let lock = lock(&two, "a", plain());
            async move { writes_after(&lock, began).await }
        });
        queued(&long, 1).await;
        brief.release().await.unwrap();
        let after = write.await.unwrap();
        assert!(after + ROUNDING >= lease, "{after:?}");
        assert!(after <= lease + (took - began).saturating_sub(pause) + MACHINE, "{after:?}");
        drop(silent);
    }
}

/// A silent writer is followed by two readers at the end of its lease.
#[tokio::test]
async fn c61_readers_follow_a_silent_writer_at_the_end_of_its_lease() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let lease = 1500 * MS;
    let (silent, theirs) = (lock(&one, "a", plain().fixed(lease)), lock(&two, "a", plain()));
    let began = Instant::now();
    let writing = silent.write().acquire().await.unwrap();
    let readers =
        [waiter(&theirs, theirs.read(), 1).await, waiter(&theirs, theirs.read(), 2).await];
    for reader in readers {
        let (guard, at) = reader.await.unwrap();
        let after = at - began;
        assert!(after + ROUNDING >= lease && after < lease + SECOND + MACHINE, "{after:?}");
        guard.release().await.unwrap();
    }
    drop(writing);
}

/// A write hold entered again with a shorter or a longer lease: nobody gets it before the longer one ends.
#[tokio::test]
async fn c62_a_write_entered_again_with_another_lease_lasts_as_long_as_the_longer() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let (short, long) = (500 * MS, 1500 * MS);
    for (outer, inner) in [(short, long), (long, short)] {
        let began = Instant::now();
        let first = lock(&one, "a", plain().fixed(outer)).write().acquire().await.unwrap();
        let inner = lock(&one, "a", plain().fixed(inner)).write().by(first.owner());
        let second = inner.acquire().await.unwrap();
        let theirs = lock(&two, "a", plain());
        assert!(theirs.write().try_acquire().await.unwrap().is_none());
        let after = writes_after(&theirs, began).await;
        assert!(after + ROUNDING >= long && after < long + MACHINE, "{after:?}");
        drop((first, second));
    }
}

/// Ended by force on one side, the other goes on, also where one owner holds both.
#[tokio::test]
async fn c64_force_on_one_side_leaves_the_other() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let [ours, operator] = [&one, &two].map(|session| lock(session, "a", plain()));
    let writing = ours.write().acquire().await.unwrap();
    assert!(operator.force_release_readers().await.unwrap().is_empty());
    assert!(writing.is_held() && operator.is_write_locked().await.unwrap());
    let reading = ours.read().by(writing.owner()).acquire().await.unwrap();
    assert_eq!(operator.force_release_writers().await.unwrap()[0].trace, writing.trace());
    let told = tokio::time::timeout(SOON, writing.lost()).await.expect("it is told");
    assert_eq!(told, LostReason::ForceReleased);
    assert!(matches!(writing.release().await, Err(ReleaseError::Lost(_))));
    assert_eq!(counts(&operator).await, (1, 0));
    assert!(operator.force_release_writers().await.unwrap().is_empty());
    assert!(reading.is_held());
    assert_eq!(operator.force_release_readers().await.unwrap().len(), 1);
    assert!(!operator.is_locked().await.unwrap(), "free");
}

/// The counts of each side go 0, 1, 0 and 0, 1, 2, 1, 0, and the other's stay.
#[tokio::test]
async fn c65_counts_are_kept_for_each_side() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let lock = lock(&session, "a", plain());
    assert_eq!(counts(&lock).await, (0, 0));
    let reading = lock.read().acquire().await.unwrap();
    assert_eq!(counts(&lock).await, (1, 0));
    reading.release().await.unwrap();
    assert_eq!(counts(&lock).await, (0, 0));
    let outer = lock.write().acquire().await.unwrap();
    let inner = lock.write().by(outer.owner()).acquire().await.unwrap();
    assert_eq!(counts(&lock).await, (0, 2));
    let reading = lock.read().by(outer.owner()).acquire().await.unwrap();
    let again = lock.read().by(outer.owner()).acquire().await.unwrap();
    assert_eq!(counts(&lock).await, (2, 2));
    inner.release().await.unwrap();
    assert_eq!(counts(&lock).await, (2, 1));
    outer.release().await.unwrap();
    again.release().await.unwrap();
    assert_eq!(counts(&lock).await, (1, 0));
    reading.release().await.unwrap();
    assert_eq!(counts(&lock).await, (0, 0));
}

/// Processes that read die, 20 of them with four entries each, while another one reads beyond their leases: when that one
/// releases, a writer gets in at once; none of the dead is renewed or in its way, or left beside it (W27).
#[tokio::test]
async fn c67_readers_that_died_do_not_stay() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let (lease, lock) = (SECOND, lock(&session, "a", plain()));
    let mut living = Worker::start(WORKER, &server.url(), "a", lease).await;
    assert_eq!(living.ask("read").await, "held");
    let mut dying = Vec::new();
    for _ in 0..rounds(20).max(8) {
        let mut worker = Worker::start(WORKER, &server.url(), "a", lease).await;
        assert_eq!(worker.ask("read").await, "held");
        assert_eq!(worker.ask("again 3").await, "held");
        dying.push(worker);
    }
    assert_eq!(counts(&lock).await.0, 1 + 4 * dying.len());
    dying.iter_mut().for_each(Worker::kill);
    let killed = awake();
    let only_one = async || counts(&lock).await.0 == 1;
    eventually(SOON, "the dead are gone", only_one).await;
    assert!(awake() - killed < lease + MACHINE, "{:?}", awake() - killed);
    let writer = waiter(&lock, lock.write(), 1).await;
    // The first call after their end has swept them.
    let left: u64 = server.connection().await.zcard(&*keys("a").holds).await.unwrap();
    assert_eq!(left, 1, "W27: they are walked by nobody");
    tokio::time::sleep(lease * 2).await;
    assert!(!writer.is_finished(), "the living one is renewed");
    let released = Instant::now();
    assert_eq!(living.ask("release").await, "released");
    let (guard, at) = writer.await.unwrap();
    assert!(at - released < MACHINE, "{:?}", at - released);
    guard.release().await.unwrap();
}

/// A name with a hash tag of its own works; all keys of it have the same first tag, so they are in one slot (W28).
#[tokio::test]
async fn c68_w28_a_name_with_a_hash_tag_works_and_has_one_slot() {
    let server = Server::start();
    let session = session(&server.url()).await;
    for name in ["{tag}", "a{tag}b", "x{}y", "}{"] {
        let lock = lock(&session, name, plain());
        let mut tasks = JoinSet::new();
        for _ in 0..10 {
            let view = lock.read();
            tasks.spawn(async move {
                for _ in 0..10 {
                    view.acquire().await.expect("a hold").release().await.expect("still held");
                }
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
        let writing = lock.write().acquire().await.unwrap();
        let reading = lock.read().by(writing.owner()).acquire().await.unwrap();
        let waiting = waiter(&lock, lock.write(), 1).await;
        let found = server.keys().await;
        let tag_of = |key: &[u8]| {
            let from = key.iter().position(|byte| *byte == b'{').expect("a tag") + 1;
            let length = key[from..].iter().position(|byte| *byte == b'}').expect("its end");
            key[from..from + length].to_vec()
        };
        assert!(found.len() >= 5, "holds, notes, queue, timeouts, token: {found:?}");
        let tag = tag_of(&found[0]);
        assert!(!tag.is_empty() && found.iter().all(|key| tag_of(key) == tag), "{found:?}");
        reading.release().await.unwrap();
        writing.release().await.unwrap();
        waiting.await.unwrap().0.release().await.unwrap();
        server.flushall().await;
    }
}

/// Readers and writers by turns: so many of each side, over these sessions; the counter stays exact, and nobody is beside a
/// writer (I13).
async fn mix(server: &Server, sessions: u32, tasks: u32, turns: u32) {
    let (inside, counter) = (Arc::new(AtomicI32::new(0)), Arc::new(AtomicU32::new(0)));
    let mut all = JoinSet::new();
    let mut opened = Vec::new();
    for _ in 0..sessions {
        opened.push(session(&server.url()).await);
    }
    for task in 0..tasks {
        let lock = lock(&opened[(task % sessions) as usize], "a", plain().max_wait(SOON * 6));
        let (inside, counter) = (inside.clone(), counter.clone());
        all.spawn(async move {
            let mut written = 0;
            for turn in 0..turns {
                // Neither by turns nor in step with the others.
                if (task * 7 + turn * 13) % 5 < 2 {
                    let guard = lock.write().acquire().await.expect("a hold");
                    assert_eq!(inside.swap(-1000, Ordering::SeqCst), 0, "I13: not alone");
                    let seen = counter.load(Ordering::Relaxed);
                    tokio::task::yield_now().await;
                    counter.store(seen + 1, Ordering::Relaxed);
                    assert_eq!(inside.swap(0, Ordering::SeqCst), -1000, "I13: not alone");
                    guard.release().await.expect("still held");
                    written += 1;
                } else {
                    let guard = lock.read().acquire().await.expect("a hold");
                    assert!(inside.fetch_add(1, Ordering::SeqCst) >= 0, "I13: beside a writer");
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.release().await.expect("still held");
                }
            }
            written
        });
    }
    let mut written = 0;
    while let Some(done) = all.join_next().await {
        written += done.expect("no panic inside");
    }
    assert!(written > 0, "somebody writes");
    assert_eq!(counter.load(Ordering::Relaxed), written, "increments are lost");
    assert_eq!(keys_left(server).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c70_a_mix_of_readers_and_writers_counts_exactly() {
    let server = Server::start();
    mix(&server, 1, 15, 1).await;
    mix(&server, rounds(100).max(20), 100, 1).await;
    mix(&server, 16, 16, rounds(100).max(20)).await;
}

/// Whoever waits to read is let in by the downgrade, by a message and long before a check; writers go on waiting.
#[tokio::test]
async fn w26_a_downgrade_wakes_the_readers() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let [ours, theirs] = [&one, &two].map(|session| lock(session, "a", plain()));
    let writing = ours.write().acquire().await.unwrap();
    let readers =
        [waiter(&theirs, theirs.read(), 1).await, waiter(&theirs, theirs.read(), 2).await];
    let writer = waiter(&theirs, theirs.write(), 3).await;
    let downgraded = Instant::now();
    let reading = ours.downgrade(writing).await.unwrap();
    for reader in readers {
        let (guard, at) = reader.await.unwrap();
        assert!(at - downgraded < MACHINE, "{:?}", at - downgraded);
        guard.release().await.unwrap();
    }
    assert_eq!(two.statistics().pushed_grants, 2);
    assert!(!writer.is_finished() && reading.is_held());
    reading.release().await.unwrap();
    writer.await.unwrap().0.release().await.unwrap();
}
