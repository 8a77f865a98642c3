//! Every primitive by most of its verbs, under one name.

use leasehold_fair_lock::FairLock;
use leasehold_latch::LatchOptions;
use leasehold_multi_lock::MultiLock;
use leasehold_mutex::{AcquireError, Mutex, Name, Options, Session};
use leasehold_rwlock::RwLock;
use leasehold_semaphore::Semaphore;
use leasehold_tests::latch::latch;
use leasehold_tests::scene::{SOON, mutex};
use leasehold_tests::{eventually, fair, permits, rwlock};

pub(crate) async fn every_primitive(session: &Session, name: &str) {
    mutexes(session, name).await;
    fair_locks(session, name).await;
    rwlocks(session, name).await;
    semaphores(session, name).await;
    latches(session, name).await;
}

/// Taken and entered again, queued for, cancelled by an operator, handed over, and ended by force.
async fn fair_locks(session: &Session, name: &str) {
    let lock = FairLock::new(session, name, Options::default().max_wait(6 * SOON)).expect("legal");
    let guard = lock.acquire().await.expect("free");
    let inner = lock.by(guard.owner()).acquire().await.expect("entered again");
    inner.release().await.expect("held");
    let asking = lock.clone();
    let refused = tokio::spawn(async move { asking.acquire().await.map(|_| "a hold") });
    fair::queued(&lock, 1).await;
    let next = fair::waiter(&lock, 2).await;
    let queue = lock.queue().await.expect("an answer");
    assert!(lock.cancel(&queue.waiters[0]).await.expect("an answer"));
    assert!(matches!(refused.await.expect("no panic"), Err(AcquireError::Cancelled)));
    guard.release().await.expect("held");
    let (next, _) = next.await.expect("no panic inside");
    assert!(lock.force_release().await.expect("an answer").is_some());
    next.lost().await;
}

async fn mutexes(session: &Session, name: &str) {
    let lock = mutex(session, name, Options::default().max_wait(6 * SOON));
    let guard = lock.acquire().await.expect("free");
    guard.extend(SOON * 6).await.expect("held");
    let asking = lock.clone();
    let next = tokio::spawn(async move { asking.acquire().await.expect("handed over") });
    let waits = async || lock.queue().await.expect("an answer").length == 1;
    eventually(SOON, "it queues", waits).await;
    guard.release().await.expect("held");
    next.await.expect("no panic inside").release().await.expect("held");
}

/// Both sides, one for the other, and readers that are let in together.
async fn rwlocks(session: &Session, name: &str) {
    let lock = rwlock::lock(session, name, Options::default());
    let writing = lock.write().acquire().await.expect("free");
    let reader = rwlock::waiter(&lock, lock.read(), 1).await;
    let reading = lock.downgrade(writing).await.expect("held");
    let (second, _) = reader.await.expect("no panic inside");
    assert_eq!(lock.holders().await.expect("an answer").readers.len(), 2);
    second.release().await.expect("held");
    let writing = lock.try_upgrade(reading).await.expect("the only reader");
    writing.release().await.expect("held");
    let reading = lock.read().acquire().await.expect("free");
    assert_eq!(lock.force_release_readers().await.expect("an answer").len(), 1);
    reading.lost().await;
}

/// Permits in parts, a limit that moves, and a wait.
async fn semaphores(session: &Session, name: &str) {
    let semaphore = permits::semaphore(session, name, 3, Options::default());
    let mut all = semaphore.many(3).acquire().await.expect("free");
    let part = semaphore.split(&mut all, 1).await.expect("held");
    let waits = permits::waiter(&semaphore, 2, 1).await;
    semaphore.set_limit(5).await.expect("a limit");
    let next = waits.await.expect("no panic inside");
    let all = semaphore.merge(all, part).await.expect("held");
    assert_eq!(permits::seen(&semaphore).await, (5, 5, 0));
    assert_eq!(semaphore.holders().await.expect("an answer").len(), 2);
    let report = semaphore.release_all(vec![all, next]).await.expect("an answer");
    assert!(report.is_clean(), "{report:?}");
    permits::used(&semaphore, 0).await;
}

async fn latches(session: &Session, name: &str) {
    let latch = latch(session, name, LatchOptions::default());
    assert!(latch.arm(2).await.expect("an answer"));
    let asking = latch.clone();
    let waits = tokio::spawn(async move { asking.wait_within(6 * SOON).await });
    eventually(SOON, "it waits", async || session.statistics().listening == 1).await;
    assert_eq!(latch.count_down_as("one").await.expect("an answer"), 1);
    assert_eq!(latch.count_down().await.expect("an answer"), 0);
    waits.await.expect("no panic inside").expect("open");
    assert!(latch.reset().await.expect("an answer"));
}

/// Of one slot, and of every master.
pub(crate) async fn several(session: &Session, names: &[String]) {
    let in_group = |name| Name::in_group(&*names[0], name);
    let lock = Mutex::new(session, in_group("m"), Options::default()).expect("legal");
    let shared = RwLock::new(session, in_group("r"), Options::default()).expect("legal");
    let permits = Semaphore::new(session, in_group("s"), 3, Options::default()).expect("legal");
    let together = MultiLock::of(&lock).and(&shared.read()).and(&permits.many(2));
    together.acquire().await.expect("free").release().await.expect("held");
    let locks = names.iter().map(|name| mutex(session, name, Options::default()));
    let across = MultiLock::all(locks);
    across.acquire().await.expect("free").release().await.expect("held");
}
