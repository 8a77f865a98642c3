//! Ending an acquisition on the thread: what a dropped guard, a dropped future or a lost hold leaves behind.

use std::sync::Arc;
use std::time::Duration;

use leasehold_lua::reply::ReleaseReply;
use leasehold_lua::{Call, Reply};

use super::link::{Origin, Shared};
use crate::backend::Failure;
use crate::clock::{Backoff, Moment, now, sleep_until};
use crate::engine::Plan;
use crate::error::LostReason;
use crate::event::Event;

/// Sends the end until it is answered, or until whatever might still be there has ended by itself: a hold with its lease,
/// a waiter with its deadline and the grant that it may get until then. Answers whether it was answered.
pub(super) async fn end(shared: Arc<Shared>, plan: Arc<Plan>, late: bool, origin: Origin) -> bool {
    let settings = &shared.settings;
    let held = plan.options().lease.max(settings.response_timeout);
    let (call, patience) = match origin {
        Origin::Unheld => {
            let waited = settings.waiter_deadline + settings.grant_lease;
            (plan.cancel(late, shared.terms()), held.max(waited))
        }
        Origin::Dropped | Origin::Unanswered | Origin::Lost | Origin::Unsettled => {
            (plan.release(late, shared.terms()), held)
        }
    };
    let until = now().plus(patience);
    let ending = Ending { shared: &shared, plan: &plan, call, late, until };
    let outcome = ending.send(origin == Origin::Unanswered).await;
    shared.registry.forget(plan.uuid());
    if matches!(origin, Origin::Dropped | Origin::Unanswered) {
        tell(&shared, &plan, &outcome);
    }
    outcome.reply.is_some()
}

struct Outcome {
    reply: Option<ReleaseReply>,
    doubtful: bool,
}

/// An end on its way.
struct Ending<'a> {
    shared: &'a Shared,
    plan: &'a Plan,
    call: Call,
    late: bool,
    until: Moment,
}

impl Ending<'_> {
    async fn send(&self, mut doubtful: bool) -> Outcome {
        let mut pauses = Backoff::new(Duration::from_millis(20), Duration::from_millis(500));
        let (mut first, mut verdict) = (true, None);
        loop {
            match self.attempt(std::mem::take(&mut first)).await {
                Ok(reply) => {
                    let again = reply.again();
                    // The first answer is the verdict; a repeat only settles the queue further.
                    let reply = verdict.get_or_insert(reply).clone();
                    if !again || self.until.passed() {
                        return Outcome { reply: Some(reply), doubtful };
                    }
                }
                Err(failure) => {
                    doubtful |= failure.may_have_run;
                    let resume = now().plus(pauses.pause());
                    if verdict.is_some() || !failure.transient || resume >= self.until {
                        return Outcome { reply: verdict, doubtful };
                    }
                    sleep_until(resume).await;
                }
            }
        }
    }

    /// An acquire that may still arrive is not overtaken: its end goes over the same connection first (the `late` mark
    /// holds where that cannot be had). Everything else goes over the thread's own.
    async fn attempt(&self, first: bool) -> Result<ReleaseReply, Failure> {
        let behind = if first && self.late { self.behind().await } else { None };
        let reply = match behind {
            Some(answer) => answer?,
            None => self.shared.own.call(&self.call, self.until.left()).await?,
        };
        ReleaseReply::decode(&reply).map_err(|error| Failure::unreadable(error.into()))
    }

    /// Not for long: the runtime that drives that connection may be blocked, or rest between two calls of `block_on`.
    /// Giving up early says nothing about the connection, so it is not counted against it.
    async fn behind(&self) -> Option<Result<Reply, Failure>> {
        let (home, within) = (self.plan.acquisition.home, self.until.left());
        let sending = self.shared.commands.call_behind(home, &self.call, within);
        let sent = tokio::time::timeout(BEHIND, sending).await;
        sent.unwrap_or_else(|_| Some(Err(Failure::timed_out())))
    }
}

const BEHIND: Duration = Duration::from_millis(250);

/// I7: a verdict is never a guess. "Not held" after a copy that may have run says nothing.
fn tell(shared: &Shared, plan: &Plan, outcome: &Outcome) {
    let name = plan.name().clone();
    match &outcome.reply {
        Some(ReleaseReply::Released { .. } | ReleaseReply::Left { .. }) => {}
        Some(ReleaseReply::NotHeld { why, .. }) if !outcome.doubtful => {
            shared.events.emit(&Event::ReleaseLost { name, reason: LostReason::of(*why) });
        }
        Some(ReleaseReply::NotHeld { .. }) | None => {
            shared.events.emit(&Event::ReleaseUnknown { name })
        }
    }
}
