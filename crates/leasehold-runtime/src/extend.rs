//! Extending a hold by its guard's wish.

use std::time::Duration;

use leasehold_lua::reply::RenewReply;

use crate::clock::now;
use crate::delivery::{Undelivered, deliver};
use crate::error::{BackendError, ExtendError, LostReason};
use crate::hold::HoldState;
use crate::options::{check_lease, whole_ms};
use crate::session::Link;

/// Makes a hold last at least `by` from now; never shortens it.
pub(crate) async fn extend(
    link: &Link,
    state: &HoldState,
    by: Duration,
) -> Result<(), ExtendError> {
    check_lease(by)?;
    Link::check_runtime()?;
    if let Some(reason) = state.lost() {
        return Err(state.loss(reason).into());
    }
    let asked = state.within_limit(by);
    let call = state.plan.renew(whole_ms(asked).max(1));
    let until = state.deadline().min(now().plus(link.settings().response_timeout));
    let answer =
        deliver(link, &call, until, || ()).await.map_err(|failed| not_extended(state, failed))?;
    let unreadable = |error| not_extended(state, Undelivered { error, doubtful: true });
    let (_, answers) =
        RenewReply::decode(&answer.reply).map_err(|error| unreadable(error.into()))?;
    match answers.first() {
        Some(RenewReply::Renewed { left_ms }) => {
            let left = Duration::from_millis(*left_ms).min(asked);
            state.renewed_until(link.settings().drift.deadline_of_reply(answer.sent, left));
            Ok(())
        }
        Some(RenewReply::NotHeld { why }) => {
            let reason = LostReason::of(*why);
            state.lose(reason);
            Err(state.loss(reason).into())
        }
        Some(RenewReply::Refused { error }) => Err(unreadable(crate::backend::caught(error))),
        None => Err(unreadable(BackendError::timed_out())),
    }
}

fn not_extended(state: &HoldState, failed: Undelivered) -> ExtendError {
    let (name, source) = (state.plan.name().clone(), failed.error);
    if failed.doubtful {
        ExtendError::Unknown { name, source }
    } else {
        ExtendError::Backend { name, source }
    }
}
