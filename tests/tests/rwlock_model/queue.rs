//! Who waits, and what happens when something ends.

use super::super::answer::Answer;
use super::{CHECK_MS, Ending, GONE_MS, Mark, Reference};

impl Reference {
    /// Grants what now fits; true if a bound was reached.
    pub(super) fn settle(&mut self, callers: &[usize]) -> bool {
        if self.unswept {
            return true;
        }
        let (mut dead, mut granted) = (0, 0);
        while dead < self.world.bounds.dead && granted < self.world.bounds.grants {
            let Some(&(_, id)) = self.queue.0.of.first() else {
                self.clear_timeouts();
                return false;
            };
            if !self.is_alive(id) {
                self.leave(id);
                dead += 1;
            } else if !self.may_enter(id) {
                return false;
            } else if self.grant(id, callers.contains(&id)) {
                granted += 1;
            } else {
                dead += 1;
            }
        }
        true
    }

    pub(super) fn enter(&mut self, id: usize, ticket: u64) {
        let latest = self.last_ticket.max(self.now_us);
        let ticket = match ticket {
            old if old > 0 && old <= latest => old,
            _ => self.now_us.max(self.last_ticket + 1),
        };
        self.last_ticket = self.last_ticket.max(ticket);
        self.queue.0.of.retain(|(_, waiting)| *waiting != id);
        self.queue.0.of.insert((ticket, id));
        self.refresh(id);
    }

    pub(super) fn refresh(&mut self, id: usize) {
        let deadline = self.now_ms() + self.world.wait_ms;
        self.timeouts.of.insert(id, deadline);
        for ends in [&mut self.queue.0.ends_ms, &mut self.timeouts.ends_ms] {
            *ends = deadline.max(*ends);
        }
    }

    pub(super) fn leave(&mut self, id: usize) {
        self.timeouts.of.remove(&id);
        self.queue.0.of.retain(|(_, waiting)| *waiting != id);
        if self.queue.len() == 0 {
            self.queue.0.ends_ms = 0;
        }
        if self.timeouts.of.is_empty() && self.last_ticket == 0 {
            self.timeouts.ends_ms = 0;
        }
    }

    pub(super) fn clear_timeouts(&mut self) {
        self.timeouts = Ending::default();
        self.last_ticket = 0;
    }

    pub(super) fn mark(&mut self, mark: Mark) {
        let until = self.now_ms() + GONE_MS;
        self.gone.of.insert(mark, until);
        self.gone.ends_ms = until.max(self.gone.ends_ms);
    }

    pub(super) fn is_alive(&self, id: usize) -> bool {
        self.timeouts.of.get(&id).is_some_and(|deadline| *deadline > self.now_ms())
    }

    pub(super) fn is_gone(&self, id: usize) -> bool {
        self.gone.of.get(&Mark::Gone(id)).is_some_and(|until| *until > self.now_ms())
    }

    /// An acquisition that ended into a cool-down is over too: a late copy of its acquire must not queue.
    pub(super) fn is_cancelled(&self, id: usize) -> bool {
        self.is_gone(id) || self.cools(id)
    }

    pub(super) fn next_check_ms(&self) -> u64 {
        self.left_ms().clamp(1, CHECK_MS)
    }

    pub(super) fn queued(&self, answer: Answer, id: usize) -> Answer {
        let position = self.queue.position(id).expect("it waits");
        answer.exact(position as u64).exact(self.queue.ticket(id).expect("it waits"))
    }

    pub(super) fn list(&self, most: u32) -> Answer {
        let mut answer = Answer::new("waiters").exact(self.queue.len() as u64);
        for (ticket, id) in self.queue.0.of.iter().take(most as usize) {
            answer = answer.exact(*ticket);
            // Without a deadline (its hash was lost) the description is lost too.
            if let Some(deadline) = self.timeouts.of.get(id) {
                answer = answer.exact(*id as u64).exact(*deadline);
            }
        }
        answer
    }
}
