//! The watchdog's table: which holds there are, and when something is due for each.
//!
//! Entries are by acquisition, not by name: one hold's trouble is never another's. A hold is armed before its guard is
//! handed out and disarmed before its release is sent (I3); what was disarmed cannot come back, because nothing arms
//! twice. Renewals fall into time buckets, so that what is due at about the same time travels in one call.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use uuid::Uuid;

use crate::clock::{Backoff, Moment, now};
use crate::event::Event;
use crate::hold::HoldState;
use crate::options::whole_ms;

#[derive(Debug)]
struct Watched {
    state: Arc<HoldState>,
    /// Under which moment it stands in `due`.
    at: Moment,
    renew_at: Moment,
    renewing: bool,
    failures: u32,
    pauses: Backoff,
    long_at: Moment,
}

#[derive(Debug, Default)]
struct Wheel {
    watched: HashMap<Uuid, Watched>,
    due: BTreeSet<(Moment, Uuid)>,
    /// The thread wakes by then, whatever has left since: only what is due earlier has to wake it.
    wakes_by: Moment,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Watchdog {
    wheel: Mutex<Wheel>,
}

/// A hold that is due for renewal, and for how long it is to be renewed.
#[derive(Debug)]
pub(crate) struct Renewal {
    pub(crate) state: Arc<HoldState>,
    pub(crate) lease_ms: u64,
    pub(crate) due_at: Moment,
}

impl Watchdog {
    fn wheel(&self) -> MutexGuard<'_, Wheel> {
        self.wheel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn len(&self) -> usize {
        self.wheel().watched.len()
    }

    /// Looks after a hold from now on; its first renewal is due after `first`. Answers whether the thread has to wake
    /// earlier than it knew.
    pub(crate) fn arm(
        &self,
        state: &Arc<HoldState>,
        first: Duration,
        held_long_after: Option<Duration>,
    ) -> bool {
        let lease = state.plan.options().lease;
        let renew_at = if state.plan.options().renewed {
            bucketed(now().plus(first), lease)
        } else {
            Moment::NEVER
        };
        let mut watched = Watched {
            at: Moment::NEVER,
            renew_at,
            renewing: false,
            failures: 0,
            pauses: Backoff::new(
                (lease / 16).min(Duration::from_millis(50)),
                (lease / 6).min(Duration::from_secs(1)),
            ),
            long_at: held_long_after.map_or(Moment::NEVER, |after| state.since.plus(after)),
            state: state.clone(),
        };
        watched.at = watched.next();
        let mut wheel = self.wheel();
        let earlier = watched.at < wheel.wakes_by;
        wheel.due.insert((watched.at, state.plan.uuid()));
        wheel.watched.insert(state.plan.uuid(), watched);
        earlier
    }

    /// Looks after it no longer.
    pub(crate) fn disarm(&self, uuid: Uuid) {
        let mut wheel = self.wheel();
        if let Some(watched) = wheel.watched.remove(&uuid) {
            wheel.due.remove(&(watched.at, uuid));
        }
    }

    /// When something is due next. The thread asks before it sleeps, and wakes by then.
    pub(crate) fn next(&self) -> Moment {
        let mut wheel = self.wheel();
        wheel.wakes_by = wheel.due.first().map_or(Moment::NEVER, |(at, _)| *at);
        wheel.wakes_by
    }

    /// Does what is due: ends what is over, tells what is held long, and answers what is to be renewed. Events are told
    /// after the table is free again.
    pub(crate) fn tick(&self) -> (Vec<Renewal>, Vec<Arc<HoldState>>, Vec<Event>) {
        let at = now();
        let (mut renewals, mut over, mut events) = (Vec::new(), Vec::new(), Vec::new());
        let mut wheel = self.wheel();
        while wheel.due.first().is_some_and(|(first, _)| *first <= at) {
            let Some((_, uuid)) = wheel.due.pop_first() else { break };
            let Some(watched) = wheel.watched.get_mut(&uuid) else { continue };
            if watched.state.deadline() <= at {
                over.push(watched.state.clone());
                wheel.watched.remove(&uuid);
                continue;
            }
            if watched.long_at <= at {
                watched.long_at = Moment::NEVER;
                let name = watched.state.plan.name().clone();
                events.push(Event::HeldLong { name, held_for: at.since(watched.state.since) });
            }
            if watched.renew_at <= at {
                watched.renewing = true;
                renewals.push(watched.renewal());
                watched.renew_at = Moment::NEVER;
            }
            watched.at = watched.next();
            let entry = (watched.at, uuid);
            wheel.due.insert(entry);
        }
        (renewals, over, events)
    }

    /// A renewal, sent at `sent`, was answered: the next one is due a third of the lease after it.
    pub(crate) fn renewed(&self, uuid: Uuid, sent: Moment) {
        self.reschedule(uuid, |watched| {
            let lease = watched.state.plan.options().lease;
            watched.failures = 0;
            watched.pauses.reset();
            watched.renew_at = bucketed(sent.plus(lease / 3), lease);
        });
    }

    /// A renewal was not answered or was refused: the next one is due after a pause. Answers how many in a row.
    pub(crate) fn failed(&self, uuid: Uuid) -> u32 {
        let mut failures = 0;
        self.reschedule(uuid, |watched| {
            watched.failures += 1;
            failures = watched.failures;
            watched.renew_at = now().plus(watched.pauses.pause());
        });
        failures
    }

    /// Its deadline may be earlier than it was. Answers whether the thread has to wake earlier than it knew.
    pub(crate) fn look_again(&self, uuid: Uuid) -> bool {
        let mut wheel = self.wheel();
        let Wheel { watched, due, wakes_by } = &mut *wheel;
        let Some(watched) = watched.get_mut(&uuid) else { return false };
        due.remove(&(watched.at, uuid));
        watched.at = watched.next();
        due.insert((watched.at, uuid));
        watched.at < *wakes_by
    }

    fn reschedule(&self, uuid: Uuid, change: impl FnOnce(&mut Watched)) {
        let mut wheel = self.wheel();
        let Wheel { watched, due, .. } = &mut *wheel;
        let Some(watched) = watched.get_mut(&uuid) else { return };
        due.remove(&(watched.at, uuid));
        watched.renewing = false;
        change(watched);
        watched.at = watched.next();
        due.insert((watched.at, uuid));
    }
}

impl Watched {
    /// The earliest of what can come: a renewal (unless one is under way), the deadline, the long hold.
    fn next(&self) -> Moment {
        let renew_at = if self.renewing { Moment::NEVER } else { self.renew_at };
        renew_at.min(self.state.deadline()).min(self.long_at)
    }

    /// Renewed to the end of the longest hold at most: the key does not outlive it.
    fn renewal(&self) -> Renewal {
        let lease = self.state.within_limit(self.state.plan.options().lease);
        Renewal {
            lease_ms: whole_ms(lease).max(1),
            due_at: self.renew_at,
            state: self.state.clone(),
        }
    }
}

/// A bucket is a 64th of the lease wide, from 1 ms to 100 ms: early by so much at the most.
fn bucketed(at: Moment, lease: Duration) -> Moment {
    at.bucket((lease / 64).clamp(Duration::from_millis(1), Duration::from_millis(100)))
}
