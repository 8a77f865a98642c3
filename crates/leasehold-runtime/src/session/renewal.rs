//! Renewing holds: batches of one call each, every element with an outcome of its own.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use leasehold_lua::Call;
use leasehold_lua::reply::RenewReply;

use super::link::Shared;
use super::watchdog::Renewal;
use crate::clock::{Moment, now};
use crate::error::LostReason;
use crate::event::Event;
use crate::hold::HoldState;
use crate::options::whole_ms;

/// One call renews at most so many holds: about a quarter of a millisecond of the server's time.
const LARGEST_BATCH: usize = 128;

/// The longest wait for the answer of a renewal; a short lease has a shorter one.
const LONGEST_RESPONSE: Duration = Duration::from_secs(2);

/// Holds that may share a call: same script, same node.
pub(super) fn batches(shared: &Shared, mut renewals: Vec<Renewal>) -> Vec<Vec<Renewal>> {
    // What is near its deadline travels with its like: a batch waits no longer than its most urgent element can.
    renewals.sort_by_key(|renewal| renewal.state.deadline());
    let mut alike: HashMap<(u16, &'static str, u32), Vec<Renewal>> = HashMap::new();
    for renewal in renewals {
        let spec = &renewal.state.plan.spec;
        let kind = renewal.state.plan.renew(1).script.name();
        // A power of 4 of what is left: a hold of 10 ms does not make one of 30 s give up after 1 ms.
        let urgency = whole_ms(renewal.state.deadline().left()).max(1).ilog2() / 2;
        let batch = (shared.backend.batch_of(spec.slot_key()), kind, urgency);
        alike.entry(batch).or_default().push(renewal);
    }
    let mut batches = Vec::new();
    for mut same in alike.into_values() {
        while same.len() > LARGEST_BATCH {
            let rest = same.split_off(LARGEST_BATCH);
            batches.push(std::mem::replace(&mut same, rest));
        }
        batches.push(same);
    }
    batches
}

/// Sends one batch once. What is not answered is tried again when its hold is due again.
pub(super) async fn renew(shared: Arc<Shared>, batch: Vec<Renewal>) {
    let sent = now();
    let Some(call) = joined(&batch) else { return };
    shared.counters.renewals.fetch_add(1, Ordering::Relaxed);
    let within = patience(&batch, sent);
    let answer = shared.own.call(&call, within).await.map(|reply| RenewReply::decode(&reply));
    if let Err(failure) = &answer {
        shared.answered_with(failure);
    }
    match answer {
        Ok(Ok((_, answers))) if answers.len() == batch.len() => {
            for (renewal, answer) in batch.iter().zip(answers) {
                settle(&shared, renewal, sent, &answer);
            }
        }
        Ok(_) | Err(_) => batch.iter().for_each(|renewal| failed(&shared, &renewal.state)),
    }
}

fn joined(batch: &[Renewal]) -> Option<Call> {
    let mut elements = batch.iter().map(|renewal| renewal.state.plan.renew(renewal.lease_ms));
    let mut call = elements.next()?;
    elements.for_each(|element| call.join(element));
    Some(call)
}

/// A quarter of the time that the most urgent hold has left: two unanswered renewals in a row leave room for a third.
fn patience(batch: &[Renewal], sent: Moment) -> Duration {
    let left =
        batch.iter().map(|renewal| renewal.state.deadline().since(sent)).min().unwrap_or_default();
    (left / 4).clamp(Duration::from_millis(1), LONGEST_RESPONSE)
}

fn settle(shared: &Shared, renewal: &Renewal, sent: Moment, answer: &RenewReply) {
    let state = &renewal.state;
    match answer {
        RenewReply::Renewed { left_ms } => {
            // Trap 28: a server clock that went back says more than was asked for. An extension's deadline stays.
            let left = Duration::from_millis((*left_ms).min(renewal.lease_ms));
            state.renewed_until(shared.settings.drift.deadline_of_reply(sent, left));
            shared.watchdog.renewed(state.plan.uuid(), sent);
            late(shared, renewal);
        }
        RenewReply::NotHeld { why } => {
            // A release that overtook this renewal is no loss: `lose` passes over what was released.
            shared.watchdog.disarm(state.plan.uuid());
            state.lose(LostReason::of(*why));
        }
        RenewReply::Refused { error } if error.contains("WRONGTYPE") => {
            shared.watchdog.disarm(state.plan.uuid());
            state.lose(LostReason::NotOwner);
        }
        RenewReply::Refused { .. } => failed(shared, state),
    }
}

fn failed(shared: &Shared, state: &HoldState) {
    state.renewal_failed();
    let failures = shared.watchdog.failed(state.plan.uuid());
    if failures > 0 && !state.is_released() {
        shared.events.emit(&Event::RenewalFailed { name: state.plan.name().clone(), failures });
    }
}

fn late(shared: &Shared, renewal: &Renewal) {
    let by = now().since(renewal.due_at);
    if by > renewal.state.plan.options().lease / 3 {
        shared.events.emit(&Event::Late { name: renewal.state.plan.name().clone(), by });
    }
}

/// What a confirmation of a pushed grant came to.
#[derive(Debug)]
pub(super) enum Confirmed {
    /// It holds until then.
    Until(Moment),
    /// It does not any more.
    Over,
    /// Nobody knows; the check will.
    Unknown,
}

/// Renews a granted hold once before it is handed out: a fixed lease gets its full length, and a grant that arrived
/// late, or whose server clock was not read lately, is known to hold.
pub(super) async fn confirm(shared: &Shared, plan: &crate::engine::Plan) -> Confirmed {
    let sent = now();
    let call = plan.renew(plan.acquisition.lease_ms);
    let answer = shared.own.call(&call, shared.settings.response_timeout).await;
    let Ok(Ok((_, answers))) = answer.map(|reply| RenewReply::decode(&reply)) else {
        return Confirmed::Unknown;
    };
    match answers.first() {
        Some(RenewReply::Renewed { left_ms }) => {
            let left = Duration::from_millis(*left_ms).min(plan.options().lease);
            Confirmed::Until(shared.settings.drift.deadline_of_reply(sent, left))
        }
        Some(RenewReply::NotHeld { .. }) => Confirmed::Over,
        Some(RenewReply::Refused { .. }) | None => Confirmed::Unknown,
    }
}
