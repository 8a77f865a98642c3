//! What suites of the mutex begin with, and look at in the end.

use std::sync::{Arc, Mutex as Lock};
use std::time::Duration;

use leasehold_lua::{Keys, ObjectName};
use leasehold_mutex::{Event, LostReason, Mutex, Options, ReleaseError, Session, SessionBuilder};
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;

use crate::{Server, eventually};

/// Far above what any step takes, also on a loaded machine.
pub const SOON: Duration = Duration::from_secs(10);

/// A session with the defaults.
pub async fn session(url: &str) -> Session {
    Session::connect(url).await.expect("a session")
}

/// A mutex of this session.
pub fn mutex(session: &Session, name: &str, options: Options) -> Mutex {
    Mutex::new(session, name, options).expect("legal options")
}

/// The keys of the mutex of this name, without a prefix.
#[must_use]
pub fn keys(name: &str) -> Keys {
    Keys::new(ObjectName { prefix: b"", kind: "mutex", group: None, name: name.as_bytes() })
}

/// What `EVALSHA` names a script of the mutex by; `verb` as in `lua/mutex/<verb>.lua`.
#[must_use]
pub fn hash_of(verb: &str) -> String {
    let name = format!("mutex/{verb}");
    let scripts = leasehold_lua::mutex::scripts();
    let script = scripts.iter().find(|script| script.name() == name).expect("a script's verb");
    script.hash(|source| redis::Script::new(source).get_hash().to_owned()).to_owned()
}

/// Everything that a session told, in its order.
#[derive(Clone, Debug, Default)]
pub struct Told(Arc<Lock<Vec<Event>>>);

impl Told {
    /// Has the session that is built tell this.
    pub fn by(&self, builder: SessionBuilder) -> SessionBuilder {
        let events = Arc::clone(&self.0);
        builder.on_event(move |event| events.lock().expect("no panic inside").push(event.clone()))
    }

    /// All so far.
    #[must_use]
    pub fn all(&self) -> Vec<Event> {
        self.0.lock().expect("no panic inside").clone()
    }

    /// How many are like that.
    #[must_use]
    pub fn count(&self, like: impl Fn(&Event) -> bool) -> usize {
        self.all().iter().filter(|event| like(event)).count()
    }
}

/// A session whose calls wait only so long for an answer, and what it tells.
pub async fn impatient(url: &str, response: Duration) -> (Session, Told) {
    let told = Told::default();
    let builder = Session::builder(url).expect("a URL").response_timeout(response);
    (told.by(builder).connect().await.expect("a session"), told)
}

/// Keys that exist, apart from those that may outlive a quiet lock: tokens (the fence memory) and
/// ids whose acquire may still arrive (a minute). Those must have an end of their own (I17).
pub async fn keys_left(server: &Server) -> Vec<String> {
    let mut connection = server.connection().await;
    let mut left = Vec::new();
    for key in server.keys().await {
        let ttl: i64 = connection.pttl(&key).await.expect("PTTL");
        assert_ne!(ttl, -1, "{} never ends", key.escape_ascii());
        if !key.ends_with(b":token") && !key.ends_with(b":gone") {
            left.push(key.escape_ascii().to_string());
        }
    }
    left
}

/// The server's clock, in milliseconds.
pub async fn server_ms(connection: &mut MultiplexedConnection) -> u64 {
    let (seconds, micros): (u64, u64) =
        redis::cmd("TIME").query_async(connection).await.expect("TIME");
    seconds * 1000 + micros / 1000
}

/// One entry of a hold, as its hash has it.
#[derive(Clone, Debug)]
pub struct RawEntry {
    /// The acquisition's id, the field.
    pub id: String,
    /// When it ends, server clock.
    pub deadline_ms: u64,
    /// When it was granted, server clock.
    pub since_ms: u64,
}

/// The entries of the hold of this name.
pub async fn entries(connection: &mut MultiplexedConnection, name: &str) -> Vec<RawEntry> {
    let holds: Vec<(String, String)> =
        connection.hgetall(&*keys(name).holds).await.expect("HGETALL");
    let entry = |(id, value): (String, String)| {
        let mut parts = value.split('|').map_while(|part| part.parse().ok());
        let (deadline_ms, since_ms) = (parts.next()?, parts.next()?);
        Some(RawEntry { id, deadline_ms, since_ms })
    };
    // Fields beside the entries (owner, token) have no bars.
    holds.into_iter().filter(|(_, value)| value.contains('|')).filter_map(entry).collect()
}

/// Waits until so many stand in the queue of this name.
pub async fn queued(server: &Server, name: &str, waiters: u64) {
    let mut connection = server.connection().await;
    let fact = async || {
        let length: u64 = connection.zcard(&*keys(name).queue).await.expect("ZCARD");
        length == waiters
    };
    eventually(SOON, "they queue", fact).await;
}

/// How many inboxes the server knows.
pub async fn inboxes(server: &Server) -> usize {
    let channels: Vec<String> = redis::cmd("PUBSUB")
        .arg("CHANNELS")
        .query_async(&mut server.connection().await)
        .await
        .expect("PUBSUB CHANNELS");
    channels.len()
}

/// Sends the server a command of these words, on a connection of its own.
pub async fn say(server: &Server, words: &[&str]) {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    command.exec_async(&mut server.connection().await).await.expect("a willing server");
}

/// Whether an event tells a loss.
#[must_use]
pub fn lost(event: &Event) -> bool {
    matches!(event, Event::Lost { .. })
}

/// The reason of a release that came after its hold's end; any other outcome fails the test.
#[must_use]
pub fn why(released: Result<(), ReleaseError>) -> LostReason {
    match released {
        Err(ReleaseError::Lost(lost)) => lost.reason,
        other => panic!("not a loss: {other:?}"),
    }
}
