//! What suites of the semaphore begin with, and look at.

use leasehold_lua::{Keys, ObjectName};
use leasehold_semaphore::{Options, Permit, Semaphore, Session};
use tokio::task::JoinHandle;

use crate::eventually;
use crate::scene::SOON;

/// The limit that the process `permit_worker` goes by.
pub const WORKERS_LIMIT: u32 = 3;

/// A semaphore of this session.
pub fn semaphore(session: &Session, name: &str, limit: u32, options: Options) -> Semaphore {
    Semaphore::new(session, name, limit, options).expect("legal options")
}

/// The keys of the semaphore of this name, without a prefix.
#[must_use]
pub fn keys(name: &str) -> Keys {
    Keys::new(ObjectName { prefix: b"", kind: "semaphore", group: None, name: name.as_bytes() })
}

/// What `EVALSHA` names a script of the semaphore by; `verb` as in `lua/semaphore/<verb>.lua`.
#[must_use]
pub fn hash_of(verb: &str) -> String {
    let name = format!("semaphore/{verb}");
    let scripts = leasehold_lua::semaphore::scripts();
    let script = scripts.iter().find(|script| script.name() == name).expect("a script's verb");
    script.hash(|source| redis::Script::new(source).get_hash().to_owned()).to_owned()
}

/// Limit, used and waiting.
pub async fn seen(semaphore: &Semaphore) -> (u32, u32, u64) {
    let usage = semaphore.usage().await.expect("an answer");
    (usage.limit, usage.used, usage.waiting)
}

/// Waits until so many are used.
pub async fn used(semaphore: &Semaphore, permits: u32) {
    let fact = async || semaphore.used().await.expect("an answer") == permits;
    eventually(SOON, &format!("{permits} are used"), fact).await;
}

/// Waits until so many wait.
pub async fn waiting(semaphore: &Semaphore, waiters: u64) {
    let fact = async || semaphore.waiting().await.expect("an answer") == waiters;
    eventually(SOON, &format!("{waiters} wait"), fact).await;
}

/// A task that takes so many, and stands in the queue, the last of `standing`, when this returns.
pub async fn waiter(semaphore: &Semaphore, weight: u32, standing: u64) -> JoinHandle<Permit> {
    let many = semaphore.many(weight);
    let task =
        tokio::spawn(async move { many.acquire_within(6 * SOON).await.expect("it is granted") });
    waiting(semaphore, standing).await;
    task
}

/// Waits until nothing of the session waits, holds, or is being ended.
pub async fn idle(session: &Session) {
    let idle = async || {
        let now = session.statistics();
        (now.tracked, now.watched) == (0, 0)
    };
    eventually(SOON, "nothing is tracked or renewed", idle).await;
}
