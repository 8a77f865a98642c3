//! Several holds that stand and fall together.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::clock::Moment;
use crate::error::{AcquireError, ExtendError, Lost, LostReason, ReleaseError};
use crate::extend::extend;
use crate::guard::{Any, Guard};
use crate::hold::HoldState;
use crate::name::Name;
use crate::session::{Link, replicated};
use crate::token::FencingToken;

/// Guards on their way to be one. Dropped before, they are given back as what nobody ever held: no shortest hold is kept,
/// and nothing is told of them.
#[derive(Debug, Default)]
#[must_use = "dropped, it gives back what was gathered"]
pub struct Gathering {
    guards: Vec<Guard<Any>>,
}

impl Gathering {
    /// One more.
    pub fn add(&mut self, guard: Guard<Any>) {
        self.guards.push(guard);
    }

    /// For how long all of them are surely held: the least of them.
    pub fn remaining(&self) -> Duration {
        self.guards.iter().map(Guard::remaining).min().unwrap_or(Duration::MAX)
    }

    /// Waits until as many replicas have each as its options ask for.
    pub(crate) async fn replicated(&self) -> Result<(), AcquireError> {
        let waiting = self.guards.iter().map(|guard| replicated(guard.hold()));
        try_join_all(waiting).await.map(drop)
    }

    /// Resolves when one of them is lost, and says why.
    pub async fn lost(&self) -> LostReason {
        let mut lost: Vec<_> = self.guards.iter().map(Guard::lost).collect();
        std::future::poll_fn(|context| {
            let known = lost.iter_mut().find_map(|one| match Pin::new(one).poll(context) {
                Poll::Ready(reason) => Some(reason),
                Poll::Pending => None,
            });
            known.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// From now on they are one.
    pub fn into_bundle(mut self) -> Bundle {
        Bundle::new(std::mem::take(&mut self.guards))
    }
}

impl Drop for Gathering {
    fn drop(&mut self) {
        self.guards.drain(..).for_each(Guard::never_held);
    }
}

/// Several guards as one: the loss of one is the loss of all, and releases the others at once.
pub struct Bundle {
    states: Vec<Arc<HoldState>>,
    links: Vec<Link>,
    shared: Arc<Shared>,
}

/// What the holds' loss reaches too.
struct Shared {
    guards: Mutex<Vec<Guard<Any>>>,
    lost: CancellationToken,
}

impl Shared {
    fn take(&self) -> Vec<Guard<Any>> {
        std::mem::take(&mut *self.guards.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Bundle {
    fn new(guards: Vec<Guard<Any>>) -> Self {
        let states: Vec<_> = guards.iter().map(|guard| guard.state().clone()).collect();
        let links = guards.iter().map(|guard| guard.link().clone()).collect();
        let shared =
            Arc::new(Shared { guards: Mutex::new(guards), lost: CancellationToken::new() });
        for state in &states {
            let of_all = Arc::downgrade(&shared);
            state.on_loss(move || {
                if let Some(shared) = of_all.upgrade() {
                    shared.lost.cancel();
                    // Dropping releases those that still hold; it only hands them to the session's thread.
                    drop(shared.take());
                }
            });
        }
        Self { states, links, shared }
    }

    /// The names, in the order of the members.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        self.states.iter().map(|state| state.plan.name())
    }

    /// The token of the member at this place, if it shuts everybody else out.
    pub fn token(&self, at: usize) -> Option<FencingToken> {
        let state = self.states.get(at)?;
        state.is_exclusive().then_some(state.token)
    }

    /// The first member that is lost, if one is. By the local clock.
    pub fn lost_member(&self) -> Option<Lost> {
        self.states.iter().find_map(|state| state.lost().map(|reason| state.loss(reason)))
    }

    /// For how long all are surely held: the least of them.
    pub fn remaining(&self) -> Duration {
        if self.lost_member().is_some() {
            return Duration::ZERO;
        }
        let deadline = self.states.iter().map(|state| state.deadline()).min();
        deadline.unwrap_or(Moment::NEVER).left()
    }

    /// Resolves when a member is lost, with which and why; never if all are released first. It looks at the local
    /// deadlines itself whenever it is polled.
    pub fn lost(&self) -> impl Future<Output = Lost> + Send + use<> {
        let told = Box::pin(self.shared.lost.clone().cancelled_owned());
        Losing { states: self.states.clone(), told: Some(told) }
    }

    /// Extends every member; see [`Guard::extend`].
    ///
    /// # Errors
    /// The first [`ExtendError`] of a member; the others are extended all the same.
    pub async fn extend(&self, by: Duration) -> Result<(), ExtendError> {
        let members = self.links.iter().zip(&self.states);
        let extended = join_all(members.map(|(link, state)| extend(link, state, by))).await;
        extended.into_iter().collect()
    }

    /// Releases every member, all at once, whatever comes of one, and answers for each. Where one was lost before, the
    /// others have been handed to the session's thread since, and count as released: if one is not, an event tells it.
    pub async fn release(self) -> Vec<(Name, Result<(), ReleaseError>)> {
        let guards = self.shared.take();
        if guards.is_empty() {
            // One was lost, and the others were released with it.
            let verdict = |state: &Arc<HoldState>| match state.known_loss() {
                Some(reason) => Err(state.loss(reason).into()),
                None => Ok(()),
            };
            return self.states.iter().map(|state| (name(state), verdict(state))).collect();
        }
        let released = join_all(guards.into_iter().map(Guard::release)).await;
        self.states.iter().map(name).zip(released).collect()
    }
}

/// See [`Bundle::lost`].
struct Losing {
    states: Vec<Arc<HoldState>>,
    told: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

impl Future for Losing {
    type Output = Lost;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Lost> {
        let lost = self.states.iter().find_map(|state| Some(state.loss(state.lost()?)));
        if let Some(lost) = lost {
            return Poll::Ready(lost);
        }
        // What was told while it was released is no loss.
        let over = self.told.as_mut().is_some_and(|told| told.as_mut().poll(context).is_ready());
        if over {
            self.told = None;
        }
        Poll::Pending
    }
}

fn name(state: &Arc<HoldState>) -> Name {
    state.plan.name().clone()
}

impl fmt::Debug for Bundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}
