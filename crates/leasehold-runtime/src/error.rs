//! Errors: one type a moment, so that a caller matches only what can happen there. Busy is never an error of a try.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_lua::reply::Why;

use crate::holder::Holder;
use crate::name::Name;

/// Something that the caller set is wrong. Told before anything is sent, but for the two that need the server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A name or group is empty or longer than 512 bytes.
    #[error("a name is 1 to 512 bytes, this one has {length}")]
    Name {
        /// Its length in bytes.
        length: usize,
    },
    /// An owner is not 1 to 128 plain characters.
    #[error("an owner is 1 to 128 characters of A-Z a-z 0-9 . _ -, this one has {length} bytes")]
    Owner {
        /// Its length in bytes.
        length: usize,
    },
    /// A label is longer than 128 bytes.
    #[error("a label has at most 128 bytes, this one has {length}")]
    Label {
        /// Its length in bytes.
        length: usize,
    },
    /// A lease, or an extension, is not whole milliseconds from 1 ms to 24 h.
    #[error("a lease or an extension is whole milliseconds from 1 ms to 24 h, not {lease:?}")]
    Lease {
        /// What was asked for.
        lease: Duration,
    },
    /// A renewed lease is longer than the longest hold.
    #[error("a lease of {lease:?} does not fit into a hold of at most {hold_at_most:?}")]
    LeaseOverHoldAtMost {
        /// The lease.
        lease: Duration,
        /// The longest hold.
        hold_at_most: Duration,
    },
    /// The longest hold is over 7 days.
    #[error("a hold lasts at most 7 days, not {hold_at_most:?}")]
    HoldAtMost {
        /// What was asked for.
        hold_at_most: Duration,
    },
    /// The shortest hold is longer than the longest.
    #[error(
        "a hold of at least {hold_at_least:?} does not fit into one of at most {hold_at_most:?}"
    )]
    HoldAtLeast {
        /// The shortest hold.
        hold_at_least: Duration,
        /// The longest hold.
        hold_at_most: Duration,
    },
    /// Replicas are waited for from 1 ms to half the lease.
    #[error("replicas are waited for from 1 ms to half the lease {lease:?}, not {within:?}")]
    Replication {
        /// How long it was to be.
        within: Duration,
        /// The lease.
        lease: Duration,
    },
    /// A multi-lock has no member, or more than 64.
    #[error("a multi-lock has 1 to 64 members, not {count}")]
    Members {
        /// How many were named.
        count: usize,
    },
    /// Members of one multi-lock that name the same object but as two owners.
    #[error("a multi-lock takes {name} once, as one owner")]
    Owners {
        /// The object.
        name: Name,
    },
    /// The sessions of one multi-lock have no names of their own, so nothing orders their servers.
    #[error("the {sessions} sessions of a multi-lock have {names} names: name each by its server")]
    SessionNames {
        /// How many sessions.
        sessions: usize,
        /// How many different names.
        names: usize,
    },
    /// A quorum lock has an even number of servers, or fewer than three.
    #[error("a quorum lock has an odd number of servers, at least 3, not {count}")]
    Servers {
        /// How many sessions were given.
        count: usize,
    },
    /// Two sessions of a quorum lock lead to one server: a majority of them would be no majority of servers.
    #[error("two sessions of a quorum lock, numbers {first} and {second}, lead to one server")]
    SameServer {
        /// Which, from 0.
        first: usize,
        /// Which, from 0.
        second: usize,
    },
    /// Waiting for the servers of a quorum lock would use up the lease.
    #[error(
        "a server of a quorum lock answers within a tenth of the lease {lease:?}, not {timeout:?}"
    )]
    NodeTimeout {
        /// How long one server may take.
        timeout: Duration,
        /// The lease.
        lease: Duration,
    },
    /// The limit of a semaphore is out of its bounds.
    #[error("a limit is 1 to 999999999, not {limit}")]
    Limit {
        /// What was asked for.
        limit: u32,
    },
    /// So many permits cannot be asked for at once, whatever the limit.
    #[error("1 to 999999999 permits can be held at once, not {weight}")]
    Weight {
        /// What was asked for.
        weight: u32,
    },
    /// An option of the session is out of its bounds.
    #[error("the option {option} must be {bounds}")]
    SessionOption {
        /// Which.
        option: &'static str,
        /// What it may be.
        bounds: &'static str,
    },
    /// The address of the server cannot be read. The address is not repeated: it may hold a password.
    #[error(
        "not an address of a Redis server: redis://host:port/ (rediss:// needs the feature tokio-rustls-comp)"
    )]
    Url,
    /// TLS was asked for, and rustls has nothing to encrypt with: the process installs a crypto provider before its first
    /// session, such as `rustls::crypto::ring::default_provider().install_default()`.
    #[error("no crypto provider for TLS is installed in this process (rustls: install_default)")]
    NoCryptoProvider,
    /// There is no tokio runtime here. (One without `enable_all` is not noticed: tokio panics.)
    #[error("no tokio runtime: call this from a task of one")]
    NoRuntime,
    /// The server could not be reached or refused the session.
    #[error("cannot open a session")]
    Connect(#[source] BackendError),
    /// What [`SessionBuilder::commands`](crate::SessionBuilder::commands) was given leads to another server, or another
    /// database of it: holds taken there would not be renewed here.
    #[error("the commands go to another server or database than the session")]
    OtherServer,
    /// The server does not deliver messages to the session: no right to subscribe, or no RESP3 on the way.
    #[error("the session's inbox does not work")]
    Inbox(#[source] BackendError),
}

/// An acquire ended without a hold. Nothing of it is left on the server, or is being cleared away.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// The wait is over. `held_by_this_session` hints at the classic self-deadlock: the caller waits for a lock that a
    /// caller of its own holds; pass an [`Owner`](crate::Owner) down, or the guard itself.
    #[error("{name} not acquired within {waited:?}{}", by(.holder, *.held_by_this_session))]
    TimedOut {
        /// The lock.
        name: Name,
        /// How long it waited.
        waited: Duration,
        /// How many waiters stood before it at the end, if the server said so.
        position: Option<u64>,
        /// Who holds, if the server said so.
        holder: Option<Box<Holder>>,
        /// How long the present hold lasts if it is not renewed, if the server said so.
        remaining: Option<Duration>,
        /// The holder is of this session.
        held_by_this_session: bool,
    },
    /// As many wait as [`Options::max_waiters`](crate::Options::max_waiters) allows.
    #[error("the queue of {name} is full, try again in {retry_after:?}")]
    Saturated {
        /// The lock.
        name: Name,
        /// When the present hold ends if it is not renewed.
        retry_after: Duration,
    },
    /// It asks for more permits than the semaphore will ever give: the limit is lower, or was lowered while it waited.
    #[error("more permits than the limit")]
    NeverFits,
    /// The server goes by another limit, and the semaphore was made to refuse that.
    #[error("the limit is {ours} here and {server} at the server")]
    LimitDiffers {
        /// What this process goes by.
        ours: u32,
        /// What the server goes by.
        server: u32,
    },
    /// The owner already has 64 entries in this hold.
    #[error("the owner holds this lock 64 times already")]
    TooManyEntries,
    /// The hold was granted, but the answer came so late that it was no longer worth having; it was given back.
    #[error("granted, but {remaining:?} were left when the answer came")]
    ValidityTooShort {
        /// What was left.
        remaining: Duration,
    },
    /// Granted, but fewer replicas had it in time than [`Options::wait_replicas`](crate::Options::wait_replicas) asks for; it
    /// was given back.
    #[error("granted, but only {acknowledged} of {wanted} replicas have it")]
    NotReplicated {
        /// How many replicas were asked for.
        wanted: u32,
        /// How many had it.
        acknowledged: u64,
    },
    /// An operator took the waiter out of the queue.
    #[error("cancelled")]
    Cancelled,
    /// The session was shut down.
    #[error("the session is shut down")]
    Closed,
    /// Something that the caller set is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Redis could not be asked.
    #[error("redis failed")]
    Backend(#[from] BackendError),
}

fn by(holder: &Option<Box<Holder>>, this_session: bool) -> String {
    match (holder, this_session) {
        (_, true) => ", held by this session itself".to_owned(),
        (Some(holder), false) => format!(", held by {holder}"),
        (None, false) => String::new(),
    }
}

/// Why a hold ended without being released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// The lease ran out, or the key was deleted, evicted, or lost with its server.
    Expired,
    /// Somebody else holds: the hold had ended before, or its owner was adopted elsewhere.
    NotOwner,
    /// [`Options::hold_at_most`](crate::Options::hold_at_most) was reached.
    HoldLimit,
    /// An operator ended it by force.
    ForceReleased,
    /// Redis did not answer until the local deadline: the hold may or may not have ended there.
    Unreachable,
    /// The session was shut down.
    Shutdown,
}

impl LostReason {
    /// Why a hold is not held, as a script says it.
    pub(crate) fn of(why: Why) -> Self {
        match why {
            Why::Absent => Self::Expired,
            Why::OtherHolder => Self::NotOwner,
            Why::Forced => Self::ForceReleased,
        }
    }
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "the lease ran out",
            Self::NotOwner => "somebody else holds",
            Self::HoldLimit => "the longest hold was reached",
            Self::ForceReleased => "it was released by force",
            Self::Unreachable => "redis was out of reach until the deadline",
            Self::Shutdown => "the session was shut down",
        })
    }
}

/// A hold ended before its work did.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the hold on {name} was lost: {reason}")]
pub struct Lost {
    /// The lock.
    pub name: Name,
    /// Why.
    pub reason: LostReason,
}

/// A release that did not release.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// The hold had ended before. Treat it as an alarm: its work may have run beside another's.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// A release was sent and never answered: it may have run. If not, the hold ends with its lease.
    #[error("released or not: {name} got no answer")]
    Unknown {
        /// The lock.
        name: Name,
        /// The last thing that went wrong.
        #[source]
        source: BackendError,
    },
    /// No release reached the server. The hold ends with its lease; the session goes on trying until then.
    #[error("{name} is not released yet")]
    Backend {
        /// The lock.
        name: Name,
        /// What went wrong.
        #[source]
        source: BackendError,
    },
}

/// An extension that did not extend.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExtendError {
    /// The hold had ended before.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// An extension was sent and never answered: it may have run. The guard keeps its earlier deadline.
    #[error("extended or not: {name} got no answer")]
    Unknown {
        /// The lock.
        name: Name,
        /// The last thing that went wrong.
        #[source]
        source: BackendError,
    },
    /// The extension is not whole milliseconds from 1 ms to 24 h.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No extension reached the server.
    #[error("{name} is not extended")]
    Backend {
        /// The lock.
        name: Name,
        /// What went wrong.
        #[source]
        source: BackendError,
    },
}

/// A hold that could not be adopted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdoptError {
    /// That owner does not hold (any more). Adopting never creates a hold.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The session was shut down.
    #[error("the session is shut down")]
    Closed,
    /// Something that the caller set is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Redis could not be asked. If it had adopted all the same, that was undone or ends with the lease.
    #[error("redis failed")]
    Backend(#[from] BackendError),
}

/// A shutdown that ran out of time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{unanswered} holds or waiters were not confirmed released; they end with their leases")]
pub struct ShutdownError {
    /// How many.
    pub unanswered: usize,
}

/// What kind of thing went wrong beneath.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BackendErrorKind {
    /// No connection, or no answer in time.
    Unreachable,
    /// The user's pool has no free connection, or is closed.
    Pool,
    /// The server does not know this user or password.
    Auth,
    /// One side refused the other's certificate, or they have no version of TLS in common; the cause says which.
    Tls,
    /// The user lacks a right; the message names it.
    NoPermission,
    /// A key of ours holds something that is not ours.
    WrongType,
    /// The server is a replica.
    ReadOnly,
    /// The server is at its maxmemory.
    OutOfMemory,
    /// The keys of one call are in several cluster slots.
    CrossSlot,
    /// The server or a proxy before it cannot do what is needed.
    Unsupported,
    /// Any other answer of the server.
    Server,
}

impl fmt::Display for BackendErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unreachable => "redis is out of reach",
            Self::Pool => "the connection pool gives no connection",
            Self::Auth => "redis does not know this user or password",
            Self::Tls => "no trust between redis and this side (TLS)",
            Self::NoPermission => "the redis user lacks a right",
            Self::WrongType => "a key holds a value of another type",
            Self::ReadOnly => "redis is a read-only replica",
            Self::OutOfMemory => "redis is out of memory",
            Self::CrossSlot => "the keys are in several cluster slots",
            Self::Unsupported => "redis cannot do this",
            Self::Server => "redis answered an error",
        })
    }
}

/// Redis could not be asked, or refused.
///
/// Holds neither a password nor the id of an acquisition (I19).
#[derive(Debug, Clone)]
pub struct BackendError {
    kind: BackendErrorKind,
    detail: String,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl BackendError {
    pub(crate) fn new(kind: BackendErrorKind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into(), source: None }
    }

    pub(crate) fn with_source(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    pub(crate) fn timed_out() -> Self {
        Self::new(BackendErrorKind::Unreachable, "no answer in time")
    }

    /// For primitives: an answer that this layout does not give.
    #[doc(hidden)]
    pub fn unexpected(what: &'static str) -> Self {
        Self::new(BackendErrorKind::Unsupported, what)
    }

    /// The client library would panic outside tokio.
    pub(crate) fn no_runtime() -> Self {
        Self::new(BackendErrorKind::Unsupported, "no tokio runtime here")
    }

    /// What kind of thing went wrong.
    pub fn kind(&self) -> BackendErrorKind {
        self.kind
    }
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        Ok(())
    }
}

impl Error for BackendError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

impl From<leasehold_lua::DecodeError> for BackendError {
    fn from(error: leasehold_lua::DecodeError) -> Self {
        Self::new(BackendErrorKind::Unsupported, "its reply is of another layout")
            .with_source(error)
    }
}
