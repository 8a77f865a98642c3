//! Where the server of a scenario comes from.

use std::fmt;
use std::sync::{Arc, Mutex as Lock};

use leasehold_runtime::{Commands, Session, SessionBuilder};
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{AsyncConnectionConfig, FromRedisValue, PushInfo, PushKind};

use crate::{Server, scene};

/// A server, or several that work as one, of one test.
pub trait Site: Send + Sync + 'static {
    /// A connection for the commands of the test's own, which a session can be given too.
    type Connection: ConnectionLike + Clone + Send + Sync + Into<Commands> + 'static;

    /// Starts it, without any data, and returns when it answers.
    fn start() -> impl Future<Output = Self> + Send;

    /// What clients connect to.
    fn url(&self) -> String;

    /// Options for a session.
    fn session(&self) -> SessionBuilder {
        Session::builder(&self.url()).expect("a URL")
    }

    /// A new connection.
    fn connection(&self) -> impl Future<Output = Self::Connection> + Send;

    /// Runs a command on every node.
    fn run(&self, words: &[&str]) -> impl Future<Output = ()> + Send;

    /// Kills every node, data included.
    fn kill(&self);

    /// Starts every node anew, at its old address.
    fn restart(&self);

    /// All keys of all nodes.
    fn keys(&self) -> impl Future<Output = Vec<Vec<u8>>> + Send;

    /// How many channels anybody is subscribed to.
    fn channels(&self) -> impl Future<Output = usize> + Send;

    /// Listens to what becomes of one key.
    fn key_events(&self, key: &[u8]) -> impl Future<Output = KeyEvents> + Send;
}

/// What the server told of one key, until this is dropped or [stopped](Self::stop).
pub struct KeyEvents {
    told: Arc<Lock<Vec<String>>>,
    listening: Option<MultiplexedConnection>,
}

impl KeyEvents {
    /// Listens at this server.
    pub(super) async fn of(server: &Server, key: &[u8]) -> Self {
        let mut configure = redis::cmd("CONFIG");
        configure.arg(&["SET", "notify-keyspace-events", "KA"]);
        configure.exec_async(&mut server.connection().await).await.expect("CONFIG SET");
        let told = Arc::new(Lock::new(Vec::new()));
        let heard = Arc::clone(&told);
        let config = AsyncConnectionConfig::new().set_push_sender(move |push: PushInfo| {
            heard.lock().expect("no panic inside").extend(event(push));
            Ok::<_, std::convert::Infallible>(())
        });
        let client = server.client();
        let listening = client.get_multiplexed_async_connection_with_config(&config).await;
        let mut listening = listening.expect("a server that answers");
        let channel = [b"__keyspace@0__:", key].concat();
        listening.subscribe(channel).await.expect("a subscription");
        Self { told, listening: Some(listening) }
    }

    /// How often the key was deleted, and how often it expired.
    #[must_use]
    pub fn ends(&self) -> (usize, usize) {
        let told = self.told.lock().expect("no panic inside");
        let count = |event: &str| told.iter().filter(|name| *name == event).count();
        (count("del"), count("expired"))
    }

    /// Removes the listener; what it heard stays.
    pub fn stop(&mut self) {
        self.listening = None;
    }
}

impl fmt::Debug for KeyEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyEvents").field("ends", &self.ends()).finish_non_exhaustive()
    }
}

/// One server.
#[derive(Debug)]
pub struct Standalone(Server);

impl Site for Standalone {
    type Connection = MultiplexedConnection;

    async fn start() -> Self {
        Self(Server::start())
    }

    fn url(&self) -> String {
        self.0.url()
    }

    async fn connection(&self) -> MultiplexedConnection {
        self.0.connection().await
    }

    async fn run(&self, words: &[&str]) {
        let mut command = redis::Cmd::new();
        command.arg(words);
        command.exec_async(&mut self.0.connection().await).await.expect("a command that works");
    }

    fn kill(&self) {
        self.0.kill();
    }

    fn restart(&self) {
        self.0.restart();
    }

    async fn keys(&self) -> Vec<Vec<u8>> {
        self.0.keys().await
    }

    async fn channels(&self) -> usize {
        scene::inboxes(&self.0).await
    }

    async fn key_events(&self, key: &[u8]) -> KeyEvents {
        KeyEvents::of(&self.0, key).await
    }
}

/// The event that a message of a keyspace channel names.
fn event(push: PushInfo) -> Option<String> {
    (push.kind == PushKind::Message).then_some(())?;
    String::from_redis_value(push.data.into_iter().nth(1)?).ok()
}
