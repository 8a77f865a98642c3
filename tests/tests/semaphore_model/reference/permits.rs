//! Who holds how much, and until when.

use super::super::answer::Answer;
use super::super::serving::Serving;
use super::{Fit, IDLE_MS, Mark, Member, NEAR_MS, Note, Notes, Permit, Push, Reference, SPARE_MS};

impl Reference {
    pub(crate) fn ends_at(&self, member: Member) -> u64 {
        self.holds.of.permits.get(&member).map_or(0, |permit| permit.deadline_ms)
    }

    pub(super) fn deadline(&self, id: usize) -> u64 {
        self.ends_at(Member::held(id))
    }

    pub(crate) fn is_live(&self, member: Member) -> bool {
        self.ends_at(member) > self.now_ms()
    }

    pub(crate) fn holds_id(&self, id: usize) -> bool {
        self.is_live(Member::held(id))
    }

    pub(crate) fn cools(&self, id: usize) -> bool {
        self.is_live(Member::cooling(id))
    }

    pub(crate) fn weight_of(&self, member: Member) -> u32 {
        let changed = self.holds.of.permits.get(&member).and_then(|permit| permit.changed);
        changed.unwrap_or(self.world.weight(member.id))
    }

    /// In the order of their ends; equal ones in the order of their names.
    fn in_order(&self, which: impl Fn(u64) -> bool) -> Vec<Member> {
        let permits = self.holds.of.permits.iter();
        let mut found: Vec<_> = permits
            .filter(|(_, permit)| which(permit.deadline_ms))
            .map(|(member, permit)| (permit.deadline_ms, member.name(&self.world), *member))
            .collect();
        found.sort();
        found.into_iter().map(|(_, _, member)| member).collect()
    }

    pub(crate) fn live(&self) -> Vec<Member> {
        self.in_order(|deadline| deadline > self.now_ms())
    }

    pub(crate) fn expired(&self) -> Vec<Member> {
        self.in_order(|deadline| deadline <= self.now_ms())
    }

    pub(crate) fn entries_of(&self, owner: usize) -> Vec<usize> {
        let list = self.notes.of.lists.get(&owner).into_iter().flatten();
        list.copied().filter(|id| self.holds_id(*id)).collect()
    }

    fn keep_entries(&mut self, owner: usize) {
        match self.entries_of(owner) {
            none if none.is_empty() => drop(self.notes.of.lists.remove(&owner)),
            some => drop(self.notes.of.lists.insert(owner, some)),
        }
    }

    /// An empty key is none, and its end is forgotten.
    fn forget_empty(&mut self) {
        if self.notes.of.is_empty() {
            self.notes.ends_ms = 0;
        }
        let holds = &self.holds.of;
        if holds.permits.is_empty() && holds.used.is_none() && holds.limit.is_none() {
            self.holds.ends_ms = 0;
        }
    }

    fn lasts(&mut self, deadline: u64) {
        self.holds.lasts(deadline);
        if !self.notes.of.is_empty() {
            self.notes.lasts(deadline);
        }
    }

    pub(super) fn set_up(&mut self, limit: u32) {
        if self.holds.of.limit.is_none() {
            self.notes.of = Notes::default();
            self.notes.ends_ms = 0;
            self.holds.of.limit = Some(limit);
            self.lasts(self.now_ms() + IDLE_MS);
        }
    }

    pub(super) fn fits(&self, id: usize) -> Fit {
        let weight = self.weight_of(Member::held(id));
        match self.holds.of.limit {
            None => Fit::Later,
            Some(limit) if weight > limit => Fit::Never,
            Some(limit) if self.holds.of.used.unwrap_or(0) + weight <= limit => Fit::Now,
            Some(_) => Fit::Later,
        }
    }

    fn add(&mut self, id: usize, owner: usize, since_ms: u64, permit: Permit) {
        let mut mates = self.entries_of(owner);
        mates.push(id);
        self.notes.of.of.insert(Member::held(id), Note { since_ms, owner: Some(owner) });
        self.notes.of.lists.insert(owner, mates);
        self.holds.of.permits.insert(Member::held(id), permit);
        self.lasts(permit.deadline_ms.max(self.now_ms() + IDLE_MS));
    }

    pub(super) fn take(&mut self, id: usize, lease_ms: u64) {
        let weight = self.weight_of(Member::held(id));
        let (owner, now) = (self.world.acquisitions[id].owner, self.now_ms());
        // A weight that was changed stays changed.
        let changed =
            self.holds.of.permits.get(&Member::held(id)).and_then(|permit| permit.changed);
        self.holds.of.used = Some(self.holds.of.used.unwrap_or(0) + weight);
        self.add(id, owner, now, Permit { deadline_ms: now + lease_ms, changed });
    }

    /// The usual case of an acquire, which looks at nothing else: true if it was that.
    pub(super) fn take_quickly(&mut self, id: usize, limit: u32, strict: bool) -> bool {
        let (holds, weight) = (&self.holds.of, self.world.weight(id));
        let Some(server) = holds.limit else { return false };
        let known = |member| holds.permits.contains_key(&member);
        let owner = self.world.acquisitions[id].owner;
        let busy = known(Member::held(id))
            || known(Member::cooling(id))
            || holds.used.unwrap_or(0) + weight > server
            || (server != limit && strict)
            || !self.waiters.is_empty()
            || !self.gone.of.is_empty()
            || !self.expired().is_empty()
            || self.notes.of.lists.contains_key(&owner);
        if busy {
            return false;
        }
        let (now, lease_ms) = (self.now_ms(), self.world.acquisitions[id].lease_ms);
        let least = lease_ms.max(IDLE_MS);
        self.unsure_of_ends = [self.holds.ends_ms, self.notes.ends_ms]
            .iter()
            .any(|ends| ends.saturating_sub(now).abs_diff(least) <= NEAR_MS);
        let (holds_end, notes_end) = (self.holds.ends_ms, self.notes.ends_ms);
        self.take(id, lease_ms);
        let later = |ends: u64| if ends < now + least { now + least + SPARE_MS } else { ends };
        (self.holds.ends_ms, self.notes.ends_ms) = (later(holds_end), later(notes_end));
        true
    }

    pub(super) fn extend(&mut self, id: usize, deadline: u64) {
        let idle = self.now_ms() + IDLE_MS;
        let Some(permit) = self.holds.of.permits.get_mut(&Member::held(id)) else { return };
        if deadline > permit.deadline_ms {
            permit.deadline_ms = deadline;
            self.lasts(deadline.max(idle));
        }
    }

    pub(super) fn remove(&mut self, members: &[Member]) {
        let mut owners = Vec::new();
        for member in members {
            let weight = self.weight_of(*member);
            if self.holds.of.permits.remove(member).is_some() {
                self.holds.of.used = self.holds.of.used.map(|used| used - weight);
            }
            owners.extend(self.notes.of.of.remove(member).and_then(|note| note.owner));
        }
        owners.into_iter().for_each(|owner| self.keep_entries(owner));
        self.forget_empty();
    }

    pub(super) fn sweep(&mut self) {
        let mut expired = self.expired();
        expired.truncate(self.world.most_expired);
        self.unswept = expired.len() == self.world.most_expired;
        self.remove(&expired);
    }

    /// The hold leaves; the last one of its owner may cool down, counted from its grant.
    pub(super) fn drop_hold(&mut self, member: Member, at_least_ms: u64) {
        let note = self.notes.of.of.get(&member).copied();
        let owner = note.and_then(|note| note.owner);
        let mates = owner.map_or(0, |owner| self.entries_of(owner).len());
        let now = self.now_ms();
        // From now where the clock went back behind the grant.
        let until = note.map_or(0, |note| note.since_ms).min(now) + at_least_ms;
        let Some(note) = note.filter(|_| until > now && mates <= 1) else {
            return self.remove(&[member]);
        };
        let weight = self.weight_of(member);
        self.holds.of.permits.remove(&member);
        self.notes.of.of.remove(&member);
        owner.map(|owner| self.notes.of.lists.remove(&owner));
        let cooling = Member::cooling(member.id);
        let permit = Permit { deadline_ms: until, changed: Some(weight) };
        self.holds.of.permits.insert(cooling, permit);
        self.notes.of.of.insert(cooling, Note { owner: None, ..note });
        self.lasts(until);
    }

    /// The usual case of a release: true if it was that.
    pub(super) fn release_quickly(&mut self, id: usize) -> bool {
        let note = self.notes.of.of.get(&Member::held(id));
        let Some(owner) = note.and_then(|note| note.owner) else { return false };
        let alone = self.notes.of.lists.get(&owner) == Some(&vec![id]);
        if !self.holds_id(id) || !self.waiters.is_empty() || !alone {
            return false;
        }
        self.remove(&[Member::held(id)]);
        true
    }

    /// It has ended, and was not cleared away.
    fn was_there(&self, id: usize) -> bool {
        self.holds.of.permits.contains_key(&Member::held(id))
    }

    pub(super) fn split(&mut self, old: usize, id: usize) -> Answer {
        if !self.holds_id(id) {
            if self.is_gone(id) || self.cools(id) || self.was_there(id) {
                return Answer::new("cancelled");
            }
            if !self.holds_id(old) {
                return Answer::new("not held").and(self.why_not_held(old));
            }
            let (whole, part) =
                (self.weight_of(Member::held(old)), self.weight_of(Member::held(id)));
            if part >= whole {
                return Answer::new("too much").exact(whole.into());
            }
            let since_ms = self.notes.of.of.get(&Member::held(old)).map_or(0, |note| note.since_ms);
            let deadline_ms = self.deadline(old);
            let owner = self.world.acquisitions[id].owner;
            self.add(id, owner, since_ms, Permit { deadline_ms, changed: None });
            let rest = self.holds.of.permits.get_mut(&Member::held(old)).expect("it holds");
            rest.changed = Some(whole - part);
        }
        Answer::new("split").about(self.deadline(id) - self.now_ms())
    }

    pub(super) fn merge(&mut self, kept: usize, merged: usize) -> Answer {
        let made = Mark::Merged(kept, merged);
        let (holds, before) = (self.holds_id(merged), self.gone.has(&made));
        if !self.holds_id(kept) {
            let both = !holds && before;
            let answer = Answer::new(if both { "both ended" } else { "kept not held" });
            return answer.and(self.why_not_held(kept));
        }
        if !holds && !before {
            return Answer::new("merged not held").and(self.why_not_held(merged));
        }
        if holds {
            let (kept, merged) = (Member::held(kept), Member::held(merged));
            let weight = self.weight_of(kept) + self.weight_of(merged);
            let deadline = self.ends_at(merged);
            self.holds.of.permits.get_mut(&kept).expect("it holds").changed = Some(weight);
            self.holds.of.permits.remove(&merged);
            let other = self.notes.of.of.remove(&merged);
            if let (Some(note), Some(other)) = (self.notes.of.of.get_mut(&kept), other) {
                note.since_ms = note.since_ms.max(other.since_ms);
            }
            other
                .and_then(|note| note.owner)
                .into_iter()
                .for_each(|owner| self.keep_entries(owner));
            self.forget_empty();
            self.extend(kept.id, deadline);
            self.mark(made);
            self.mark_for_a_minute((false, merged.id));
        }
        let weight = self.weight_of(Member::held(kept));
        Answer::new("merged").exact(weight.into()).about(self.deadline(kept) - self.now_ms())
    }

    pub(super) fn adopt(&mut self, id: usize, owner: usize) -> Answer {
        if !self.holds_id(id) {
            if self.is_gone(id) || self.cools(id) || self.was_there(id) {
                return Answer::new("cancelled");
            }
            let earlier = self.entries_of(owner);
            if earlier.is_empty() {
                return Answer::new("not held").and("absent");
            }
            let now = self.now_ms();
            let members = || earlier.iter().map(|entry| Member::held(*entry));
            let weight = members().map(|member| self.weight_of(member)).sum();
            let since = members().filter_map(|member| self.notes.of.of.get(&member));
            let known = since.map(|note| note.since_ms).filter(|since| *since > 0);
            let first = known.fold(now, u64::min);
            let wanted = now + self.world.acquisitions[id].lease_ms;
            let latest = members().map(|member| self.ends_at(member)).fold(wanted, u64::max);
            self.add(id, owner, first, Permit { deadline_ms: latest, changed: Some(weight) });
            for entry in earlier {
                self.holds.of.permits.remove(&Member::held(entry));
                self.notes.of.of.remove(&Member::held(entry));
                self.mark_for_a_minute((false, entry));
                self.mark(Mark::Adopted(entry));
                self.push(entry, Push::Adopted { id: entry });
            }
            self.keep_entries(owner);
        }
        let weight = self.weight_of(Member::held(id));
        self.taken(Answer::new("adopted"), id).exact(weight.into())
    }

    pub(super) fn why_not_held(&self, id: usize) -> &'static str {
        let marked = |mark| self.gone.has(&mark);
        match (marked(Mark::Forced(id)), marked(Mark::Adopted(id))) {
            (true, _) => "forced",
            (false, true) => "other holder",
            (false, false) => "absent",
        }
    }

    /// Of the first three to end, the first that is described.
    pub(super) fn who_holds(&self, waiting: usize) -> Option<(usize, u64)> {
        let noted = |member: Member| {
            let note = self.notes.of.of.get(&member).filter(|note| note.since_ms > 0)?;
            Some((member.id, note.since_ms))
        };
        let described: Vec<_> = self.live().into_iter().filter_map(noted).collect();
        let inbox = |id: usize| self.world.acquisitions[id].inbox;
        let own = described.iter().find(|(holder, _)| inbox(*holder) == inbox(waiting));
        own.or(described.first()).copied()
    }

    pub(super) fn taken(&self, answer: Answer, id: usize) -> Answer {
        // Permits have no tokens.
        answer.exact(0).about(self.deadline(id) - self.now_ms())
    }

    /// Every moment at which an answer changes by itself.
    pub(crate) fn deadlines_ms(&self) -> Vec<u64> {
        let since = self.notes.of.of.values().map(|note| note.since_ms);
        let at_least = super::super::request::AT_LEAST_MS;
        let mut all: Vec<u64> = since.flat_map(|since| at_least.map(|ms| since + ms)).collect();
        all.extend(self.holds.of.permits.values().map(|permit| permit.deadline_ms));
        all.extend(self.waiters.timeouts.of.values());
        all.extend(self.gone.of.values());
        all.extend(self.ends_ms());
        all
    }
}
