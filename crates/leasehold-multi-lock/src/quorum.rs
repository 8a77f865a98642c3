//! One lock at several independent servers.

use std::time::Duration;

use leasehold_runtime::engine::{Countdown, Nodes, Pauses};
use leasehold_runtime::{AcquireError, BackendErrorKind, ConfigError, Name, Options, Session};

use crate::quorum_guard::QuorumGuard;

/// A lock that a majority of several independent Redis servers has to grant (Redlock).
///
/// # When not to use it
/// Nearly always. It costs five times as much as a mutex: five commands for each acquire, release and renewal, five servers
/// to run, and the slowest of the fastest three decides. What it buys is that a crashed server does not stop the lock; it
/// does **not** make the lock safe against pauses, clock steps or servers that forget (below). Redisson deprecated its own
/// RedLock and removed the tests of it. The better answer for most is a [`Mutex`] on one master, with its fencing token
/// checked where the data is written: that is correct even when the lock is not, and the same check is needed here.
///
/// Use it where a lock has to go on through the loss of any one machine, no shared database could check a token, and a rare
/// second holder is a nuisance and no damage.
///
/// [`Mutex`]: https://docs.rs/leasehold-mutex
///
/// # Guarantees, as far as the assumptions hold
/// * At most one guard says "held" at any moment: it needs more than half of the servers, and two majorities share one.
/// * Less than half of the servers may be down, frozen or cut off. None is waited for longer than the
///   [node timeout](QuorumOptions::node_timeout).
/// * A guard is handed out only with more than a tenth of the lease left, by the local clock: the lease, less the time that
///   asking took, less 1 % and 2 ms. What was granted in vain is given back at every server, those that did not answer too.
/// * Each hold is renewed by its own session. A server that lost its hold is asked again while the majority stands. When
///   the majority is gone the guard is lost, for good.
///
/// # Assumptions
/// * The servers are independent: no replicas of each other, and no two on a machine. That two sessions lead to one server
///   is noticed at the first acquire ([`ConfigError::SameServer`]).
/// * **No server forgets a hold that still runs.** One that restarts without its data (no persistence, or `appendfsync`
///   that lags) grants anew what it had granted: with three of five, one such restart makes two holders. Let a restarted
///   server stay away for the longest lease before it serves again, or have it write every command to disk.
/// * Clocks run at about the same rate: a server's clock that is set forward ends its leases early.
/// * The holder is not paused between looking at the guard and writing. A pause can be longer than any lease; only a
///   fencing token that the data checks helps, and [`QuorumGuard::fencing_token`] is best effort only.
///
/// # Fairness
/// None: there is no queue over several servers. Who finds it held tries again after a pause, 50 ms at first and doubled up
/// to 2 s, each shortened by up to a half at random. Clients that ask at the same moment may each get some of the servers
/// and none a majority; the pauses sort that out.
///
/// # Why all servers are asked at once
/// One after the other the asking takes five round trips, which come off what is left of the lease, and a server that does
/// not answer holds up the rest; and two clients that ask in different orders hold parts against each other for longer.
/// Sorting the servers, as a [`MultiLock`](crate::MultiLock) does its members, helps against the latter and would send all
/// clients to the same three.
///
/// # Sources
/// * Redis documentation, "Distributed Locks with Redis",
///   <https://redis.io/docs/latest/develop/use/patterns/distributed-locks/>
/// * Martin Kleppmann, "How to do distributed locking" (2016),
///   <https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html>: pauses, clocks, fencing.
/// * Salvatore Sanfilippo, "Is Redlock safe?" (2016), <https://antirez.com/news/101>: the answer.
///
/// # Keys
/// At each server `<prefix>lh1:quorum:{<name>}` and the same with `:queue`, `:timeout`, `:token`, `:gone`; all end by
/// themselves. A user needs the rights of a mutex; `PUBSUB NUMSUB`, one of them, tells the servers apart.
///
/// # Examples
/// ```no_run
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold_multi_lock::{QuorumLock, QuorumOptions, Session};
/// use std::time::Duration;
///
/// let mut sessions = Vec::new();
/// for host in ["lock-1", "lock-2", "lock-3"] {
///     let builder = Session::builder(&format!("redis://{host}/"))?.named(host);
///     sessions.push(builder.connect().await?);
/// }
/// let options = QuorumOptions::default().lease(Duration::from_secs(10));
/// let lock = QuorumLock::new(&sessions, "nightly", options)?;
///
/// let guard = lock.acquire().await?;
/// guard.while_held(async { /* the work */ }).await?;
/// let released = guard.release().await?;
/// println!("released at {} of {} servers", released.released(), released.nodes().len());
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct QuorumLock {
    nodes: Nodes,
    options: QuorumOptions,
}

impl QuorumLock {
    /// The lock of this name at the servers of these sessions: an odd number, at least three, every process with the same
    /// ones. No round trip.
    ///
    /// # Errors
    /// * [`Servers`](ConfigError::Servers): an even number of sessions, or fewer than three.
    /// * [`SameServer`](ConfigError::SameServer): a session that is given twice. That two lead to one server is told by
    ///   the first acquire.
    /// * [`NodeTimeout`](ConfigError::NodeTimeout): the node timeout is over a tenth of the lease, or under 1 ms.
    /// * Others with the first bound that name or options do not keep.
    pub fn new(
        sessions: &[Session],
        name: impl Into<Name>,
        options: QuorumOptions,
    ) -> Result<Self, ConfigError> {
        let each = options.each.clone();
        let nodes = Nodes::new(sessions, name.into(), each, options.node_timeout)?;
        Ok(Self { nodes, options })
    }

    /// Takes it if a majority of the servers grants it at once; `None` if too many of them are held by others. One round
    /// trip to all servers at once, bounded by the node timeout; the first acquire has one more, bounded by four of them.
    ///
    /// # Errors
    /// As [`acquire_within`](Self::acquire_within), but for `TimedOut`.
    ///
    /// # Cancel safety
    /// As [`acquire_within`](Self::acquire_within).
    pub async fn try_acquire(&self) -> Result<Option<QuorumGuard>, AcquireError> {
        Ok(self.nodes.ask().await?.map(QuorumGuard::new))
    }

    /// Takes it, trying again for at most so long and as often as [`QuorumOptions::retries`] says; a shorter wait than the
    /// first pause is one try. The last try may end by a node timeout later than the wait. Round trips as
    /// [`try_acquire`](Self::try_acquire), for each try.
    ///
    /// # Errors
    /// * [`TimedOut`](AcquireError::TimedOut): held by others at every try. It does not say by whom: each server may know
    ///   another one.
    /// * [`ValidityTooShort`](AcquireError::ValidityTooShort): granted, but too late to be of use; given back.
    /// * [`Closed`](AcquireError::Closed): sessions were shut down, and the others are no majority.
    /// * [`Config`](AcquireError::Config): [`SameServer`](ConfigError::SameServer), or no tokio runtime here.
    /// * [`Backend`](AcquireError::Backend): less than a majority of the servers answered: out of reach until the last try,
    ///   or refused (at once).
    ///
    /// # Cancel safety
    /// Dropping the future gives back whatever was granted; nothing of it outlives one lease.
    pub async fn acquire_within(&self, wait: Duration) -> Result<QuorumGuard, AcquireError> {
        let countdown = Countdown::of(wait);
        let mut pauses = Pauses::new(FIRST_PAUSE, LONGEST_PAUSE);
        let mut retries = self.options.retries;
        loop {
            let refused = match self.nodes.ask().await {
                Ok(Some(quorum)) => return Ok(QuorumGuard::new(quorum)),
                Ok(None) => self.timed_out(&countdown),
                Err(error) if passes(&error) => error,
                Err(error) => return Err(error),
            };
            let pause = pauses.next_pause();
            if retries == 0 || pause >= countdown.left() {
                return Err(refused);
            }
            retries -= 1;
            tokio::time::sleep(pause).await;
        }
    }

    /// Takes it, waiting as long as [`QuorumOptions::max_wait`] says. Round trips, errors and cancel safety as
    /// [`acquire_within`](Self::acquire_within).
    ///
    /// # Errors
    /// As [`acquire_within`](Self::acquire_within).
    pub async fn acquire(&self) -> Result<QuorumGuard, AcquireError> {
        self.acquire_within(self.options.max_wait).await
    }

    fn timed_out(&self, countdown: &Countdown) -> AcquireError {
        AcquireError::TimedOut {
            name: self.nodes.name().clone(),
            waited: countdown.elapsed(),
            position: None,
            holder: None,
            remaining: None,
            held_by_this_session: false,
        }
    }
}

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Whether another try may end otherwise.
fn passes(error: &AcquireError) -> bool {
    const PASSING: [BackendErrorKind; 4] = [
        BackendErrorKind::Unreachable,
        BackendErrorKind::ReadOnly,
        BackendErrorKind::Pool,
        BackendErrorKind::Server,
    ];
    if let AcquireError::Backend(error) = error {
        return PASSING.contains(&error.kind());
    }
    matches!(error, AcquireError::ValidityTooShort { .. })
}

/// How a quorum lock is held and tried for. A value: make it once, give it to several locks.
#[derive(Debug, Clone)]
#[must_use]
pub struct QuorumOptions {
    each: Options,
    node_timeout: Duration,
    max_wait: Duration,
    retries: u32,
}

impl Default for QuorumOptions {
    fn default() -> Self {
        Self {
            each: Options::default(),
            node_timeout: Duration::from_millis(50),
            max_wait: Duration::from_secs(5),
            retries: 5,
        }
    }
}

impl QuorumOptions {
    /// How long each server keeps a hold that is not renewed; default 30 s, whole milliseconds from 1 ms to 24 h, and at
    /// most [`hold_at_most`](Self::hold_at_most). Renewed at a third of it. A restarted server has to stay away so long.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.each = self.each.lease(lease);
        self
    }

    /// A lease that is never renewed: the hold ends after it, whatever happens.
    pub fn fixed(mut self, lease: Duration) -> Self {
        self.each = self.each.fixed(lease);
        self
    }

    /// The longest hold, from its grant; default 10 min, up to 7 days.
    pub fn hold_at_most(mut self, most: Duration) -> Self {
        self.each = self.each.hold_at_most(most);
        self
    }

    /// For people who look at who holds; default nothing, at most 128 bytes.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.each = self.each.label(label);
        self
    }

    /// How long one server may take to answer; default 50 ms, at least 1 ms and at most a tenth of the lease. Short: a
    /// server that is down costs little. Long: a slow one still counts. A connection that has to be made anew has to be
    /// made within it.
    pub fn node_timeout(mut self, timeout: Duration) -> Self {
        self.node_timeout = timeout;
        self
    }

    /// How long [`acquire`](QuorumLock::acquire) goes on trying; default 5 s.
    pub fn max_wait(mut self, wait: Duration) -> Self {
        self.max_wait = wait;
        self
    }

    /// How often it is tried again within the wait; default 5, after pauses of 50 ms, 100 ms … 2 s, each shortened by up to
    /// a half at random. Each try costs a command at every server.
    pub fn retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }
}
