//! The registry: every acquisition of this process that may still get an answer or a push.
//!
//! An id is in it from before its first call is sent until its end is answered. A push for a waiting id makes it a
//! hold; a push for a held or ending id is dropped: answering it would end a running hold and make two holders.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use uuid::Uuid;

use crate::clock::{Backoff, Moment, now};
use crate::engine::{Plan, Spec};
use crate::error::AcquireError;
use crate::event::Events;
use crate::hold::{Hold, HoldState};

/// What a waiter is told.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It holds. The hold itself travels, so one that nobody receives is dropped and thereby released.
    Granted(Hold),
    /// It will not.
    Refused(AcquireError),
}

#[derive(Debug)]
enum Phase {
    Waiting(oneshot::Sender<Outcome>),
    Held(Arc<HoldState>),
    Ending,
}

#[derive(Debug)]
struct Tracked {
    plan: Arc<Plan>,
    phase: Phase,
    /// Calls of it that are not answered: its acquire, or a check.
    unanswered: u32,
    /// A call of it was never answered, and may still arrive at the server.
    doubtful: bool,
    /// It is made of a hold: if a call of it has run, somebody held.
    from_hold: bool,
    /// Its place in the queue, and its number in the group of its name.
    ticket: u64,
    place: Option<u64>,
}

/// The waiters of this process on one name.
#[derive(Debug)]
struct Group {
    spec: Arc<Spec>,
    waiting: BTreeMap<u64, Uuid>,
    next_place: u64,
    check_at: Moment,
    checking: bool,
    /// Asked for while a check was under way: no later than this is the next.
    rush: Moment,
    pauses: Backoff,
}

#[derive(Debug, Default)]
struct Table {
    closed: bool,
    tracked: HashMap<Uuid, Tracked>,
    groups: HashMap<Arc<[u8]>, Group>,
    checks: BTreeSet<(Moment, Arc<[u8]>)>,
    /// The thread wakes by then, whatever has left since: only what is due earlier has to wake it.
    wakes_by: Moment,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    table: Mutex<Table>,
}

/// A waiter that has just become a holder.
#[derive(Debug)]
pub(crate) struct Won {
    pub(crate) state: Arc<HoldState>,
    pub(crate) tell: oneshot::Sender<Outcome>,
}

/// The waiters of one name that are due for a check.
#[derive(Debug)]
pub(crate) struct DueCheck {
    pub(crate) key: Arc<[u8]>,
    pub(crate) spec: Arc<Spec>,
    pub(crate) waiting: Vec<(Arc<Plan>, u64)>,
}

/// Everything that a shutdown has to end.
#[derive(Debug, Default)]
pub(crate) struct Remaining {
    pub(crate) waiting: Vec<(Arc<Plan>, bool, oneshot::Sender<Outcome>)>,
    pub(crate) from_holds: Vec<(Arc<Plan>, bool)>,
    pub(crate) held: Vec<(Arc<HoldState>, bool)>,
}

impl Registry {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn len(&self) -> usize {
        self.table().tracked.len()
    }

    /// Before the first call is sent. Nobody to tell: it is made of a hold, by a call whose answer says it all.
    pub(crate) fn enter(
        &self,
        plan: Arc<Plan>,
        tell: Option<oneshot::Sender<Outcome>>,
    ) -> Result<(), AcquireError> {
        let mut table = self.table();
        if table.closed {
            return Err(AcquireError::Closed);
        }
        let tracked = Tracked {
            unanswered: 1,
            doubtful: false,
            from_hold: tell.is_none(),
            phase: Phase::Waiting(tell.unwrap_or_else(|| oneshot::channel().0)),
            ticket: 0,
            place: None,
            plan: plan.clone(),
        };
        table.tracked.insert(plan.uuid(), tracked);
        Ok(())
    }

    /// A copy of a call of it may still be under way.
    pub(crate) fn doubt(&self, uuid: Uuid) {
        if let Some(tracked) = self.table().tracked.get_mut(&uuid) {
            tracked.doubtful = true;
        }
    }

    /// One of its calls was answered.
    pub(crate) fn answered(&self, uuid: Uuid) {
        if let Some(tracked) = self.table().tracked.get_mut(&uuid) {
            tracked.unanswered = tracked.unanswered.saturating_sub(1);
        }
    }

    /// It stands in the queue: it joins the group of its name, whose check is due at `check_at` or earlier. Answers
    /// whether the thread has to wake earlier than it knew.
    pub(crate) fn queued(&self, uuid: Uuid, ticket: u64, check_at: Moment) -> bool {
        let mut table = self.table();
        let Some(tracked) = table.tracked.get_mut(&uuid) else { return false };
        if !matches!(tracked.phase, Phase::Waiting(_)) || tracked.place.is_some() {
            return false;
        }
        let (spec, key) = (tracked.plan.spec.clone(), tracked.plan.spec.slot_key().clone());
        tracked.ticket = ticket;
        let group = table.groups.entry(key.clone()).or_insert_with(|| Group::new(spec));
        let place = group.next_place;
        group.next_place += 1;
        group.waiting.insert(place, uuid);
        if let Some(tracked) = table.tracked.get_mut(&uuid) {
            tracked.place = Some(place);
        }
        table.check_by(&key, check_at)
    }

    /// The plan of a waiting id: it may be granted.
    pub(crate) fn candidate(&self, uuid: Uuid) -> Option<Arc<Plan>> {
        let table = self.table();
        let tracked = table.tracked.get(&uuid)?;
        matches!(tracked.phase, Phase::Waiting(_)).then(|| tracked.plan.clone())
    }

    /// A waiting id becomes a hold; anything else does not (`None`).
    pub(crate) fn win(
        &self,
        uuid: Uuid,
        token: u64,
        deadline: Moment,
        events: &Events,
    ) -> Option<Won> {
        let mut table = self.table();
        let tracked = table.tracked.get_mut(&uuid)?;
        if !matches!(tracked.phase, Phase::Waiting(_)) {
            return None;
        }
        let state = Arc::new(HoldState::new(tracked.plan.clone(), token, deadline, events.clone()));
        let Phase::Waiting(tell) =
            std::mem::replace(&mut tracked.phase, Phase::Held(state.clone()))
        else {
            return None;
        };
        table.leave_group(uuid);
        Some(Won { state, tell })
    }

    /// A waiting id will not be granted. Answers whom to tell, and whether a call of it may still arrive.
    pub(crate) fn refuse(&self, uuid: Uuid) -> Option<(oneshot::Sender<Outcome>, bool)> {
        let mut table = self.table();
        let tracked = table.tracked.get_mut(&uuid)?;
        if !matches!(tracked.phase, Phase::Waiting(_)) {
            return None;
        }
        let Phase::Waiting(tell) = std::mem::replace(&mut tracked.phase, Phase::Ending) else {
            return None;
        };
        let late = tracked.end();
        table.leave_group(uuid);
        Some((tell, late))
    }

    /// The state of a held id.
    pub(crate) fn held(&self, uuid: Uuid) -> Option<Arc<HoldState>> {
        match &self.table().tracked.get(&uuid)?.phase {
            Phase::Held(state) => Some(state.clone()),
            Phase::Waiting(_) | Phase::Ending => None,
        }
    }

    /// A hold or a waiter is about to end. Answers whether an acquire of it may still arrive at the server.
    pub(crate) fn ending(&self, uuid: Uuid) -> bool {
        let mut table = self.table();
        table.leave_group(uuid);
        table.tracked.get_mut(&uuid).is_some_and(Tracked::end)
    }

    /// As [`ending`](Self::ending), if it still waits.
    pub(crate) fn ending_if_waiting(&self, uuid: Uuid) -> Option<bool> {
        let mut table = self.table();
        let waiting = matches!(table.tracked.get(&uuid)?.phase, Phase::Waiting(_));
        if !waiting {
            return None;
        }
        table.leave_group(uuid);
        table.tracked.get_mut(&uuid).map(Tracked::end)
    }

    /// Its end was answered.
    pub(crate) fn forget(&self, uuid: Uuid) {
        let mut table = self.table();
        table.leave_group(uuid);
        table.tracked.remove(&uuid);
    }

    /// Nothing enters any more; what is there is handed over to be ended.
    pub(crate) fn close(&self) -> Remaining {
        let mut table = self.table();
        table.closed = true;
        table.groups.clear();
        table.checks.clear();
        let mut remaining = Remaining::default();
        for tracked in table.tracked.values_mut() {
            let late = tracked.unanswered > 0 || tracked.doubtful;
            match std::mem::replace(&mut tracked.phase, Phase::Ending) {
                Phase::Waiting(_) if tracked.from_hold => {
                    remaining.from_holds.push((tracked.plan.clone(), late));
                }
                Phase::Waiting(tell) => remaining.waiting.push((tracked.plan.clone(), late, tell)),
                Phase::Held(state) => remaining.held.push((state, late)),
                Phase::Ending => {}
            }
        }
        remaining
    }

    /// When the next check is due. The thread asks before it sleeps, and wakes by then.
    pub(crate) fn next_check(&self) -> Moment {
        let mut table = self.table();
        table.wakes_by = table.checks.first().map_or(Moment::NEVER, |(at, _)| *at);
        table.wakes_by
    }

    /// Takes the groups whose check is due. Each is left alone until [`checked`](Self::checked).
    pub(crate) fn due_checks(&self) -> Vec<DueCheck> {
        let (mut table, at) = (self.table(), now());
        let mut due = Vec::new();
        while table.checks.first().is_some_and(|(first, _)| *first <= at) {
            let Some((_, key)) = table.checks.pop_first() else { break };
            let Table { groups, tracked, .. } = &mut *table;
            let Some(group) = groups.get_mut(&key) else { continue };
            group.checking = true;
            let mut waiting = Vec::with_capacity(group.waiting.len());
            for uuid in group.waiting.values() {
                if let Some(tracked) = tracked.get_mut(uuid) {
                    tracked.unanswered += 1;
                    waiting.push((tracked.plan.clone(), tracked.ticket));
                }
            }
            due.push(DueCheck { spec: group.spec.clone(), key, waiting });
        }
        due
    }

    /// A check that is to be repeated at once: those of it that still wait. Who left meanwhile is not asked for again,
    /// because nothing says any more that such a call may arrive after its end: it would come back to life (I9).
    pub(crate) fn asked_again(&self, asked: &[(Arc<Plan>, u64)]) -> Vec<(Arc<Plan>, u64)> {
        let mut table = self.table();
        let mut waiting = Vec::with_capacity(asked.len());
        for (plan, _) in asked {
            match table.tracked.get_mut(&plan.uuid()) {
                Some(tracked) if matches!(tracked.phase, Phase::Waiting(_)) => {
                    tracked.unanswered += 1;
                    waiting.push((plan.clone(), tracked.ticket));
                }
                Some(_) | None => {}
            }
        }
        waiting
    }

    /// A group was checked. `next`: when the server says it is due again; without, after a pause that grows.
    pub(crate) fn checked(&self, key: &Arc<[u8]>, next: Option<Moment>) {
        let mut table = self.table();
        let Table { groups, checks, .. } = &mut *table;
        let Some(group) = groups.get_mut(key) else { return };
        group.checking = false;
        let regular = match next {
            Some(next) => {
                group.pauses.reset();
                next
            }
            None => now().plus(group.pauses.pause()),
        };
        checks.remove(&(group.check_at, key.clone()));
        group.check_at = regular.min(std::mem::replace(&mut group.rush, Moment::NEVER));
        checks.insert((group.check_at, key.clone()));
    }

    /// Its place in the queue, as the answer to a check says that asked with another; unless it has had its turn since.
    pub(crate) fn placed(&self, uuid: Uuid, asked: u64, ticket: u64) {
        let mut table = self.table();
        if let Some(tracked) = table.tracked.get_mut(&uuid).filter(|it| it.ticket == asked) {
            tracked.ticket = ticket;
        }
    }

    /// It has had its turn: the next check sends it to the tail.
    pub(crate) fn to_tail(&self, uuid: Uuid) {
        if let Some(tracked) = self.table().tracked.get_mut(&uuid) {
            tracked.ticket = 0;
        }
    }

    /// The waiters of this id's name are to be checked at once.
    pub(crate) fn check_now(&self, uuid: Uuid) {
        let mut table = self.table();
        let Some(tracked) = table.tracked.get(&uuid) else { return };
        let key = tracked.plan.spec.slot_key().clone();
        table.check_by(&key, now());
    }

    /// The waiters of this name are to be checked at this moment, if they were not to be earlier.
    pub(crate) fn check_at(&self, key: &Arc<[u8]>, at: Moment) -> bool {
        self.table().check_by(key, at)
    }

    /// Every waiter is to be checked at once.
    pub(crate) fn check_all_now(&self) {
        let mut table = self.table();
        let keys: Vec<_> = table.groups.keys().cloned().collect();
        for key in keys {
            if let Some(group) = table.groups.get_mut(&key) {
                group.pauses.reset();
            }
            table.check_by(&key, now());
        }
    }
}

impl Tracked {
    fn end(&mut self) -> bool {
        self.phase = Phase::Ending;
        self.unanswered > 0 || self.doubtful
    }
}

impl Group {
    fn new(spec: Arc<Spec>) -> Self {
        Self {
            spec,
            waiting: BTreeMap::new(),
            next_place: 0,
            check_at: Moment::NEVER,
            checking: false,
            rush: Moment::NEVER,
            pauses: Backoff::new(Duration::from_millis(10), Duration::from_millis(200)),
        }
    }
}

impl Table {
    fn leave_group(&mut self, uuid: Uuid) {
        let Some(tracked) = self.tracked.get_mut(&uuid) else { return };
        let Some(place) = tracked.place.take() else { return };
        let key = tracked.plan.spec.slot_key();
        let Some(group) = self.groups.get_mut(key) else { return };
        group.waiting.remove(&place);
        if group.waiting.is_empty() {
            let check_at = group.check_at;
            if let Some((key, _)) = self.groups.remove_entry(key) {
                self.checks.remove(&(check_at, key));
            }
        }
    }

    /// Brings a group's check forward; answers whether the thread has to wake earlier than it knew.
    fn check_by(&mut self, key: &Arc<[u8]>, at: Moment) -> bool {
        let Some(group) = self.groups.get_mut(key) else { return false };
        if group.checking {
            group.rush = group.rush.min(at);
            return false;
        }
        if group.check_at <= at {
            return false;
        }
        self.checks.remove(&(group.check_at, key.clone()));
        group.check_at = at;
        self.checks.insert((at, key.clone()));
        at < self.wakes_by
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Acquisition;
    use crate::session::Identity;
    use crate::{Name, Options};

    /// A registry with so many waiters on one name, whose check is due.
    fn waiting(count: u64) -> (Registry, Vec<DueCheck>) {
        let verbs = &leasehold_lua::mutex::VERBS;
        let made = Spec::with_prefix(verbs, b"", Name::new("a"), Options::default());
        let spec = Arc::new(made.unwrap());
        let identity = Identity { inbox: vec![], trace: 0, host: String::new() };
        let registry = Registry::default();
        for ticket in 0..count {
            let acquisition = Acquisition::new(&identity, &spec, None);
            let plan = Arc::new(Plan { spec: spec.clone(), acquisition });
            registry.enter(plan.clone(), Some(oneshot::channel().0)).unwrap();
            registry.answered(plan.uuid());
            registry.queued(plan.uuid(), ticket, now());
        }
        let due = registry.due_checks();
        (registry, due)
    }

    #[test]
    fn the_thread_is_woken_for_what_is_due_before_it_wakes_by_itself_only() {
        let registry = waiting(1).0;
        let at = now().plus(Duration::from_secs(1));
        assert_eq!(registry.next_check(), Moment::NEVER, "the only check is under way");
        let mut table = registry.table();
        let key = table.groups.keys().next().unwrap().clone();
        table.groups.get_mut(&key).unwrap().checking = false;
        table.groups.get_mut(&key).unwrap().check_at = Moment::NEVER;
        assert!(table.check_by(&key, at), "it would sleep for ever");
        drop(table);
        assert_eq!(registry.next_check(), at);
        assert!(!registry.table().check_by(&key, at), "it wakes then");
        assert!(registry.table().check_by(&key, now()));
    }

    #[test]
    fn a_waiter_that_leaves_during_a_repeated_check_knows_of_the_copy_under_way() {
        let (registry, due) = waiting(2);
        let (first, second) = (due[0].waiting[0].0.uuid(), due[0].waiting[1].0.uuid());
        assert_eq!(registry.ending_if_waiting(first), Some(true), "the first copy is under way");
        registry.answered(second);
        let again = registry.asked_again(&due[0].waiting);
        assert_eq!(again.len(), 1, "who left is not asked for again");
        assert_eq!(registry.ending_if_waiting(second), Some(true), "the second copy is under way");
    }

    #[test]
    fn an_answer_under_way_does_not_take_back_that_a_turn_was_missed() {
        let (registry, due) = waiting(2);
        let uuid = due[0].waiting[1].0.uuid();
        registry.to_tail(uuid);
        registry.placed(uuid, 1, 1);
        registry.placed(due[0].waiting[0].0.uuid(), 0, 7);
        let tickets: Vec<_> =
            registry.asked_again(&due[0].waiting).into_iter().map(|(_, ticket)| ticket).collect();
        assert_eq!(tickets, [7, 0]);
    }

    #[test]
    fn a_waiter_that_leaves_between_checks_leaves_nothing_under_way() {
        let (registry, due) = waiting(1);
        let uuid = due[0].waiting[0].0.uuid();
        registry.answered(uuid);
        assert_eq!(registry.ending_if_waiting(uuid), Some(false));
    }
}
