//! Queues of every kind, and a latch, on a master that dies and in a slot that moves.

use std::sync::{Arc, Mutex as Lock};
use std::time::{Duration, Instant};

use leasehold_fair_lock::FairLock;
use leasehold_latch::{Latch, LatchError, LatchOptions};
use leasehold_multi_lock::MultiLock;
use leasehold_mutex::{Mutex, Options, Session};
use leasehold_tests::conformance::{AllPermits, Hold, Holdable, Writing};
use leasehold_tests::eventually;
use leasehold_tests::latch::{latch, waiter};
use leasehold_tests::rig::Watch;
use leasehold_tests::scene::{SOON, Told, inboxes, keys, lost, mutex};
use leasehold_tests::topology::Cluster;
use tokio::task::JoinHandle;

use super::{SECOND, cluster, session};

type Permits = AllPermits<2>;

/// One that holds and three that wait for it, each of a session of its own.
struct Line<H: Holdable> {
    object: H,
    hold: H::Hold,
    order: Vec<String>,
    granted: Arc<Lock<Vec<String>>>,
    tasks: Vec<JoinHandle<()>>,
}

impl<H: Holdable> Line<H> {
    async fn of([object, others @ ..]: [H; 4]) -> Self {
        let hold = object.acquire_within(SOON).await.expect("free");
        let granted = Arc::new(Lock::new(Vec::new()));
        let mut tasks = Vec::new();
        for (number, other) in others.into_iter().enumerate() {
            let told = Arc::clone(&granted);
            tasks.push(tokio::spawn(async move {
                let hold = other.acquire_within(9 * SOON).await.expect("it is granted");
                told.lock().expect("no panic inside").push(hold.trace());
                hold.release().await.expect("held until its release");
            }));
            let stands = async || object.waiting().await.len() == number + 1;
            eventually(SOON, "it queues", stands).await;
        }
        let order = object.waiting().await;
        Self { object, hold, order, granted, tasks }
    }

    /// They stand as they stood. Nobody who answers is no order.
    async fn stands(&self) -> bool {
        let object = self.object.clone();
        let asked = tokio::spawn(async move { object.waiting().await });
        asked.await.is_ok_and(|waiting| waiting == self.order)
    }

    /// I5: they are granted as they stood, and nobody was lost on the way.
    async fn goes_on(self, kind: &str) {
        assert!(self.hold.is_held(), "{kind}");
        self.hold.release().await.unwrap_or_else(|error| panic!("{kind}: {error}"));
        for task in self.tasks {
            task.await.expect("no panic inside");
        }
        assert_eq!(*self.granted.lock().expect("no panic inside"), self.order, "{kind}");
    }
}

/// Under one name all kinds are in one slot.
struct Family {
    mutex: Line<Mutex>,
    fair: Line<FairLock>,
    write: Line<Writing>,
    permits: Line<Permits>,
}

impl Family {
    async fn of(sessions: &[Session; 4], name: &str) -> Self {
        let lease = || Options::default().lease(30 * SECOND);
        let mutex = |it: &Session| Mutex::new(it, name, lease()).expect("a lock");
        let fair = |it: &Session| FairLock::new(it, name, lease()).expect("a lock");
        Self {
            mutex: Line::of(sessions.each_ref().map(mutex)).await,
            fair: Line::of(sessions.each_ref().map(fair)).await,
            write: Line::of(sessions.each_ref().map(|it| Writing::of(it, name, lease()))).await,
            permits: Line::of(sessions.each_ref().map(|it| Permits::of(it, name, lease()))).await,
        }
    }

    async fn stands(&self) -> bool {
        self.mutex.stands().await
            && self.fair.stands().await
            && self.write.stands().await
            && self.permits.stands().await
    }

    async fn goes_on(self) {
        self.mutex.goes_on("mutex").await;
        self.fair.goes_on("fair lock").await;
        self.write.goes_on("write").await;
        self.permits.goes_on("permits").await;
    }
}

/// A latch of three, of which one is counted before, one while nobody can answer and one after; and who waits for it.
struct Counting {
    latch: Latch,
    waits: JoinHandle<(Result<(), LatchError>, Instant)>,
}

impl Counting {
    async fn of(sessions: &[Session; 4], name: &str) -> Self {
        let [latch, theirs] = [0, 1].map(|at| latch(&sessions[at], name, LatchOptions::default()));
        assert!(latch.arm(3).await.expect("an answer"));
        assert_eq!(latch.count_down_as("before").await.expect("an answer"), 2);
        let waits = waiter(&theirs);
        eventually(SOON, "it waits", async || sessions[1].statistics().listening == 1).await;
        Self { latch, waits }
    }

    /// Counts again and again until it is answered, as its documentation says one may.
    fn meanwhile(&self) -> JoinHandle<u64> {
        let latch = self.latch.clone();
        tokio::spawn(async move {
            loop {
                match latch.count_down_as("meanwhile").await {
                    Ok(left) => return left,
                    Err(LatchError::Unknown { .. } | LatchError::Backend { .. }) => {}
                    Err(other) => panic!("{other}"),
                }
            }
        })
    }

    /// I6, I15: what was counted is counted, once; who waits is told in time.
    async fn opens(self, meanwhile: JoinHandle<u64>) {
        let answered = tokio::time::timeout(3 * SOON, meanwhile).await.expect("an answer");
        assert_eq!(answered.expect("no panic inside"), 1);
        let latch = &self.latch;
        assert_eq!(latch.count_down_as("before").await.expect("an answer"), 2, "as answered then");
        assert_eq!(latch.count().await.expect("an answer"), 1, "not lost, not doubled");
        assert!(!self.waits.is_finished(), "I15: not before zero");
        assert_eq!(latch.count_down_as("after").await.expect("an answer"), 0);
        let opened = Instant::now();
        let (told, at) = self.waits.await.expect("no panic inside");
        told.expect("open");
        println!("told {:?} after the last count", at - opened.min(at));
        assert!(at <= opened + LOOK, "{:?}", at - opened);
    }
}

/// A look (1 s at the longest) and what a busy machine takes.
const LOOK: Duration = Duration::from_millis(1_500);

/// Trap 26 for all kinds: the master of all of them dies, its replica goes on with holds, queues and counts. Waiters come
/// back with their old tickets; as soon as all have an inbox there, all is as it was.
#[tokio::test]
async fn b56_a_failover_keeps_holds_queues_and_counts_of_every_kind() {
    let cluster = Cluster::start(3, 1).await;
    let told = Told::default();
    let builder = Session::cluster_builder(cluster.urls()).unwrap();
    let one = told.by(builder).connect().await.unwrap();
    let others = (session(&cluster).await, session(&cluster).await, session(&cluster).await);
    let sessions = [one, others.0, others.1, others.2];
    let family = Family::of(&sessions, "a").await;
    let counting = Counting::of(&sessions, "a").await;
    // One member of several is there too (I16).
    let names = cluster.one_a_master("several").await;
    let locks = names.iter().map(|name| mutex(&sessions[0], name, Options::default()));
    let several = MultiLock::all(locks).acquire().await.unwrap();
    let number = cluster.master_of(&keys("a").queue).await;
    cluster.acknowledged(number).await;
    cluster.nodes()[number].kill();
    let killed = Watch::start();
    let meanwhile = counting.meanwhile();
    let replaced = async || cluster.masters().await.len() == 3;
    eventually(3 * SOON, "the replica is the master", replaced).await;
    let back = async || {
        let new = cluster.master_of(&keys("a").queue).await;
        cluster.nodes()[new].is_running()
            && inboxes(&cluster.nodes()[new]).await == 4
            && family.stands().await
    };
    eventually(3 * SOON, "all wait in their old order", back).await;
    println!("all wait in their old order {:?} after the kill", killed.elapsed());
    assert!(killed.awake() < 20 * SECOND, "the leases last");
    counting.opens(meanwhile).await;
    family.goes_on().await;
    assert!(several.is_held());
    several.release().await.unwrap();
    assert_eq!(told.count(lost), 0);
    for session in sessions {
        session.shutdown(SOON).await.unwrap();
    }
}

/// The same where the slot goes to a master on which all listen already: nobody looks dead for a moment.
#[tokio::test]
async fn b56_a_slot_that_moves_keeps_holds_queues_and_counts_of_every_kind() {
    let cluster = cluster().await;
    let sessions = [
        session(cluster).await,
        session(cluster).await,
        session(cluster).await,
        session(cluster).await,
    ];
    let family = Family::of(&sessions, "moving").await;
    let counting = Counting::of(&sessions, "moving").await;
    let slot = cluster.slot_of(&keys("moving").queue).await;
    let from = cluster.owner_of(slot).await.unwrap();
    cluster.begin_to_move(slot, (from + 1) % 3).await;
    let meanwhile = counting.meanwhile();
    cluster.finish_to_move(slot, (from + 1) % 3).await;
    assert_ne!(cluster.owner_of(slot).await, Some(from), "the control: it has moved");
    eventually(SOON, "all wait in their old order", async || family.stands().await).await;
    counting.opens(meanwhile).await;
    family.goes_on().await;
    for session in sessions {
        session.shutdown(SOON).await.unwrap();
    }
}
