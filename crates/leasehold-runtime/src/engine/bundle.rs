//! Several holds that stand and fall together.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;

use crate::clock::Moment;
use crate::error::{ExtendError, Lost, ReleaseError};
use crate::extend::extend;
use crate::guard::{Any, Guard};
use crate::hold::HoldState;
use crate::name::Name;
use crate::session::Link;
use crate::token::FencingToken;

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
    /// From now on they are one.
    pub fn new(guards: Vec<Guard<Any>>) -> Self {
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

    /// Resolves when a member is lost, with which and why; never if all are released first.
    pub fn lost(&self) -> impl Future<Output = Lost> + Send + use<> {
        let (states, lost) = (self.states.clone(), self.shared.lost.clone());
        async move {
            lost.cancelled_owned().await;
            let known = states.iter().find_map(|state| Some((state, state.known_loss()?)));
            match known {
                Some((state, reason)) => state.loss(reason),
                None => std::future::pending().await, // Released in this very moment.
            }
        }
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

    /// Releases every member, all at once, whatever comes of one, and answers for each.
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

fn name(state: &Arc<HoldState>) -> Name {
    state.plan.name().clone()
}

impl fmt::Debug for Bundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}
