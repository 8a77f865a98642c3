//! What suites of the read-write lock begin with, and look at.

use std::time::Instant;

use leasehold_lua::{Keys, ObjectName};
use leasehold_runtime::engine::View;
use leasehold_rwlock::{Guard, Options, RwLock, Session};
use tokio::task::JoinHandle;

use crate::eventually;
use crate::scene::SOON;

/// A read-write lock of this session.
pub fn lock(session: &Session, name: &str, options: Options) -> RwLock {
    RwLock::new(session, name, options).expect("legal options")
}

/// The keys of the read-write lock of this name, without a prefix.
#[must_use]
pub fn keys(name: &str) -> Keys {
    Keys::new(ObjectName { prefix: b"", kind: "rwlock", group: None, name: name.as_bytes() })
}

/// What `EVALSHA` names a script of it by; `verb` as in `lua/rwlock/<verb>.lua`.
#[must_use]
pub fn hash_of(verb: &str) -> String {
    let name = format!("rwlock/{verb}");
    let scripts = leasehold_lua::rwlock::scripts();
    let script = scripts.iter().find(|script| script.name() == name).expect("a script's verb");
    script.hash(|source| redis::Script::new(source).get_hash().to_owned()).to_owned()
}

/// Waits until so many stand in its queue.
pub async fn queued(lock: &RwLock, waiters: u64) {
    let stand = async || lock.queue().await.expect("an answer").length == waiters;
    eventually(SOON, &format!("{waiters} waiters queue"), stand).await;
}

/// A task that takes one side, and when it did. It stands in the queue, the last of `standing`, when this returns.
pub async fn waiter<M: leasehold_runtime::Mode>(
    lock: &RwLock,
    side: View<M>,
    standing: u64,
) -> JoinHandle<(Guard<M>, Instant)> {
    let acquired = tokio::spawn(async move {
        let guard = side.acquire_within(SOON * 6).await.expect("a hold");
        (guard, Instant::now())
    });
    queued(lock, standing).await;
    acquired
}
