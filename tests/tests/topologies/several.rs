//! Several locks as one on a cluster.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use leasehold_fair_lock::FairLock;
use leasehold_multi_lock::{AcquireError, LostReason, MultiLock};
use leasehold_mutex::{Mutex, Name, Options, ReleaseError, Session};
use leasehold_rwlock::RwLock;
use leasehold_semaphore::Semaphore;
use leasehold_tests::rig::dropped_after;
use leasehold_tests::scene::{SOON, mutex};
use leasehold_tests::{eventually, scene};

use super::{MS, Monitors, SECOND, cluster, ends_clean, left, session};

/// One of each kind in this group.
fn every_kind(session: &Session, group: &str) -> MultiLock {
    let named = |name| Name::in_group(group, name);
    let fair = FairLock::new(session, named("f"), Options::default()).expect("a lock");
    let lock = Mutex::new(session, named("m"), Options::default()).expect("a lock");
    let read = RwLock::new(session, named("r"), Options::default()).expect("a lock");
    let write = RwLock::new(session, named("w"), Options::default()).expect("a lock");
    let permits = Semaphore::new(session, named("s"), 3, Options::default()).expect("a semaphore");
    MultiLock::of(&permits.many(2)).and(&write.write()).and(&read.read()).and(&lock).and(&fair)
}

fn mutexes(session: &Session, names: &[String]) -> Vec<Mutex> {
    names.iter().map(|name| mutex(session, name, Options::default())).collect()
}

/// I16. Whatever their kinds: one call, and nothing else on its connection, so one round trip.
#[tokio::test]
async fn members_of_a_group_are_taken_by_one_call() {
    let cluster = cluster().await;
    let session = session(cluster).await;
    let all = every_kind(&session, "together");
    all.acquire().await.unwrap().release().await.unwrap(); // The scripts are known.
    let monitors = Monitors::of(cluster);
    let guard = all.acquire().await.unwrap();
    assert_eq!((guard.names().count(), guard.tokens().count()), (5, 3));
    let calls = monitors.calls("{together}").await;
    assert_eq!(calls.len(), 1, "{calls:?}");
    let client = calls[0].split(' ').nth(2).expect("who sent it");
    let sent = monitors.sent().await;
    let by_it = sent.iter().filter(|line| line.split(' ').nth(2) == Some(client)).count();
    assert_eq!(by_it, 1, "{sent:?}");
    guard.release().await.unwrap();
    assert_eq!(monitors.calls("{together}").await.len(), 1 + 5, "each is released by itself");
    // The control: one of them is held, so they are taken one by one.
    let name = Name::in_group("together", "m");
    let held = Mutex::new(&session, name, Options::default()).unwrap().acquire().await.unwrap();
    let before = monitors.calls("{together}").await.len();
    assert!(all.acquire_within(100 * MS).await.is_err());
    assert!(monitors.calls("{together}").await.len() > before + 2);
    held.release().await.unwrap();
    session.shutdown(SOON).await.unwrap();
    assert_eq!(left(cluster, "{together}").await, ["lh1:semaphore:{together}=s"], "the limit");
}

/// Of several slots: one by one, in the order of their keys, however they are named and wherever they live.
#[tokio::test]
async fn members_of_several_slots_are_taken_one_by_one_in_global_order() {
    let cluster = cluster().await;
    let session = session(cluster).await;
    let names = cluster.one_a_master("order").await;
    let fair = FairLock::new(&session, &*names[2], Options::default()).unwrap();
    let lock = mutex(&session, &names[0], Options::default());
    let shared = RwLock::new(&session, &*names[1], Options::default()).unwrap();
    let expected = [
        format!("lh1:fair:{{{}}}", names[2]),
        format!("lh1:mutex:{{{}}}", names[0]),
        format!("lh1:rwlock:{{{}}}", names[1]),
    ];
    let turned = MultiLock::of(&shared.write()).and(&lock).and(&fair);
    let straight = MultiLock::of(&fair).and(&lock).and(&shared.write());
    turned.acquire().await.unwrap().release().await.unwrap(); // The scripts are known.
    for all in [turned, straight] {
        let monitors = Monitors::of(cluster);
        let guard = all.acquire().await.unwrap();
        let calls = monitors.calls("{order-").await;
        assert_eq!(calls.len(), 3, "one each: {calls:?}");
        for (call, key) in calls.iter().zip(&expected) {
            assert!(call.contains(&format!("\"{key}\"")), "{key}: {calls:?}");
        }
        guard.release().await.unwrap();
    }
    ends_clean(cluster, "{order-", &[&session]).await;
    session.shutdown(SOON).await.unwrap();
}

/// I16. Busy on one master: free on the others, at once after a try, and after a wait that is over.
#[tokio::test]
async fn a_member_that_is_busy_on_another_master_leaves_the_others_free() {
    let cluster = cluster().await;
    let (one, two) = (session(cluster).await, session(cluster).await);
    let mut names = cluster.one_a_master("busy").await;
    names.sort();
    let (mine, theirs) = (mutexes(&one, &names), mutexes(&two, &names));
    let all = MultiLock::all(mine.iter().rev());
    for busy in 0..3 {
        let held = theirs[busy].acquire().await.unwrap();
        assert!(all.try_acquire().await.unwrap().is_none());
        match all.acquire_within(200 * MS).await {
            Err(AcquireError::TimedOut { name, .. }) => assert_eq!(name, Name::new(&names[busy])),
            other => panic!("{other:?}"),
        }
        let only_theirs = async || left(cluster, "{busy-").await.len() == 1;
        eventually(SOON, "only the other's hold is there", only_theirs).await;
        // And handed over from wherever it is.
        let waiting = tokio::spawn({
            let all = all.clone();
            async move { all.acquire_within(6 * SOON).await }
        });
        eventually(SOON, "it waits", async || theirs[busy].queue().await.unwrap().length == 1)
            .await;
        for later in &theirs[busy + 1..] {
            assert!(!later.is_locked().await.unwrap(), "never before its turn");
        }
        held.release().await.unwrap();
        waiting.await.unwrap().unwrap().release().await.unwrap();
        ends_clean(cluster, "{busy-", &[&one, &two]).await;
    }
    one.shutdown(SOON).await.unwrap();
    two.shutdown(SOON).await.unwrap();
}

/// The loss of a member, on whatever master, is the loss of all and names it; the others are free at once.
#[tokio::test]
async fn a_member_lost_on_one_master_is_named_and_frees_the_others() {
    let cluster = cluster().await;
    let (one, two) = (session(cluster).await, session(cluster).await);
    let mut names = cluster.one_a_master("lost").await;
    names.sort();
    let operator = mutexes(&two, &names);
    let all = MultiLock::all(mutexes(&one, &names));
    for gone in 0..3 {
        let guard = all.acquire().await.unwrap();
        assert!(operator[gone].force_release().await.unwrap().is_some());
        let lost = tokio::time::timeout(SOON, guard.lost()).await.expect("it is told");
        let expected = (Name::new(&names[gone]), LostReason::ForceReleased);
        assert_eq!((lost.name, lost.reason), expected);
        assert!(!guard.is_held());
        eventually(SOON, "all are free", async || left(cluster, "{lost-").await.is_empty()).await;
        let error = guard.release().await.unwrap_err();
        let failed: Vec<_> = error.failed().collect();
        assert!(
            matches!(failed[..], [(name, ReleaseError::Lost(_))] if *name == expected.0),
            "{error}"
        );
    }
    one.shutdown(SOON).await.unwrap();
    two.shutdown(SOON).await.unwrap();
}

/// B95 on several masters: two sessions, opposite orders, and never two inside (I1).
#[tokio::test]
async fn opposite_orders_on_several_masters_never_wait_in_a_circle() {
    let cluster = cluster().await;
    let names = cluster.one_a_master("circle").await;
    let inside = Arc::new(AtomicU32::new(0));
    let (mut sessions, mut tasks) = (Vec::new(), Vec::new());
    for turned in [false, true] {
        let session = session(cluster).await;
        let mut members = mutexes(&session, &names);
        if turned {
            members.reverse();
        }
        sessions.push(session);
        let inside = Arc::clone(&inside);
        tasks.push(tokio::spawn(async move {
            let all = MultiLock::all(&members);
            for _ in 0..60 {
                let guard = all.acquire_within(3 * SOON).await.expect("no dead-lock");
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "I1");
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.release().await.expect("held");
            }
        }));
    }
    for task in tasks {
        task.await.expect("no panic inside");
    }
    for session in sessions {
        session.shutdown(SOON).await.unwrap();
    }
    assert_eq!(left(cluster, "{circle-").await, [""; 0]);
}

/// I9. Dropped at any await point, free or in a queue, of one slot or of several: nothing is left on any node.
#[tokio::test]
async fn a_take_that_is_dropped_leaves_nothing_on_any_node() {
    let cluster = cluster().await;
    let (one, two) = (session(cluster).await, session(cluster).await);
    let mut names = cluster.one_a_master("drop").await;
    names.sort();
    let across = MultiLock::all(mutexes(&one, &names));
    let named = |name| Name::in_group("drop-", name);
    let of = |name| Mutex::new(&one, named(name), Options::default()).expect("a mutex");
    let grouped = MultiLock::of(&of("a")).and(&of("b"));
    let rival = mutex(&two, &names[2], Options::default());
    for lock in [&across, &grouped] {
        lock.acquire().await.unwrap().release().await.unwrap(); // The scripts are known.
    }
    let (mut guards, mut drops) = (0, 0);
    for (lock, busy) in [(&grouped, false), (&across, false), (&across, true)] {
        for polls in (0..24).chain((24..400).step_by(if busy { 25 } else { 12 })) {
            let held = if busy { Some(rival.acquire().await.expect("free")) } else { None };
            match dropped_after(polls, lock.acquire_within(60 * SECOND)).await {
                Some(guard) => {
                    guards += 1;
                    drop(guard.expect("it was free"));
                }
                None => drops += 1,
            }
            if let Some(held) = held {
                held.release().await.unwrap();
            }
            ends_clean(cluster, "{drop-", &[&one, &two]).await;
        }
    }
    println!("{drops} dropped, {guards} became guards");
    assert!(guards > 0 && drops > 40, "{drops} dropped, {guards} became guards");
    // The control: what is held is seen here.
    let guard = across.acquire().await.unwrap();
    assert_eq!(left(cluster, "{drop-").await.len(), 3);
    guard.release().await.unwrap();
    for session in [one, two] {
        session.shutdown(scene::SOON).await.unwrap();
    }
}
