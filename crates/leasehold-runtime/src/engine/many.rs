//! Releasing many holds in one call, each with a verdict of its own.

use std::sync::Arc;

use leasehold_lua::semaphore::{Ended, ManyReply};
use leasehold_lua::{Call, Keys, Terms};

use super::Spec;
use crate::clock::now;
use crate::delivery::{Delivered, Undelivered, deliver};
use crate::error::{BackendError, LostReason, ReleaseError};
use crate::event::Event;
use crate::guard::{Guard, Mode};
use crate::hold::{Hold, Leaving};
use crate::name::Name;
use crate::options::whole_ms;
use crate::owner::Owner;
use crate::session::{Link, Origin, Session};

/// One call ends at most so many.
const LARGEST_CALL: usize = 128;

/// What became of many permits that were released together, each named by its owner.
///
/// `Debug` does not print the owners: whoever knows one may release or adopt what it holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "it says which of them were lost before"]
pub struct Report {
    /// Those that were held, and are free now.
    pub released: Vec<Owner>,
    /// Those that had ended before: treat it as an alarm, as a lost guard's.
    pub lost: Vec<(Owner, LostReason)>,
    /// Those that were answered "not held" after a copy of the call that got no answer: nobody knows who ended them.
    pub unknown: Vec<Owner>,
}

impl Report {
    /// Whether all were held until now.
    pub fn is_clean(&self) -> bool {
        self.lost.is_empty() && self.unknown.is_empty()
    }

    /// I7: released if the answer says so; lost if the only copy says not held; else unknown.
    fn tell(&mut self, owner: Owner, answer: Result<(), LostReason>, doubtful: bool) {
        match answer {
            Ok(()) => self.released.push(owner),
            Err(reason) if !doubtful => self.lost.push((owner, reason)),
            Err(_) => self.unknown.push(owner),
        }
    }
}

/// A call that ends these holds; the runtime says of which object.
pub type ReleaseMany = fn(&Keys, &[Ended<'_>], Terms) -> Call;

/// Releases the holds of these guards. One round trip for up to 128 of one object.
///
/// # Errors
/// As a guard's release; what was answered before is not repeated. The session goes on with what was not answered.
pub async fn release_all<M: Mode>(
    guards: Vec<Guard<M>>,
    call: ReleaseMany,
) -> Result<Report, ReleaseError> {
    let mut report = Report::default();
    let mut groups: Vec<Releasing> = Vec::new();
    for guard in guards {
        let mut hold = guard.into_hold();
        match hold.leave() {
            Leaving::Lost(reason) => {
                hold.tell_late_release(reason);
                report.lost.push((hold.state().plan.acquisition.owner.clone(), reason));
            }
            Leaving::Release { late } => match groups.iter_mut().find(|group| group.takes(&hold)) {
                Some(group) => group.holds.push((hold, late)),
                None => groups.push(Releasing { holds: vec![(hold, late)], sent: false }),
            },
        }
    }
    for mut group in groups {
        Box::pin(group.send(call, &mut report)).await?;
    }
    Ok(report)
}

/// Holds that left their guards and whose releases are not answered. Dropped, the thread goes on with them.
struct Releasing {
    holds: Vec<(Hold, bool)>,
    /// A copy of the call may have run.
    sent: bool,
}

impl Releasing {
    /// Whether this hold goes with the others: same object, same session, and the call is not full.
    fn takes(&self, hold: &Hold) -> bool {
        let Some((first, _)) = self.holds.first() else { return false };
        self.holds.len() < LARGEST_CALL
            && first.state().plan.spec.slot_key() == hold.state().plan.spec.slot_key()
            && Arc::ptr_eq(first.link().shared(), hold.link().shared())
    }

    async fn send(&mut self, call: ReleaseMany, report: &mut Report) -> Result<(), ReleaseError> {
        let Some((first, _)) = self.holds.first() else { return Ok(()) };
        let (link, plan) = (first.link().clone(), first.state().plan.clone());
        let name = plan.name().clone();
        if Link::check_runtime().is_err() {
            return Err(ReleaseError::Backend { name, source: BackendError::no_runtime() });
        }
        let ended: Vec<_> = self.holds.iter().map(|(hold, late)| ended(hold, *late)).collect();
        let call = call(plan.spec.keys(), &ended, link.terms());
        let until = now().plus(link.settings().response_timeout * 2);
        self.sent = true;
        let answer = deliver(&link, &call, until, || ()).await;
        let Delivered { reply, doubtful, .. } = match answer {
            Ok(answer) => answer,
            Err(failed) => return Err(self.failed(name, failed)),
        };
        let reply = match ManyReply::decode(&reply) {
            Ok(reply) if reply.answers.len() == self.holds.len() => reply,
            Ok(_) => return Err(self.failed(name, unreadable(BackendError::timed_out()))),
            Err(error) => return Err(self.failed(name, unreadable(error.into()))),
        };
        for ((hold, _), answer) in std::mem::take(&mut self.holds).into_iter().zip(reply.answers) {
            let (plan, answer) = (&hold.state().plan, answer.map_err(LostReason::of));
            link.shared().registry.forget(plan.uuid());
            let name = plan.name().clone();
            match answer {
                Ok(()) => {}
                Err(reason) if !doubtful => {
                    link.shared().events.emit(&Event::ReleaseLost { name, reason });
                }
                Err(_) => link.shared().events.emit(&Event::ReleaseUnknown { name }),
            }
            report.tell(plan.acquisition.owner.clone(), answer, doubtful);
        }
        if reply.again {
            // It is not held any more: its release only settles the queue further.
            link.end(plan, false, Origin::Unsettled);
        }
        Ok(())
    }

    /// The thread goes on; what comes of it is no longer this caller's to hear where it may have run.
    fn failed(&mut self, name: Name, failed: Undelivered) -> ReleaseError {
        if !failed.doubtful {
            self.sent = false;
            return ReleaseError::Backend { name, source: failed.error };
        }
        for (hold, late) in std::mem::take(&mut self.holds) {
            let name = hold.state().plan.name().clone();
            hold.link().shared().events.emit(&Event::ReleaseUnknown { name });
            hold.link().end(hold.state().plan.clone(), late, Origin::Lost);
        }
        ReleaseError::Unknown { name, source: failed.error }
    }
}

impl Drop for Releasing {
    fn drop(&mut self) {
        let origin = if self.sent { Origin::Unanswered } else { Origin::Dropped };
        for (hold, late) in std::mem::take(&mut self.holds) {
            hold.link().end(hold.state().plan.clone(), late, origin);
        }
    }
}

fn ended(hold: &Hold, late: bool) -> Ended<'_> {
    let plan = &hold.state().plan;
    let at_least_ms = whole_ms(plan.options().hold_at_least);
    Ended { name: &plan.acquisition.id, late, at_least_ms }
}

fn unreadable(error: BackendError) -> Undelivered {
    Undelivered { error, doubtful: true }
}

/// Releases the holds of these owners, whoever has them. One round trip for up to 128.
///
/// # Errors
/// As a guard's release; what was answered before is not repeated.
pub async fn release_named(
    session: &Session,
    spec: &Spec,
    owners: &[Owner],
    call: ReleaseMany,
) -> Result<Report, ReleaseError> {
    let mut report = Report::default();
    for chunk in owners.chunks(LARGEST_CALL) {
        name_in_one_call(session, spec, chunk, call, &mut report).await?;
    }
    Ok(report)
}

async fn name_in_one_call(
    session: &Session,
    spec: &Spec,
    owners: &[Owner],
    call: ReleaseMany,
    report: &mut Report,
) -> Result<(), ReleaseError> {
    let (link, name) = (session.link(), spec.name().clone());
    let at_least_ms = whole_ms(spec.options().hold_at_least);
    let ended = |owner| Ended { name: Owner::as_str(owner).as_bytes(), late: false, at_least_ms };
    let mut elements: Vec<_> = owners.iter().map(ended).collect();
    let until = now().plus(link.settings().response_timeout * 2);
    loop {
        let call = call(spec.keys(), &elements, link.terms());
        let answer = match deliver(link, &call, until, || ()).await {
            Ok(answer) => answer,
            // All have their verdicts; whoever waits finds by its check what is free (I11).
            Err(_) if elements.is_empty() => return Ok(()),
            Err(Undelivered { error: source, doubtful: true }) => {
                return Err(ReleaseError::Unknown { name, source });
            }
            Err(Undelivered { error: source, doubtful: false }) => {
                return Err(ReleaseError::Backend { name, source });
            }
        };
        let reply = ManyReply::decode(&answer.reply);
        let reply = reply
            .map_err(|error| ReleaseError::Unknown { name: name.clone(), source: error.into() })?;
        for (owner, said) in owners.iter().zip(reply.answers) {
            report.tell(owner.clone(), said.map_err(LostReason::of), answer.doubtful);
        }
        if !reply.again {
            return Ok(());
        }
        // Their verdicts are told; what is left is to grant what now fits.
        elements.clear();
    }
}
