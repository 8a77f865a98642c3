//! Parts of a hold: some of its weight split off, or two holds put together. The server does it in one step, so what is
//! held is held all the time.
//!
//! What a guard says that it holds is never more than what the server surely keeps for it: it says less from before a
//! split is sent, and more only when the answer to a merge is there.

use std::sync::Arc;
use std::time::Duration;

use leasehold_lua::semaphore::{MergeReply, SplitReply};
use leasehold_lua::{Call, Share};

use super::{Acquisition, Plan, View};
use crate::clock::{Moment, now};
use crate::delivery::{Delivered, Undelivered, deliver};
use crate::error::{BackendError, ConfigError, Lost, LostReason};
use crate::guard::{Guard, Weighted};
use crate::hold::{Hold, HoldState};
use crate::name::Name;
use crate::session::{Link, Origin, arm_further};

/// A permit that was not split.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SplitError {
    /// Something has to be left. Nothing was changed.
    #[error("{asked} permits cannot be split off {weight}")]
    TooMuch {
        /// How many were to be split off.
        asked: u32,
        /// How many there are.
        weight: u32,
    },
    /// The permit is of another semaphore, or of another session. Nothing was changed.
    #[error("the permit is of another semaphore, or of another session")]
    Foreign,
    /// The permit had ended.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// Sent, not answered. The permit counts for what was to be left of it from now on; the part that was to be split off is
    /// released by the session, or with the permit.
    #[error("split or not: {name} got no answer")]
    Unknown {
        /// The semaphore.
        name: Name,
        /// The last thing that went wrong.
        #[source]
        source: BackendError,
    },
    /// Something that the caller set is wrong. Nothing was changed.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Redis refused, or was not reached. Nothing was changed.
    #[error("{name} is not split")]
    Backend {
        /// The semaphore.
        name: Name,
        /// What went wrong.
        #[source]
        source: BackendError,
    },
}

/// Two permits that were not merged. What is surely held comes back with it.
#[derive(Debug)]
#[non_exhaustive]
pub enum MergeError<M: Weighted> {
    /// They are of different semaphores, or of different sessions. Nothing was changed.
    Foreign {
        /// The one that was to be kept.
        kept: Guard<M>,
        /// The other.
        other: Guard<M>,
    },
    /// One of them had ended, or both had.
    Lost {
        /// Which loss it was.
        lost: Lost,
        /// The one that had not ended.
        left: Option<Guard<M>>,
    },
    /// Sent, not answered. The kept one surely holds what it held before; the other is released by the session, or with the
    /// kept one if they were merged.
    Unknown {
        /// The one that was to be kept.
        kept: Guard<M>,
        /// The last thing that went wrong.
        source: BackendError,
    },
    /// Redis refused, or was not reached. Nothing was changed.
    Backend {
        /// The one that was to be kept.
        kept: Guard<M>,
        /// The other.
        other: Guard<M>,
        /// What went wrong.
        source: BackendError,
    },
}

impl<M: Weighted> std::fmt::Display for MergeError<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Foreign { .. } => {
                f.write_str("the permits are of different semaphores, or of different sessions")
            }
            Self::Lost { lost, .. } => lost.fmt(f),
            Self::Unknown { kept, .. } => {
                write!(f, "merged or not: {} got no answer", kept.name())
            }
            Self::Backend { kept, .. } => {
                write!(f, "the permits of {} are not merged", kept.name())
            }
        }
    }
}

impl<M: Weighted + std::fmt::Debug> std::error::Error for MergeError<M> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unknown { source, .. } | Self::Backend { source, .. } => Some(source),
            Self::Foreign { .. } | Self::Lost { .. } => None,
        }
    }
}

/// Splits so much off a guard's hold, into a guard of its own with an owner of its own and the same end. One round trip.
///
/// Dropping the future leaves the guard with what was to be left of it, and releases the part.
///
/// # Errors
/// See [`SplitError`].
pub async fn split<M: Weighted>(
    guard: &mut Guard<M>,
    view: &View<M>,
    part: u32,
    call: impl FnOnce(&[u8], leasehold_lua::Acquisition<'_>) -> Call,
) -> Result<Guard<M>, SplitError> {
    let (state, link) = (guard.state().clone(), guard.link().clone());
    Link::check_runtime()?;
    if !view.is_of(&state.plan, &link) {
        return Err(SplitError::Foreign);
    }
    if let Some(reason) = state.lost() {
        return Err(state.loss(reason).into());
    }
    let weight = state.weight();
    if part == 0 {
        return Err(ConfigError::Weight { weight: part }.into());
    }
    if part >= weight {
        return Err(SplitError::TooMuch { asked: part, weight });
    }
    let spec = Arc::new(state.plan.spec.sharing(Share::Weight(part)));
    let acquisition = Acquisition::new(link.identity(), &spec, None);
    let splitting = Splitting { link, state, plan: Arc::new(Plan { spec, acquisition }), weight };
    Box::pin(splitting.run(call)).await.map(Guard::new)
}

/// A split whose outcome is not known. Dropped, the part is ended.
struct Splitting {
    link: Link,
    state: Arc<HoldState>,
    plan: Arc<Plan>,
    weight: u32,
}

impl Splitting {
    async fn run(
        self,
        call: impl FnOnce(&[u8], leasehold_lua::Acquisition<'_>) -> Call,
    ) -> Result<Hold, SplitError> {
        let (link, state, plan) = (&self.link, &self.state, &self.plan);
        let registry = &link.shared().registry;
        if registry.enter(plan.clone(), None).is_err() {
            return Err(state.loss(LostReason::Shutdown).into());
        }
        let Share::Weight(part) = plan.spec.share() else { unreachable!("made with a weight") };
        // Before it is sent: from then on the server may keep less for the guard.
        state.weigh(self.weight - part);
        let held_until = state.deadline();
        let until = held_until.min(now().plus(link.settings().response_timeout));
        let call = call(&state.plan.acquisition.id, plan.acquisition.wire());
        let answer = match deliver(link, &call, until, || registry.doubt(plan.uuid())).await {
            Ok(answer) => answer,
            Err(failed) if failed.doubtful => return Err(self.unknown(failed.error)),
            Err(failed) => {
                self.undone();
                let (name, source) = (state.plan.name().clone(), failed.error);
                return Err(SplitError::Backend { name, source });
            }
        };
        registry.answered(plan.uuid());
        match SplitReply::decode(&answer.reply) {
            Ok(SplitReply::Split { left_ms }) => self.done(left_ms, &answer, held_until),
            Ok(SplitReply::TooMuch { weight }) => {
                // Not by this call nor by an earlier copy; but a copy that is still under way may find more.
                state.weigh(if answer.doubtful {
                    self.weight - part
                } else {
                    weight.min(self.weight)
                });
                self.ended_unless(answer.doubtful);
                Err(SplitError::TooMuch { asked: part, weight })
            }
            Ok(SplitReply::NotHeld { why }) => {
                let reason = LostReason::of(why);
                link.shared().watchdog.disarm(state.plan.uuid());
                state.lose(reason);
                self.ended_unless(answer.doubtful);
                Err(state.loss(reason).into())
            }
            // The session ended it, or it ended by itself before a repeated call was answered.
            Ok(SplitReply::Cancelled) => Err(match state.lost() {
                Some(reason) => state.loss(reason).into(),
                None => self.unknown(BackendError::timed_out()),
            }),
            Err(error) => Err(self.unknown(error.into())),
        }
    }

    fn done(
        &self,
        left_ms: u64,
        answer: &Delivered,
        held_until: Moment,
    ) -> Result<Hold, SplitError> {
        let (shared, uuid) = (self.link.shared(), self.plan.uuid());
        let left = Duration::from_millis(left_ms).min(self.plan.options().lease);
        // The part ends when the whole would have: no earlier than the guard knew of the whole.
        let deadline = shared.settings.drift.deadline_of_reply(answer.sent, left).max(held_until);
        let Some(won) = shared.registry.win(uuid, 0, deadline, &shared.events) else {
            return Err(self.state.loss(LostReason::Shutdown).into());
        };
        won.state.limit_to(self.state.limit());
        Ok(arm_further(self.link.clone(), won.state))
    }

    fn unknown(&self, source: BackendError) -> SplitError {
        SplitError::Unknown { name: self.state.plan.name().clone(), source }
    }

    /// Surely nothing was done, and nothing is under way.
    fn undone(&self) {
        self.link.shared().registry.forget(self.plan.uuid());
        self.state.weigh(self.weight);
    }

    /// There is no part; a copy that may still arrive is left for the drop to cancel.
    fn ended_unless(&self, doubtful: bool) {
        if !doubtful {
            self.link.shared().registry.forget(self.plan.uuid());
        }
    }
}

impl Drop for Splitting {
    fn drop(&mut self) {
        // I9: a copy may be under way, whatever was answered. The part was held as long as the whole: if there is one, the
        // shortest hold counts for it too.
        if self.link.shared().registry.ending_if_waiting(self.plan.uuid()).is_some() {
            self.link.end(self.plan.clone(), true, Origin::Lost);
        }
    }
}

/// Makes one hold of two: the kept guard holds both weights, until the later of both ends. One round trip.
///
/// The other one is out of the watchdog before the call is sent (I3): what is renewed afterwards may be a part of the kept
/// one. Dropping the future releases both.
///
/// # Errors
/// See [`MergeError`].
pub async fn merge<M: Weighted>(
    kept: Guard<M>,
    other: Guard<M>,
    view: &View<M>,
    call: impl FnOnce(&[u8], &[u8]) -> Call,
) -> Result<Guard<M>, MergeError<M>> {
    let ours = |guard: &Guard<M>| view.is_of(&guard.state().plan, guard.link());
    if !ours(&kept) || !ours(&other) {
        return Err(MergeError::Foreign { kept, other });
    }
    if Link::check_runtime().is_err() {
        return Err(MergeError::Backend { kept, other, source: BackendError::no_runtime() });
    }
    let (kept, other) = (kept.into_hold(), other.into_hold());
    if let Some(reason) = kept.state().lost() {
        return Err(MergeError::Lost {
            lost: kept.lost_meanwhile(reason),
            left: Some(Guard::new(other)),
        });
    }
    if let Err(reason) = other.lend() {
        return Err(MergeError::Lost {
            lost: other.lost_meanwhile(reason),
            left: Some(Guard::new(kept)),
        });
    }
    let merging = Merging { kept: Some(kept), other: Some(other) };
    match Box::pin(merging.run(call)).await {
        Ok(kept) => Ok(Guard::new(kept)),
        Err(Failed::Lost(lost, left)) => Err(MergeError::Lost { lost, left: left.map(Guard::new) }),
        Err(Failed::Unknown(kept, source)) => {
            Err(MergeError::Unknown { kept: Guard::new(kept), source })
        }
        Err(Failed::Undone(kept, other, source)) => {
            Err(MergeError::Backend { kept: Guard::new(kept), other: Guard::new(other), source })
        }
    }
}

enum Failed {
    Lost(Lost, Option<Hold>),
    Unknown(Hold, BackendError),
    Undone(Hold, Hold, BackendError),
}

/// A merge whose outcome is not known. Dropped, both are ended.
struct Merging {
    kept: Option<Hold>,
    other: Option<Hold>,
}

impl Merging {
    async fn run(mut self, call: impl FnOnce(&[u8], &[u8]) -> Call) -> Result<Hold, Failed> {
        let (Some(kept), Some(other)) = (&self.kept, &self.other) else {
            unreachable!("made of two")
        };
        let (link, state) = (kept.link().clone(), kept.state().clone());
        let lent = other.state().clone();
        let held_until = state.deadline().min(lent.deadline());
        let until = held_until.min(now().plus(link.settings().response_timeout));
        let call = call(&state.plan.acquisition.id, &lent.plan.acquisition.id);
        let answer = deliver(&link, &call, until, || ()).await;
        let (Some(kept), Some(other)) = (self.kept.take(), self.other.take()) else {
            unreachable!("made of two")
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(Undelivered { error, doubtful: false }) => {
                return Err(Failed::Undone(kept, other.taken_back(), error));
            }
            Err(Undelivered { error, doubtful: true }) => {
                other.given_up();
                return Err(Failed::Unknown(kept, error));
            }
        };
        match MergeReply::decode(&answer.reply) {
            Ok(MergeReply::Merged { weight, left_ms }) => {
                let left = Duration::from_millis(left_ms).min(state.plan.options().lease);
                let deadline = link.settings().drift.deadline_of_reply(answer.sent, left);
                // The longest hold counts from the first grant. What the server counts may be more, where it kept a part
                // that a guard does not know of; that part may still be taken away.
                state.limit_to(lent.limit());
                state.renewed_until(deadline.max(lent.deadline()));
                if link.shared().watchdog.look_again(state.plan.uuid()) {
                    link.shared().poke.notify_one();
                }
                state.weigh((state.weight() + lent.weight()).min(weight));
                other.exchanged();
                Ok(kept)
            }
            Ok(MergeReply::KeptNotHeld { why }) => Err(Failed::Lost(
                kept.lost_meanwhile(LostReason::of(why)),
                Some(other.taken_back()),
            )),
            Ok(MergeReply::MergedNotHeld { why }) => {
                Err(Failed::Lost(other.lost_meanwhile(LostReason::of(why)), Some(kept)))
            }
            Ok(MergeReply::EndedTogether { why }) => {
                let reason = LostReason::of(why);
                drop(other.lost_meanwhile(reason));
                Err(Failed::Lost(kept.lost_meanwhile(reason), None))
            }
            Err(error) => {
                other.given_up();
                Err(Failed::Unknown(kept, error.into()))
            }
        }
    }
}

impl Drop for Merging {
    fn drop(&mut self) {
        // The kept one is a hold like any other, and released by its own drop.
        if let Some(other) = self.other.take() {
            other.given_up();
        }
    }
}
