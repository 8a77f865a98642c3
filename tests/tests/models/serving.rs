//! How those who wait are served, as far as every kind does the same.

use super::answer::Answer;
use super::waiters::Waiters;
use super::world::CHECK_MS;

pub(crate) trait Serving {
    fn waiters(&mut self) -> &mut Waiters;
    fn now_ms(&self) -> u64;
    /// Until the next end of a hold.
    fn left_ms(&self) -> u64;
    /// Whether it could be granted now if nobody waited.
    fn fits_now(&self, id: usize) -> bool;
    /// Grants what now fits; true if a bound was reached.
    fn settle(&mut self, callers: &[usize]) -> bool;
    /// Asked for by a check that brings this ticket: it holds or waits, or there is a reason why not.
    fn attend(&mut self, id: usize, ticket: u64) -> Option<&'static str>;
    /// Adds what became of one that was attended to.
    fn outcome(&mut self, answer: Answer, id: usize) -> Answer;

    fn next_check_ms(&self) -> u64 {
        self.left_ms().clamp(1, CHECK_MS)
    }

    /// The answer's `again` if the queue is full. Dead waiters do not count, wherever they stand (at the most 16 are
    /// looked at, and no world has more acquisitions that wait).
    fn no_room(&mut self, id: usize, max_waiters: Option<u32>) -> Option<bool> {
        let most = max_waiters? as usize;
        if self.waiters().len() < most {
            return None;
        }
        let again = self.settle(&[]);
        let now_ms = self.now_ms();
        self.waiters().dead_leave(now_ms);
        let empty_and_free = self.waiters().is_empty() && self.fits_now(id);
        (self.waiters().len() >= most && !empty_and_free).then_some(again)
    }

    /// Grants what fits after it has entered.
    fn ask(&mut self, id: usize) -> Answer {
        let again = self.settle(&[id]);
        let answer = self.outcome(Answer::default(), id);
        match self.waiters().ticket(id) {
            Some(_) => answer.about(self.next_check_ms()).again(again),
            None => answer,
        }
    }

    /// Acquisitions that ask again, and the tickets that they bring; `deaf`: they hear no messages.
    fn serve(&mut self, waiting: &[(usize, u64)], deaf: bool) -> Answer {
        self.waiters().looking_until_ms = deaf.then_some(self.now_ms() + CHECK_MS);
        let refusals: Vec<_> =
            waiting.iter().map(|(id, ticket)| self.attend(*id, *ticket)).collect();
        self.waiters().looking_until_ms = None;
        let attended = waiting.iter().zip(&refusals).filter(|(_, refusal)| refusal.is_none());
        let callers: Vec<_> = attended.map(|((id, _), _)| *id).collect();
        let again = self.settle(&callers);
        let answer = Answer::new("checked").about(self.next_check_ms()).again(again);
        waiting.iter().zip(refusals).fold(answer, |answer, ((id, _), refusal)| match refusal {
            Some(why) => answer.and(why),
            None => self.outcome(answer, *id),
        })
    }
}
