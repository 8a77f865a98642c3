//! Holds that have to be at replicas before anybody gets them.
//!
//! `WAIT` speaks of what was written before by the connection that it is sent on, and blocks that connection. So each
//! place and each number of replicas has a connection of its own, on which a hold is first renewed: a pushed grant was
//! written by somebody else's command, and a `WAIT` without one of its own before it would be answered at once. Since Redis
//! 7.2 it has to be one that changes something: so a renewal here asks for more than there is. What is asked for meanwhile
//! goes together into the next turn: one `WAIT` serves up to [`LARGEST_TURN`] holds.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use leasehold_lua::reply::RenewReply;
use tokio::sync::oneshot;

use super::link::{Link, Shared};
use crate::backend::{Failure, Lane, Place, Timeouts, Written, caught};
use crate::clock::{Backoff, Moment, now, sleep_until};
use crate::error::{AcquireError, BackendError};
use crate::hold::{Hold, HoldState};
use crate::options::{Replicas, whole_ms};

/// One `WAIT` serves at most so many holds.
const LARGEST_TURN: usize = 128;

/// What waits for its turn, by place and by what it waits for.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<HashMap<(Place, Replicas), Arc<Queue>>>);

#[derive(Debug)]
struct Queue {
    place: Place,
    wanted: Replicas,
    lane: Lane,
    turn: tokio::sync::Mutex<()>,
    /// Weak: with the errand that brought it a request is over.
    waiting: Mutex<Vec<Weak<Request>>>,
}

#[derive(Debug)]
struct Request {
    state: Arc<HoldState>,
    /// What the server had left of it in vain; see [`Acknowledged::Unwritten`].
    least: Duration,
    tell: Mutex<Option<oneshot::Sender<Result<Acknowledged, Failure>>>>,
}

/// What one turn said of one hold.
#[derive(Debug)]
enum Acknowledged {
    /// So many replicas have it.
    By(u64),
    /// The renewal changed nothing, because so much was left already (a server clock that went back): nobody knows.
    Unwritten(Duration),
    /// The server does not have it any more.
    Over,
}

/// Waits until as many replicas have a hold as its options ask for: two round trips, one for the renewal and one for the
/// `WAIT`, beside what the replicas take.
///
/// # Errors
/// * [`NotReplicated`](AcquireError::NotReplicated): too few have it in time.
/// * [`ValidityTooShort`](AcquireError::ValidityTooShort): it ended meanwhile.
/// * [`Closed`](AcquireError::Closed): the session was shut down.
/// * [`Backend`](AcquireError::Backend): the server was not reached, or refused.
pub(crate) async fn replicated(hold: &Hold) -> Result<(), AcquireError> {
    let Some(wanted) = hold.state().plan.options().replicas else { return Ok(()) };
    let link = hold.link();
    let until = now().plus(wanted.within).plus(link.settings().response_timeout);
    let mut pauses = Backoff::new(Duration::from_millis(20), Duration::from_millis(200));
    let mut least = Duration::ZERO;
    loop {
        // After a shutdown nobody answers.
        let answer = ask(link, hold.state(), wanted, least).await.ok_or(AcquireError::Closed)?;
        let failure = match answer {
            Ok(Acknowledged::By(acknowledged)) if acknowledged < u64::from(wanted.count) => {
                return Err(AcquireError::NotReplicated { wanted: wanted.count, acknowledged });
            }
            Ok(Acknowledged::By(_)) if hold.state().is_held() => return Ok(()),
            Ok(Acknowledged::By(_) | Acknowledged::Over) => {
                return Err(AcquireError::ValidityTooShort { remaining: Duration::ZERO });
            }
            Ok(Acknowledged::Unwritten(left)) => {
                least = left;
                Failure::timed_out()
            }
            Err(failure) => failure,
        };
        // Which replicas have it is not known, so it is asked again, as any other call.
        let resume = now().plus(pauses.pause());
        if !failure.transient || resume >= until {
            return Err(AcquireError::Backend(failure.error));
        }
        sleep_until(resume).await;
    }
}

/// Asks the thread, which has the connections. `None`: it has ended.
async fn ask(
    link: &Link,
    state: &Arc<HoldState>,
    wanted: Replicas,
    least: Duration,
) -> Option<Result<Acknowledged, Failure>> {
    let shared = link.shared().clone();
    let queue = shared.turns.queue(&shared, state, wanted);
    let (tell, told) = oneshot::channel();
    let (state, tell) = (state.clone(), Mutex::new(Some(tell)));
    let request = Arc::new(Request { state, least, tell });
    link.run(async move {
        queue.waiting().push(Arc::downgrade(&request));
        queue.take_turn(&shared).await;
        drop(request);
    });
    told.await.ok()
}

impl Turns {
    fn queue(&self, shared: &Shared, state: &HoldState, wanted: Replicas) -> Arc<Queue> {
        let place = shared.backend.place_of(state.plan.spec.slot_key());
        let mut queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let made = || {
            let timeouts = shared.timeouts();
            // A `WAIT` is answered as late as it was told to.
            let response = timeouts.response.saturating_add(wanted.within);
            let lane = shared.backend.lane(None, Timeouts { response, ..timeouts });
            let (turn, waiting) = (tokio::sync::Mutex::default(), Mutex::default());
            Arc::new(Queue { place: place.clone(), wanted, lane, turn, waiting })
        };
        queues.entry((place.clone(), wanted)).or_insert_with(made).clone()
    }
}

impl Queue {
    fn waiting(&self) -> MutexGuard<'_, Vec<Weak<Request>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves whoever waits, unless an earlier turn did: each request brings a turn along, so nobody is left behind.
    async fn take_turn(&self, shared: &Shared) {
        let _turn = self.turn.lock().await;
        let batch = self.next_batch();
        if batch.is_empty() {
            return;
        }
        let asked: Vec<_> = batch.iter().map(|request| request.asks_ms()).collect();
        let renewal = |(request, ms): (&Arc<Request>, &u64)| request.state.plan.renew(*ms);
        let calls: Vec<_> = batch.iter().zip(&asked).map(renewal).collect();
        let sent = now();
        let (count, within) = (self.wanted.count, self.wanted.within);
        let answers = self.lane.written(&self.place, &calls, count, within).await;
        let answers = match answers {
            Ok(answers) => answers,
            Err(failure) => return self.fail(shared, batch, &failure),
        };
        for ((request, asked_ms), written) in batch.into_iter().zip(asked).zip(answers) {
            let acknowledged =
                written.and_then(|written| request.read(shared, sent, asked_ms, written));
            if let Err(failure) = &acknowledged {
                shared.answered_with(failure);
            }
            request.answer(acknowledged);
        }
    }

    fn next_batch(&self) -> Vec<Arc<Request>> {
        let mut waiting = self.waiting();
        waiting.retain(|request| request.upgrade().is_some_and(|request| request.is_awaited()));
        let most = waiting.len().min(LARGEST_TURN);
        waiting.drain(..most).filter_map(|request| request.upgrade()).collect()
    }

    fn fail(&self, shared: &Shared, batch: Vec<Arc<Request>>, failure: &Failure) {
        shared.answered_with(failure);
        for request in batch {
            request.answer(Err(failure.clone()));
        }
    }
}

impl Request {
    fn tell(&self) -> MutexGuard<'_, Option<oneshot::Sender<Result<Acknowledged, Failure>>>> {
        self.tell.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_awaited(&self) -> bool {
        self.tell().as_ref().is_some_and(|tell| !tell.is_closed())
    }

    fn answer(&self, acknowledged: Result<Acknowledged, Failure>) {
        let tell = self.tell().take();
        if let Some(tell) = tell {
            drop(tell.send(acknowledged)); // Nobody waits any more: the hold is given back.
        }
    }

    /// A millisecond more than the lease: in the millisecond of the grant there would be nothing to change.
    fn asks_ms(&self) -> u64 {
        let lease = self.state.within_limit(self.state.plan.options().lease);
        whole_ms(lease.max(self.least)).saturating_add(1)
    }

    fn read(
        &self,
        shared: &Shared,
        sent: Moment,
        asked_ms: u64,
        written: Written,
    ) -> Result<Acknowledged, Failure> {
        let unreadable = |error: BackendError| Failure::unreadable(error);
        let (_, answers) =
            RenewReply::decode(&written.reply).map_err(|error| unreadable(error.into()))?;
        match answers.first() {
            Some(RenewReply::Renewed { left_ms }) => {
                let lease = self.state.plan.options().lease;
                let left = Duration::from_millis(*left_ms).min(lease);
                self.state.renewed_until(shared.settings.drift.deadline_of_reply(sent, left));
                Ok(if *left_ms > asked_ms {
                    Acknowledged::Unwritten(Duration::from_millis(*left_ms))
                } else {
                    Acknowledged::By(written.replicas)
                })
            }
            Some(RenewReply::NotHeld { .. }) => Ok(Acknowledged::Over),
            Some(RenewReply::Refused { error }) => Err(unreadable(caught(error))),
            None => Err(unreadable(BackendError::timed_out())),
        }
    }
}
