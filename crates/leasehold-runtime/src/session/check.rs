//! The check: nothing depends on a message (I11). All waiters of this process on one name ask together what is so now;
//! the same call is their sign of life, and it hands on what expired.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use leasehold_lua::Reply;
use leasehold_lua::reply::{CheckAnswer, CheckReply};

use super::grant::Granter;
use super::link::Shared;
use super::registry::DueCheck;
use crate::backend::Failure;
use crate::clock::{Moment, Sample, jittered, now};
use crate::engine::Plan;
use crate::error::{AcquireError, BackendError};

/// One call asks for at most so many waiters, the longest waiting first.
const LARGEST_CHECK: usize = 100;

/// Asks for all waiters of one name, and sets when they are due again.
pub(super) async fn check(granter: Granter, due: DueCheck) {
    let shared = granter.shared().clone();
    let mut next = Next::default();
    for chunk in due.waiting.chunks(LARGEST_CHECK) {
        let mut chunk = chunk.to_vec();
        while !chunk.is_empty() && check_chunk(&granter, &due, &chunk, &mut next).await {
            chunk = shared.registry.asked_again(&chunk);
        }
    }
    // While pushes do not arrive the checks come as fast as their pauses allow.
    let regular = if shared.hears_of(&due.key) { next.at } else { None };
    shared.registry.checked(&due.key, regular);
    shared.poke.notify_one();
}

/// What the chunks of one check say together.
#[derive(Debug, Default)]
struct Next {
    at: Option<Moment>,
    failed: bool,
}

/// Answers whether the script reached its bound and wants the same call again.
async fn check_chunk(
    granter: &Granter,
    due: &DueCheck,
    chunk: &[(Arc<Plan>, u64)],
    next: &mut Next,
) -> bool {
    let shared = granter.shared();
    let waiting: Vec<_> =
        chunk.iter().map(|(plan, ticket)| (plan.acquisition.wire(), *ticket)).collect();
    // Whoever cannot hear of its grant is granted without a message, and finds it by the next check.
    let deaf = !shared.hears_of(&due.key);
    let call = due.spec.check(&waiting, deaf, shared.terms());
    shared.counters.checks.fetch_add(1, Ordering::Relaxed);
    let sent = now();
    let answer = shared.own.call(&call, shared.settings.response_timeout).await;
    let doubtful = answer.as_ref().is_err_and(|failure| failure.may_have_run);
    for (plan, _) in chunk {
        if doubtful {
            // Before it counts as answered: whoever ends it in between has to know.
            shared.registry.doubt(plan.uuid());
        }
        shared.registry.answered(plan.uuid());
    }
    match answer.map(|reply| decode(&reply, chunk.len())) {
        Ok(Ok(reply)) => {
            let sample = Sample { sent, server_us: reply.now_us };
            for (asked, answer) in chunk.iter().zip(&reply.answers) {
                settle(granter, asked, sample, answer);
            }
            shared.sampled(&due.key, sample);
            let shortest = chunk.iter().map(|(plan, _)| plan.acquisition.lease_ms).min();
            let check_ms = reply.check_ms.min(shortest.unwrap_or(u64::MAX));
            next.answered(now().plus(pause(shared, check_ms)));
            reply.again
        }
        Ok(Err(error)) => {
            refuse_all(granter, chunk, &error);
            false
        }
        Err(failure) => {
            next.unanswered();
            unanswered(granter, chunk, &failure);
            false
        }
    }
}

fn decode(reply: &Reply, expected: usize) -> Result<CheckReply, String> {
    match CheckReply::decode(reply) {
        Ok(reply) if reply.answers.len() == expected => Ok(reply),
        Ok(_) => Err("a check was answered for other waiters".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// The regular pause is jittered downward, so that what started together does not go on in step; the end of a lease is
/// met exactly. Callers bound it by the waiters' own leases: where those are short, the holds that come before theirs
/// are too, and nobody tells a waiter of another process when such a hold began.
fn pause(shared: &Shared, check_ms: u64) -> Duration {
    let pause = Duration::from_millis(check_ms);
    if pause >= shared.settings.check_every {
        jittered(pause)
    } else {
        pause + Duration::from_millis(1)
    }
}

fn settle(
    granter: &Granter,
    (plan, asked): &(Arc<Plan>, u64),
    sample: Sample,
    answer: &CheckAnswer,
) {
    let shared = granter.shared();
    let uuid = plan.uuid();
    match *answer {
        CheckAnswer::Queued { position, ticket } => {
            shared.registry.placed(uuid, *asked, ticket);
            if let Some(seat) = &plan.acquisition.seat {
                seat.told(position, sample.server_us, shared.settings.waiter_deadline);
            }
        }
        CheckAnswer::Taken { token, left_ms } => {
            let left = Duration::from_millis(left_ms).min(plan.options().lease);
            let deadline = shared.settings.drift.deadline_of_reply(sample.sent, left);
            if deadline.passed() {
                shared.registry.to_tail(uuid);
                shared.registry.check_now(uuid);
            } else if wants_confirmation(shared, plan, left) {
                // Its push was lost, and its grant has gone on without it.
                granter.confirm_first(uuid, token);
            } else {
                granter.grant(uuid, token, deadline);
            }
        }
        CheckAnswer::Cancelled => granter.refuse(plan, AcquireError::Cancelled, false),
        CheckAnswer::NeverFits => granter.refuse(plan, AcquireError::NeverFits, false),
        CheckAnswer::TooManyEntries => {
            granter.refuse(plan, AcquireError::TooManyEntries, false);
        }
    }
}

/// As for a push: less than a third of a grant's lease is not worth running on, and a fixed lease, which nobody renews
/// later, gets its full length before it is handed out.
fn wants_confirmation(shared: &Shared, plan: &Plan, left: Duration) -> bool {
    let lease = plan.options().lease;
    let whole =
        if plan.options().renewed { lease.min(shared.settings.grant_lease) / 3 } else { lease };
    left < whole
}

/// A refusal that does not pass ends the waiting; anything else is tried again.
fn unanswered(granter: &Granter, chunk: &[(Arc<Plan>, u64)], failure: &Failure) {
    granter.shared().answered_with(failure);
    if !failure.transient {
        for (plan, _) in chunk {
            let error = BackendError::new(failure.error.kind(), failure.error.to_string());
            granter.refuse(plan, AcquireError::Backend(error), true);
        }
    }
}

fn refuse_all(granter: &Granter, chunk: &[(Arc<Plan>, u64)], words: &str) {
    for (plan, _) in chunk {
        let error = BackendError::new(crate::error::BackendErrorKind::Unsupported, words);
        granter.refuse(plan, AcquireError::Backend(error), true);
    }
}

impl Next {
    fn answered(&mut self, at: Moment) {
        if !self.failed {
            self.at = Some(self.at.map_or(at, |earlier| earlier.min(at)));
        }
    }

    fn unanswered(&mut self) {
        self.failed = true;
        self.at = None;
    }
}
