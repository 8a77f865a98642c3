//! A hold: what the guard owns, and what it shares with the watchdog.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use leasehold_lua::Share;
use tokio_util::sync::CancellationToken;

use crate::clock::{Moment, now};
use crate::engine::Plan;
use crate::error::{Lost, LostReason};
use crate::event::{Event, Events};
use crate::session::{Link, Origin};
use crate::token::FencingToken;

/// What is true of a hold right now. Shared by guard, watchdog and whoever awaits its loss; it releases nothing.
pub(crate) struct HoldState {
    pub(crate) plan: Arc<Plan>,
    pub(crate) token: FencingToken,
    /// When it was granted, or a little later.
    pub(crate) since: Moment,
    /// When the longest hold is reached.
    limit: AtomicU64,
    deadline: AtomicU64,
    /// How much is surely held, of what has weights.
    weight: AtomicU32,
    /// The last renewal failed: a deadline that passes now passed because Redis was out of reach.
    unreachable: AtomicBool,
    /// A renewal or extension was cut at the longest hold: the deadline that it gave is the end.
    limited: AtomicBool,
    released: AtomicBool,
    lost: OnceLock<LostReason>,
    /// What was said of it after it was released. If it was only lent, that is its loss when it comes back.
    heard: OnceLock<LostReason>,
    ended: CancellationToken,
    /// What else ends with it.
    on_loss: OnceLock<Box<dyn Fn() + Send + Sync>>,
    events: Events,
}

impl HoldState {
    pub(crate) fn new(plan: Arc<Plan>, token: u64, deadline: Moment, events: Events) -> Self {
        let since = now();
        let options = plan.options();
        let limit = if options.renewed { since.plus(options.hold_at_most) } else { Moment::NEVER };
        let weight = match plan.spec.share() {
            Share::Weight(weight) => weight,
            Share::Exclusive | Share::Read => 1,
        };
        Self {
            weight: AtomicU32::new(weight),
            token: FencingToken::new(token),
            since,
            limit: AtomicU64::new(limit.as_nanos()),
            deadline: AtomicU64::new(deadline.as_nanos()),
            unreachable: AtomicBool::new(false),
            limited: AtomicBool::new(false),
            released: AtomicBool::new(false),
            lost: OnceLock::new(),
            heard: OnceLock::new(),
            ended: CancellationToken::new(),
            on_loss: OnceLock::new(),
            events,
            plan,
        }
    }

    pub(crate) fn weight(&self) -> u32 {
        self.weight.load(Ordering::Acquire)
    }

    /// Never more than what the server surely keeps for it.
    pub(crate) fn weigh(&self, weight: u32) {
        self.weight.store(weight, Ordering::Release);
    }

    /// I2: the guard says held only before this moment.
    pub(crate) fn deadline(&self) -> Moment {
        Moment::from_nanos(self.deadline.load(Ordering::Acquire)).min(self.limit())
    }

    /// When the longest hold is reached.
    pub(crate) fn limit(&self) -> Moment {
        Moment::from_nanos(self.limit.load(Ordering::Relaxed))
    }

    /// It goes on with an earlier hold, whose limit stays.
    pub(crate) fn limit_to(&self, limit: Moment) {
        self.limit.fetch_min(limit.as_nanos(), Ordering::Relaxed);
    }

    /// A renewal moved the deadline; it never moves back.
    pub(crate) fn renewed_until(&self, deadline: Moment) {
        self.deadline.fetch_max(deadline.as_nanos(), Ordering::AcqRel);
        self.unreachable.store(false, Ordering::Relaxed);
    }

    /// As much of a renewal or extension as the longest hold has left: the server's lease does not outlive it.
    pub(crate) fn within_limit(&self, wanted: Duration) -> Duration {
        let left = self.limit().left();
        if wanted > left {
            self.limited.store(true, Ordering::Relaxed);
        }
        wanted.min(left)
    }

    pub(crate) fn renewal_failed(&self) {
        self.unreachable.store(true, Ordering::Relaxed);
    }

    /// Ends the hold for everybody who looks; the first reason stays.
    pub(crate) fn lose(&self, reason: LostReason) {
        if self.released.load(Ordering::SeqCst) {
            self.heard.set(reason).ok(); // The first stays.
            // Taken back in between: one of the two sees what the other did, hence the strict order.
            if self.released.load(Ordering::SeqCst) {
                return;
            }
        }
        if self.lost.set(reason).is_err() {
            return;
        }
        self.ended.cancel();
        let name = self.plan.name().clone();
        if reason == LostReason::HoldLimit {
            self.events.emit(&Event::HoldLimit { name: name.clone() });
        }
        self.events.emit(&Event::Lost { name, reason });
        if let Some(on_loss) = self.on_loss.get() {
            on_loss();
        }
    }

    /// Calls this when the hold is lost; a hold is in one bundle at the most. It may be lost already.
    pub(crate) fn on_loss(&self, call: impl Fn() + Send + Sync + 'static) {
        drop(self.on_loss.set(Box::new(call)));
        let known = self.on_loss.get().filter(|_| self.known_loss().is_some());
        if let Some(on_loss) = known {
            on_loss();
        }
    }

    /// Why it is lost, if that is known already: nobody looks at the clock.
    pub(crate) fn known_loss(&self) -> Option<LostReason> {
        self.lost.get().copied()
    }

    /// It shuts everybody else out.
    pub(crate) fn is_exclusive(&self) -> bool {
        self.plan.spec.share() == leasehold_lua::Share::Exclusive
    }

    /// Why it is lost, if it is. Looks at the clock, so that nobody depends on the watchdog being on time.
    pub(crate) fn lost(&self) -> Option<LostReason> {
        if self.lost.get().is_none() && self.deadline().passed() {
            self.lose(if self.limit().passed() {
                LostReason::HoldLimit
            } else if self.unreachable.load(Ordering::Relaxed) {
                LostReason::Unreachable
            } else if self.limited.load(Ordering::Relaxed) {
                // The local deadline of the last lease before the limit is earlier than it by the clock margin.
                LostReason::HoldLimit
            } else {
                LostReason::Expired
            });
        }
        self.lost.get().copied()
    }

    pub(crate) fn is_held(&self) -> bool {
        !self.is_released() && self.lost().is_none()
    }

    /// It was released, or given away: nothing that comes later is a loss.
    pub(crate) fn is_released(&self) -> bool {
        self.released.load(Ordering::Acquire)
    }

    pub(crate) fn loss(&self, reason: LostReason) -> Lost {
        Lost { name: self.plan.name().clone(), reason }
    }

    pub(crate) fn ended(&self) -> &CancellationToken {
        &self.ended
    }
}

impl fmt::Debug for HoldState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HoldState")
            .field("plan", &self.plan)
            .field("token", &self.token)
            .field("lost", &self.lost)
            .finish_non_exhaustive()
    }
}

/// The one owner of a hold. Dropping it releases, through the session's thread: it never blocks, never panics, and
/// needs no runtime.
#[derive(Debug)]
pub(crate) struct Hold {
    link: Link,
    state: Arc<HoldState>,
    /// It became a guard: somebody held it.
    handed_out: bool,
    finished: bool,
}

/// How a hold leaves its guard.
#[derive(Debug)]
pub(crate) enum Leaving {
    /// It was lost before.
    Lost(LostReason),
    /// A release has to be sent; `late` goes with it.
    Release { late: bool },
}

impl Hold {
    pub(crate) fn new(link: Link, state: Arc<HoldState>) -> Self {
        Self { link, state, handed_out: false, finished: false }
    }

    /// From now on somebody holds it.
    pub(crate) fn handed_out(mut self) -> Self {
        self.handed_out = true;
        self
    }

    /// Nobody got to hold it after all.
    pub(crate) fn not_handed_out(mut self) -> Self {
        self.handed_out = false;
        self
    }

    pub(crate) fn link(&self) -> &Link {
        &self.link
    }

    pub(crate) fn state(&self) -> &Arc<HoldState> {
        &self.state
    }

    /// Out of the watchdog, and out of the registry's holds. A lost hold is not released again, but where only the
    /// local deadline has passed the server may still keep it: the thread clears that away without anybody waiting.
    pub(crate) fn leave(&mut self) -> Leaving {
        self.finished = true;
        let lost = self.state.lost();
        self.state.released.store(true, Ordering::Release);
        let shared = self.link.shared();
        let uuid = self.state.plan.uuid();
        shared.watchdog.disarm(uuid); // I3: before the release is sent
        let late = shared.registry.ending(uuid);
        match lost {
            None => Leaving::Release { late },
            Some(reason) => {
                let server_says_so =
                    matches!(reason, LostReason::NotOwner | LostReason::ForceReleased);
                // Shutdown has sent the end already. A copy that may still arrive has to be marked.
                if reason == LostReason::Shutdown || (server_says_so && !late) {
                    shared.registry.forget(uuid);
                } else {
                    self.link.end(self.state.plan.clone(), late, Origin::Lost);
                }
                Leaving::Lost(reason)
            }
        }
    }

    /// A release came after the loss. After a shutdown that is no news: whoever ordered it knows.
    pub(crate) fn tell_late_release(&self, reason: LostReason) {
        if reason != LostReason::Shutdown {
            let name = self.state.plan.name().clone();
            self.link.shared().events.emit(&Event::ReleaseLost { name, reason });
        }
    }

    /// For an exchange: out of the watchdog, and deaf to what is said of it meanwhile. Refused if it was lost before.
    pub(crate) fn lend(&self) -> Result<(), LostReason> {
        if let Some(reason) = self.state.lost() {
            return Err(reason);
        }
        self.state.released.store(true, Ordering::Release);
        self.link.shared().watchdog.disarm(self.state.plan.uuid());
        Ok(())
    }

    /// It was not exchanged: looked after again, and renewed at once, which finds out what happened meanwhile. A loss that
    /// was told meanwhile is its loss; a shutdown, after which nobody renews, is one too.
    pub(crate) fn taken_back(self) -> Self {
        let shared = self.link.shared();
        // That it is held long was told before, if it was so before.
        let long = shared.settings.held_long_after;
        let long = long.filter(|after| !self.state.since.plus(*after).passed());
        shared.watchdog.arm(&self.state, Duration::ZERO, long);
        shared.poke.notify_one();
        self.state.released.store(false, Ordering::SeqCst);
        if let Some(reason) = self.state.heard.get() {
            shared.watchdog.disarm(self.state.plan.uuid());
            self.state.lose(*reason);
        }
        self
    }

    /// It was lost while it was lent. What may be left of it is cleared away.
    pub(crate) fn lost_meanwhile(mut self, reason: LostReason) -> Lost {
        self.finished = true;
        self.state.released.store(false, Ordering::Release);
        self.state.lose(reason);
        let shared = self.link.shared();
        shared.watchdog.disarm(self.state.plan.uuid());
        let late = shared.registry.ending(self.state.plan.uuid());
        self.link.end(self.state.plan.clone(), late, Origin::Lost);
        self.state.loss(reason)
    }

    /// Another hold has taken its place.
    pub(crate) fn exchanged(mut self) {
        self.finished = true;
        let shared = self.link.shared();
        let uuid = self.state.plan.uuid();
        if shared.registry.ending(uuid) {
            // A copy of its acquire may still arrive, and would take anew.
            self.link.end(self.state.plan.clone(), true, Origin::Unheld);
        } else {
            shared.registry.forget(uuid);
        }
    }

    /// It was lent, and nobody knows whether another hold has taken its place: what may be left of it is cleared away,
    /// and nothing is told of it.
    pub(crate) fn given_up(mut self) {
        self.finished = true;
        let late = self.link.shared().registry.ending(self.state.plan.uuid());
        self.link.end(self.state.plan.clone(), late, Origin::Lost);
    }

    /// Stops looking after the hold without ending it.
    pub(crate) fn give_away(mut self) -> crate::owner::Owner {
        self.finished = true;
        self.state.released.store(true, Ordering::Release);
        let shared = self.link.shared();
        shared.watchdog.disarm(self.state.plan.uuid());
        shared.registry.forget(self.state.plan.uuid());
        self.state.plan.acquisition.owner.clone()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        match self.leave() {
            Leaving::Release { late } => {
                let origin = if self.handed_out { Origin::Dropped } else { Origin::Unheld };
                self.link.end(self.state.plan.clone(), late, origin)
            }
            Leaving::Lost(reason) => {
                if self.handed_out {
                    self.tell_late_release(reason);
                }
            }
        }
    }
}
