//! From a grant to a hold: what a push or a check has told becomes a guard's, or is confirmed first.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use leasehold_lua::wire::Push;
use tokio::sync::mpsc;
use uuid::Uuid;

use super::link::{Link, Order, Origin, Shared};
use super::registry::{Outcome, Registry};
use super::renewal::{self, Confirmed};
use super::topics::Left;
use crate::clock::{Moment, Sample, now};
use crate::engine::{News, Plan};
use crate::error::{AcquireError, LostReason};
use crate::hold::{Hold, HoldState};

/// A pushed grant is handed out without asking only while the server's clock was read so lately.
const FRESH_SAMPLE: Duration = Duration::from_secs(10);

/// Makes holds of waiters.
#[derive(Debug, Clone)]
pub(super) struct Granter {
    shared: Arc<Shared>,
    /// Weak: the thread must not keep itself alive.
    orders: mpsc::WeakUnboundedSender<Order>,
    /// Grants to confirm before they are handed out, with their tokens.
    confirm: mpsc::UnboundedSender<(Uuid, u64)>,
}

impl Granter {
    pub(super) fn new(
        shared: Arc<Shared>,
        orders: mpsc::WeakUnboundedSender<Order>,
        confirm: mpsc::UnboundedSender<(Uuid, u64)>,
    ) -> Self {
        Self { shared, orders, confirm }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn registry(&self) -> &Registry {
        &self.shared.registry
    }

    /// A push arrived. Runs in the inbox's driver: no waiting here.
    pub(super) fn receive(&self, push: Push) {
        match push {
            Push::Granted { uuid, token, lease_ms, at_us } => {
                if let Ok(uuid) = Uuid::parse_str(&uuid) {
                    self.pushed(uuid, token, Duration::from_millis(lease_ms), at_us);
                }
            }
            Push::Forced { uuid } => self.ended(&uuid, LostReason::ForceReleased),
            Push::Adopted { uuid } => self.ended(&uuid, LostReason::NotOwner),
            Push::Refused { uuid } => self.refused(&uuid, AcquireError::NeverFits, true),
            Push::Cancelled { uuid } => self.refused(&uuid, AcquireError::Cancelled, false),
            Push::Over { uuid, round, state } => {
                let uuid = Uuid::parse_str(&uuid).ok();
                let news = News { round, state };
                if uuid.is_some_and(|uuid| self.shared.topics.pushed(uuid, news)) {
                    self.shared.poke.notify_one();
                }
            }
            Push::Proof { .. } => {}
        }
    }

    /// The server took a waiter out of its queue. `stays`: a check may have put it back since (the limit was raised again),
    /// and it would be granted for nobody; what an operator took out does not come back.
    fn refused(&self, uuid: &str, error: AcquireError, stays: bool) {
        let plan = Uuid::parse_str(uuid).ok().and_then(|uuid| self.registry().candidate(uuid));
        if let Some(plan) = plan {
            self.refuse(&plan, error, stays);
        }
    }

    /// Tells a waiter that it will not be granted. `stays`: the server may still keep it in its queue, where it would be
    /// granted and hold for nobody (I9).
    pub(super) fn refuse(&self, plan: &Arc<Plan>, error: AcquireError, stays: bool) {
        let Some((tell, late)) = self.registry().refuse(plan.uuid()) else { return };
        if stays || late {
            self.end(plan.clone(), late);
        } else {
            self.registry().forget(plan.uuid());
        }
        drop(tell.send(Outcome::Refused(error)));
    }

    /// Somebody else ended a hold.
    fn ended(&self, uuid: &str, reason: LostReason) {
        let held = Uuid::parse_str(uuid).ok().and_then(|uuid| self.registry().held(uuid));
        if let Some(state) = held {
            self.shared.watchdog.disarm(state.plan.uuid());
            state.lose(reason);
        }
    }

    /// A waiting id runs on receipt, without a further round trip, if the local deadline is known well and far enough
    /// away; else the grant is confirmed first. An id that is not waiting drops the push: it is held by its reply
    /// already, or its end is under way and ends this too.
    fn pushed(&self, uuid: Uuid, token: u64, lease: Duration, at_us: u64) {
        let received = now();
        let Some(plan) = self.registry().candidate(uuid) else { return };
        self.shared.counters.pushed_grants.fetch_add(1, Ordering::Relaxed);
        let fresh = |sample: &Sample| received.since(sample.sent) <= FRESH_SAMPLE;
        let deadline = self.shared.sample(plan.spec.slot_key()).filter(fresh).map(|sample| {
            self.shared.settings.drift.deadline_of_push(sample, at_us, lease, received)
        });
        match deadline {
            Some(deadline) if plan.options().renewed && deadline.since(received) >= lease / 3 => {
                self.grant(uuid, token, deadline);
            }
            Some(_) | None => self.confirm_first(uuid, token),
        }
    }

    /// A grant that is not handed out before the server has confirmed (and, if it is short, lengthened) it.
    pub(super) fn confirm_first(&self, uuid: Uuid, token: u64) {
        self.confirm.send((uuid, token)).ok(); // The thread has ended: so has everything.
    }

    /// Has the thread end an acquisition that never became a hold.
    pub(super) fn end(&self, plan: Arc<Plan>, late: bool) {
        if let Some(orders) = self.orders.upgrade() {
            Link::new(self.shared.clone(), orders).end(plan, late, Origin::Unheld);
        }
    }

    /// Has the thread take an entry away that nobody waits for.
    pub(super) fn leave(&self, left: Left) {
        if let Some(orders) = self.orders.upgrade() {
            Link::new(self.shared.clone(), orders).leave(left);
        }
    }

    /// A waiting id becomes a hold: armed first, then handed out.
    pub(super) fn grant(&self, uuid: Uuid, token: u64, deadline: Moment) {
        self.shared.saw_token(token);
        let Some(won) = self.registry().win(uuid, token, deadline, &self.shared.events) else {
            return;
        };
        let Some(orders) = self.orders.upgrade() else { return };
        let link = Link::new(self.shared.clone(), orders);
        // The others of this process on the name look when this hold ends, should nobody renew it.
        let key = won.state.plan.spec.slot_key().clone();
        if self.registry().check_at(&key, won.state.deadline()) {
            self.shared.poke.notify_one();
        }
        let hold = arm(link, won.state);
        // Nobody receives: the hold comes back, is dropped here, and thereby released.
        drop(won.tell.send(Outcome::Granted(hold)));
    }
}

/// Puts a hold under the watchdog. The first renewal is due a third of the lease, or of what a short grant has left,
/// from now.
pub(crate) fn arm(link: Link, state: Arc<HoldState>) -> Hold {
    let lease = state.plan.options().lease;
    let first = (lease / 3).min(state.deadline().left() / 3);
    arm_for(link, state, first)
}

/// As [`arm`], for what goes on with an earlier hold: its renewal is due when that one's was, a third of the lease after
/// the last. Counted from now, one that changes again and again would be renewed in its last moments only.
pub(crate) fn arm_further(link: Link, state: Arc<HoldState>) -> Hold {
    let (lease, left) = (state.plan.options().lease, state.deadline().left());
    let first = (lease / 3).min(left / 3).min(left.saturating_sub(lease / 3 * 2));
    arm_for(link, state, first)
}

fn arm_for(link: Link, state: Arc<HoldState>, first: Duration) -> Hold {
    let shared = link.shared();
    if shared.watchdog.arm(&state, first, shared.settings.held_long_after) {
        shared.poke.notify_one();
    }
    Hold::new(link, state)
}

/// Confirms a grant and hands it out, or has its waiter checked.
pub(super) async fn confirm(granter: Granter, uuid: Uuid, token: u64) {
    let Some(plan) = granter.registry().candidate(uuid) else { return };
    let shared = granter.shared();
    match renewal::confirm(shared, &plan).await {
        Confirmed::Until(deadline) if !deadline.passed() => granter.grant(uuid, token, deadline),
        Confirmed::Until(_) | Confirmed::Over => {
            // Granted and run out while this process slept: it has had its turn, so to the tail.
            granter.registry().to_tail(uuid);
            granter.registry().check_now(uuid);
            shared.poke.notify_one();
        }
        Confirmed::Unknown => {
            granter.registry().check_now(uuid);
            shared.poke.notify_one();
        }
    }
}
