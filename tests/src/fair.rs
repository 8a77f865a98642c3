//! What suites of the fair lock begin with, and look at.

use std::time::{Duration, Instant};

use leasehold_fair_lock::{FairLock, Guard, Options, Position, Session, SessionBuilder};
use leasehold_lua::{Keys, ObjectName};
use tokio::task::JoinHandle;

use crate::eventually;
use crate::scene::SOON;

/// How long a waiter of [`brisk`] sessions may be silent.
pub const WAITER_DEADLINE: Duration = Duration::from_secs(3);
/// The lease of what [`brisk`] sessions grant.
pub const GRANT_LEASE: Duration = Duration::from_secs(1);
/// The longest pause between two checks of [`brisk`] sessions.
pub const CHECK: Duration = Duration::from_millis(500);

/// Options for a session in which everything that takes time takes less: for tests whose subject is time.
pub fn brisk(url: &str) -> SessionBuilder {
    let builder = Session::builder(url).expect("a URL").fence_memory(Duration::from_secs(1));
    builder.waiter_deadline(WAITER_DEADLINE).grant_lease(GRANT_LEASE).check_every(CHECK)
}

/// A fair lock of this session.
pub fn lock(session: &Session, name: &str, options: Options) -> FairLock {
    FairLock::new(session, name, options).expect("legal options")
}

/// The keys of the fair lock of this name, without a prefix.
#[must_use]
pub fn keys(name: &str) -> Keys {
    Keys::new(ObjectName { prefix: b"", kind: "fair", group: None, name: name.as_bytes() })
}

/// Waits until so many stand in its queue.
pub async fn queued(lock: &FairLock, waiters: u64) {
    let stand = async || lock.queue_length().await.expect("an answer") == waiters;
    eventually(SOON, &format!("{waiters} waiters queue"), stand).await;
}

/// A task that acquires, and when it did. It stands in the queue, the last of `standing`, when this
/// returns.
pub async fn waiter(lock: &FairLock, standing: u64) -> JoinHandle<(Guard, Instant)> {
    watched_waiter(lock, standing).await.0
}

/// The same, and its position.
pub async fn watched_waiter(
    lock: &FairLock,
    standing: u64,
) -> (JoinHandle<(Guard, Instant)>, Position) {
    let (view, position) = lock.watched();
    let acquired = tokio::spawn(async move {
        let guard = view.acquire().await.expect("a hold");
        (guard, Instant::now())
    });
    queued(lock, standing).await;
    (acquired, position)
}
