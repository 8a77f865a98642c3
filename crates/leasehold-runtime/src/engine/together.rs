//! Taking several objects in one call, all or none (I16).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_lua::multi::{self, Element, MultiReply};
use leasehold_lua::semaphore;
use leasehold_lua::{Call, Share};
use tokio::sync::oneshot;

use super::{Gathering, Plan, Spec, View};
use crate::clock::{Moment, Sample, now};
use crate::delivery::{Delivered, deliver};
use crate::error::{AcquireError, ConfigError};
use crate::guard::{Any, Guard, Mode};
use crate::owner::Owner;
use crate::session::{Link, Origin, Outcome, Session, arm};

/// Something that can be held, as a member of a multi-lock: a view of it without its mode.
#[derive(Clone)]
pub struct Member {
    view: View<Any>,
}

/// What can be a member: primitives and their views.
pub trait Holdable {
    /// As a member.
    fn member(&self) -> Member;
}

impl<M: Mode> Holdable for View<M> {
    fn member(&self) -> Member {
        Member { view: self.erased() }
    }
}

impl<T: Holdable + ?Sized> Holdable for &T {
    fn member(&self) -> Member {
        (**self).member()
    }
}

impl Holdable for Member {
    fn member(&self) -> Member {
        self.clone()
    }
}

impl Member {
    /// Its session.
    pub fn session(&self) -> &Session {
        self.view.session()
    }

    /// What is held, and how.
    pub fn spec(&self) -> &Arc<Spec> {
        self.view.spec()
    }

    /// As whom, if that was said.
    pub fn owner(&self) -> Option<&Owner> {
        self.view.owner()
    }

    /// The lease that it is held with at first: a hold that is handed over begins with the short grant lease.
    pub fn first_lease(&self) -> Duration {
        self.spec().options().lease.min(self.session().link().settings().grant_lease)
    }

    /// Both of the same object as one: writing wins over reading, permits add up.
    ///
    /// # Errors
    /// [`ConfigError::Owners`] if they are taken as two owners.
    pub fn joined(&self, other: &Self) -> Result<Self, ConfigError> {
        let name = || self.spec().name().clone();
        let owner = match (self.owner(), other.owner()) {
            (Some(one), Some(two)) if one != two => {
                return Err(ConfigError::Owners { name: name() });
            }
            (one, two) => one.or(two).cloned(),
        };
        let share = match (self.spec().share(), other.spec().share()) {
            (Share::Weight(one), Share::Weight(two)) => Share::Weight(one.saturating_add(two)),
            (Share::Read, Share::Read) => Share::Read,
            _ => Share::Exclusive,
        };
        let view = self.view.holding(Arc::new(self.spec().sharing(share)));
        Ok(Self { view: owner.map_or(view.clone(), |owner| view.by(&owner)) })
    }

    /// Where it stands in the global order of one session: the bytes of its key.
    pub fn place(&self) -> &[u8] {
        self.spec().slot_key()
    }

    /// Which members may be taken by one call: those of one session with equal numbers.
    pub fn batch(&self) -> u16 {
        self.session().link().shared().backend.batch_of(self.place())
    }

    /// What is wrong with it is told before anything is sent.
    ///
    /// # Errors
    /// [`ConfigError::Weight`] if it asks for more than any limit, or for nothing.
    pub fn check(&self) -> Result<(), ConfigError> {
        match self.spec().share() {
            Share::Exclusive | Share::Read | Share::Weight(1..=semaphore::LARGEST) => Ok(()),
            Share::Weight(weight) => Err(ConfigError::Weight { weight }),
        }
    }

    /// The verbs that take it alone.
    pub fn view(&self) -> &View<Any> {
        &self.view
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Member").field(self.spec()).finish()
    }
}

/// What taking several came to.
#[derive(Debug)]
pub enum Together {
    /// All are held, in the order of the members.
    Taken(Gathering),
    /// That member is held, or others wait for it; nothing was taken.
    Busy(usize),
}

/// Takes all members by one call, or none; it waits for no other holder. All are of one session, share a
/// [batch](Member::batch), and are different objects. One round trip; the call is repeated while it is not answered, for
/// `within` at most; less than a millisecond is one full try.
///
/// # Errors
/// As [`View::acquire_within`], but for `TimedOut` and `Saturated`.
///
/// # Cancel safety
/// Dropping the future gives back what was taken.
pub async fn take_together(members: &[Member], within: Duration) -> Result<Together, AcquireError> {
    Link::check_runtime()?;
    let Some(first) = members.first() else { return Ok(Together::Taken(Gathering::default())) };
    let (taking, ended) = Taking::enter(first.session().link(), members)?;
    let elements: Vec<_> = taking.plans.iter().map(|plan| plan.element()).collect();
    let call = multi::acquire(&elements, taking.link.terms());
    let taken = tokio::select! {
        biased;
        // A shutdown has ended all of them.
        _ = ended => Err(AcquireError::Closed),
        taken = taking.ask(&call, taking.until(within)) => taken,
    }?;
    if let Together::Taken(gathering) = &taken {
        // Not at enough replicas: dropped, and thereby given back.
        Box::pin(gathering.replicated()).await?;
    }
    Ok(taken)
}

/// Acquisitions that are not holds yet. Dropped, they are ended by the session's thread.
struct Taking<'a> {
    link: &'a Link,
    plans: Vec<Arc<Plan>>,
}

impl<'a> Taking<'a> {
    /// Beside it what tells that they were ended while they were asked for.
    fn enter(
        link: &'a Link,
        members: &[Member],
    ) -> Result<(Self, oneshot::Receiver<Outcome>), AcquireError> {
        let mut taking = Self { link, plans: Vec::with_capacity(members.len()) };
        let (tell, ended) = oneshot::channel();
        let mut tell = Some(tell);
        for member in members {
            let plan = member.view.plan();
            // One ending is enough to hear of: nothing but a shutdown ends what nobody queues for.
            let told = tell.take().unwrap_or_else(|| oneshot::channel().0);
            link.shared().registry.enter(plan.clone(), Some(told))?;
            taking.plans.push(plan);
        }
        Ok((taking, ended))
    }

    async fn ask(&self, call: &Call, until: Moment) -> Result<Together, AcquireError> {
        let registry = &self.link.shared().registry;
        let doubt = || self.plans.iter().for_each(|plan| registry.doubt(plan.uuid()));
        let mut doubtful = false;
        loop {
            let answer = match deliver(self.link, call, until, doubt).await {
                Ok(answer) => answer,
                Err(failed) => {
                    if !failed.doubtful && !doubtful {
                        self.forget();
                    }
                    return Err(failed.error.into());
                }
            };
            doubtful |= answer.doubtful;
            let reply = MultiReply::decode(&answer.reply).map_err(crate::BackendError::from)?;
            if !matches!(reply, MultiReply::Busy { again: true, .. }) {
                return self.settled(&answer, reply, doubtful);
            }
        }
    }

    fn settled(
        &self,
        answer: &Delivered,
        reply: MultiReply,
        doubtful: bool,
    ) -> Result<Together, AcquireError> {
        for plan in &self.plans {
            self.link.shared().registry.answered(plan.uuid());
        }
        let refused = match reply {
            MultiReply::Taken { now_us, holds } if holds.len() == self.plans.len() => {
                let sample = Sample { sent: answer.sent, server_us: now_us };
                if let Some(plan) = self.plans.first() {
                    self.link.shared().sampled(plan.spec.slot_key(), sample);
                }
                return self.taken(answer, &holds).map(Together::Taken);
            }
            // What an earlier copy took is ended with the rest, when `self` is dropped.
            MultiReply::Taken { .. } => return Ok(Together::Busy(0)),
            MultiReply::Torn { which } => return Ok(Together::Busy(place(which))),
            MultiReply::Cancelled { .. } => return Err(AcquireError::Closed),
            MultiReply::Busy { which, .. } => Ok(Together::Busy(place(which))),
            MultiReply::NeverFits { .. } => Err(AcquireError::NeverFits),
            MultiReply::TooManyEntries { .. } => Err(AcquireError::TooManyEntries),
            MultiReply::LimitDiffers { which, server } => {
                let ours = self.plans.get(place(which)).and_then(|plan| plan.spec.limit());
                Err(AcquireError::LimitDiffers { ours: ours.unwrap_or_default(), server })
            }
        };
        // The server says that it took nothing; but an earlier copy may still arrive.
        if !doubtful {
            self.forget();
        }
        refused
    }

    /// Surely nothing was sent.
    fn forget(&self) {
        self.plans.iter().for_each(|plan| self.link.shared().registry.forget(plan.uuid()));
    }

    fn taken(&self, answer: &Delivered, holds: &[multi::Taken]) -> Result<Gathering, AcquireError> {
        let shared = self.link.shared();
        let deadline = |plan: &Plan, left_ms| {
            // Trap 28: a server clock that went back says more than was ever given.
            let left = Duration::from_millis(left_ms).min(plan.options().lease);
            shared.settings.drift.deadline_of_reply(answer.sent, left)
        };
        let held = || self.plans.iter().zip(holds);
        for (plan, hold) in held() {
            if hold.limit > 0 && plan.spec.limit() != Some(hold.limit) {
                plan.spec.limit_differs(hold.limit, &shared.events);
            }
        }
        if held().any(|(plan, hold)| deadline(plan, hold.left_ms).passed()) {
            return Err(AcquireError::ValidityTooShort { remaining: Duration::ZERO });
        }
        let mut taken = Gathering::default();
        for (plan, hold) in held() {
            shared.saw_token(hold.token);
            let deadline = deadline(plan, hold.left_ms);
            let won = shared.registry.win(plan.uuid(), hold.token, deadline, &shared.events);
            // Closed: what was won before is given back with `taken`.
            let state = won.ok_or(AcquireError::Closed)?.state;
            taken.add(Guard::new(arm(self.link.clone(), state)));
        }
        Ok(taken)
    }

    /// In a shorter time no server could answer.
    fn until(&self, within: Duration) -> Moment {
        let full = within < Duration::from_millis(1);
        now().plus(if full { self.link.settings().response_timeout } else { within })
    }
}

impl Plan {
    fn element(&self) -> Element<'_> {
        Element {
            verbs: self.spec.verbs(),
            keys: self.spec.keys(),
            acquisition: self.acquisition.wire(),
            settings: self.spec.settings(),
        }
    }
}

fn place(which: u64) -> usize {
    usize::try_from(which).unwrap_or(usize::MAX)
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        for plan in &self.plans {
            if let Some(late) = self.link.shared().registry.ending_if_waiting(plan.uuid()) {
                self.link.end(plan.clone(), late, Origin::Unheld);
            }
        }
    }
}
