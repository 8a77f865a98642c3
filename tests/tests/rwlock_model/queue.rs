//! What happens when something ends.

use super::super::world::CHECK_MS;
use super::{Mark, Reference};

impl Reference {
    /// Grants what now fits; true if a bound was reached.
    pub(super) fn settle(&mut self, callers: &[usize]) -> bool {
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

    pub(super) fn next_check_ms(&self) -> u64 {
        self.left_ms().clamp(1, CHECK_MS)
    }
}
