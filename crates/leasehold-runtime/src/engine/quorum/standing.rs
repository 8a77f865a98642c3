//! Whether the majority stands: decided in one place, and for good.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::nodes::Nodes;
use crate::clock::{Backoff, Moment};
use crate::error::LostReason;
use crate::guard::{Any, Guard};
use crate::hold::HoldState;
use crate::session::Link;
use crate::token::FencingToken;

/// The holds of one acquisition of a quorum lock.
///
/// Each hold that is not lost has been held at its server without a gap since it was granted. So as long as a majority is
/// not lost whenever somebody looks, and a hold that comes later is counted only while a majority of the others still
/// stands, there was a majority at every moment in between. What falls below is lost for good.
pub(super) struct Standing {
    nodes: Nodes,
    seats: Mutex<Seats>,
    token: FencingToken,
    /// When the longest hold is reached: that of a later hold counts from the first.
    limit: Moment,
    end: Arc<End>,
}

/// How it ended, for those who outlive it.
#[derive(Default)]
struct End {
    lost: OnceLock<LostReason>,
    told: CancellationToken,
}

/// By the number of the server.
struct Seats {
    /// The guards are only here to be released; who looks uses the states, and not under the lock: a look may find a
    /// loss, and whoever is told of a loss looks here.
    guards: Vec<Option<Guard<Any>>>,
    states: Vec<Option<Arc<HoldState>>>,
    /// Released, or lost: nothing is added any more.
    over: bool,
}

impl Seats {
    fn close(&mut self) -> Vec<Option<Guard<Any>>> {
        self.over = true;
        let nobody = self.guards.iter().map(|_| None).collect();
        std::mem::replace(&mut self.guards, nobody)
    }
}

/// What most of them were lost by.
fn most_common_loss(states: &[Option<Arc<HoldState>>]) -> LostReason {
    let reasons: Vec<_> = states.iter().flatten().filter_map(|state| state.known_loss()).collect();
    let count = |reason: &LostReason| reasons.iter().filter(|other| *other == reason).count();
    reasons.iter().max_by_key(|reason| count(reason)).copied().unwrap_or(LostReason::Expired)
}

impl Standing {
    /// These hold, a majority. Those that do not are asked again.
    pub(super) fn begin(nodes: Nodes, guards: Vec<Option<Guard<Any>>>) -> Arc<Self> {
        let states: Vec<_> =
            guards.iter().map(|seat| seat.as_ref().map(|guard| guard.state().clone())).collect();
        let held = || states.iter().flatten();
        let standing = Arc::new(Self {
            token: held().map(|state| state.token).max().unwrap_or_else(|| FencingToken::new(0)),
            limit: held().map(|state| state.limit()).min().unwrap_or(Moment::NEVER),
            seats: Mutex::new(Seats { guards, states: states.clone(), over: false }),
            end: Arc::default(),
            nodes,
        });
        for link in standing.nodes.links() {
            link.shared().saw_token(standing.token.get()); // I5, as far as this process knows
        }
        for (at, state) in states.iter().enumerate() {
            match state {
                Some(state) => standing.follow(at, state),
                None => standing.ask_again(at),
            }
        }
        standing
    }

    pub(super) fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    pub(super) fn token(&self) -> FencingToken {
        self.token
    }

    fn seats(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The holds that are not lost, as far as the local clock knows.
    fn held_states(&self) -> Vec<Arc<HoldState>> {
        let states = self.seats().states.clone();
        states.into_iter().flatten().filter(|state| state.is_held()).collect()
    }

    /// With the links of their sessions.
    pub(super) fn states(&self) -> Vec<(Link, Arc<HoldState>)> {
        let states = self.seats().states.clone();
        self.nodes.links().cloned().zip(states).filter_map(|(link, it)| Some((link, it?))).collect()
    }

    pub(super) fn held(&self) -> usize {
        self.held_states().len()
    }

    /// Until when the majority surely stands.
    pub(super) fn until(&self) -> Moment {
        let deadlines = self.held_states().iter().map(|state| state.deadline()).collect();
        super::majority_lasts(deadlines, self.nodes.majority())
    }

    /// Why it is lost, if it is. Whoever looks finds out.
    pub(super) fn lost(&self) -> Option<LostReason> {
        while self.end.lost.get().is_none() {
            let states = self.seats().states.clone();
            let held = states.iter().flatten().filter(|state| state.is_held()).count();
            if held >= self.nodes.majority() || !self.ends(&states) {
                break;
            }
        }
        self.end.lost.get().copied()
    }

    fn is_over(&self) -> bool {
        self.seats().over
    }

    /// These were too few. Answers whether to look once more: they are others by now.
    fn ends(&self, seen: &[Option<Arc<HoldState>>]) -> bool {
        let mut seats = self.seats();
        if seats.over {
            return false;
        }
        let same = |(now, then): (&Option<Arc<HoldState>>, &Option<Arc<HoldState>>)| {
            now.as_ref().map(Arc::as_ptr) == then.as_ref().map(Arc::as_ptr)
        };
        if !seats.states.iter().zip(seen).all(same) {
            return true;
        }
        self.end.lost.set(most_common_loss(seen)).ok(); // only here, and once
        let guards = seats.close();
        drop(seats);
        // What still holds is released: it is worth nothing alone.
        drop(guards);
        self.end.told.cancel();
        false
    }

    /// All guards; from now on nothing is added.
    pub(super) fn take(&self) -> Vec<Option<Guard<Any>>> {
        self.seats().close()
    }

    /// Hears of the hold's loss.
    fn follow(self: &Arc<Self>, at: usize, state: &Arc<HoldState>) {
        let standing = Arc::downgrade(self);
        state.on_loss(move || {
            if let Some(standing) = standing.upgrade()
                && standing.lost().is_none()
            {
                standing.ask_again(at);
            }
        });
    }

    /// Has the thread of that server's own session ask for the hold again: where that session has ended, there is nothing
    /// to be had. A fixed lease is not to outlast itself.
    fn ask_again(self: &Arc<Self>, at: usize) {
        if let Some(link) = self.nodes.links().nth(at).filter(|_| self.nodes.renewed()) {
            link.run(ask_again(Arc::downgrade(self), at, self.nodes.lease()));
        }
    }

    /// One more holds. Counted only if the majority has stood without it until now.
    fn add(self: &Arc<Self>, at: usize, guard: Guard<Any>) {
        let state = guard.state().clone();
        state.limit_to(self.limit);
        if self.lost().is_some() {
            return guard.never_held();
        }
        let mut seats = self.seats();
        if seats.over {
            drop(seats);
            return guard.never_held();
        }
        seats.states[at] = Some(state.clone());
        let before = seats.guards[at].replace(guard);
        drop(seats);
        if let Some(before) = before {
            before.never_held(); // Its loss was told.
        }
        self.follow(at, &state);
    }

    /// Resolves when it is lost, and says why.
    pub(super) fn losing(self: &Arc<Self>) -> Losing {
        let told = Box::pin(self.end.told.clone().cancelled_owned());
        Losing { standing: Arc::downgrade(self), end: self.end.clone(), told: Some(told) }
    }
}

/// Asks until it has the hold, or nobody wants it any more. Between two tries it keeps nothing alive.
async fn ask_again(standing: Weak<Standing>, at: usize, lease: Duration) {
    let second = Duration::from_secs(1);
    let mut pauses = Backoff::new((lease / 6).min(second), (lease / 3).min(10 * second));
    loop {
        tokio::time::sleep(pauses.pause()).await;
        let Some(standing) = standing.upgrade() else { return };
        if standing.lost().is_some() || standing.is_over() {
            return;
        }
        if let Some(guard) = standing.nodes.ask_again(at).await {
            standing.add(at, guard);
            return;
        }
    }
}

/// See [`Standing::losing`]. It may outlive the guard.
pub(super) struct Losing {
    standing: Weak<Standing>,
    end: Arc<End>,
    told: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

impl Losing {
    fn known(&self) -> Option<LostReason> {
        match self.standing.upgrade() {
            Some(standing) => standing.lost(),
            None => self.end.lost.get().copied(),
        }
    }
}

impl Future for Losing {
    type Output = LostReason;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<LostReason> {
        if let Some(reason) = self.known() {
            return Poll::Ready(reason);
        }
        let told = self.told.as_mut().is_some_and(|told| told.as_mut().poll(context).is_ready());
        if told {
            self.told = None;
        }
        // Told in this very moment.
        self.end.lost.get().copied().map_or(Poll::Pending, Poll::Ready)
    }
}
