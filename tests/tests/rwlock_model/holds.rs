//! Who holds, and until when.

use super::super::answer::Answer;
use super::super::serving::Serving;
use super::super::world::GRANT_MS;
use super::{Ending, Mark, Member, Note, Push, Reference};

impl Reference {
    pub(super) fn deadline(&self, member: Member) -> u64 {
        self.holds.of.get(&member).copied().unwrap_or(0)
    }

    pub(super) fn note(&self, member: Member) -> Option<Note> {
        self.notes.of.of.get(&member).copied()
    }

    pub(crate) fn holds(&self, id: usize) -> bool {
        self.deadline(Member::Id(id)) > self.now_ms()
    }

    pub(crate) fn cools(&self, id: usize) -> bool {
        self.deadline(Member::Cooling(id)) > self.now_ms()
    }

    /// Those that have not ended, the first to end first.
    pub(super) fn live(&self) -> Vec<(Member, u64)> {
        let mut live: Vec<_> = self.holds.of.iter().map(|(member, end)| (*member, *end)).collect();
        live.retain(|(_, end)| *end > self.now_ms());
        live.sort_by_key(|(member, end)| (*end, *member));
        live
    }

    /// As the scripts list them.
    pub(crate) fn listed(&self) -> Vec<Member> {
        let live = self.live().into_iter().map(|(member, _)| member);
        live.filter(|member| *member != Member::Writing).collect()
    }

    /// The ends of all members, the first first.
    pub(crate) fn ends_of_holds(&self) -> Vec<u64> {
        self.live().into_iter().map(|(_, end)| end).collect()
    }

    /// Members that ended by time and were not cleared away.
    pub(crate) fn ended_ids(&self) -> Vec<usize> {
        let ids = self.holds.of.keys().filter_map(|member| match member {
            Member::Id(id) => Some(*id),
            Member::Writing | Member::Cooling(_) => None,
        });
        ids.filter(|id| !self.holds(*id)).collect()
    }

    /// Whose it is, as the server knows.
    pub(crate) fn owner_of(&self, id: usize) -> Option<usize> {
        self.note(Member::Id(id)).and_then(|note| note.owner)
    }

    pub(super) fn entries_of(&self, owner: usize) -> Vec<usize> {
        let all = self.notes.of.lists.get(&owner).into_iter().flatten();
        all.copied().filter(|id| self.holds(*id)).collect()
    }

    fn keep_entries(&mut self, owner: usize) {
        let live = self.entries_of(owner);
        match live.is_empty() {
            true => drop(self.notes.of.lists.remove(&owner)),
            false => drop(self.notes.of.lists.insert(owner, live)),
        }
    }

    /// An empty key is none, and its end is forgotten.
    fn forget_empty(&mut self) {
        if self.holds.of.is_empty() {
            self.holds.ends_ms = 0;
        }
        if self.notes.of.of.is_empty() && self.notes.of.lists.is_empty() {
            self.notes.ends_ms = 0;
        }
    }

    fn lasts(&mut self, deadline: u64) {
        self.holds.lasts(deadline);
        if !self.notes.of.of.is_empty() || !self.notes.of.lists.is_empty() {
            self.notes.lasts(deadline);
        }
    }

    pub(super) fn add(&mut self, id: usize, note: Note, deadline: u64) {
        let owner = note.owner.expect("a hold has an owner");
        let mut mates = self.entries_of(owner);
        mates.push(id);
        self.notes.of.of.insert(Member::Id(id), note);
        self.notes.of.lists.insert(owner, mates);
        self.holds.of.insert(Member::Id(id), deadline);
        self.lasts(deadline);
        self.raised(id, deadline);
    }

    fn raised(&mut self, id: usize, deadline: u64) {
        if self.world.writes(id) && self.deadline(Member::Writing) < deadline {
            self.holds.of.insert(Member::Writing, deadline);
        }
    }

    pub(super) fn extend(&mut self, id: usize, deadline: u64) {
        if deadline > self.deadline(Member::Id(id)) {
            self.holds.of.insert(Member::Id(id), deadline);
            self.lasts(deadline);
            self.raised(id, deadline);
        }
    }

    pub(super) fn remove(&mut self, members: &[Member]) {
        let mut owners: Vec<usize> = Vec::new();
        for member in members {
            owners.extend(self.note(*member).and_then(|note| note.owner));
            self.holds.of.remove(member);
            self.notes.of.of.remove(member);
        }
        owners.into_iter().for_each(|owner| self.keep_entries(owner));
        self.forget_empty();
    }

    pub(super) fn sweep(&mut self) {
        let now = self.now_ms();
        let mut ended: Vec<_> = self.holds.of.iter().map(|(member, end)| (*end, *member)).collect();
        ended.retain(|(end, _)| *end <= now);
        ended.sort_unstable();
        let most = self.world.bounds.expired;
        self.unswept = ended.len() >= most;
        let ended: Vec<_> = ended.into_iter().take(most).map(|(_, member)| member).collect();
        self.remove(&ended);
    }

    /// An early end is a cool-down: of an owner's last hold, and of one that writes.
    pub(super) fn drop_entry(&mut self, member: Member, at_least_ms: u64) {
        let note = self.note(member);
        let owner = note.and_then(|note| note.owner);
        let mates = owner.map_or(0, |owner| self.entries_of(owner).len());
        let (Member::Id(id) | Member::Cooling(id)) = member else { return };
        let now = self.now_ms();
        // From now where the clock went back behind the grant.
        let until = note.map_or(0, |note| note.since_ms).min(now) + at_least_ms;
        let early = until > now;
        match note.filter(|_| early && (self.world.writes(id) || mates <= 1)) {
            Some(note) => self.cool_down(id, note, until),
            None => self.remove(&[member]),
        }
        self.ended(id);
        self.forget_empty();
    }

    fn cool_down(&mut self, id: usize, note: Note, until: u64) {
        // Of an owner that writes one after the other, one cool-down is left.
        let earlier = self.writers().into_iter().filter(|(member, _)| match member {
            Member::Cooling(_) => self.world.writes(id),
            Member::Id(_) | Member::Writing => false,
        });
        let mut until = until;
        for (member, ends) in earlier.collect::<Vec<_>>() {
            self.holds.of.remove(&member);
            self.notes.of.of.remove(&member);
            until = until.max(ends);
        }
        self.holds.of.remove(&Member::Id(id));
        self.notes.of.of.remove(&Member::Id(id));
        self.holds.of.insert(Member::Cooling(id), until);
        self.notes.of.of.insert(Member::Cooling(id), Note { owner: None, ..note });
        note.owner.into_iter().for_each(|owner| self.keep_entries(owner));
        self.lasts(until);
    }

    /// Those that write, or cool down from it.
    fn writers(&self) -> Vec<(Member, u64)> {
        let mut live = self.live();
        live.retain(|(member, _)| match member {
            Member::Id(id) | Member::Cooling(id) => self.world.writes(*id),
            Member::Writing => false,
        });
        live
    }

    /// A writer has ended: its mark goes down to what is left.
    fn ended(&mut self, id: usize) {
        if !self.world.writes(id) {
            return;
        }
        match self.writers().last() {
            Some((_, latest)) => drop(self.holds.of.insert(Member::Writing, *latest)),
            None => drop(self.holds.of.remove(&Member::Writing)),
        }
    }

    pub(super) fn fits(&self, id: usize) -> bool {
        match self.world.writes(id) {
            true => self.live().is_empty(),
            false => self.deadline(Member::Writing) <= self.now_ms(),
        }
    }

    /// A waiter fits, or writes while all that hold are its owner's.
    pub(super) fn may_enter(&self, id: usize) -> bool {
        let mates = self.entries_of(self.world.acquisitions[id].owner).len();
        let alone = mates == self.live().len() && mates < self.world.bounds.entries;
        self.fits(id) || (self.world.writes(id) && alone)
    }

    pub(super) fn mint(&mut self) -> u64 {
        self.token.mint(self.now_us, self.floor, self.world.fence_ms)
    }

    fn token_for(&mut self, id: usize) -> u64 {
        if self.world.writes(id) { self.mint() } else { self.token.of.unwrap_or(0) }
    }

    /// Where the note was lost, the last token, which is a writer's own; where that was lost too, a new one.
    pub(super) fn token_of(&mut self, id: usize) -> u64 {
        let noted = self.note(Member::Id(id)).map_or(0, |note| note.token);
        let token = if noted == 0 { self.token.of.unwrap_or(0) } else { noted };
        if token == 0 && self.world.writes(id) { self.mint() } else { token }
    }

    pub(super) fn take(&mut self, id: usize, lease_ms: u64) {
        let token = self.token_for(id);
        self.take_with(id, self.world.acquisitions[id].owner, lease_ms, token);
    }

    fn take_with(&mut self, id: usize, owner: usize, lease_ms: u64, token: u64) {
        if self.holds.of.is_empty() {
            self.notes = Ending::default();
        }
        let since_ms = self.now_ms();
        let note = Note { since_ms, token, owner: Some(owner), of: id };
        self.add(id, note, since_ms + lease_ms);
    }

    fn token_of_writer(&mut self, owner: usize) -> Option<u64> {
        let mates = self.entries_of(owner);
        let writer = mates.into_iter().find(|mate| self.world.writes(*mate))?;
        Some(self.token_of(writer))
    }

    pub(super) fn may_reenter(&self, id: usize, owner: usize) -> bool {
        let mates = self.entries_of(owner).len();
        if mates == 0 || self.unswept {
            return false;
        }
        let own = self.deadline(Member::Writing) > self.now_ms() || self.live().len() == mates;
        !self.world.writes(id) || own
    }

    pub(super) fn reenter(&mut self, id: usize, owner: usize) -> bool {
        if self.entries_of(owner).len() >= self.world.bounds.entries {
            return false;
        }
        let token = self.token_of_writer(owner);
        let token = token.unwrap_or_else(|| self.token_for(id));
        self.take_with(id, owner, self.world.acquisitions[id].lease_ms, token);
        true
    }

    /// The new hold in the place of the old one, with its deadline.
    pub(super) fn swap(&mut self, old: usize, id: usize, owner: usize) {
        let (deadline, note) = (self.deadline(Member::Id(old)), self.note(Member::Id(old)));
        let of_writer = self.token_of_writer(owner);
        let token = match self.world.writes(id) {
            true => of_writer.unwrap_or_else(|| self.mint()),
            false => self.token_of(old),
        };
        self.remove(&[Member::Id(old)]);
        self.ended(old);
        self.forget_empty();
        let since_ms = note.map_or(self.now_ms(), |note| note.since_ms);
        self.add(id, Note { since_ms, token, owner: Some(owner), of: id }, deadline);
    }

    /// The usual case of a release, which looks at nothing else: true if it was that.
    pub(super) fn release_quickly(&mut self, id: usize) -> bool {
        if !self.holds(id) || !self.waiters.is_empty() {
            return false;
        }
        let (notes, writes) = (&self.notes.of, self.world.writes(id));
        let (members, noted) = (self.holds.of.len(), notes.of.len() + notes.lists.len());
        let marked = self.holds.of.contains_key(&Member::Writing);
        if noted == 2 && ((!writes && members == 1) || (writes && members == 2 && marked)) {
            (self.holds, self.notes) = Default::default();
            return true;
        }
        let Some(owner) = self.note(Member::Id(id)).and_then(|note| note.owner) else {
            return false;
        };
        if writes || self.notes.of.lists.get(&owner) != Some(&vec![id]) {
            return false;
        }
        self.remove(&[Member::Id(id)]);
        self.notes.of.lists.remove(&owner);
        self.forget_empty();
        true
    }

    pub(super) fn why_not_held(&self, id: usize) -> &'static str {
        let marked = |mark| self.gone.has(&mark);
        match (marked(Mark::Forced(id)), marked(Mark::Adopted(id))) {
            (true, _) => "forced",
            (false, true) => "other holder",
            (false, false) => "absent",
        }
    }

    /// Whom a waiter that leaves is told of: the first to end of its own process, else the first.
    pub(super) fn who_holds(&self, waiting: usize) -> Option<Note> {
        let inbox = |id: usize| self.world.acquisitions[id].inbox;
        let live = self.live().into_iter();
        let described: Vec<_> = live.filter_map(|(member, _)| self.note(member)).collect();
        let own = described.iter().find(|note| inbox(note.of) == inbox(waiting));
        own.or(described.first()).copied()
    }

    pub(super) fn taken(&mut self, id: usize) -> Answer {
        self.taken_in(Answer::new("taken"), id)
    }

    pub(super) fn taken_in(&mut self, answer: Answer, id: usize) -> Answer {
        let left = self.deadline(Member::Id(id)) - self.now_ms();
        answer.exact(self.token_of(id)).about(left)
    }

    pub(super) fn grant(&mut self, id: usize, asked: bool) -> bool {
        let lease_ms = self.world.acquisitions[id].lease_ms;
        let lease_ms = if asked { lease_ms } else { lease_ms.min(GRANT_MS) };
        let looks = self.waiters.is_looking(id, self.now_ms());
        self.waiters.leave(id);
        self.take(id, lease_ms);
        let token = self.note(Member::Id(id)).map_or(0, |note| note.token);
        let inbox = self.world.acquisitions[id].inbox;
        let grant = Push::Granted { id, token, lease_ms };
        if !asked && !self.inboxes.grant(inbox, grant, looks) {
            self.drop_entry(Member::Id(id), 0);
            return false;
        }
        true
    }

    /// Whether anybody heard it.
    pub(super) fn push(&mut self, id: usize, push: Push) -> bool {
        self.inboxes.push(self.world.acquisitions[id].inbox, push)
    }
}
