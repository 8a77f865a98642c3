//! Adopting: the hold of an owner goes on in this process.

use std::sync::Arc;
use std::time::Duration;

use leasehold_lua::mutex::AdoptReply;
use leasehold_lua::semaphore::adopted_weight;
use leasehold_lua::{Call, Terms};

use crate::delivery::deliver;
use crate::engine::{Acquisition, Plan};
use crate::error::{AdoptError, BackendError, Lost, LostReason};
use crate::hold::Hold;
use crate::session::{Link, Origin, arm};

/// Sends the adoption until it is answered or the response timeout is over. It never creates a hold; if it is given up
/// after it may have run, the thread ends what it made.
pub(crate) async fn adopt(
    link: &Link,
    plan: Arc<Plan>,
    call: impl FnOnce(&Acquisition, Terms) -> Call,
) -> Result<Hold, AdoptError> {
    Link::check_runtime()?;
    let registry = &link.shared().registry;
    registry.enter(plan.clone(), None).map_err(|_| AdoptError::Closed)?;
    let adopting = Adopting { link, plan: &plan };
    let call = call(&plan.acquisition, link.terms());
    let until = crate::clock::now().plus(link.settings().response_timeout);
    let answer = deliver(link, &call, until, || registry.doubt(plan.uuid())).await;
    let answer = match answer {
        Ok(answer) => answer,
        Err(failed) => {
            if !failed.doubtful {
                registry.forget(plan.uuid());
            }
            return Err(AdoptError::Backend(failed.error));
        }
    };
    registry.answered(plan.uuid());
    let lost = |reason| Lost { name: plan.name().clone(), reason };
    match AdoptReply::decode(&answer.reply).map_err(BackendError::from)? {
        AdoptReply::Adopted { token, left_ms, .. } => {
            let shared = link.shared();
            shared.saw_token(token);
            let left = Duration::from_millis(left_ms).min(plan.options().lease);
            let deadline = shared.settings.drift.deadline_of_reply(answer.sent, left);
            let won = registry
                .win(plan.uuid(), token, deadline, &shared.events)
                .ok_or(AdoptError::Closed)?;
            if let Some(weight) = adopted_weight(&answer.reply) {
                won.state.weigh(weight);
            }
            drop(adopting);
            Ok(arm(link.clone(), won.state))
        }
        AdoptReply::NotHeld { why } => {
            if !answer.doubtful {
                registry.forget(plan.uuid());
            }
            Err(lost(LostReason::of(why)).into())
        }
        AdoptReply::Cancelled => Err(lost(LostReason::Shutdown).into()),
    }
}

/// An adoption that is not a hold yet.
struct Adopting<'a> {
    link: &'a Link,
    plan: &'a Arc<Plan>,
}

impl Drop for Adopting<'_> {
    fn drop(&mut self) {
        if let Some(late) = self.link.shared().registry.ending_if_waiting(self.plan.uuid()) {
            self.link.end(self.plan.clone(), late, Origin::Lost);
        }
    }
}
