//! Who waits, and what happens when something ends.

use super::super::answer::Answer;
use super::{CHECK_MS, Ending, Fit, GONE_MS, GRANT_MS, Gone, Mark, Member, Push, Reference};

impl Reference {
    /// Grants what now fits; true if a bound was reached.
    pub(super) fn settle(&mut self, callers: &[usize]) -> bool {
        if self.unswept {
            return true;
        }
        let (mut dead, mut granted) = (0, 0);
        while dead < self.world.most_dead && granted < self.world.most_grants {
            let Some(&(_, id)) = self.queue.of.first() else {
                self.clear_timeouts();
                return false;
            };
            if !self.is_alive(id) {
                self.leave(id);
                dead += 1;
                continue;
            }
            match self.fits(id) {
                Fit::Later => return false,
                Fit::Never => {
                    self.leave(id);
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

    /// Whether it was heard of.
    fn grant(&mut self, id: usize, asked: bool) -> bool {
        let lease_ms = self.world.acquisitions[id].lease_ms;
        let lease_ms = if asked { lease_ms } else { lease_ms.min(GRANT_MS) };
        self.leave(id);
        self.take(id, lease_ms);
        if !asked && !self.push(id, Push::Granted { id, lease_ms }) {
            self.drop_hold(Member::held(id), 0);
            return false;
        }
        true
    }

    /// Whether anybody heard it.
    pub(super) fn push(&mut self, id: usize, push: Push) -> bool {
        let inbox = self.world.acquisitions[id].inbox;
        if self.inboxes[inbox] {
            self.pushes.push((inbox, push));
        }
        self.inboxes[inbox]
    }

    pub(crate) fn waiting(&self) -> Vec<usize> {
        self.queue.of.iter().map(|(_, id)| *id).collect()
    }

    pub(crate) fn ticket(&self, id: usize) -> Option<u64> {
        self.queue.of.iter().find(|(_, known)| *known == id).map(|(ticket, _)| *ticket)
    }

    pub(super) fn position(&self, id: usize) -> Option<usize> {
        self.queue.of.iter().position(|(_, known)| *known == id)
    }

    pub(super) fn enter(&mut self, id: usize, ticket: u64) {
        let latest = self.last_ticket.max(self.now_us);
        let ticket = match ticket {
            old if old > 0 && old <= latest => old,
            _ => self.now_us.max(self.last_ticket + 1),
        };
        self.last_ticket = self.last_ticket.max(ticket);
        self.queue.of.retain(|(_, waiting)| *waiting != id);
        self.queue.of.insert((ticket, id));
        self.refresh(id);
    }

    pub(super) fn refresh(&mut self, id: usize) {
        let deadline = self.now_ms() + self.world.wait_ms;
        self.timeouts.of.insert(id, deadline);
        for ends in [&mut self.queue.ends_ms, &mut self.timeouts.ends_ms] {
            *ends = deadline.max(*ends);
        }
    }

    pub(super) fn leave(&mut self, id: usize) {
        self.timeouts.of.remove(&id);
        self.queue.of.retain(|(_, waiting)| *waiting != id);
        if self.queue.of.is_empty() {
            self.queue.ends_ms = 0;
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
        self.gone.of.insert(mark, self.now_ms() + GONE_MS);
    }

    /// A minute after the newest, also when the clock went back meanwhile.
    pub(super) fn mark_for_a_minute(&mut self, gone: Gone) {
        self.mark(Mark::Gone(gone));
        self.gone.ends_ms = self.now_ms() + GONE_MS;
    }

    pub(super) fn is_alive(&self, id: usize) -> bool {
        self.timeouts.of.get(&id).is_some_and(|deadline| *deadline > self.now_ms())
    }

    pub(crate) fn is_gone(&self, id: usize) -> bool {
        let until = self.gone.of.get(&Mark::Gone((false, id)));
        until.is_some_and(|until| *until > self.now_ms())
    }

    pub(super) fn next_check_ms(&self) -> u64 {
        self.left_ms().clamp(1, CHECK_MS)
    }

    pub(super) fn queued(&self, answer: Answer, id: usize) -> Answer {
        let position = self.position(id).expect("it waits");
        answer.exact(position as u64).exact(self.ticket(id).expect("it waits"))
    }

    pub(super) fn list(&self, most: u32) -> Answer {
        let mut answer = Answer::new("waiters").exact(self.queue.of.len() as u64);
        for (ticket, id) in self.queue.of.iter().take(most as usize) {
            answer = answer.exact(*ticket);
            // Without a deadline (its hash was lost) the description is lost too.
            if let Some(deadline) = self.timeouts.of.get(id) {
                answer = answer.exact(*id as u64).exact(*deadline);
            }
        }
        answer
    }
}
