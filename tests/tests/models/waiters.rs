//! Who waits, by ticket, and until when each counts as alive.

use std::collections::{BTreeMap, BTreeSet};

use super::answer::Answer;
use super::ending::Ending;
use super::keys::{Found, Key};
use super::names::{note, owner_name};
use super::verdict::differ;
use super::world::Acquisitions;

/// The keys of those who wait.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waiters {
    /// Ticket and acquisition, first to be granted first.
    pub(crate) queue: Ending<BTreeSet<(u64, usize)>>,
    pub(crate) timeouts: Ending<BTreeMap<usize, u64>>,
    pub(crate) last_ticket: u64,
    /// Who hears no messages, and looks for its grant until then.
    looks: BTreeMap<usize, u64>,
    /// What a refresh says of it.
    pub(crate) looking_until_ms: Option<u64>,
}

impl Waiters {
    pub(crate) fn at(&mut self, now_ms: u64) {
        self.queue.at(now_ms);
        if self.timeouts.ends_ms <= now_ms {
            self.clear_timeouts();
        }
    }

    pub(crate) fn clear_timeouts(&mut self) {
        self.timeouts.lose();
        self.looks.clear();
        self.last_ticket = 0;
    }

    pub(crate) fn ids(&self) -> Vec<usize> {
        self.queue.of.iter().map(|(_, id)| *id).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.of.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.of.is_empty()
    }

    pub(crate) fn head(&self) -> Option<usize> {
        self.queue.of.first().map(|(_, id)| *id)
    }

    pub(crate) fn ticket(&self, id: usize) -> Option<u64> {
        self.queue.of.iter().find(|(_, known)| *known == id).map(|(ticket, _)| *ticket)
    }

    pub(crate) fn position(&self, id: usize) -> Option<usize> {
        self.queue.of.iter().position(|(_, known)| *known == id)
    }

    /// At the ticket that it brings, or (0, or one that nobody was given) at the tail; also where it stands already.
    pub(crate) fn enter(&mut self, id: usize, ticket: u64, now_us: u64, wait_ms: u64) {
        let latest = self.last_ticket.max(now_us);
        let ticket = match ticket {
            old if old > 0 && old <= latest => old,
            _ => now_us.max(self.last_ticket + 1),
        };
        self.last_ticket = self.last_ticket.max(ticket);
        self.queue.of.retain(|(_, waiting)| *waiting != id);
        self.queue.of.insert((ticket, id));
        self.refresh(id, now_us / 1_000 + wait_ms);
    }

    pub(crate) fn refresh(&mut self, id: usize, deadline_ms: u64) {
        self.timeouts.of.insert(id, deadline_ms);
        match self.looking_until_ms {
            Some(until_ms) => self.looks.insert(id, until_ms),
            None => self.looks.remove(&id),
        };
        self.queue.lasts(deadline_ms);
        self.timeouts.lasts(deadline_ms);
    }

    pub(crate) fn is_looking(&self, id: usize, now_ms: u64) -> bool {
        self.looks.get(&id).is_some_and(|until| *until > now_ms)
    }

    pub(crate) fn leave(&mut self, id: usize) {
        self.timeouts.of.remove(&id);
        self.looks.remove(&id);
        self.queue.of.retain(|(_, waiting)| *waiting != id);
        if self.queue.of.is_empty() {
            self.queue.ends_ms = 0;
        }
        if self.timeouts.of.is_empty() && self.last_ticket == 0 {
            self.timeouts.ends_ms = 0;
        }
    }

    pub(crate) fn dead_leave(&mut self, now_ms: u64) {
        for id in self.ids() {
            if !self.is_alive(id, now_ms) {
                self.leave(id);
            }
        }
    }

    pub(crate) fn is_alive(&self, id: usize, now_ms: u64) -> bool {
        self.timeouts.of.get(&id).is_some_and(|deadline| *deadline > now_ms)
    }

    /// Adds where it stands.
    pub(crate) fn queued(&self, answer: Answer, id: usize) -> Answer {
        let position = self.position(id).expect("it waits");
        answer.exact(position as u64).exact(self.ticket(id).expect("it waits"))
    }

    pub(crate) fn list(&self, most: u32) -> Answer {
        let mut answer = Answer::new("waiters").exact(self.len() as u64);
        for (ticket, id) in self.queue.of.iter().take(most as usize) {
            answer = answer.exact(*ticket);
            // Without a deadline (its hash was lost) the description is lost too.
            if let Some(deadline) = self.timeouts.of.get(id) {
                answer = answer.exact(*id as u64).exact(*deadline);
            }
        }
        answer
    }

    pub(crate) fn ends_ms(&self) -> [u64; 2] {
        [self.queue.ends_ms, self.timeouts.ends_ms]
    }
}

/// As the server has them.
impl Waiters {
    pub(crate) fn decode(acquisitions: &Acquisitions, found: &Found) -> Result<Self, String> {
        let mut waiters = Self::default();
        for (ticket, id) in &found.queue {
            waiters.queue.of.insert((*ticket, acquisitions.number(id)?));
        }
        for (field, value) in &found.timeouts {
            if field == "#" {
                waiters.last_ticket = value.parse().map_err(|_| format!("last ticket {value}"))?;
                continue;
            }
            let id = acquisitions.number(field)?;
            let described = format!("|{}|{}", owner_name(acquisitions[id].owner), note(id));
            let unreadable = || format!("waiter {value}");
            let times = value.strip_suffix(&described).ok_or_else(unreadable)?;
            let (deadline, looks) = times
                .split_once('!')
                .map_or((times, None), |(deadline, looks)| (deadline, Some(looks)));
            waiters.timeouts.of.insert(id, deadline.parse().map_err(|_| unreadable())?);
            if let Some(looks) = looks {
                waiters.looks.insert(id, looks.parse().map_err(|_| unreadable())?);
            }
        }
        (waiters.queue.ends_ms, waiters.timeouts.ends_ms) = (found.ends_ms[1], found.ends_ms[2]);
        Ok(waiters)
    }

    /// Whether `real` is this, apart from when the keys end; orphaned timeouts are not looked at where they may be.
    pub(crate) fn compare(&self, real: &Self, orphans: bool) -> Result<(), String> {
        let of_queue = |all: &Self| -> BTreeMap<usize, Option<u64>> {
            all.ids().into_iter().map(|id| (id, all.timeouts.of.get(&id).copied())).collect()
        };
        let timeouts = |all: &Self| (all.timeouts.of.clone(), all.looks.clone(), all.last_ticket);
        differ("queue", &self.queue.of, &real.queue.of)?;
        differ("deadlines of waiters", &of_queue(self), &of_queue(real))?;
        if orphans { Ok(()) } else { differ("timeouts", &timeouts(self), &timeouts(real)) }
    }

    /// The timeouts as the server has them: orphans do no harm, and end with their key.
    pub(crate) fn align(&mut self, real: &Self) {
        self.timeouts.clone_from(&real.timeouts);
        self.looks.clone_from(&real.looks);
        self.last_ticket = real.last_ticket;
    }

    /// I21, where a script settled and did not ask to be called again: see [`Model::see`](super::runner::Model::see).
    pub(crate) fn head_lives(&self, now_ms: u64) -> Result<(), String> {
        match self.head().filter(|head| !self.is_alive(*head, now_ms)) {
            Some(head) => {
                let deadline = self.timeouts.of.get(&head);
                Err(format!("I21: the head {head} is dead since {deadline:?}"))
            }
            None => Ok(()),
        }
    }

    fn is_idle(&self) -> bool {
        self.queue.of.is_empty() && self.timeouts.of.is_empty()
    }

    fn agree(&self) -> bool {
        self.timeouts.of.keys().copied().eq(self.ids().into_iter().collect::<BTreeSet<_>>())
    }
}

/// Queue and timeouts may differ: one of them was lost alone, or settle met its bound with the last waiter.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Orphans(bool);

impl Orphans {
    pub(crate) fn lost(&mut self, key: Key) {
        self.0 |= matches!(key, Key::Queue | Key::Timeouts);
    }

    /// I10: who waits has a deadline, and nobody else has.
    pub(crate) fn checked(self, real: &Waiters) -> Result<(), String> {
        match self.0 || real.agree() {
            true => Ok(()),
            false => Err(format!("I10: {:?} and {:?}", real.queue, real.timeouts)),
        }
    }

    /// Of an empty queue the last ticket may stay behind too: where settle met its bound with the last waiter.
    pub(crate) fn may_be_in(self, real: &Waiters) -> bool {
        self.0 || real.is_idle()
    }

    /// Whatever was left behind may outlive the queue, until both agree again, in their ends too.
    pub(crate) fn seen(&mut self, real: &Waiters, slack_ms: u64) {
        let left_behind = real.is_idle() && real.timeouts.ends_ms > 0;
        let same_ends = real.queue.ends_ms.abs_diff(real.timeouts.ends_ms) <= slack_ms;
        self.0 = left_behind || (self.0 && !(real.agree() && same_ends));
    }
}
