//! Options of a session.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_lua::Reply;
use tokio::sync::{mpsc, oneshot};

use super::Session;
use super::link::{Identity, Link, Settings, Shared};
use crate::backend::{Backend, Commands, Failure, Place};
use crate::clock::{Drift, random};
use crate::error::{BackendError, BackendErrorKind, ConfigError};
use crate::event::{Event, Events};

/// Makes a [`Session`]. The defaults suit one Redis in the same data centre.
#[must_use]
pub struct SessionBuilder {
    backend: Backend,
    commands: Option<Commands>,
    settings: Settings,
    events: Events,
}

impl SessionBuilder {
    pub(super) fn from_url(url: &str) -> Result<Self, ConfigError> {
        Ok(Self::new(Backend::from_url(url)?))
    }

    pub(super) fn from_client(client: &redis::Client) -> Result<Self, ConfigError> {
        Ok(Self::new(Backend::from_client(client)?))
    }

    pub(super) fn from_nodes<U: AsRef<str>>(
        urls: impl IntoIterator<Item = U>,
    ) -> Result<Self, ConfigError> {
        Ok(Self::new(Backend::from_nodes(urls)?))
    }

    pub(super) fn from_sentinels<U: AsRef<str>>(
        urls: impl IntoIterator<Item = U>,
        master: &str,
    ) -> Result<Self, ConfigError> {
        Ok(Self::new(Backend::from_sentinels(urls, master)?))
    }

    pub(super) fn from_node_clients<'a>(
        clients: impl IntoIterator<Item = &'a redis::Client>,
    ) -> Result<Self, ConfigError> {
        Ok(Self::new(Backend::from_node_clients(clients)?))
    }

    pub(super) fn from_sentinel_clients<'a>(
        sentinels: impl IntoIterator<Item = &'a redis::Client>,
        master: &redis::Client,
    ) -> Result<Self, ConfigError> {
        Ok(Self::new(Backend::from_sentinel_clients(sentinels, master)?))
    }

    fn new(backend: Backend) -> Self {
        let settings = Settings {
            name: None,
            prefix: Vec::new(),
            connect_timeout: Duration::from_secs(1),
            response_timeout: Duration::from_secs(2),
            drift: Drift { rate_ppm: 10_000, margin: Duration::from_millis(2) },
            check_every: Duration::from_secs(1),
            waiter_deadline: Duration::from_secs(10),
            grant_lease: Duration::from_secs(2),
            fence_memory: Duration::from_secs(3600),
            held_long_after: None,
        };
        Self { backend, commands: None, settings, events: Events::default() }
    }

    /// What this server is called, the same in every process; default nothing. A multi-lock over several sessions goes by
    /// the order of their names.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.settings.name = Some(name.into());
        self
    }

    /// Put in front of every key and channel, so that an ACL rule can name them; default none. At most 256 bytes, no
    /// braces (they would choose the cluster slot).
    pub fn prefix(mut self, prefix: impl AsRef<[u8]>) -> Self {
        self.settings.prefix = prefix.as_ref().to_vec();
        self
    }

    /// How long making a connection may take; default 1 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.settings.connect_timeout = timeout;
        self
    }

    /// How long one call waits for its answer; default 2 s. Calls that wait for a lock are bounded by their own wait
    /// too, and renewals by a quarter of what their lease has left.
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.settings.response_timeout = timeout;
        self
    }

    /// How much faster than the server's clock the local one may seem to run: a share in millionths and a margin; default
    /// 1 % (10 000) and 2 ms, as in the Redlock article. Guards end by so much earlier than the server's lease.
    pub fn clock_drift(mut self, millionths: u32, margin: Duration) -> Self {
        self.settings.drift = Drift { rate_ppm: millionths, margin };
        self
    }

    /// The longest pause until a waiter asks again, should a message be lost; default 1 s, at most 1 s and at most half
    /// the [`grant_lease`](Self::grant_lease). Jittered downward. All waiters of the session on one name ask together.
    pub fn check_every(mut self, pause: Duration) -> Self {
        self.settings.check_every = pause;
        self
    }

    /// A waiter that gave no sign for so long is dead and loses its place until it does; default 10 s, at least three
    /// [checks](Self::check_every).
    pub fn waiter_deadline(mut self, deadline: Duration) -> Self {
        self.settings.waiter_deadline = deadline;
        self
    }

    /// The lease of a lock that is handed over; default 2 s, renewed to the full lease after a third of it. A holder
    /// that dies between the grant and its first renewal keeps the lock so long.
    pub fn grant_lease(mut self, lease: Duration) -> Self {
        self.settings.grant_lease = lease;
        self
    }

    /// How long the last fencing token of an unused name is kept; default 1 h. Tokens grow even after it is forgotten,
    /// as long as the server's clock does not go back by more than the time since the last grant.
    pub fn fence_memory(mut self, memory: Duration) -> Self {
        self.settings.fence_memory = memory;
        self
    }

    /// Tells [`Event::HeldLong`] of every hold that gets so old; default never.
    pub fn held_long_after(mut self, age: Duration) -> Self {
        self.settings.held_long_after = Some(age);
        self
    }

    /// Sends acquires, releases and questions over this instead of a connection of the session's own: a
    /// `MultiplexedConnection`, or with the features of their names a `ConnectionManager` or a `deadpool_redis::Pool` to
    /// the same server; not for clusters and sentinels. Inbox and watchdog keep connections of their own: a client library fixes where pushes go when a
    /// connection is made, and renewals must not wait behind other commands.
    ///
    /// Of a pool the session holds one connection for as long as it works (a checkout costs a round trip, so there is
    /// none per command; a waiter holds none): make the pool one larger. A connection that stops working is replaced by
    /// one of the session's own, one of a pool by another of the pool.
    pub fn commands(mut self, commands: impl Into<Commands>) -> Self {
        self.commands = Some(commands.into());
        self
    }

    /// Hears of every [`Event`]. Called on the session's thread or the user's; it must not block, and a panic in it
    /// ends nothing.
    pub fn on_event(mut self, callback: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.events = Events::to(callback);
        self
    }

    /// Opens the session: starts its thread, connects, subscribes, and proves with a message of its own that the inbox
    /// delivers. Six round trips, on three connections; in a cluster so many for each master.
    ///
    /// # Errors
    /// * [`SessionOption`](ConfigError::SessionOption): an option is out of its bounds; nothing is sent.
    /// * [`NoRuntime`](ConfigError::NoRuntime): not called from a task of a tokio runtime; nothing is sent.
    /// * [`NoCryptoProvider`](ConfigError::NoCryptoProvider): TLS without a crypto provider; nothing is sent.
    /// * [`Connect`](ConfigError::Connect): the server is out of reach (within the connect timeout), refuses user or
    ///   password, or shows a certificate that is not trusted (then nothing is sent); or no node of the cluster tells
    ///   which node has which slot, or no sentinel names a master.
    /// * [`OtherServer`](ConfigError::OtherServer): what [`commands`](Self::commands) was given leads elsewhere.
    /// * [`Inbox`](ConfigError::Inbox): no right to subscribe or publish, or no RESP3 on the way.
    ///
    /// # Cancel safety
    /// Dropping the future closes what was opened.
    pub async fn connect(self) -> Result<Session, ConfigError> {
        self.check()?;
        Link::check_runtime()?;
        self.backend.check()?;
        let id = uuid::Uuid::new_v4().simple().to_string();
        let identity = Identity {
            inbox: leasehold_lua::keys::inbox_channel(&self.settings.prefix, &id),
            trace: random(),
            host: host(),
        };
        let given = self.commands.is_some();
        let shared = Arc::new(Shared::new(
            self.settings,
            identity,
            self.backend,
            self.commands,
            self.events,
        ));
        let (orders, taken) = mpsc::unbounded_channel();
        let (ready, opened) = oneshot::channel();
        let link = Link::new(shared.clone(), orders.clone());
        super::thread::start(shared.clone(), taken, orders.downgrade(), ready)
            .map_err(|error| no_thread(&error))?;
        drop(orders);
        opened.await.map_err(|_| no_thread(&"it ended"))??;
        let connect = |failure: Failure| ConfigError::Connect(failure.error);
        shared.commands.open().await.map_err(connect)?;
        if given && !leads_to_the_same_place(&shared).await.map_err(connect)? {
            return Err(ConfigError::OtherServer);
        }
        Ok(Session { link })
    }

    fn check(&self) -> Result<(), ConfigError> {
        let settings = &self.settings;
        let day = Duration::from_secs(24 * 3600);
        let ms = Duration::from_millis(1);
        let timeouts = ms..=Duration::from_secs(60);
        let rules = [
            (timeouts.contains(&settings.connect_timeout), "connect_timeout", "1 ms to 60 s"),
            (timeouts.contains(&settings.response_timeout), "response_timeout", "1 ms to 60 s"),
            ((ms..=day).contains(&settings.grant_lease), "grant_lease", "1 ms to 24 h"),
            (
                settings.check_every >= ms
                    && settings.check_every <= Duration::from_secs(1).min(settings.grant_lease / 2),
                "check_every",
                "1 ms to 1 s, and at most half the grant lease",
            ),
            (
                settings.waiter_deadline >= settings.check_every * 3
                    && settings.waiter_deadline <= day,
                "waiter_deadline",
                "three checks to 24 h",
            ),
            ((ms..=day * 30).contains(&settings.fence_memory), "fence_memory", "1 ms to 30 days"),
            (
                settings.drift.rate_ppm <= 500_000
                    && settings.drift.margin <= Duration::from_secs(60),
                "clock_drift",
                "at most half (500 000 millionths) and a minute",
            ),
            (
                self.commands.is_none() || self.backend.is_one_server(),
                "commands",
                "given where there is one server, no cluster and no sentinel",
            ),
            (settings.prefix.len() <= 256, "prefix", "at most 256 bytes"),
            (
                !settings.prefix.iter().any(|byte| matches!(byte, b'{' | b'}')),
                "prefix",
                "free of braces",
            ),
        ];
        match rules.into_iter().find(|(kept, _, _)| !kept) {
            Some((_, option, bounds)) => Err(ConfigError::SessionOption { option, bounds }),
            None => Ok(()),
        }
    }
}

/// Whether what one connection writes the other finds: a mark that ends within seconds.
async fn leads_to_the_same_place(shared: &Shared) -> Result<bool, Failure> {
    let mark = [&shared.identity.inbox, &b":mark"[..]].concat();
    let here = Place::default();
    shared.commands.command(&here, &[b"SET", &mark, b"1", b"PX", b"5000"]).await?;
    let found = shared.own.command(&here, &[b"EXISTS", &mark]).await?;
    shared.commands.command(&here, &[b"DEL", &mark]).await?;
    Ok(found == Reply::Int(1))
}

fn no_thread(why: &dyn fmt::Display) -> ConfigError {
    let error = BackendError::new(
        BackendErrorKind::Unsupported,
        format!("the session's thread does not run: {why}"),
    );
    ConfigError::Connect(error)
}

/// For people who look at a holder; a machine without a name has none here.
fn host() -> String {
    let name =
        std::fs::read_to_string("/proc/sys/kernel/hostname").or_else(|_| std::env::var("HOSTNAME"));
    name.unwrap_or_default().trim().chars().take(64).collect()
}

impl fmt::Debug for SessionBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionBuilder").field("settings", &self.settings).finish_non_exhaustive()
    }
}
