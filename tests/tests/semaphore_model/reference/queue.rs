//! What happens when something ends.

use super::super::answer::Answer;
use super::super::serving::Serving;
use super::super::waiters::Waiters;
use super::super::world::GRANT_MS;
use super::{Ended, Fit, Mark, Member, Push, Reference};

impl Serving for Reference {
    fn waiters(&mut self) -> &mut Waiters {
        &mut self.waiters
    }

    fn now_ms(&self) -> u64 {
        self.now_us / 1_000
    }

    fn left_ms(&self) -> u64 {
        self.live().first().map_or(0, |member| self.ends_at(*member) - self.now_ms())
    }

    fn fits_now(&self, id: usize) -> bool {
        self.fits(id) == Fit::Now
    }

    fn settle(&mut self, callers: &[usize]) -> bool {
        if self.unswept {
            return true;
        }
        let (mut dead, mut granted) = (0, 0);
        while dead < self.world.most_dead && granted < self.world.most_grants {
            let Some(id) = self.waiters.head() else {
                self.waiters.clear_timeouts();
                return false;
            };
            if !self.waiters.is_alive(id, self.now_ms()) {
                self.waiters.leave(id);
                dead += 1;
                continue;
            }
            match self.fits(id) {
                Fit::Later => return false,
                Fit::Never => {
                    self.waiters.leave(id);
                    self.refused.insert(id);
                    if !callers.contains(&id) {
                        self.push(id, Push::Refused { id });
                    }
                    dead += 1;
                }
                Fit::Now if self.grant(id, callers.contains(&id)) => granted += 1,
                Fit::Now => dead += 1,
            }
        }
        true
    }

    fn attend(&mut self, id: usize, ticket: u64) -> Option<&'static str> {
        if self.holds_id(id) {
            return None;
        }
        if self.is_gone(id) || self.cools(id) {
            return Some("cancelled");
        }
        if self.fits(id) == Fit::Never {
            self.waiters.leave(id);
            return Some("never fits");
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
        if self.holds_id(id) {
            return self.taken(answer.and("taken"), id);
        }
        match self.refused.contains(&id) {
            true => answer.and("never fits"),
            false => self.waiters.queued(answer.and("queued"), id),
        }
    }
}

impl Reference {
    /// Whether it is heard of.
    fn grant(&mut self, id: usize, asked: bool) -> bool {
        let lease_ms = self.world.acquisitions[id].lease_ms;
        let lease_ms = if asked { lease_ms } else { lease_ms.min(GRANT_MS) };
        let looks = self.waiters.is_looking(id, self.now_ms());
        self.waiters.leave(id);
        self.take(id, lease_ms);
        let inbox = self.world.acquisitions[id].inbox;
        let grant = Push::Granted { id, token: 0, lease_ms };
        if !asked && !self.inboxes.grant(inbox, grant, looks) {
            self.drop_hold(Member::held(id), 0);
            return false;
        }
        true
    }

    /// Whether anybody heard it.
    pub(super) fn push(&mut self, id: usize, push: Push) -> bool {
        self.inboxes.push(self.world.acquisitions[id].inbox, push)
    }

    pub(super) fn refresh(&mut self, id: usize) {
        self.waiters.refresh(id, self.now_ms() + self.world.wait_ms);
    }

    pub(super) fn mark(&mut self, mark: Mark) {
        self.gone.mark(mark, self.now_ms());
    }

    pub(super) fn mark_for_a_minute(&mut self, ended: Ended) {
        self.mark(Mark::Gone(ended));
        self.gone.ends_with_the_newest(self.now_ms());
    }

    pub(crate) fn is_gone(&self, id: usize) -> bool {
        self.gone.remembers(&Mark::Gone((false, id)), self.now_ms())
    }
}
