//! The fair lock as its user sees it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_lua::fair::{self, CancelReply};
use leasehold_lua::mutex as scripts;
use leasehold_lua::mutex::QueueReply;
use leasehold_runtime::engine::{self, Holdable, Member, ReadSide, Spec, ask};
use leasehold_runtime::{
    AcquireError, AdoptError, BackendError, ConfigError, Exclusive, Holder, Mode, Name, Options,
    Owner, Position, Queue, Session, Waiter,
};

/// The mode of a fair lock's guards: nobody else holds.
#[derive(Debug)]
pub enum Held {}

impl Mode for Held {}
impl Exclusive for Held {}

/// A held fair lock.
pub type Guard = leasehold_runtime::Guard<Held>;

/// A fair lock taken in one way: see [`FairLock::by`] and [`FairLock::watched`].
pub type View = engine::View<Held>;

/// A fair lock on Redis: of all processes that share the name one holds, and they hold in the order in which they asked.
///
/// It is the mutex of `leasehold-mutex`, on the same engine at the same cost, with three promises more: the order, the
/// [position](Self::watched) of whoever waits, and the [cancel](Self::cancel) of a waiter by somebody else. Choose it where
/// the order matters, the mutex where exclusion is all: only this one will always keep to the order.
///
/// Unlike a local lock it is a lease: a hold can end before its guard, and every step can fail. Several `FairLock` values
/// of one name are the same lock; a mutex of that name is another. Cheap to clone.
///
/// # Guarantees
/// * On one master without eviction, at most one guard says that it holds, at any instant.
/// * Strict order of arrival: see below.
/// * A released lock is handed to the next waiter by one push: no round trip, however many wait.
/// * The dead do not hold anybody up. A waiter whose process ended is skipped at once. Frozen ones, whose connections are
///   open, cost at the most one waiter deadline, one grant lease and one check (10 s, 2 s and 1 s), however many they are;
///   a holder that died is followed within its lease.
/// * Each hold has a [fencing token](leasehold_runtime::FencingToken) larger than all before it.
/// * Loss is told: by the guard, by its release, and as an event.
/// * A dropped future or guard leaves nothing behind. While Redis is out of reach, a hold stays until its lease ends, a
///   place in the queue until the waiter deadline (10 s).
///
/// # Not guaranteed
/// A holder that is paused beyond its lease, a failover that loses the last writes, an eviction of the key, or a step of
/// the server's clock can let two work at once, and the latter three can break the order. Let the database check the token.
///
/// # Fairness
/// First come, first served, counted at Redis: whoever's acquire ran there earlier is granted earlier. That is not the
/// order in which jobs were made, futures were polled or commands were sent: two processes that ask at the same time
/// arrive in either order, and a future that was never polled has not asked. Nobody who comes later passes a waiter; a
/// try does not queue, and takes only what is free with nobody waiting.
///
/// Three things are no exceptions, but look like some:
/// * *Re-entry passes the queue.* An owner that holds enters again at once (see [`by`](Self::by)); else it would wait for
///   itself.
/// * *Who was taken for dead comes back to its place.* A waiter silent for longer than the waiter deadline (its process
///   frozen, its network cut) does not block the others: they pass it. If it lives it returns at its next check, to its old
///   place and not to the tail, and is told so by [`Position::returns`].
/// * *Who missed its turn goes to the tail.* A waiter that was granted the lock and let the whole grant lease pass has had
///   its turn.
///
/// The queue may be bounded with [`Options::max_waiters`]; the dead do not count against the living.
///
/// # On loss
/// See [`Guard`]. The waiters keep their order.
///
/// # Keys
/// `<prefix>lh1:fair:{<name>}` and the same with `:queue`, `:timeout`, `:token`, `:gone`; all end by themselves.
///
/// # Examples
/// A job that shows how many are before it:
/// ```no_run
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold_fair_lock::{FairLock, Options, Session};
///
/// let session = Session::connect("redis://127.0.0.1/").await?;
/// let options = Options::default().label("job 17").wait_forever();
/// let lock = FairLock::new(&session, "account:42", options)?;
///
/// let (view, mut position) = lock.watched();
/// tokio::spawn(async move {
///     while let Some(before) = position.next().await {
///         println!("{before} jobs before this one");
///     }
/// });
/// let guard = view.acquire().await?;
/// println!("its turn, as number {}", guard.fencing_token());
/// guard.release().await?;
/// # Ok(()) }
/// ```
/// An operator who lets nobody wait for more than an hour:
/// ```no_run
/// # async fn run(lock: leasehold_fair_lock::FairLock) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// for waiter in lock.queue().await?.waiters {
///     if waiter.waiting_for > Duration::from_secs(3600) && lock.cancel(&waiter).await? {
///         println!("cancelled {} on {}", waiter.label, waiter.host);
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct FairLock {
    session: Session,
    view: View,
    side: ReadSide,
    spec: Arc<Spec>,
}

impl FairLock {
    /// The fair lock of this name. No round trip.
    ///
    /// # Errors
    /// [`ConfigError`] with the first bound that name or options do not keep.
    pub fn new(
        session: &Session,
        name: impl Into<Name>,
        options: Options,
    ) -> Result<Self, ConfigError> {
        let spec = Arc::new(Spec::new(&fair::VERBS, session, name.into(), options)?);
        let (view, side) = (View::new(session, spec.clone()), ReadSide::new(session, spec.clone()));
        Ok(Self { session: session.clone(), view, side, spec })
    }

    /// Takes it if it is free and nobody waits; `None` if not. One round trip; it never enters the queue.
    ///
    /// # Errors
    /// As [`acquire_within`](Self::acquire_within), but for `TimedOut`, `Saturated` and `Cancelled`.
    ///
    /// # Cancel safety
    /// As [`acquire_within`](Self::acquire_within).
    pub async fn try_acquire(&self) -> Result<Option<Guard>, AcquireError> {
        self.view.try_acquire().await
    }

    /// Takes it in its turn, waiting at most so long; less than a millisecond is one full try. One round trip if it is
    /// free; handed over by a message.
    ///
    /// # Errors
    /// * [`TimedOut`](AcquireError::TimedOut): the wait is over; it says who holds, and how many were still to come before.
    /// * [`Saturated`](AcquireError::Saturated): as many wait as [`Options::max_waiters`] allows; at once, with the time
    ///   that the present hold lasts.
    /// * [`Cancelled`](AcquireError::Cancelled): somebody [cancelled](Self::cancel) this wait.
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
    /// is out of reach, a hold stays until its lease ends, a place in the queue until the waiter deadline (10 s). Do not
    /// poll it anew in a loop to look at something else meanwhile: each new call stands at the tail. Keep the future, or
    /// ask the [position](Self::watched).
    pub async fn acquire_within(&self, wait: Duration) -> Result<Guard, AcquireError> {
        self.view.acquire_within(wait).await
    }

    /// Takes it in its turn, waiting as long as [`Options::max_wait`] says (default 5 s). Round trips and cancel safety as
    /// [`acquire_within`](Self::acquire_within).
    ///
    /// A method that holds the lock and calls another that takes it waits for itself; pass the owner down, see
    /// [`by`](Self::by).
    ///
    /// # Errors
    /// As [`acquire_within`](Self::acquire_within).
    pub async fn acquire(&self) -> Result<Guard, AcquireError> {
        self.view.acquire().await
    }

    /// The same lock, taken as this owner: while the owner holds, it enters again at once, past the queue, up to 64 times.
    /// Each entry has its own lease and its own release; all share one token. An owner that only waits queues like
    /// everybody.
    ///
    /// ```no_run
    /// # async fn run(lock: leasehold_fair_lock::FairLock) -> Result<(), Box<dyn std::error::Error>> {
    /// let outer = lock.acquire().await?;
    /// let inner = lock.by(outer.owner()).acquire().await?; // enters again, same token
    /// inner.release().await?;
    /// outer.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn by(&self, owner: &Owner) -> View {
        self.view.by(owner)
    }

    /// The same lock, and the [`Position`] of whoever waits through the view that it gives: how many stand before it, now
    /// and as a stream. No command more than without. The view may be made one of an owner: `view.by(&owner)`.
    pub fn watched(&self) -> (View, Position) {
        self.view.watched()
    }

    /// Goes on with the hold of this owner, in this process: all its live entries become this one, with the same token;
    /// guards that others still have report [`NotOwner`](leasehold_runtime::LostReason::NotOwner). It never takes a lock
    /// that the owner does not hold. One round trip.
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

    /// Who waits, with label and waiting time, the next to be granted first; at most 128 are listed. One round trip; its
    /// cost grows with the waiters listed, not with the queue.
    ///
    /// # Errors
    /// [`BackendError`] as Redis or the connection gave it.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn queue(&self) -> Result<Queue, BackendError> {
        self.side.queue().await
    }

    /// How many wait, dead ones that were not noticed yet included. One round trip, whatever the length.
    ///
    /// # Errors
    /// [`BackendError`] as Redis or the connection gave it.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn queue_length(&self) -> Result<u64, BackendError> {
        let reply = ask(&self.session, |_| scripts::queue(self.spec.keys(), 0)).await?;
        Ok(QueueReply::decode(&reply)?.length)
    }

    /// Takes a waiter out of the queue, whoever it is; its acquire ends with [`Cancelled`](AcquireError::Cancelled), at once
    /// or, if the message is lost, at its next check. Answers whether it was taken out: `false` if it had left, was granted,
    /// or was taken for dead, since it was [listed](Self::queue); who was taken for dead may come back to its old place, and
    /// a repeat finds it there. That very waiter is meant and no other: a repeat, or a list that is no longer true, never
    /// hits the next one. One round trip.
    ///
    /// A waiter in a frozen process leaves the queue too. Only if its process sleeps for over a minute, and has lost the
    /// message as well, does it return.
    ///
    /// # Errors
    /// [`BackendError`] as Redis or the connection gave it; a repeat is harmless.
    ///
    /// # Cancel safety
    /// Dropping the future may or may not have cancelled the waiter.
    pub async fn cancel(&self, waiter: &Waiter) -> Result<bool, BackendError> {
        let (ticket, trace) = (waiter.ticket(), waiter.trace.to_string());
        loop {
            let cancel = |terms| fair::cancel(self.spec.keys(), ticket, &trace, terms);
            let reply = CancelReply::decode(&ask(&self.session, cancel).await?)?;
            // A repeat knows what it cancelled; it goes on with the dead at the head of the queue.
            if !reply.again {
                return Ok(reply.cancelled);
            }
        }
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

/// As a member of a multi-lock. It stands in the queue as everybody does, while the multi-lock holds the members before it.
impl Holdable for FairLock {
    fn member(&self) -> Member {
        self.view.member()
    }
}

impl fmt::Debug for FairLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FairLock").field("spec", &self.spec).finish_non_exhaustive()
    }
}
