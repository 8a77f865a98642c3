//! Exchanging a hold for another kind of hold: the server does it in one step, so the object is held all the time.

use std::sync::Arc;
use std::time::Duration;

use leasehold_lua::reply::{ExchangeReply, ReleaseReply};
use leasehold_lua::{Call, Terms};

use super::{Plan, View};
use crate::clock::Moment;
use crate::delivery::{Delivered, deliver};
use crate::error::{BackendError, Lost, LostReason};
use crate::guard::{Guard, Mode};
use crate::hold::Hold;
use crate::session::{Link, Origin, arm_further};

/// A hold that was not exchanged.
#[derive(Debug)]
pub enum ExchangeError<M: Mode> {
    /// Somebody else is in the way. Nothing was changed.
    Refused(Guard<M>),
    /// The hold is of another object, or of another session. Nothing was changed.
    Foreign(Guard<M>),
    /// The hold had ended, or Redis did not answer until it did.
    Lost(Lost),
    /// Redis refused, or was not reached. Nothing was changed.
    Backend {
        /// The hold, as it was.
        guard: Guard<M>,
        /// What went wrong.
        source: BackendError,
    },
}

/// Ends a guard's acquisition and begins one of the view, by the same owner, in one call.
///
/// While the call is under way nobody renews: an answer "not held" to a renewal of what was exchanged a moment ago would
/// be taken for a loss. The call is repeated until it is answered or the hold's local deadline has passed, because until
/// then nobody knows which of the two holds. Dropping the future ends both.
///
/// # Errors
/// See [`ExchangeError`].
pub async fn exchange<M: Mode, N: Mode>(
    guard: Guard<M>,
    view: &View<N>,
    call: impl FnOnce(&[u8], leasehold_lua::Acquisition<'_>, Terms) -> Call,
) -> Result<Guard<N>, ExchangeError<M>> {
    if !view.is_of(&guard.state().plan, guard.link()) {
        return Err(ExchangeError::Foreign(guard));
    }
    let plan = view.by(guard.owner()).plan();
    match Box::pin(run(guard.into_hold(), plan, call)).await {
        Ok(hold) => Ok(Guard::new(hold)),
        Err(Failed::Refused(hold)) => Err(ExchangeError::Refused(Guard::new(hold))),
        Err(Failed::Lost(lost)) => Err(ExchangeError::Lost(lost)),
        Err(Failed::Backend(hold, source)) => {
            Err(ExchangeError::Backend { guard: Guard::new(hold), source })
        }
    }
}

enum Failed {
    Refused(Hold),
    Lost(Lost),
    Backend(Hold, BackendError),
}

async fn run(
    hold: Hold,
    plan: Arc<Plan>,
    call: impl FnOnce(&[u8], leasehold_lua::Acquisition<'_>, Terms) -> Call,
) -> Result<Hold, Failed> {
    if Link::check_runtime().is_err() {
        return Err(Failed::Backend(hold, BackendError::no_runtime()));
    }
    let link = hold.link().clone();
    let registry = &link.shared().registry;
    if registry.enter(plan.clone(), None).is_err() {
        return Err(Failed::Lost(hold.lost_meanwhile(LostReason::Shutdown)));
    }
    if let Err(reason) = hold.lend() {
        registry.forget(plan.uuid());
        return Err(Failed::Lost(hold.state().loss(reason)));
    }
    let until = hold.state().deadline();
    let call = call(&hold.state().plan.acquisition.id, plan.acquisition.wire(), link.terms());
    let mut exchanging = Exchanging { link: link.clone(), plan: plan.clone(), hold: Some(hold) };
    let mut doubtful = false;
    loop {
        let answer = deliver(&link, &call, until, || registry.doubt(plan.uuid())).await;
        let answer = match answer {
            Ok(answer) => answer,
            Err(failed) if failed.doubtful || doubtful => {
                return Err(exchanging.lost(LostReason::Unreachable));
            }
            Err(failed) => {
                registry.forget(plan.uuid());
                let Some(hold) = exchanging.give_back() else { continue };
                return Err(Failed::Backend(hold, failed.error));
            }
        };
        doubtful |= answer.doubtful;
        match ExchangeReply::decode(&answer.reply) {
            // More is to be granted than one call grants; it holds already, and asks once more.
            Ok(ExchangeReply::Done { again: true, .. }) => doubtful = true,
            Ok(ExchangeReply::Done { token, left_ms, .. }) => {
                return exchanging.done(token, left_ms, &answer);
            }
            // Nobody may be there but holds that have ended: some were cleared away, the rest comes with the next copy.
            Ok(ExchangeReply::Refused { again: true }) => {}
            Ok(ExchangeReply::Refused { again: false }) => {
                return Err(exchanging.refused(doubtful, until).await);
            }
            Ok(ExchangeReply::NotHeld { why }) => {
                return Err(exchanging.lost(LostReason::of(why)));
            }
            Ok(ExchangeReply::Cancelled) => return Err(exchanging.lost(LostReason::Shutdown)),
            Err(_) => return Err(exchanging.lost(LostReason::Unreachable)),
        }
    }
}

/// An exchange whose outcome is not known. Dropped, both holds are ended.
struct Exchanging {
    link: Link,
    plan: Arc<Plan>,
    hold: Option<Hold>,
}

impl Exchanging {
    fn give_back(&mut self) -> Option<Hold> {
        self.hold.take().map(Hold::taken_back)
    }

    fn lost(&mut self, reason: LostReason) -> Failed {
        let name = self.plan.name().clone();
        let lost = self.hold.take().map(|hold| hold.lost_meanwhile(reason));
        Failed::Lost(lost.unwrap_or(Lost { name, reason }))
    }

    fn done(&mut self, token: u64, left_ms: u64, answer: &Delivered) -> Result<Hold, Failed> {
        let shared = self.link.shared().clone();
        shared.registry.answered(self.plan.uuid());
        shared.saw_token(token);
        let left = Duration::from_millis(left_ms).min(self.plan.options().lease);
        let mut deadline = shared.settings.drift.deadline_of_reply(answer.sent, left);
        if let Some(hold) = &self.hold {
            // It ends when the other would have: no earlier than was known of that one, which may have been extended.
            deadline = deadline.max(hold.state().deadline());
        }
        let Some(won) = shared.registry.win(self.plan.uuid(), token, deadline, &shared.events)
        else {
            return Err(self.lost(LostReason::Shutdown));
        };
        // The longest hold counts from the first grant: exchanging does not start it anew.
        if let Some(hold) = self.hold.take() {
            won.state.limit_to(hold.state().limit());
            hold.exchanged();
        }
        Ok(arm_further(self.link.clone(), won.state))
    }

    /// Nothing was changed; but where an earlier copy may still arrive, and would not be refused then, the new id is
    /// cancelled before the old hold is handed back.
    async fn refused(&mut self, doubtful: bool, until: Moment) -> Failed {
        let registry = &self.link.shared().registry;
        if doubtful {
            let call = self.plan.cancel(true, self.link.terms());
            let answer = deliver(&self.link, &call, until, || ()).await;
            let reply = answer.ok().and_then(|answer| ReleaseReply::decode(&answer.reply).ok());
            if !matches!(reply, Some(ReleaseReply::NotHeld { .. })) {
                return self.lost(LostReason::Unreachable);
            }
        }
        registry.forget(self.plan.uuid());
        match self.give_back() {
            Some(hold) => Failed::Refused(hold),
            None => self.lost(LostReason::Unreachable),
        }
    }
}

impl Drop for Exchanging {
    fn drop(&mut self) {
        // Which of the two holds is not known: to hear that this one does not is no loss.
        if let Some(hold) = self.hold.take() {
            hold.given_up();
        }
        // I9: a copy may be under way, whatever was answered. If it has run, somebody held, and the shortest hold counts.
        if self.link.shared().registry.ending_if_waiting(self.plan.uuid()).is_some() {
            self.link.end(self.plan.clone(), true, Origin::Lost);
        }
    }
}
