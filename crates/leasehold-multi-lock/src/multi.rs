//! Several objects as one lock.

use std::time::Duration;

use leasehold_runtime::engine::{Countdown, Gathering, Holdable, Member, Together, take_together};
use leasehold_runtime::{AcquireError, ConfigError, LostReason, Session};

use crate::guard::MultiGuard;

/// The most members.
const MOST: usize = 64;

/// Several objects taken together, all or none (I16): mutexes, fair locks, sides of read-write locks, permits, of one
/// session or of several.
///
/// Members are sorted by session name and key, whatever order they were named in, and named twice counts once (writing
/// wins over reading, permits add up): so two multi-locks never wait for each other in a circle. Nothing is sent and
/// nothing can fail before a verb is called; what is wrong with the members comes as [`AcquireError::Config`].
///
/// # Guarantees
/// * All members are held when the guard is handed out, each with a lease of its own that is renewed; the loss of one is
///   the loss of the guard, and releases the others.
/// * It waits in one queue at a time. A future that is dropped leaves nothing.
/// * Exclusive members have their fencing tokens.
///
/// # Not guaranteed
/// Members on several servers end at several moments: validity is the least of them. It is no quorum lock: each member
/// is as safe as its server.
///
/// # Fairness
/// If all members are free, and nobody waits for any, and they share a server (in a cluster: a slot), one call takes all.
/// Else they are taken one by one, with an honest place in each queue. The price: while it waits for a later member, it
/// holds the earlier ones.
///
/// # Examples
/// ```no_run
/// # use leasehold_multi_lock::engine::Holdable;
/// # async fn run(account_a: impl Holdable, account_b: impl Holdable) -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold_multi_lock::MultiLock;
/// use std::time::Duration;
///
/// let both = MultiLock::of(&account_a).and(&account_b);
/// let guard = both.acquire_within(Duration::from_secs(2)).await?;
/// for (name, token) in guard.tokens() {
///     println!("{name} under {token}");
/// }
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct MultiLock {
    members: Vec<Member>,
    max_wait: Duration,
}

impl MultiLock {
    /// Begins with this member.
    pub fn of(first: &impl Holdable) -> Self {
        Self::all([first.member()])
    }

    /// And this one.
    pub fn and(mut self, next: &impl Holdable) -> Self {
        self.members.push(next.member());
        self
    }

    /// All of these, 1 to 64.
    pub fn all<T: Holdable>(members: impl IntoIterator<Item = T>) -> Self {
        let members = members.into_iter().map(|member| member.member()).collect();
        Self { members, max_wait: Duration::from_secs(5) }
    }

    /// How long [`acquire`](Self::acquire) waits for all members together; default 5 s.
    pub fn max_wait(mut self, wait: Duration) -> Self {
        self.max_wait = wait;
        self
    }

    /// Takes all if all are free and nobody waits for any; `None` if not. One round trip if they share a server (in a
    /// cluster: a slot), else one a member until one is busy.
    ///
    /// # Errors
    /// As [`acquire_within`](Self::acquire_within), but for `TimedOut` and `Saturated`.
    ///
    /// # Cancel safety
    /// As [`acquire_within`](Self::acquire_within).
    pub async fn try_acquire(&self) -> Result<Option<MultiGuard>, AcquireError> {
        let members = self.ordered()?;
        if together(&members) {
            return match take_together(&members, Duration::ZERO).await? {
                Together::Taken(gathered) => valid(&members, gathered).map(Some),
                Together::Busy(_) => Ok(None),
            };
        }
        let mut gathered = Gathering::default();
        for member in &members {
            let Some(guard) = member.view().try_acquire().await? else { return Ok(None) };
            gathered.add(guard);
        }
        valid(&members, gathered).map(Some)
    }

    /// Takes all, waiting at most so long for all of them together; less than a millisecond is one full try. One round trip if they are free and share a server
    /// (in a cluster: a slot); else that one, and one a member; members that are busy are handed over by a message each.
    ///
    /// # Errors
    /// * [`Config`](AcquireError::Config): no member or more than 64, sessions without names of their own, an illegal number
    ///   of permits; nothing was sent.
    /// * [`ValidityTooShort`](AcquireError::ValidityTooShort): when the last was taken, one had less than a tenth of its
    ///   lease (or of the grant lease, if that is shorter) left, or one was lost before that; all were given back.
    /// * The others are those of the member that could not be taken, and name it: see the acquire of its primitive.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue and gives back what was taken.
    pub async fn acquire_within(&self, wait: Duration) -> Result<MultiGuard, AcquireError> {
        let countdown = Countdown::of(wait);
        let members = self.ordered()?;
        if together(&members) {
            let first = take_together(&members, wait).await?;
            if let Together::Taken(gathered) = first {
                return valid(&members, gathered);
            }
        }
        let mut gathered = Gathering::default();
        for member in &members {
            let taken = tokio::select! {
                biased;
                taken = member.view().acquire_within(countdown.left()) => taken,
                reason = gathered.lost() => return Err(lost_meanwhile(reason)),
            };
            gathered.add(taken.map_err(|error| waited(error, &countdown))?);
        }
        valid(&members, gathered)
    }

    /// Takes all, waiting as long as [`max_wait`](Self::max_wait) says. Round trips, errors and cancel safety as
    /// [`acquire_within`](Self::acquire_within).
    ///
    /// # Errors
    /// As [`acquire_within`](Self::acquire_within).
    pub async fn acquire(&self) -> Result<MultiGuard, AcquireError> {
        self.acquire_within(self.max_wait).await
    }

    /// In the global order, each object once.
    fn ordered(&self) -> Result<Vec<Member>, ConfigError> {
        if self.members.is_empty() || self.members.len() > MOST {
            return Err(ConfigError::Members { count: self.members.len() });
        }
        check_sessions(&self.members)?;
        let mut members = self.members.clone();
        members.sort_by(|a, b| place(a).cmp(&place(b)));
        let mut once: Vec<Member> = Vec::with_capacity(members.len());
        for member in members {
            match once.last_mut() {
                Some(last) if place(last) == place(&member) => *last = last.joined(&member)?,
                Some(_) | None => once.push(member),
            }
        }
        once.iter().try_for_each(Member::check)?;
        Ok(once)
    }
}

/// Session name, then key.
fn place(member: &Member) -> (Option<&str>, &[u8]) {
    (member.session().name(), member.place())
}

/// Sessions without names have no order among them, and two of one name would be taken for one server.
fn check_sessions(members: &[Member]) -> Result<(), ConfigError> {
    let mut sessions: Vec<&Session> = Vec::new();
    for member in members {
        if !sessions.iter().any(|known| known.is_same(member.session())) {
            sessions.push(member.session());
        }
    }
    let mut names: Vec<_> = sessions.iter().filter_map(|session| session.name()).collect();
    names.sort_unstable();
    names.dedup();
    if sessions.len() > 1 && names.len() < sessions.len() {
        return Err(ConfigError::SessionNames { sessions: sessions.len(), names: names.len() });
    }
    Ok(())
}

/// Whether one call may take all of them.
fn together(members: &[Member]) -> bool {
    let (first, rest) = (&members[0], &members[1..]);
    rest.iter()
        .all(|member| member.session().is_same(first.session()) && member.batch() == first.batch())
}

/// Validity is the least of the members'; below a tenth of a first lease it is not worth having.
fn valid(members: &[Member], gathered: Gathering) -> Result<MultiGuard, AcquireError> {
    let remaining = gathered.remaining();
    let shortest = members.iter().map(Member::first_lease).min().unwrap_or_default();
    if remaining < shortest / 10 {
        return Err(AcquireError::ValidityTooShort { remaining });
    }
    Ok(MultiGuard::new(gathered.into_bundle()))
}

/// What was held was lost while it waited for another: nothing is worth waiting for any more.
fn lost_meanwhile(reason: LostReason) -> AcquireError {
    if reason == LostReason::Shutdown {
        return AcquireError::Closed;
    }
    AcquireError::ValidityTooShort { remaining: Duration::ZERO }
}

/// What a member says of its own wait is told for all of them.
fn waited(mut error: AcquireError, countdown: &Countdown) -> AcquireError {
    if let AcquireError::TimedOut { waited, .. } = &mut error {
        *waited = countdown.elapsed();
    }
    error
}
