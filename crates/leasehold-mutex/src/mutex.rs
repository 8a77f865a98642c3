//! The mutex as its user sees it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_lua::mutex as scripts;
use leasehold_runtime::engine::{self, Holdable, Member, ReadSide, Spec};
use leasehold_runtime::{
    AcquireError, AdoptError, BackendError, ConfigError, Exclusive, Holder, Mode, Name, Options,
    Owner, Queue, Session,
};

/// The mode of a mutex's guards: nobody else holds.
#[derive(Debug)]
pub enum Held {}

impl Mode for Held {}
impl Exclusive for Held {}

/// A held mutex.
pub type Guard = leasehold_runtime::Guard<Held>;

/// A mutex taken in one way: see [`Mutex::by`].
pub type View = engine::View<Held>;

/// A mutex on Redis: of all processes that share the name, one holds.
///
/// Unlike a local mutex it is a lease: a hold can end before its guard, and every step can fail. Several `Mutex` values of
/// one name are the same lock. Cheap to clone.
///
/// # Guarantees
/// * On one master without eviction, at most one guard says that it holds, at any instant.
/// * A released lock is handed to the next waiter by one push: no round trip, however many wait. A waiter that crashed is
///   skipped at once; a holder that crashed is followed within its lease.
/// * Each hold has a [fencing token](leasehold_runtime::FencingToken) larger than all before it.
/// * Loss is told: by the guard, by its release, and as an event.
/// * A dropped future or guard leaves nothing behind. While Redis is out of reach, a hold stays until its lease ends, a
///   place in the queue until the waiter deadline (10 s).
///
/// # Not guaranteed
/// A holder that is paused beyond its lease, a failover that loses the last writes, an eviction of the key, or a step of
/// the server's clock can let two work at once. Let the database check the token.
///
/// # Fairness
/// No waiter starves: they are granted in the order in which their calls reached Redis, and a newcomer does not pass them.
/// Rely on exclusion, not on that order: a later version may pass a hold between waiters of one process first.
///
/// # On loss
/// See [`Guard`].
///
/// # Keys
/// `<prefix>lh1:mutex:{<name>}` and the same with `:queue`, `:timeout`, `:token`, `:gone`; all end by themselves.
///
/// # Examples
/// A section, and what to do when the lock is lost:
/// ```no_run
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold_mutex::{Mutex, Options, Session};
///
/// let session = Session::connect("redis://127.0.0.1/").await?;
/// let mutex = Mutex::new(&session, "invoices:2024-05", Options::default().label("invoice run"))?;
///
/// let guard = mutex.acquire().await?;
/// let sent = guard.while_held(async { /* send them, each with guard's token */ 17 }).await;
/// match sent {
///     Ok(count) => println!("{count} invoices sent"),
///     Err(lost) => eprintln!("stopped: {lost}"),
/// }
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Mutex {
    view: View,
    side: ReadSide,
    spec: Arc<Spec>,
}

impl Mutex {
    /// The mutex of this name. No round trip.
    ///
    /// # Errors
    /// [`ConfigError`] with the first bound that name or options do not keep.
    pub fn new(
        session: &Session,
        name: impl Into<Name>,
        options: Options,
    ) -> Result<Self, ConfigError> {
        let spec = Arc::new(Spec::new(&scripts::VERBS, session, name.into(), options)?);
        let (view, side) = (View::new(session, spec.clone()), ReadSide::new(session, spec.clone()));
        Ok(Self { view, side, spec })
    }

    /// Takes it if it is free and nobody waits; `None` if not. One round trip; it never enters the queue.
    ///
    /// # Errors
    /// As [`acquire_within`](Self::acquire_within), but for `TimedOut` and `Saturated`.
    ///
    /// # Cancel safety
    /// As [`acquire_within`](Self::acquire_within).
    pub async fn try_acquire(&self) -> Result<Option<Guard>, AcquireError> {
        self.view.try_acquire().await
    }

    /// Takes it, waiting at most so long; less than a millisecond is one full try. One round trip if it is free; handed
    /// over by a message.
    ///
    /// # Errors
    /// * [`TimedOut`](AcquireError::TimedOut): the wait is over; it says who holds.
    /// * [`Saturated`](AcquireError::Saturated): as many wait as [`Options::max_waiters`] allows; at once.
    /// * [`TooManyEntries`](AcquireError::TooManyEntries): this owner holds it 64 times already; at once.
    /// * [`ValidityTooShort`](AcquireError::ValidityTooShort): granted, but too late to be of use; given back.
    /// * [`NotReplicated`](AcquireError::NotReplicated): granted, but fewer replicas have it than [`Options::wait_replicas`]
    ///   asks for; given back.
    /// * [`Closed`](AcquireError::Closed): the session was shut down.
    /// * [`Config`](AcquireError::Config): there is no tokio runtime here; nothing was sent.
    /// * [`Backend`](AcquireError::Backend): Redis was out of reach for the whole wait, or refused (at once).
    ///
    /// # Cancel safety
    /// Dropping the future loses the place in the queue, and gives the hold back if it was granted meanwhile. While Redis
    /// is out of reach, a hold stays until its lease ends, a place in the queue until the waiter deadline (10 s).
    pub async fn acquire_within(&self, wait: Duration) -> Result<Guard, AcquireError> {
        self.view.acquire_within(wait).await
    }

    /// Takes it, waiting as long as [`Options::max_wait`] says (default 5 s). Round trips and cancel safety as
    /// [`acquire_within`](Self::acquire_within).
    ///
    /// The classic trap: a method that holds the lock calls another that takes it, and waits for itself. It ends with
    /// `TimedOut { held_by_this_session: true, .. }`; the cure is to pass the owner down:
    /// ```no_run
    /// # async fn run(mutex: leasehold_mutex::Mutex) -> Result<(), Box<dyn std::error::Error>> {
    /// let outer = mutex.acquire().await?;
    /// let inner = mutex.by(outer.owner()).acquire().await?; // enters again, same token
    /// inner.release().await?;
    /// outer.release().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`acquire_within`](Self::acquire_within).
    pub async fn acquire(&self) -> Result<Guard, AcquireError> {
        self.view.acquire().await
    }

    /// The same mutex, taken as this owner: while the owner holds, it enters again at once, past the queue, up to 64
    /// times. Each entry has its own lease and its own release; all share one token.
    pub fn by(&self, owner: &Owner) -> View {
        self.view.by(owner)
    }

    /// Goes on with the hold of this owner, in this process: all its live entries become this one, with the same token;
    /// guards that others still have report [`NotOwner`](leasehold_runtime::LostReason::NotOwner). It never takes a lock
    /// that the owner does not hold. One round trip.
    ///
    /// ```no_run
    /// # async fn run(mutex: leasehold_mutex::Mutex, mailbox: String) -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold_mutex::Owner;
    ///
    /// // One process starts the job and gives it away …
    /// let owner = mutex.acquire().await?.detach();
    /// let mailbox = owner.as_str().to_owned();
    /// // … another goes on with it, before the lease is over.
    /// let guard = mutex.adopt(&Owner::parse(&mailbox)?).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// * [`Lost`](AdoptError::Lost): that owner does not hold.
    /// * [`Closed`](AdoptError::Closed): the session was shut down.
    /// * [`Config`](AdoptError::Config): there is no tokio runtime here; nothing was sent.
    /// * [`Backend`](AdoptError::Backend): Redis did not answer within the response timeout, or refused.
    ///
    /// # Cancel safety
    /// Dropping the future gives the hold back if it was adopted: then it is released.
    pub async fn adopt(&self, owner: &Owner) -> Result<Guard, AdoptError> {
        let keys = self.spec.keys();
        self.view.by(owner).adopt(|acquisition, _| scripts::adopt(keys, acquisition.wire())).await
    }

    /// Whether it could not be taken just now: somebody holds, or it cools down. One round trip.
    ///
    /// # Errors
    /// [`BackendError`] as Redis or the connection gave it.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn is_locked(&self) -> Result<bool, BackendError> {
        self.side.is_locked().await
    }

    /// Who holds it; in a cool-down, who held it last. One round trip.
    ///
    /// # Errors
    /// [`BackendError`] as Redis or the connection gave it.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn holder(&self) -> Result<Option<Holder>, BackendError> {
        self.side.holder().await
    }

    /// How long the present hold lasts on the server if it is not renewed; `None` if nobody holds. One round trip.
    ///
    /// # Errors
    /// [`BackendError`] as Redis or the connection gave it.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn remaining(&self) -> Result<Option<Duration>, BackendError> {
        self.side.remaining().await
    }

    /// Who waits. One round trip; its cost grows with the waiters listed, not with the queue.
    ///
    /// # Errors
    /// [`BackendError`] as Redis or the connection gave it.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn queue(&self) -> Result<Queue, BackendError> {
        self.side.queue().await
    }

    /// Ends the present hold, whoever has it, and answers whose it was; `None` if nobody holds, or if that hold ended in
    /// between. The holder is told ([`ForceReleased`](leasehold_runtime::LostReason::ForceReleased)), the next waiter is
    /// granted. Two round trips: it reads who holds and ends just that hold, so a repeat never hits the next holder.
    ///
    /// The holder may still be working when the next one starts: only the fencing token stops its writes.
    ///
    /// # Errors
    /// [`BackendError`] as Redis or the connection gave it; a repeat is harmless.
    ///
    /// # Cancel safety
    /// Dropping the future may or may not have ended the hold.
    pub async fn force_release(&self) -> Result<Option<Holder>, BackendError> {
        self.side.force_release().await
    }
}

/// As a member of a multi-lock.
impl Holdable for Mutex {
    fn member(&self) -> Member {
        self.view.member()
    }
}

impl fmt::Debug for Mutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex").field("spec", &self.spec).finish_non_exhaustive()
    }
}
