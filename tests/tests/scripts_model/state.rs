//! The steps that the verbs of the model are made of.

use std::collections::BTreeMap;

use super::super::answer::Answer;
use super::super::serving::Serving;
use super::super::waiters::Waiters;
use super::super::world::GRANT_MS;
use super::{Entry, Hold, Mark, Push, Reference};

impl Serving for Reference {
    fn waiters(&mut self) -> &mut Waiters {
        &mut self.waiters
    }

    fn now_ms(&self) -> u64 {
        self.now_us / 1_000
    }

    fn left_ms(&self) -> u64 {
        self.hold.as_ref().map_or(0, |hold| hold.ends_ms.saturating_sub(self.now_ms()))
    }

    fn fits_now(&self, _: usize) -> bool {
        self.hold.is_none()
    }

    /// Grants what now fits; true if the bound of dead heads was reached.
    fn settle(&mut self, callers: &[usize]) -> bool {
        let mut dead = 0;
        while dead < self.world.most_heads {
            let Some(id) = self.waiters.head() else {
                self.waiters.clear_timeouts();
                return false;
            };
            if !self.waiters.is_alive(id, self.now_ms()) {
                self.waiters.leave(id);
                dead += 1;
                continue;
            }
            if self.hold.is_some() {
                return false;
            }
            let asked = callers.contains(&id);
            let lease_ms = self.world.acquisitions[id].lease_ms;
            let lease_ms = if asked { lease_ms } else { lease_ms.min(GRANT_MS) };
            let token = self.mint();
            let looks = self.waiters.is_looking(id, self.now_ms());
            self.waiters.leave(id);
            self.take(id, lease_ms, token);
            let inbox = self.world.acquisitions[id].inbox;
            let grant = Push::Granted { id, token, lease_ms };
            if !asked && !self.inboxes.grant(inbox, grant, looks) {
                self.hold = None;
                dead += 1;
            }
        }
        true
    }

    fn attend(&mut self, id: usize, ticket: u64) -> Option<&'static str> {
        if self.holds(id) {
            return None;
        }
        if self.is_cancelled(id) {
            return Some("cancelled");
        }
        if self.joinable(self.world.acquisitions[id].owner) {
            self.waiters.leave(id);
            return if self.join(id) { None } else { Some("too many entries") };
        }
        if self.waiters.ticket(id).is_some() && ticket != 0 {
            self.refresh(id);
        } else {
            // Without a ticket it has had its turn, and stands at the tail.
            self.waiters.enter(id, ticket, self.now_us, self.world.wait_ms);
        }
        None
    }

    fn outcome(&mut self, answer: Answer, id: usize) -> Answer {
        match self.holds(id) {
            true => self.taken_in(answer.and("taken"), id),
            false => self.waiters.queued(answer.and("queued"), id),
        }
    }
}

impl Reference {
    /// Whether anybody heard it.
    pub(super) fn push(&mut self, id: usize, push: Push) -> bool {
        self.inboxes.push(self.world.acquisitions[id].inbox, push)
    }

    pub(super) fn mint(&mut self) -> u64 {
        self.token.mint(self.now_us, self.floor, self.world.fence_ms)
    }

    pub(super) fn take(&mut self, id: usize, lease_ms: u64, token: u64) {
        let (since_ms, deadline_ms) = (self.now_ms(), self.now_ms() + lease_ms);
        self.hold = Some(Hold {
            owner: self.world.acquisitions[id].owner,
            token,
            cooling: None,
            entries: BTreeMap::from([(id, Entry { deadline_ms, since_ms })]),
            ends_ms: deadline_ms,
        });
    }

    pub(super) fn join(&mut self, id: usize) -> bool {
        let live = self.live_entries();
        if live.len() >= self.world.most_entries {
            return false;
        }
        let (since_ms, lease_ms) = (self.now_ms(), self.world.acquisitions[id].lease_ms);
        let hold = self.hold.as_mut().expect("joinable");
        hold.entries = live;
        hold.entries.insert(id, Entry { deadline_ms: since_ms + lease_ms, since_ms });
        hold.ends_ms = hold.ends_ms.max(since_ms + lease_ms);
        true
    }

    pub(super) fn drop_entry(&mut self, id: usize, at_least_ms: u64) {
        let now = self.now_ms();
        let mut live = self.live_entries();
        // From now where the clock went back behind the grant.
        let cool_until = live[&id].since_ms.min(now) + at_least_ms;
        live.remove(&id);
        let hold = self.hold.as_mut().expect("it holds");
        if live.is_empty() && cool_until > now {
            hold.cooling = Some(id);
            hold.ends_ms = cool_until;
        } else if live.is_empty() {
            self.hold = None;
        } else {
            hold.entries.remove(&id);
            hold.ends_ms = live.values().map(|entry| entry.deadline_ms).fold(0, u64::max);
        }
    }

    pub(super) fn refresh(&mut self, id: usize) {
        self.waiters.refresh(id, self.now_ms() + self.world.wait_ms);
    }

    pub(super) fn mark(&mut self, mark: Mark) {
        self.gone.mark(mark, self.now_ms());
    }

    pub(super) fn is_gone(&self, id: usize) -> bool {
        self.gone.remembers(&Mark::Gone(id), self.now_ms())
    }

    /// An acquisition that ended into a cool-down is over too: a late copy of its acquire must not queue.
    pub(super) fn is_cancelled(&self, id: usize) -> bool {
        self.is_gone(id) || self.cools(id)
    }

    pub(super) fn cools(&self, id: usize) -> bool {
        self.hold.as_ref().is_some_and(|hold| hold.cooling == Some(id))
    }

    pub(crate) fn holds(&self, id: usize) -> bool {
        self.live_entries().contains_key(&id)
            && self.hold.as_ref().is_some_and(|hold| hold.cooling.is_none())
    }

    pub(super) fn joinable(&self, owner: usize) -> bool {
        let live = !self.live_entries().is_empty();
        let hold = self.hold.as_ref();
        live && hold.is_some_and(|hold| hold.owner == owner && hold.cooling.is_none())
    }

    pub(super) fn live_entries(&self) -> BTreeMap<usize, Entry> {
        let all = self.hold.iter().flat_map(|hold| &hold.entries);
        let live = all.filter(|(_, entry)| entry.deadline_ms > self.now_ms());
        live.map(|(id, entry)| (*id, *entry)).collect()
    }

    /// The entries that end last: as a rule one.
    pub(super) fn latest_entries(&self) -> Vec<(usize, u64)> {
        let live = self.live_entries();
        let latest = live.values().map(|entry| entry.deadline_ms).max();
        let last = live.iter().filter(|(_, entry)| Some(entry.deadline_ms) == latest);
        last.map(|(id, entry)| (*id, entry.since_ms)).collect()
    }

    /// What has ended does not come to life again when the clock goes back.
    pub(super) fn forget_ended(&mut self) {
        let live = self.live_entries();
        if let Some(hold) = self.hold.as_mut().filter(|hold| hold.cooling.is_none()) {
            hold.entries = live;
        }
    }

    pub(super) fn why_not_held(&self, id: usize) -> &'static str {
        match &self.hold {
            _ if self.gone.has(&Mark::ForcedId(id)) => "forced",
            Some(hold) if hold.cooling.is_none() => "other holder",
            Some(_) | None => "absent",
        }
    }

    pub(super) fn taken(&self, id: usize) -> Answer {
        self.taken_in(Answer::new("taken"), id)
    }

    pub(super) fn taken_in(&self, answer: Answer, id: usize) -> Answer {
        let hold = self.hold.as_ref().expect("it holds");
        answer.exact(hold.token).about(hold.entries[&id].deadline_ms - self.now_ms())
    }
}
