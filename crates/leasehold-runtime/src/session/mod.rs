//! A session: what all locks of a process share.

mod builder;
mod check;
mod end;
mod grant;
mod inbox;
mod inbox_keeper;
mod link;
mod look;
mod preflight;
mod registry;
mod renewal;
mod replicas;
mod thread;
mod topics;
mod watchdog;

use std::fmt;
use std::time::Duration;

pub use builder::SessionBuilder;
pub(crate) use grant::{arm, arm_further};
pub(crate) use link::{Identity, Link, Origin};
pub use preflight::{Finding, Preflight, Severity, Subject};
pub(crate) use registry::Outcome;
pub(crate) use replicas::replicated;
pub(crate) use topics::Knows;

use crate::error::{ConfigError, ShutdownError};

/// A connection to one Redis, its inbox and its watchdog: made once, shared by all locks of the process.
///
/// It owns one thread. On it live the inbox (one subscription for any number of locks and waiters) and the watchdog (one
/// connection for any number of leases), so renewals go on while the user's runtime is blocked, and a session outlives
/// any one runtime. Acquires and releases travel on a further connection in the caller's context, one for each runtime
/// that uses the session (a service has one; each `#[tokio::test]` has its own). All of them are multiplexed, so three
/// connections serve everything.
///
/// Cheap to clone. The thread ends when the last clone, lock and guard are gone.
///
/// # At the end of a process
/// A dropped guard is released by the thread, and a process that ends does not wait for it. Only
/// [`shutdown`](Self::shutdown) is sure.
///
/// # Examples
/// ```no_run
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold_runtime::Session;
/// use std::time::Duration;
///
/// let session = Session::connect("redis://127.0.0.1/").await?;
/// // … locks …
/// session.shutdown(Duration::from_secs(2)).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Session {
    link: Link,
}

impl Session {
    /// Opens a session with default options.
    ///
    /// # Errors
    /// As [`SessionBuilder::connect`].
    ///
    /// # Cancel safety
    /// Dropping the future closes what was opened.
    pub async fn connect(url: &str) -> Result<Self, ConfigError> {
        Self::builder(url)?.connect().await
    }

    /// Options for a session at this address: `redis://user:password@host:port/db`, `rediss://…` for TLS (features
    /// `tokio-rustls-comp`, `tls-rustls-webpki-roots`), `redis+unix:///path?db=0&user=…&pass=…` for a socket of the file
    /// system.
    ///
    /// # TLS
    /// The server's certificate is checked against the host of the address and the roots of the system (with
    /// `tls-rustls-webpki-roots` those of Mozilla); for other roots, and to show a certificate of one's own, see
    /// [`builder_for`](Self::builder_for). Nothing, no password either, is sent before it is found good. The process
    /// installs a crypto provider before its first session; rustls comes with none:
    ///
    /// ```text
    /// rustls::crypto::ring::default_provider().install_default()
    /// ```
    ///
    /// Where several crates of a program turn on one provider each, or none does, and none is installed, the session is
    /// refused ([`ConfigError::NoCryptoProvider`]; in a program that aborts on panics, it ends there). Whoever prefers the
    /// system's TLS turns on `tokio-native-tls-comp` of the `redis` crate and none of the two features here.
    ///
    /// # Errors
    /// [`ConfigError::Url`] if it cannot be read; it is not repeated there.
    pub fn builder(url: &str) -> Result<SessionBuilder, ConfigError> {
        SessionBuilder::from_url(url)
    }

    /// Options for a session at the server of this client, with the roots and the certificate that it has:
    ///
    /// ```text
    /// let certificates = redis::TlsCertificates { client_tls: None, root_cert: Some(ca_pem) };
    /// let client = redis::Client::build_with_tls("rediss://10.0.0.1/", certificates)?;
    /// let session = Session::builder_for(&client)?.connect().await?;
    /// ```
    ///
    /// # Errors
    /// [`ConfigError::Url`] if the client cannot be made anew with RESP3.
    pub fn builder_for(client: &redis::Client) -> Result<SessionBuilder, ConfigError> {
        SessionBuilder::from_client(client)
    }

    /// Options for a session at a Redis Cluster, by the addresses of some of its nodes; the others are found. User,
    /// password and encryption of the first are those of every node.
    ///
    /// Each lock lives on the master that has the slot of its name, with all of its keys. The session has an inbox, and the
    /// three connections that go with it, at every master: grants are counted by the node that makes them. It finds out by
    /// itself when masters come, go or change; after a failover a waiter may stand behind later ones for up to a second,
    /// until its next check brings it back to its place. While a slot is on its way from one node to another, Redis
    /// Cluster refuses (`TRYAGAIN`) what names several keys, and so every call of a lock in it: waits go on, and a hold
    /// is lost if its slot takes longer than its lease.
    ///
    /// A failover forgets what the new master had not yet heard of: then two may hold, until the earlier one's next
    /// renewal tells it (a fencing token is what keeps it from harm); and a hold whose release was forgotten stands until
    /// its lease ends.
    ///
    /// A grant's message travels to every node of the cluster, and from each to the session; one of the copies counts.
    /// Opening the session takes an answer of every master. A user of an ACL needs `+cluster|slots` beside the rights of the
    /// locks.
    ///
    /// [`SessionBuilder::commands`] is not for clusters; nor is a pool of `deadpool_redis::cluster`: it resends calls
    /// by itself and takes no setting against that.
    ///
    /// # Errors
    /// [`ConfigError::Url`] if an address cannot be read, is a socket of the file system, or there is none.
    pub fn cluster_builder<U: AsRef<str>>(
        urls: impl IntoIterator<Item = U>,
    ) -> Result<SessionBuilder, ConfigError> {
        SessionBuilder::from_nodes(urls)
    }

    /// The same by clients for some of the nodes, such as `redis::Client::build_with_tls` makes: roots and certificate of the
    /// first are those of every node. Each node's certificate is checked against the host that the cluster announces it by:
    /// an IP address, unless it runs with `cluster-preferred-endpoint-type hostname`.
    ///
    /// # Errors
    /// [`ConfigError::Url`] if there is none, one leads to a socket of the file system, or one cannot be made anew with
    /// RESP3.
    pub fn cluster_builder_for<'a>(
        nodes: impl IntoIterator<Item = &'a redis::Client>,
    ) -> Result<SessionBuilder, ConfigError> {
        SessionBuilder::from_node_clients(nodes)
    }

    /// Options for a session at the master that sentinels watch under this name, by the addresses of the sentinels. If the
    /// master wants a user, a password, TLS or another database, its name is given as the host of an address:
    /// `redis://user:password@name/0`.
    ///
    /// The sentinels are asked whenever a connection is made, and the server that they name is asked whether it is a
    /// master (`ROLE`; a user without that right is told at the first write). Once a second a sentinel is asked whether it
    /// names another: after a failover that somebody ordered the old master takes writes for eight seconds and more, which
    /// are lost. A failover forgets what the new master had not yet heard of, as in a
    /// [cluster](Self::cluster_builder). [`SessionBuilder::commands`] is not for this, nor is a pool of
    /// `deadpool_redis::sentinel`: it keeps connections to a master that was demoted.
    ///
    /// # Errors
    /// [`ConfigError::Url`] if an address cannot be read, is a socket of the file system, or there is none.
    pub fn sentinel_builder<U: AsRef<str>>(
        sentinels: impl IntoIterator<Item = U>,
        master: &str,
    ) -> Result<SessionBuilder, ConfigError> {
        SessionBuilder::from_sentinels(sentinels, master)
    }

    /// The same by clients, such as `redis::Client::build_with_tls` makes: of each sentinel, and one for the master whose
    /// host is the name that it is watched under (`rediss://user:password@mymaster/`). The certificate of the master is
    /// checked against the host that the sentinels announce.
    ///
    /// # Errors
    /// [`ConfigError::Url`] if there is no sentinel, one leads to a socket of the file system, or one cannot be made anew
    /// with RESP3.
    pub fn sentinel_builder_for<'a>(
        sentinels: impl IntoIterator<Item = &'a redis::Client>,
        master: &redis::Client,
    ) -> Result<SessionBuilder, ConfigError> {
        SessionBuilder::from_sentinel_clients(sentinels, master)
    }

    /// Ends everything in order: no further acquire is granted (they get
    /// [`Closed`](crate::AcquireError::Closed)), waiters leave their queues, holds are released (their guards report
    /// [`Shutdown`](crate::LostReason::Shutdown)), then the inbox closes. One round trip a hold or waiter, all at once;
    /// at most `within`.
    ///
    /// # Errors
    /// [`ShutdownError`] if not all were confirmed in time; those end with their leases.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the shutdown.
    pub async fn shutdown(&self, within: Duration) -> Result<(), ShutdownError> {
        self.link.shutdown(within).await
    }

    /// Looks at the server as a place for locks: version, role, eviction, persistence, replicas, rights, clock, messages;
    /// each finding says what it means. Run it when a service starts, or by hand. About thirty round trips: it takes and
    /// releases a mutex, a read-write lock and a semaphore of random names. Where only the mutex works, and with it the
    /// fair lock and the latch, that is a [`Warning`](Severity::Warning). In a cluster it looks at every master, and each
    /// finding says which.
    ///
    /// # Errors
    /// [`BackendError`](crate::BackendError) if the server is out of reach. What it refuses is a finding.
    ///
    /// # Cancel safety
    /// What it took ends within a second.
    pub async fn preflight(&self) -> Result<Preflight, crate::BackendError> {
        preflight::run(&self.link).await
    }

    /// What the session has done and has in hand.
    pub fn statistics(&self) -> Statistics {
        self.link.statistics()
    }

    /// The prefix of every key and channel of this session.
    pub fn prefix(&self) -> &[u8] {
        &self.link.settings().prefix
    }

    /// What [`SessionBuilder::named`] called its server.
    pub fn name(&self) -> Option<&str> {
        self.link.settings().name.as_deref()
    }

    /// How long one call waits for its answer.
    pub fn response_timeout(&self) -> Duration {
        self.link.settings().response_timeout
    }

    /// Whether both are handles of one session.
    pub fn is_same(&self, other: &Self) -> bool {
        std::sync::Arc::ptr_eq(self.link.shared(), other.link.shared())
    }

    pub(crate) fn link(&self) -> &Link {
        &self.link
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("statistics", &self.statistics()).finish_non_exhaustive()
    }
}

/// What a session has done (counted since it was opened) and has in hand (now).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Holds that the watchdog looks after.
    pub watched: usize,
    /// Acquisitions that wait or hold, or whose end is not confirmed.
    pub tracked: usize,
    /// Check calls sent.
    pub checks: u64,
    /// Renewal calls sent; each renews up to 128 holds.
    pub renewals: u64,
    /// Holds that arrived by a push.
    pub pushed_grants: u64,
    /// Tasks that wait for a topic: a latch, say.
    pub listening: usize,
    /// Looks sent for them: about one a second and topic, however many wait.
    pub looks: u64,
}
