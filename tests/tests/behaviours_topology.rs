//! Rows of BEHAVIOURS about slots that move and masters that change.

use std::time::{Duration, Instant};

use leasehold_mutex::{Event, Guard, Mutex, Options, Session};
use leasehold_tests::eventually;
use leasehold_tests::rig::Watch;
use leasehold_tests::scene::{SOON, Told, inboxes, keys, mutex};
use leasehold_tests::topology::Cluster;
use tokio::task::JoinHandle;

const SECOND: Duration = Duration::from_secs(1);

/// A check (1 s at the longest) and what a busy machine takes.
const CHECK: Duration = Duration::from_millis(1_500);

async fn session(cluster: &Cluster) -> Session {
    let builder = Session::cluster_builder(cluster.urls()).expect("URLs");
    builder.connect().await.expect("a session")
}

fn waiter(lock: &Mutex) -> JoinHandle<(Guard, Instant)> {
    let lock = lock.clone();
    tokio::spawn(async move { (lock.acquire().await.expect("a hold"), Instant::now()) })
}

/// The traces of those who wait, the first first; none while nobody answers.
async fn waiting(lock: &Mutex) -> Vec<String> {
    let queue = lock.queue().await.map(|queue| queue.waiters).unwrap_or_default();
    queue.iter().map(|waiter| waiter.trace.to_string()).collect()
}

async fn queued(lock: &Mutex, waiters: usize) {
    eventually(SOON, "they queue", async || waiting(lock).await.len() == waiters).await;
}

/// The inbox listens at each master, so a waiter is heard wherever its slot goes.
#[tokio::test]
async fn b56_a_waiter_whose_slot_moved_to_another_master_is_granted_by_release() {
    let cluster = Cluster::start(3, 0).await;
    let (one, two) = (session(&cluster).await, session(&cluster).await);
    let [first, second] =
        [&one, &two].map(|session| mutex(session, "a", Options::default().max_wait(3 * SOON)));
    for round in 0..3 {
        let guard = first.acquire().await.unwrap();
        let waiting = waiter(&second);
        queued(&first, 1).await;
        let slot = cluster.slot_of(&keys("a").holds).await;
        let to = (cluster.owner_of(slot).await.unwrap() + 1) % 3;
        cluster.begin_to_move(slot, to).await;
        cluster.finish_to_move(slot, to).await;
        guard.release().await.unwrap();
        let released = Instant::now();
        let (next, at) = waiting.await.unwrap();
        println!("round {round}: granted {:?} after the release", at - released.min(at));
        assert!(at <= released + CHECK, "{:?}", at - released);
        next.release().await.unwrap();
        // Who was told of a move by the others only may not know yet, and the next move would begin where the slot was.
        cluster.settled().await;
    }
    assert!(two.statistics().pushed_grants >= 1);
    for session in [one, two] {
        session.shutdown(SOON).await.unwrap();
    }
}

/// A node that had no slot has no inbox: until there is one, the waiter looks dead there, and its check
/// takes the lock or brings it back.
#[tokio::test]
async fn b56_a_waiter_whose_slot_moved_to_a_new_master_is_granted_by_its_check() {
    let cluster = Cluster::start(2, 1).await;
    // A replica that becomes a master without slots: it forgets whose it was.
    let fresh = cluster.replicas().await[0];
    let number = cluster.nodes().iter().position(|node| node.addr() == fresh.addr()).unwrap();
    let mut reset = redis::cmd("CLUSTER");
    reset.arg("RESET").arg("SOFT").exec_async(&mut fresh.connection().await).await.unwrap();
    cluster.join(number).await;
    let (one, two) = (session(&cluster).await, session(&cluster).await);
    assert_eq!(listeners(&cluster, number).await, 0);
    let [first, second] =
        [&one, &two].map(|session| mutex(session, "a", Options::default().max_wait(3 * SOON)));
    let guard = first.acquire().await.unwrap();
    let waiting = waiter(&second);
    queued(&first, 1).await;
    let slot = cluster.slot_of(&keys("a").holds).await;
    cluster.begin_to_move(slot, number).await;
    cluster.finish_to_move(slot, number).await;
    guard.release().await.unwrap();
    let released = Instant::now();
    let (next, at) = waiting.await.unwrap();
    println!("granted {:?} after the release", at - released.min(at));
    assert!(at <= released + CHECK, "{:?}", at - released);
    next.release().await.unwrap();
    let heard = async || listeners(&cluster, number).await == 2;
    eventually(SOON, "both sessions listen there too", heard).await;
    for session in [one, two] {
        session.shutdown(SOON).await.unwrap();
    }
}

/// How many inboxes a node knows.
async fn listeners(cluster: &Cluster, number: usize) -> usize {
    inboxes(&cluster.nodes()[number]).await
}

/// Trap 26. The master dies with a holder and waiters: its replica goes on with both. As soon as all have an inbox there
/// they stand in their old order, and are granted in it; until then one that has looks alive before one that has not.
#[tokio::test]
async fn b56_a_failover_keeps_holds_and_the_order_of_waiters() {
    let cluster = Cluster::start(3, 1).await;
    let told = Told::default();
    let builder = Session::cluster_builder(cluster.urls()).unwrap();
    let one = told.by(builder).connect().await.unwrap();
    let first = mutex(&one, "a", Options::default().lease(20 * SECOND));
    let guard = first.acquire().await.unwrap();
    let (mut sessions, mut tasks) = (Vec::new(), Vec::new());
    for number in 1..=3 {
        let other = session(&cluster).await;
        let lock = mutex(&other, "a", Options::default().max_wait(6 * SOON));
        sessions.push(other);
        tasks.push(waiter(&lock));
        queued(&first, number).await;
    }
    let order = waiting(&first).await;
    let number = cluster.master_of(&keys("a").queue).await;
    cluster.acknowledged(number).await;
    let master = &cluster.nodes()[number];
    master.kill();
    let killed = Watch::start();
    let replaced = async || cluster.masters().await.len() == 3 && !master.is_running();
    eventually(3 * SOON, "the replica is the master", replaced).await;
    let back = async || {
        let new = cluster.master_of(&keys("a").queue).await;
        cluster.nodes()[new].is_running()
            && listeners(&cluster, new).await == 4
            && waiting(&first).await == order
    };
    eventually(3 * SOON, "all wait in their old order", back).await;
    println!("all wait in their old order {:?} after the kill", killed.elapsed());
    assert!(guard.is_held() && killed.awake() < 15 * SECOND);
    guard.release().await.expect("its hold was not lost");
    for (place, task) in tasks.into_iter().enumerate() {
        let (next, _) = task.await.unwrap();
        assert_eq!(next.trace().to_string(), order[place], "granted in the old order");
        next.release().await.unwrap();
    }
    let inbox = |event: &Event| matches!(event, Event::InboxDown | Event::InboxUp);
    assert!(told.count(inbox) >= 2, "a pause of the inbox is told");
    assert_eq!(told.count(leasehold_tests::scene::lost), 0);
    for session in sessions.into_iter().chain([one]) {
        session.shutdown(SOON).await.unwrap();
    }
}
