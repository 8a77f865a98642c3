//! The semaphore as its user sees it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_lua::holders::forced;
use leasehold_lua::semaphore::{self as scripts, Inspection, LARGEST};
use leasehold_runtime::engine::{self, Holdable, Member, ReadSide, Report, Spec, SplitError, ask};
use leasehold_runtime::{
    AcquireError, AdoptError, BackendError, ConfigError, Guard, Holder, Mode, Name, Options, Owner,
    Queue, ReleaseError, Session, Weighted,
};

use crate::{LimitError, Many, PermitHolder, Usage};

/// The mode of permits: others hold beside them, and each says how many it is.
#[derive(Debug)]
pub enum Permits {}

impl Mode for Permits {}
impl Weighted for Permits {}

/// One or more held permits: [`weight`](Guard::weight) says how many. Its [`owner`](Guard::owner) is its id to others.
pub type Permit = Guard<Permits>;

/// Two permits that were not merged; what is surely held comes back with it.
pub type MergeError = engine::MergeError<Permits>;

/// How many holders are listed.
const LISTED: u32 = 128;

/// A semaphore on Redis: all processes that share the name hold at most so many permits at once.
///
/// Unlike a local semaphore its permits are leases: one can end before its guard, those of a process that dies come back by
/// themselves, and every step can fail. The limit is kept at the server, where it can be [changed](Self::set_limit) while
/// the semaphore is in use. Several `Semaphore` values of one name are the same semaphore. Cheap to clone.
///
/// # Guarantees
/// * On one master without eviction, no grant exceeds the limit in force when it is made. While nobody lowers the limit, the
///   guards that say that they hold never have more permits together than it.
/// * Several permits are taken [all or none](Self::many).
/// * The permits of a process that dies are free within their lease; a waiter that crashed is skipped at once.
/// * A released permit is handed on by one push: no round trip, however many wait, and to as many waiters as fit.
/// * Loss is told: by the guard, by its release, and as an event.
/// * A dropped future or guard leaves nothing behind. While Redis is out of reach a permit stays until its lease ends, a place
///   in the queue until the waiter deadline (10 s).
///
/// # Not guaranteed
/// * A holder that is paused beyond its lease, a failover that loses the last writes, an eviction of the key, or a step of
///   the server's clock can let more work at once than the limit says. Permits have no fencing token: they shut nobody out.
/// * Lowering the limit takes nothing away: until enough permits came back, more are out than it says.
/// * A limit of concurrency is not a limit of rate. Ten permits let any number of short calls pass in a second, one after
///   the other. What must not happen more often than so often needs [`Options::hold_at_least`] as well: with 10 permits of at
///   least a second each, there are at most 10 calls in any second.
///
/// # Fairness
/// First come, first served, in the order in which the calls reached Redis. Nobody passes: while the first in the queue asks
/// for more than is free, lighter requests behind it wait too, so heavy ones do not starve. The price is that permits can be
/// idle meanwhile.
///
/// # On loss
/// See [`Guard`].
///
/// # Keys
/// `<prefix>lh1:semaphore:{<name>}` and the same with `:queue`, `:timeout`, `:gone`, `:notes`; all end by themselves. The
/// limit stays for a minute after the last use (or as long as the longest lease), once it was
/// [set](Self::set_limit) for 30 days after that.
///
/// # Examples
/// ```no_run
/// # async fn convert(_video: &str) {}
/// # async fn run(session: leasehold_semaphore::Session) -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold_semaphore::{AcquireError, Options, Semaphore};
///
/// // Eight conversions in the whole fleet, a long one counts as three; no more than 100 jobs wait.
/// let options = Options::default().label("converter").max_waiters(100);
/// let conversions = Semaphore::new(&session, "conversions", 8, options)?;
///
/// match conversions.many(3).acquire().await {
///     Ok(permit) => {
///         permit.while_held(convert("long.mov")).await?;
///         permit.release().await?;
///     }
///     Err(AcquireError::Saturated { retry_after, .. }) => println!("busy, come back in {retry_after:?}"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Semaphore {
    session: Session,
    spec: Arc<Spec>,
    one: Many,
    side: ReadSide,
    limit: u32,
}

impl Semaphore {
    /// The semaphore of this name. No round trip.
    ///
    /// `limit` is set by the first use, wherever it comes from; afterwards the server's limit is what counts. If it differs
    /// from this one, the session tells [`Event::LimitDiffers`](crate::Event::LimitDiffers), once for each value that was made
    /// here, its clones included: make one and clone it.
    ///
    /// # Errors
    /// [`ConfigError`] with the first bound that name, limit (1 to 999 999 999) or options do not keep.
    pub fn new(
        session: &Session,
        name: impl Into<Name>,
        limit: u32,
        options: Options,
    ) -> Result<Self, ConfigError> {
        let limit = legal(limit)?;
        let spec = Spec::new(&scripts::VERBS, session, name.into(), options)?;
        Ok(Self::of(session, spec, limit, false))
    }

    /// The same, which refuses to work with a limit that is not the server's: its acquires end with
    /// [`LimitDiffers`](AcquireError::LimitDiffers) then. For services that would do harm with a limit that they do not
    /// expect; they fail, for instance, while a deployment that changes the number is under way. A change of the limit ends
    /// neither permits nor waits that have begun.
    #[must_use]
    pub fn strict_limit(self) -> Self {
        Self::of(&self.session, (*self.spec).clone(), self.limit, true)
    }

    fn of(session: &Session, spec: Spec, limit: u32, strict: bool) -> Self {
        let spec = Arc::new(spec.limited(limit, scripts::settings(limit, strict)));
        let (one, side) = (Many::new(session, &spec, 1), ReadSide::new(session, spec.clone()));
        Self { session: session.clone(), spec, one, side, limit }
    }

    /// Takes one permit if one is free and nobody waits; `None` if not. One round trip; it never enters the queue.
    ///
    /// # Errors
    /// As [`Many::try_acquire`].
    ///
    /// # Cancel safety
    /// As [`Many::acquire_within`].
    pub async fn try_acquire(&self) -> Result<Option<Permit>, AcquireError> {
        self.one.try_acquire().await
    }

    /// Takes one permit, waiting at most so long; less than a millisecond is one full try. One round trip if one is free;
    /// handed over by a message.
    ///
    /// # Errors
    /// As [`Many::acquire_within`].
    ///
    /// # Cancel safety
    /// As [`Many::acquire_within`].
    pub async fn acquire_within(&self, wait: Duration) -> Result<Permit, AcquireError> {
        self.one.acquire_within(wait).await
    }

    /// Takes one permit, waiting as long as [`Options::max_wait`] says (default 5 s).
    ///
    /// # Errors
    /// As [`Many::acquire_within`].
    ///
    /// # Cancel safety
    /// As [`Many::acquire_within`].
    pub async fn acquire(&self) -> Result<Permit, AcquireError> {
        self.one.acquire().await
    }

    /// So many permits at once, all or none: a view with the same three verbs.
    ///
    /// Take what belongs together in one call. Two tasks that each hold one and wait for a second one wait for each other,
    /// until their waits end.
    pub fn many(&self, permits: u32) -> Many {
        Many::new(&self.session, &self.spec, permits)
    }

    /// Sets the limit, for everybody. A higher one grants to those that fit now, at once. A lower one takes no permit away:
    /// nothing is granted until what is out fits it; waiters that ask for more than it end with
    /// [`NeverFits`](AcquireError::NeverFits), within a second. One round trip.
    ///
    /// It is kept for 30 days, or longer while the semaphore is used. `Semaphore` values that were made with another number
    /// go on with the server's.
    ///
    /// # Errors
    /// See [`LimitError`].
    ///
    /// # Cancel safety
    /// Dropping the future may or may not have set it.
    pub async fn set_limit(&self, limit: u32) -> Result<(), LimitError> {
        let limit = legal(limit)?;
        let call = |terms| scripts::set_limit(self.spec.keys(), limit, terms);
        while scripts::limit_set(&ask(&self.session, call).await?).map_err(BackendError::from)? {}
        Ok(())
    }

    /// How full it is. One round trip; it does not count what has ended without a release.
    ///
    /// # Errors
    /// [`BackendError`] as Redis or the connection gave it.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn usage(&self) -> Result<Usage, BackendError> {
        Ok(Usage::of(&self.inspect(0).await?, self.limit))
    }

    /// The limit in force; before the first use, this one's. As [`usage`](Self::usage).
    ///
    /// # Errors
    /// [`BackendError`] as Redis or the connection gave it.
    pub async fn limit(&self) -> Result<u32, BackendError> {
        Ok(self.usage().await?.limit)
    }

    /// How many permits are out. As [`usage`](Self::usage).
    ///
    /// # Errors
    /// [`BackendError`] as Redis or the connection gave it.
    pub async fn used(&self) -> Result<u32, BackendError> {
        Ok(self.usage().await?.used)
    }

    /// How many permits are free; 0 while more are out than the limit. As [`usage`](Self::usage).
    ///
    /// # Errors
    /// [`BackendError`] as Redis or the connection gave it.
    pub async fn available(&self) -> Result<u32, BackendError> {
        Ok(self.usage().await?.available())
    }

    /// How many acquisitions wait. As [`usage`](Self::usage).
    ///
    /// # Errors
    /// [`BackendError`] as Redis or the connection gave it.
    pub async fn waiting(&self) -> Result<u64, BackendError> {
        Ok(self.usage().await?.waiting)
    }

    /// Who holds: at most 128, those that end first. One round trip.
    ///
    /// # Errors
    /// [`BackendError`] as Redis or the connection gave it.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn holders(&self) -> Result<Vec<PermitHolder>, BackendError> {
        let found = self.inspect(LISTED).await?;
        Ok(found.holds.iter().map(|listed| PermitHolder::of(listed, found.now_us)).collect())
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

    /// Releases the permits of these owners, whoever has them: by the ids that [`Permit::owner`](Guard::owner) and
    /// [`detach`](Guard::detach) give. One round trip for up to 128. One that is not held does not hinder the others; guards
    /// that still exist for released ones report their loss with their next renewal.
    ///
    /// # Errors
    /// * [`Unknown`](ReleaseError::Unknown): sent, not answered. A repeat is harmless.
    /// * [`Backend`](ReleaseError::Backend): surely not released.
    ///
    /// # Cancel safety
    /// Dropping the future may or may not have released them.
    pub async fn release_by(&self, owners: &[Owner]) -> Result<Report, ReleaseError> {
        engine::release_named(&self.session, &self.spec, owners, scripts::release_many).await
    }

    /// Releases many permits and says of each what became of it: those that are held are freed, those that ended before are
    /// reported. One round trip for up to 128 of one semaphore.
    ///
    /// # Errors
    /// * [`Unknown`](ReleaseError::Unknown): sent, not answered.
    /// * [`Backend`](ReleaseError::Backend): surely not released yet.
    ///
    /// In both cases the session goes on until they are released or their leases are over.
    ///
    /// # Cancel safety
    /// Dropping the future still releases.
    pub async fn release_all(&self, permits: Vec<Permit>) -> Result<Report, ReleaseError> {
        engine::release_all(permits, scripts::release_many).await
    }

    /// Splits so many permits off, into a guard of its own with an owner of its own; the first one keeps the rest. Both end
    /// when it would have, and are renewed from then on. Nothing becomes free meanwhile. One round trip.
    ///
    /// # Errors
    /// See [`SplitError`].
    ///
    /// # Cancel safety
    /// Dropping the future leaves the permit with the rest, and releases what was split off.
    pub async fn split(&self, permit: &mut Permit, permits: u32) -> Result<Permit, SplitError> {
        let keys = self.spec.keys();
        engine::split(permit, self.one.view(), permits, |old, new| scripts::split(keys, old, new))
            .await
    }

    /// Makes one permit of two: the first one, with both weights and the later of both ends. Its options are those of the first
    /// one, [`hold_at_least`](Options::hold_at_least) too. Nothing becomes free meanwhile. One round trip.
    ///
    /// # Errors
    /// See [`MergeError`]: what is surely held comes back with it.
    ///
    /// # Cancel safety
    /// Dropping the future releases both.
    pub async fn merge(&self, permit: Permit, other: Permit) -> Result<Permit, MergeError> {
        let keys = self.spec.keys();
        let call = |kept: &[u8], merged: &[u8]| scripts::merge(keys, kept, merged);
        engine::merge(permit, other, self.one.view(), call).await
    }

    /// Goes on with the permits of this owner, in this process: all that are live become this one, with their weights
    /// together; guards that others still have report [`NotOwner`](leasehold_runtime::LostReason::NotOwner). It never takes a
    /// permit that the owner does not hold. One round trip.
    ///
    /// ```no_run
    /// # async fn run(calls: leasehold_semaphore::Semaphore, mailbox: String) -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold_semaphore::Owner;
    ///
    /// // One process starts the job and gives its permit away …
    /// let owner = calls.acquire().await?.detach();
    /// let mailbox = owner.as_str().to_owned();
    /// // … another goes on with it, before the lease is over.
    /// let permit = calls.adopt(&Owner::parse(&mailbox)?).await?;
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
    /// Dropping the future gives the permits back if they were adopted: then they are released.
    pub async fn adopt(&self, owner: &Owner) -> Result<Permit, AdoptError> {
        let keys = self.spec.keys();
        let view = self.one.view().by(owner);
        view.adopt(|acquisition, _| scripts::adopt(keys, acquisition.wire())).await
    }

    /// Ends just this hold, as [`holders`](Self::holders) listed it, whoever has it; `false` if it had ended. The holder is
    /// told ([`ForceReleased`](leasehold_runtime::LostReason::ForceReleased)), and may still be working; waiters that fit
    /// now are granted. One round trip.
    ///
    /// # Errors
    /// [`BackendError`] as Redis or the connection gave it; a repeat is harmless.
    ///
    /// # Cancel safety
    /// Dropping the future may or may not have ended the hold.
    pub async fn force_release(&self, holder: &Holder) -> Result<bool, BackendError> {
        let call = |terms| scripts::force_release(self.spec.keys(), &[holder.member()], terms);
        loop {
            let (count, again) = forced(&ask(&self.session, call).await?)?;
            if !again {
                return Ok(count > 0);
            }
        }
    }

    /// Clears away what has ended, step by step, then looks.
    async fn inspect(&self, most: u32) -> Result<Inspection, BackendError> {
        loop {
            let call = |_| scripts::inspect(self.spec.keys(), most);
            let found = Inspection::decode(&ask(&self.session, call).await?)?;
            if !found.again {
                return Ok(found);
            }
        }
    }
}

fn legal(limit: u32) -> Result<u32, ConfigError> {
    if (1..=LARGEST).contains(&limit) { Ok(limit) } else { Err(ConfigError::Limit { limit }) }
}

/// As a member it is one permit.
impl Holdable for Semaphore {
    fn member(&self) -> Member {
        self.one.member()
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore")
            .field("spec", &self.spec)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}
