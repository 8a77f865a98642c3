//! Guards: what an acquire gives.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use leasehold_lua::reply::ReleaseReply;
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::clock::now;
use crate::delivery::deliver;
use crate::error::{BackendError, ExtendError, Lost, LostReason, ReleaseError};
use crate::event::Event;
use crate::extend::extend;
use crate::hold::{Hold, HoldState, Leaving};
use crate::holder::Trace;
use crate::name::Name;
use crate::owner::Owner;
use crate::session::Origin;
use crate::token::FencingToken;

/// What a hold allows. The marker types live in the primitives' crates.
pub trait Mode: 'static {}

/// A mode that shuts everybody else out: its guards have a fencing token.
pub trait Exclusive: Mode {}

/// A mode whose holds have weights: its guards say how much they hold.
pub trait Weighted: Mode {}

/// The mode of guards whose mode was erased by [`Guard::into_any`].
#[derive(Debug)]
pub enum Any {}

impl Mode for Any {}

/// A hold. While it lives the watchdog renews the lease; dropping it releases.
///
/// `Send`, `Sync` and `'static`: it can go into a task, a struct, another thread.
///
/// # On loss
/// A hold can end before its guard: Redis was out of reach for a whole lease, the process was paused, somebody deleted
/// the key, an operator released it by force, or it reached its longest duration. Then [`is_held`](Self::is_held) is
/// false, [`lost`](Self::lost) resolves and [`release`](Self::release) is an error. The guard's own clock ends it a
/// little before the server does, so a guard never says held while somebody else's does, as long as the two clocks run
/// at the same rate within the session's drift.
///
/// # Dropping
/// The release goes through the session's thread: it never blocks, never panics, needs no runtime and works while
/// unwinding. At the end of a process only [`Session::shutdown`](crate::Session::shutdown) is sure.
#[must_use = "a guard that is dropped at once releases at once"]
pub struct Guard<M: Mode = Any> {
    hold: Hold,
    mode: PhantomData<fn() -> M>,
}

impl<M: Mode> Guard<M> {
    pub(crate) fn new(hold: Hold) -> Self {
        Self { hold: hold.handed_out(), mode: PhantomData }
    }

    pub(crate) fn link(&self) -> &crate::session::Link {
        self.hold.link()
    }

    pub(crate) fn hold(&self) -> &Hold {
        &self.hold
    }

    pub(crate) fn into_hold(self) -> Hold {
        self.hold
    }

    pub(crate) fn state(&self) -> &Arc<HoldState> {
        self.hold.state()
    }

    /// Gives it back as what nobody ever held.
    pub(crate) fn never_held(self) {
        drop(self.hold.not_handed_out());
    }

    /// The lock's name.
    pub fn name(&self) -> &Name {
        self.state().plan.name()
    }

    /// Who holds: given by the caller, or made for this guard. Pass it down to enter the lock again.
    pub fn owner(&self) -> &Owner {
        &self.state().plan.acquisition.owner
    }

    /// Names this acquisition to people: the same as in [`Holder`](crate::Holder).
    pub fn trace(&self) -> Trace {
        self.state().plan.acquisition.trace
    }

    /// Whether it is still held, by the local clock: never true after the lease has ended on the server. No round trip.
    pub fn is_held(&self) -> bool {
        self.state().is_held()
    }

    /// How long it is surely held even if no renewal gets through any more. No round trip.
    pub fn remaining(&self) -> Duration {
        if self.is_held() { self.state().deadline().left() } else { Duration::ZERO }
    }

    /// Resolves when the hold is lost, with the reason; never if it is released first. It owns what it needs, so it can
    /// outlive the guard and be awaited on any runtime. It is told by the session's thread, and looks at the local
    /// deadline itself whenever it is polled.
    pub fn lost(&self) -> LostFuture {
        LostFuture {
            state: self.state().clone(),
            ended: Box::pin(self.state().ended().clone().cancelled_owned()),
        }
    }

    /// Runs work as long as the hold lasts. When it is lost the work's future is dropped, at its next await point: user
    /// code is never polled after a known loss.
    ///
    /// # Errors
    /// [`Lost`] if the hold ended first. If the work itself returns a `Result`: `guard.while_held(work).await??`.
    ///
    /// # Cancel safety
    /// Dropping it drops the work; the guard still holds.
    pub async fn while_held<F: Future>(&self, work: F) -> Result<F::Output, Lost> {
        tokio::select! {
            biased;
            reason = self.lost() => Err(self.state().loss(reason)),
            output = work => Ok(output),
        }
    }

    /// Makes the hold last at least `by` from now; never shortens it. One round trip. A renewed lease needs this only
    /// before a time in which nobody can renew; [`hold_at_most`](crate::Options::hold_at_most) still ends it.
    ///
    /// # Errors
    /// * [`Lost`](ExtendError::Lost): it had ended. Extending never takes a lock back.
    /// * [`Unknown`](ExtendError::Unknown): sent, not answered.
    /// * [`Config`](ExtendError::Config): not whole milliseconds from 1 ms to 24 h; nothing was sent.
    /// * [`Backend`](ExtendError::Backend): not sent, or refused.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the guard as it was; the extension may happen.
    pub async fn extend(&self, by: Duration) -> Result<(), ExtendError> {
        extend(self.hold.link(), self.state(), by).await
    }

    /// Releases, and says what became of the hold. One round trip; while Redis does not answer it is repeated for at most
    /// two response timeouts, then the session's thread goes on until the lease is over.
    ///
    /// # Errors
    /// * [`Lost`](ReleaseError::Lost): the hold had ended before, and with which reason. If that is known already,
    ///   nothing is sent. Treat it as an alarm.
    /// * [`Unknown`](ReleaseError::Unknown): sent, not answered, or answered "not held" after a copy that was not
    ///   answered. A verdict is never a guess.
    /// * [`Backend`](ReleaseError::Backend): surely not released yet.
    ///
    /// # Cancel safety
    /// Dropping the future still releases.
    pub async fn release(self) -> Result<(), ReleaseError> {
        let mut hold = self.hold;
        let late = match hold.leave() {
            Leaving::Lost(reason) => {
                hold.tell_late_release(reason);
                return Err(hold.state().loss(reason).into());
            }
            Leaving::Release { late } => late,
        };
        let mut releasing = Releasing { hold: &hold, late, origin: Some(Origin::Dropped) };
        if crate::session::Link::check_runtime().is_err() {
            let error = BackendError::no_runtime();
            return Err(ReleaseError::Backend {
                name: hold.state().plan.name().clone(),
                source: error,
            });
        }
        releasing.send().await
    }

    /// Stops renewing and gives the hold away: it lasts until its lease ends or until whoever has the owner adopts it
    /// (`mutex.adopt(&owner)`), in this process or another. No round trip: extend it first if the way is long.
    pub fn detach(self) -> Owner {
        self.hold.give_away()
    }

    /// The same hold without its mode, to keep guards of several kinds together.
    pub fn into_any(self) -> Guard<Any> {
        Guard::new(self.hold)
    }
}

impl<M: Exclusive> Guard<M> {
    /// Larger than the token of every earlier grant of this name: store it beside the data, and let the data refuse
    /// smaller ones. See [`FencingToken`].
    pub fn fencing_token(&self) -> FencingToken {
        self.state().token
    }
}

impl<M: Weighted> Guard<M> {
    /// How much it surely holds. No round trip.
    pub fn weight(&self) -> u32 {
        self.state().weight()
    }
}

impl<M: Mode> fmt::Debug for Guard<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("name", self.name())
            .field("trace", &self.trace())
            .field("held", &self.is_held())
            .finish_non_exhaustive()
    }
}

/// A release whose verdict is not known. Dropped, the thread goes on with it.
struct Releasing<'a> {
    hold: &'a Hold,
    late: bool,
    /// How the thread is to go on; nothing once it is answered.
    origin: Option<Origin>,
}

impl Releasing<'_> {
    async fn send(&mut self) -> Result<(), ReleaseError> {
        let (link, plan) = (self.hold.link(), self.hold.state().plan.clone());
        let call = plan.release(self.late, link.terms());
        let until = now().plus(link.settings().response_timeout * 2);
        self.origin = Some(Origin::Unanswered); // From the first poll on it may have run.
        let answer = deliver(link, &call, until, || ()).await;
        let name = plan.name().clone();
        let answer = match answer {
            Ok(answer) => answer,
            Err(failed) => {
                // The thread goes on, and what comes of it is no longer this caller's to hear.
                self.origin = Some(Origin::Lost);
                if failed.doubtful {
                    link.shared().events.emit(&Event::ReleaseUnknown { name: name.clone() });
                    return Err(ReleaseError::Unknown { name, source: failed.error });
                }
                return Err(ReleaseError::Backend { name, source: failed.error });
            }
        };
        let reply = match ReleaseReply::decode(&answer.reply) {
            Ok(reply) => reply,
            Err(error) => return Err(ReleaseError::Unknown { name, source: error.into() }),
        };
        self.origin = reply.again().then_some(Origin::Unsettled);
        if self.origin.is_none() {
            link.shared().registry.forget(plan.uuid());
        }
        self.verdict(&reply, answer.doubtful)
    }

    /// I7: Released if any answer says so; Lost if the only copy says not held; else Unknown.
    fn verdict(&self, reply: &ReleaseReply, doubtful: bool) -> Result<(), ReleaseError> {
        let state = self.hold.state();
        let name = state.plan.name().clone();
        let events = &self.hold.link().shared().events;
        match reply {
            ReleaseReply::Released { .. } | ReleaseReply::Left { .. } => Ok(()),
            ReleaseReply::NotHeld { why, .. } if !doubtful => {
                let reason = LostReason::of(*why);
                events.emit(&Event::ReleaseLost { name, reason });
                Err(state.loss(reason).into())
            }
            ReleaseReply::NotHeld { .. } => {
                events.emit(&Event::ReleaseUnknown { name: name.clone() });
                Err(ReleaseError::Unknown { name, source: BackendError::timed_out() })
            }
        }
    }
}

impl Drop for Releasing<'_> {
    fn drop(&mut self) {
        if let Some(origin) = self.origin {
            self.hold.link().end(self.hold.state().plan.clone(), self.late, origin);
        }
    }
}

/// Resolves when a hold is lost. See [`Guard::lost`].
#[must_use = "futures do nothing unless polled"]
pub struct LostFuture {
    state: Arc<HoldState>,
    ended: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Future for LostFuture {
    type Output = LostReason;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<LostReason> {
        let known = if self.state.is_released() { None } else { self.state.lost() };
        if let Some(reason) = known {
            return Poll::Ready(reason);
        }
        match self.ended.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(self.state.lost().unwrap_or(LostReason::Expired)),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl fmt::Debug for LostFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LostFuture").field("name", self.state.plan.name()).finish_non_exhaustive()
    }
}
