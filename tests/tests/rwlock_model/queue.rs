//! What happens when something ends.

use super::super::answer::Answer;
use super::super::serving::Serving;
use super::super::waiters::Waiters;
use super::{Mark, Reference};

impl Serving for Reference {
    fn waiters(&mut self) -> &mut Waiters {
        &mut self.waiters
    }

    fn now_ms(&self) -> u64 {
        self.now_us / 1_000
    }

    fn left_ms(&self) -> u64 {
        self.live().first().map_or(0, |(_, end)| end - self.now_ms())
    }

    fn fits_now(&self, id: usize) -> bool {
        self.fits(id)
    }

    fn settle(&mut self, callers: &[usize]) -> bool {
        if self.unswept {
            return true;
        }
        let (mut dead, mut granted) = (0, 0);
        while dead < self.world.bounds.dead && granted < self.world.bounds.grants {
            let Some(id) = self.waiters.head() else {
                self.waiters.clear_timeouts();
                return false;
            };
            if !self.waiters.is_alive(id, self.now_ms()) {
                self.waiters.leave(id);
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

    fn attend(&mut self, id: usize, ticket: u64) -> Option<&'static str> {
        if self.holds(id) {
            return None;
        }
        if self.is_cancelled(id) {
            return Some("cancelled");
        }
        let owner = self.world.acquisitions[id].owner;
        if self.may_reenter(id, owner) {
            let joined = self.reenter(id, owner);
            self.waiters.leave(id);
            return if joined { None } else { Some("too many entries") };
        }
        // With 0 it has had its turn, also where an earlier check has put it back.
        if self.waiters.ticket(id).is_some() && ticket > 0 {
            self.refresh(id);
        } else {
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
}
