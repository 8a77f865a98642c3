//! The read-write lock as its user sees it.

use std::fmt;
use std::sync::Arc;

use leasehold_lua::Share;
use leasehold_lua::holders::forced;
use leasehold_lua::rwlock::{self as scripts, Inspection};
use leasehold_runtime::engine::{self, ReadSide, Spec, ask, exchange};
use leasehold_runtime::{
    AcquireError, AdoptError, BackendError, ConfigError, Exclusive, FencingToken, Guard, Holder,
    Lost, LostReason, Mode, Name, Options, Owner, Queue, Session,
};

use crate::error::{DowngradeError, UpgradeError};
use crate::holders::Holders;

/// The mode of readers' guards: other readers may hold too.
#[derive(Debug)]
pub enum Read {}

/// The mode of writers' guards: nobody else holds.
#[derive(Debug)]
pub enum Write {}

impl Mode for Read {}
impl Mode for Write {}
impl Exclusive for Write {}

/// A lock held for reading.
pub type ReadGuard = Guard<Read>;

/// A lock held for writing.
pub type WriteGuard = Guard<Write>;

/// The lock, taken for reading: `try_acquire`, `acquire_within`, `acquire`, `by`.
pub type ReadView = engine::View<Read>;

/// The lock, taken for writing: `try_acquire`, `acquire_within`, `acquire`, `by`.
pub type WriteView = engine::View<Write>;

/// How many holds are listed.
const LISTED: u32 = 128;

/// A read-write lock on Redis: of all processes that share its name, many read or one writes.
///
/// Unlike a local one it is a lease: a hold can end before its guard, and every step can fail. Several `RwLock` values of one
/// name are the same lock. Cheap to clone.
///
/// # Guarantees
/// * On one master without eviction no guard says that it writes while another guard says that it reads or writes, unless
///   both are of one owner.
/// * Each reader has a lease of its own: a short one ends no other, and a reader that died is gone after its own.
/// * Each writer has a [fencing token](leasehold_runtime::FencingToken) larger than those of all writers before it. A
///   reader knows the [last writer's](Self::last_token).
/// * Loss is told: by the guard, by its release, and as an event.
/// * A dropped future or guard leaves nothing behind. While Redis is out of reach a hold stays until its lease ends, a place in
///   the queue until the waiter deadline (10 s).
///
/// # Not guaranteed
/// A holder that is paused beyond its lease, a failover that loses the last writes, an eviction of a key, or a step of the
/// server's clock can let a writer work beside others. Let the database check the token: a reader that must not see what an
/// older writer left half done compares too.
///
/// # Fairness
/// First come, first served, in the order in which the calls reached Redis. Readers that stand next to each other in the
/// queue are let in together, by one release (128 at a time); a waiting writer stops new readers, so a stream of readers does
/// not starve it; readers that came before a writer are not passed by it. A writer that waits and dies stops nobody for longer
/// than its deadline.
///
/// Re-entry passes the queue: an [`Owner`] that holds reads again at once, and writes again at once if it writes, or if all
/// holds are its own. A reader that asks again *without* its owner, behind a waiting writer, waits for itself until its wait is
/// over. An owner that reads beside others and asks to write keeps reading while it waits, and is let in when they have left; two
/// such owners wait for each other until their waits are over: use [`try_upgrade`](Self::try_upgrade).
///
/// # On loss
/// See [`Guard`].
///
/// # Keys
/// `<prefix>lh1:rwlock:{<name>}` and the same with `:notes`, `:queue`, `:timeout`, `:token`, `:gone`; all end by themselves.
///
/// # Examples
/// ```no_run
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold_rwlock::{Options, RwLock, Session, UpgradeError};
///
/// let session = Session::connect("redis://127.0.0.1/").await?;
/// let lock = RwLock::new(&session, "price list", Options::default())?;
///
/// let reading = lock.read().acquire().await?;
/// let outdated = true; // … look …
/// if outdated {
///     match lock.try_upgrade(reading).await {
///         Ok(writing) => {
///             println!("alone, under {}", writing.fencing_token());
///             writing.release().await?;
///         }
///         // Others read too: let go, and queue up as a writer.
///         Err(UpgradeError::Refused(reading)) => {
///             reading.release().await?;
///             lock.write().acquire().await?.release().await?;
///         }
///         Err(error) => return Err(error.into()),
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RwLock {
    session: Session,
    read: ReadView,
    write: WriteView,
    side: ReadSide,
    spec: Arc<Spec>,
}

impl RwLock {
    /// The read-write lock of this name. No round trip.
    ///
    /// # Errors
    /// [`ConfigError`] with the first bound that name or options do not keep.
    pub fn new(
        session: &Session,
        name: impl Into<Name>,
        options: Options,
    ) -> Result<Self, ConfigError> {
        let spec = Arc::new(Spec::new(&scripts::VERBS, session, name.into(), options)?);
        let reading = Arc::new(spec.sharing(Share::Read));
        Ok(Self {
            session: session.clone(),
            read: ReadView::new(session, reading),
            write: WriteView::new(session, spec.clone()),
            side: ReadSide::new(session, spec.clone()),
            spec,
        })
    }

    /// The lock, taken for reading.
    pub fn read(&self) -> ReadView {
        self.read.clone()
    }

    /// The lock, taken for writing.
    pub fn write(&self) -> WriteView {
        self.write.clone()
    }

    /// Goes on as a reader: the lease stays, nobody writes in between, and waiting readers are let in at once. One round
    /// trip. The guard is another one; a [`lost`](Guard::lost) future of the old one never resolves after that.
    ///
    /// It is sent until it is answered or the hold has ended, because until then nobody knows which of the two is held.
    ///
    /// # Errors
    /// * [`Foreign`](DowngradeError::Foreign): the guard is of another lock, or of another session; it comes back.
    /// * [`Lost`](DowngradeError::Lost): the hold had ended, or Redis did not answer until it did.
    /// * [`Backend`](DowngradeError::Backend): Redis refused, or was not reached; the guard comes back.
    ///
    /// # Cancel safety
    /// Dropping the future releases the hold.
    pub async fn downgrade(&self, guard: WriteGuard) -> Result<ReadGuard, DowngradeError> {
        let keys = self.spec.keys();
        let exchanged =
            exchange(guard, &self.read, |old, new, terms| scripts::exchange(keys, old, new, terms));
        Ok(exchanged.await?)
    }

    /// Goes on as the writer if nobody else reads, answered at once; it passes writers that wait, and gets a new fencing
    /// token. One round trip. So two readers that both try never wait for each other: both are refused until one releases.
    ///
    /// It is sent until it is answered or the hold has ended, because until then nobody knows which of the two is held.
    ///
    /// # Errors
    /// * [`Refused`](UpgradeError::Refused): others read too; the guard comes back.
    /// * [`Foreign`](UpgradeError::Foreign): the guard is of another lock, or of another session; it comes back.
    /// * [`Lost`](UpgradeError::Lost): the hold had ended, or Redis did not answer until it did.
    /// * [`NotReplicated`](UpgradeError::NotReplicated): too few replicas know of it; the guard comes back.
    /// * [`Backend`](UpgradeError::Backend): Redis refused, or was not reached; the guard comes back.
    ///
    /// # Cancel safety
    /// Dropping the future releases the hold.
    pub async fn try_upgrade(&self, guard: ReadGuard) -> Result<WriteGuard, UpgradeError> {
        let keys = self.spec.keys();
        let exchanged = exchange(guard, &self.write, |old, new, terms| {
            scripts::exchange(keys, old, new, terms)
        });
        let writing = exchanged.await?;
        match engine::replicated(&writing).await {
            Ok(()) => Ok(writing),
            Err(error) => Err(self.undone(writing, error).await),
        }
    }

    /// A writer that too few replicas know of goes back to reading.
    async fn undone(&self, writing: WriteGuard, why: AcquireError) -> UpgradeError {
        let name = writing.name().clone();
        let guard = match self.downgrade(writing).await {
            Ok(guard) => guard,
            Err(DowngradeError::Lost(lost)) => return UpgradeError::Lost(lost),
            // Dropped here, and released.
            Err(DowngradeError::Foreign(_) | DowngradeError::Backend { .. }) => {
                return UpgradeError::Lost(Lost { name, reason: LostReason::Unreachable });
            }
        };
        if let AcquireError::NotReplicated { wanted, acknowledged } = why {
            return UpgradeError::NotReplicated { guard, wanted, acknowledged };
        }
        if let AcquireError::Backend(source) = why {
            return UpgradeError::Backend { guard, source };
        }
        UpgradeError::Lost(Lost { name, reason: LostReason::Shutdown })
    }

    /// Goes on with what this owner reads, in this process: all its live read holds become this one; guards that others still
    /// have report [`NotOwner`](leasehold_runtime::LostReason::NotOwner). It never takes what the owner does not hold. One
    /// round trip.
    ///
    /// # Errors
    /// * [`Lost`](AdoptError::Lost): that owner does not read.
    /// * [`Closed`](AdoptError::Closed): the session was shut down.
    /// * [`Config`](AdoptError::Config): there is no tokio runtime here; nothing was sent.
    /// * [`Backend`](AdoptError::Backend): Redis did not answer within the response timeout, or refused.
    ///
    /// # Cancel safety
    /// Dropping the future gives the hold back if it was adopted: then it is released.
    pub async fn adopt_read(&self, owner: &Owner) -> Result<ReadGuard, AdoptError> {
        let keys = self.spec.keys();
        self.read.by(owner).adopt(|new, terms| scripts::adopt(keys, new.wire(), terms)).await
    }

    /// As [`adopt_read`](Self::adopt_read), for what this owner writes; the fencing token stays.
    ///
    /// # Errors
    /// As [`adopt_read`](Self::adopt_read); `Lost` if that owner does not write.
    ///
    /// # Cancel safety
    /// As [`adopt_read`](Self::adopt_read).
    pub async fn adopt_write(&self, owner: &Owner) -> Result<WriteGuard, AdoptError> {
        let keys = self.spec.keys();
        self.write.by(owner).adopt(|new, terms| scripts::adopt(keys, new.wire(), terms)).await
    }

    /// The token of the last writer before this read hold: whatever it reads is not older than what that writer left. `None`
    /// if none was granted within the session's fence memory (1 h): a writer that held for longer is not remembered by those
    /// that come after it. A [downgraded](Self::downgrade) hold keeps its own. No round trip.
    pub fn last_token(&self, guard: &ReadGuard) -> Option<FencingToken> {
        engine::seen_token(guard)
    }

    /// Who holds, on both sides, and how many wait. One round trip.
    ///
    /// # Errors
    /// [`BackendError`] as Redis or the connection gave it.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn holders(&self) -> Result<Holders, BackendError> {
        let reply = ask(&self.session, |_| scripts::inspect(self.spec.keys(), LISTED)).await?;
        Ok(Holders::of(&Inspection::decode(&reply)?))
    }

    /// Whether somebody reads or writes. As [`holders`](Self::holders).
    ///
    /// # Errors
    /// [`BackendError`] as Redis or the connection gave it.
    pub async fn is_locked(&self) -> Result<bool, BackendError> {
        let holders = self.holders().await?;
        Ok(!holders.remaining.is_zero())
    }

    /// Whether somebody writes. As [`holders`](Self::holders).
    ///
    /// # Errors
    /// [`BackendError`] as Redis or the connection gave it.
    pub async fn is_write_locked(&self) -> Result<bool, BackendError> {
        Ok(!self.holders().await?.writers.is_empty())
    }

    /// Who waits, readers and writers in their order; at most 128 are listed. One round trip.
    ///
    /// # Errors
    /// [`BackendError`] as Redis or the connection gave it.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn queue(&self) -> Result<Queue, BackendError> {
        self.side.queue().await
    }

    /// Ends the holds of those that read, as far as they are [listed](Self::holders), and answers whose; writers are left
    /// alone. Each is named by what was read, so a repeat never hits another. They are told
    /// ([`ForceReleased`](leasehold_runtime::LostReason::ForceReleased)), and may still be reading; whoever fits now is
    /// granted. Two round trips.
    ///
    /// # Errors
    /// [`BackendError`] as Redis or the connection gave it; a repeat is harmless.
    ///
    /// # Cancel safety
    /// Dropping the future may or may not have ended the holds.
    pub async fn force_release_readers(&self) -> Result<Vec<Holder>, BackendError> {
        let readers = self.holders().await?.readers;
        self.force(readers).await
    }

    /// As [`force_release_readers`](Self::force_release_readers), for those that write; readers are left alone.
    ///
    /// # Errors
    /// [`BackendError`] as Redis or the connection gave it; a repeat is harmless.
    ///
    /// # Cancel safety
    /// As [`force_release_readers`](Self::force_release_readers).
    pub async fn force_release_writers(&self) -> Result<Vec<Holder>, BackendError> {
        let writers = self.holders().await?.writers;
        self.force(writers).await
    }

    async fn force(&self, holders: Vec<Holder>) -> Result<Vec<Holder>, BackendError> {
        let ids: Vec<&[u8]> = holders.iter().map(Holder::member).collect();
        while !ids.is_empty() {
            let end = |terms| scripts::force_release(self.spec.keys(), &ids, terms);
            let (_, again) = forced(&ask(&self.session, end).await?)?;
            if !again {
                break;
            }
        }
        Ok(holders)
    }
}

impl fmt::Debug for RwLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RwLock").field("spec", &self.spec).finish_non_exhaustive()
    }
}
