//! What suites of the latch begin with, and look at in the end.

use std::time::Instant;

use leasehold_latch::{Latch, LatchError, LatchOptions, Session};
use leasehold_lua::{LatchKeys, ObjectName};
use redis::AsyncCommands;
use tokio::task::JoinHandle;

use crate::scene::SOON;
use crate::{Server, eventually};

/// A latch of this session.
pub fn latch(session: &Session, name: &str, options: LatchOptions) -> Latch {
    Latch::new(session, name, options).expect("legal options")
}

/// A session whose entries at the server stay as long as a test lasts: what is gone was taken away.
pub async fn lasting(url: &str) -> Session {
    let builder = Session::builder(url).expect("a URL").waiter_deadline(SOON * 6);
    builder.connect().await.expect("a session")
}

/// The keys of the latch of this name, without a prefix.
#[must_use]
pub fn keys(name: &str) -> LatchKeys {
    LatchKeys::new(ObjectName { prefix: b"", kind: "latch", group: None, name: name.as_bytes() })
}

/// What `EVALSHA` names a script of the latch by; `verb` as in `lua/latch/<verb>.lua`.
#[must_use]
pub fn hash_of(verb: &str) -> String {
    let name = format!("latch/{verb}");
    let scripts = leasehold_lua::latch::scripts();
    let script = scripts.iter().find(|script| script.name() == name).expect("a script's verb");
    script.hash(|source| redis::Script::new(source).get_hash().to_owned()).to_owned()
}

/// A task that waits, and how and when that ended.
#[must_use]
pub fn waiter(latch: &Latch) -> JoinHandle<(Result<(), LatchError>, Instant)> {
    let latch = latch.clone();
    tokio::spawn(async move { (latch.wait_within(SOON * 6).await, Instant::now()) })
}

/// Waits until so many processes listen at the latch of this name.
pub async fn listening(server: &Server, name: &str, processes: u64) {
    let mut connection = server.connection().await;
    let fact = async || {
        let listening: u64 = connection.zcard(&*keys(name).waiters).await.expect("ZCARD");
        listening == processes
    };
    eventually(SOON, &format!("{processes} processes listen"), fact).await;
}

/// Waits until so many tasks of this session wait, and each of them knows for what.
pub async fn waiting(server: &Server, name: &str, session: &Session, tasks: usize) {
    eventually(SOON, "they wait", async || session.statistics().listening == tasks).await;
    listening(server, name, 1).await;
    // The look that serves the last one who came is at most the second from now.
    let looks = session.statistics().looks;
    eventually(SOON, "a look", async || session.statistics().looks > looks).await;
}

/// Keys of latches that exist, apart from those whose end is a minute away at the most: who counted, and the mark of a
/// reset. All of them must have an end (I17).
pub async fn keys_left(server: &Server) -> Vec<String> {
    let mut connection = server.connection().await;
    let mut left = Vec::new();
    for key in server.keys().await {
        let ttl: i64 = connection.pttl(&key).await.expect("PTTL");
        assert_ne!(ttl, -1, "I17: {} never ends", key.escape_ascii());
        if ttl > 60_000 || key.ends_with(b":waiters") {
            left.push(key.escape_ascii().to_string());
        }
    }
    left
}
