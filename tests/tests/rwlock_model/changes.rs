//! Holds that change hands or sides, or are ended by force; and who looks.

use super::super::answer::Answer;
use super::super::serving::Serving;
use super::{Mark, Member, Note, Push, Reference};

impl Reference {
    pub(super) fn exchange(&mut self, old: usize, id: usize, owner: usize) -> Answer {
        self.sweep();
        if !self.holds(id) {
            if self.is_gone(id) {
                return Answer::new("cancelled");
            }
            if !self.holds(old) {
                let again = self.settle(&[]);
                return Answer::new("not held").and(self.why_not_held(old)).again(again);
            }
            let sole = !self.unswept && self.live().len() == 1;
            if self.world.writes(id) && !self.may_reenter(id, owner) && !sole {
                // It settles nothing, so no `again` of a script that does.
                return Answer::new("refused").exact(self.unswept.into());
            }
            self.swap(old, id, owner);
        }
        let again = self.settle(&[]);
        self.taken(id).again(again)
    }

    pub(super) fn adopt(&mut self, id: usize, owner: usize) -> Answer {
        self.sweep();
        if self.holds(id) {
            return self.taken(id);
        }
        if self.is_gone(id) {
            return Answer::new("cancelled");
        }
        let side = self.world.writes(id);
        let earlier: Vec<_> = self
            .entries_of(owner)
            .into_iter()
            .filter(|entry| self.world.writes(*entry) == side)
            .collect();
        if earlier.is_empty() {
            return Answer::new("not held").and("absent");
        }
        let now = self.now_ms();
        let last = if side { None } else { self.token.of };
        let (mut since_ms, mut token) = (now, last.unwrap_or(0));
        let mut deadline_ms = now + self.world.acquisitions[id].lease_ms;
        for entry in &earlier {
            token = token.max(self.token_of(*entry));
            since_ms = since_ms.min(self.note(Member::Id(*entry)).map_or(0, |note| note.since_ms));
            deadline_ms = deadline_ms.max(self.deadline(Member::Id(*entry)));
        }
        self.remove(&earlier.iter().map(|entry| Member::Id(*entry)).collect::<Vec<_>>());
        self.add(id, Note { since_ms, token, owner: Some(owner), of: id }, deadline_ms);
        for entry in earlier {
            self.mark(Mark::Gone(entry));
            self.mark(Mark::Adopted(entry));
            self.push(entry, Push::Adopted { id: entry });
        }
        self.gone.ends_with_the_newest(now);
        self.taken(id)
    }

    pub(super) fn force(&mut self, members: &[Member]) -> Answer {
        self.sweep();
        let mut count = 0;
        for member in members {
            // A hold and its cool-down are one: what began since it was listed ends too.
            let (Member::Id(id) | Member::Cooling(id)) = *member else { continue };
            let both = [Member::Id(id), Member::Cooling(id)];
            if let Some(live) = both.into_iter().find(|one| self.deadline(*one) > self.now_ms()) {
                self.mark(Mark::Forced(id));
                self.drop_entry(live, 0);
                self.push(id, Push::Forced { id });
                count += 1;
            } else if self.gone.has(&Mark::Forced(id)) {
                count += 1;
            }
        }
        let again = self.settle(&[]);
        Answer::new("ended").exact(count).again(again)
    }

    pub(super) fn inspect(&self) -> Answer {
        let ends_ms = self.live().iter().map(|(_, deadline)| *deadline).max().unwrap_or(0);
        let token = self.token.of.unwrap_or(0);
        let mut answer = Answer::new("holds").exact(self.waiters.len() as u64).exact(token);
        answer = answer.exact(ends_ms);
        for member in self.listed() {
            let (Member::Id(id) | Member::Cooling(id)) = member else { continue };
            let word = if member == Member::Id(id) { "held" } else { "cooling" };
            let since_ms = self.note(member).map_or(0, |note| note.since_ms);
            answer = answer.and(word).exact(id as u64).exact(self.deadline(member)).exact(since_ms);
        }
        answer
    }
}
