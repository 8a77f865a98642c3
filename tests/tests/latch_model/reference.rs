//! The latch as protocol-review F states it, in plain Rust: one name, one clock, no server.
//!
//! Time is an argument. Arms, ids and listeners are numbers.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_lua::latch::State;

use super::bench::channel;
use super::ending::Ending;
use super::keys::{Found, KEYS, Key};

pub(crate) const CHECK_MS: u64 = 1_000;
pub(crate) const KEPT_MS: u64 = 60_000;

/// What does not change in a case.
#[derive(Clone, Debug)]
pub(crate) struct World {
    /// Of each arm: its count, and how long its latch lasts.
    pub(crate) arms: Vec<(u32, u64)>,
    pub(crate) wait_ms: u64,
    pub(crate) small_bounds: bool,
}

impl World {
    fn most_told(&self) -> usize {
        if self.small_bounds { 2 } else { 100 }
    }

    fn most_swept(&self) -> usize {
        if self.small_bounds { 2 } else { 8 }
    }
}

/// Who stands in the zset of ids, in the order of its members' bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Id {
    Arm(usize),
    Named(usize),
    Call(usize),
}

impl Id {
    /// As it stands there.
    pub(crate) fn member(self) -> String {
        match self {
            Self::Arm(number) => format!("a{number}"),
            Self::Named(number) => format!("n{number}"),
            Self::Call(number) => format!("u{number}"),
        }
    }
}

/// A process listens by one entry at a time; it has another one each time that it comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Listener {
    pub(crate) uuid: usize,
    pub(crate) inbox: usize,
}

impl Listener {
    pub(crate) fn member(self) -> String {
        format!("{}|{}", self.uuid, channel(self.inbox))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Generation {
    pub(crate) number: u64,
    pub(crate) count: u64,
    pub(crate) left: u64,
    pub(crate) lasts_ms: u64,
    pub(crate) over: bool,
}

/// What a call answers. Times are apart, as they are known only roughly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Armed { armed: bool, generation: u64 },
    Counted { left: u64, again: bool },
    Other { generation: u64 },
    Gone(State),
    Looked { state: State, generation: u64, left: u64 },
    Waits { state: State, generation: u64 },
    Left(bool),
    Reset { done: bool, again: bool },
    NotThat,
}

/// A push: to which inbox, for which entry, which generation, how it ended.
pub(crate) type Told = (usize, usize, u64, State);

#[derive(Clone, Debug)]
pub(crate) struct Reference {
    pub(crate) world: World,
    pub(crate) now_us: u64,
    latch: Ending<Option<Generation>>,
    ids: Ending<BTreeMap<Id, u64>>,
    waiters: Ending<BTreeMap<Listener, u64>>,
    pub(crate) told: Vec<Told>,
    pub(crate) check_ms: Option<u64>,
}

impl Reference {
    pub(crate) fn new(world: World, now_us: u64) -> Self {
        Self {
            world,
            now_us,
            latch: Ending::default(),
            ids: Ending::default(),
            waiters: Ending::default(),
            told: Vec::new(),
            check_ms: None,
        }
    }

    fn now_ms(&self) -> u64 {
        self.now_us / 1_000
    }

    /// The clock shows `now_us`: keys whose time is over are gone.
    pub(crate) fn at(&mut self, now_us: u64) {
        self.now_us = now_us;
        self.told.clear();
        self.check_ms = None;
        let now = self.now_ms();
        self.latch.at(now);
        self.ids.at(now);
        self.waiters.at(now);
    }

    fn ends_ms(&self) -> [u64; KEYS.len()] {
        [self.latch.ends_ms, self.ids.ends_ms, self.waiters.ends_ms]
    }

    pub(crate) fn lose(&mut self, key: Key) {
        match key {
            Key::Latch => self.latch.lose(),
            Key::Ids => self.ids.lose(),
            Key::Waiters => self.waiters.lose(),
        }
    }

    /// The ids that counted in the present generation, first to count first.
    pub(crate) fn counted(&self) -> Vec<Id> {
        let Some(generation) = self.latch.of else { return vec![] };
        let present = self.ids.of.iter().filter(|(_, score)| **score > generation.number);
        present
            .map(|(id, score)| (*score, *id))
            .collect::<BTreeSet<_>>()
            .into_iter()
            .map(|(_, id)| id)
            .collect()
    }

    pub(crate) fn listeners(&self) -> Vec<Listener> {
        self.waiters.of.keys().copied().collect()
    }

    pub(crate) fn state(&self) -> State {
        match self.latch.of {
            None => State::NotArmed,
            Some(generation) if generation.over => State::Reset,
            Some(generation) if generation.left == 0 => State::Open,
            // Those who counted were lost alone: the latch is lost with them.
            Some(_) if self.ids.of.is_empty() => State::NotArmed,
            Some(_) => State::Waits,
        }
    }

    /// Every moment at which an answer changes by itself.
    pub(crate) fn deadlines_ms(&self) -> Vec<u64> {
        let waiters = self.waiters.of.values().copied();
        let kept = self.ids.of.values().map(|score| score / 1_000 + KEPT_MS);
        self.ends_ms().into_iter().filter(|end| *end > 0).chain(waiters).chain(kept).collect()
    }

    /// The generation that an arm begins now is at least this.
    pub(crate) fn next_generation(&self) -> u64 {
        let last = self.latch.of.map_or(0, |generation| generation.number);
        let newest = self.ids.of.values().copied().max().unwrap_or(0);
        self.now_us.max(last + 1).max(newest + 1)
    }

    /// `fresh`: the number of the generation, should one begin.
    pub(crate) fn arm(&mut self, arm: usize, fresh: u64) -> Answer {
        if let Some(number) = self.ids.of.get(&Id::Arm(arm)) {
            return Answer::Armed { armed: true, generation: *number };
        }
        if let (State::Waits | State::Open, Some(generation)) = (self.state(), self.latch.of) {
            return Answer::Armed { armed: false, generation: generation.number };
        }
        let (count, lasts_ms) = self.world.arms[arm];
        let count = u64::from(count);
        let generation = Generation { number: fresh, count, left: count, lasts_ms, over: false };
        self.latch.of = Some(generation);
        self.ids.of.insert(Id::Arm(arm), fresh);
        self.end_in(lasts_ms);
        self.sweep();
        Answer::Armed { armed: true, generation: fresh }
    }

    pub(crate) fn count_down(&mut self, meant: u64, id: Id) -> Answer {
        let state = self.state();
        let Some(generation) = self.latch.of.filter(|_| state != State::NotArmed) else {
            return Answer::Gone(State::NotArmed);
        };
        if state == State::Reset {
            return Answer::Gone(State::Reset);
        }
        if meant != generation.number {
            return Answer::Other { generation: generation.number };
        }
        let known = self.ids.of.get(&id).filter(|score| **score > generation.number);
        let left = match known {
            // Answered as the first time.
            Some(score) => generation.count - (score - generation.number),
            None if generation.left > 0 => self.count(generation, id),
            None => 0,
        };
        let open = self.latch.of.is_some_and(|now| now.left == 0);
        let again = open && self.tell(generation.number, State::Open);
        Answer::Counted { left, again }
    }

    fn count(&mut self, generation: Generation, id: Id) -> u64 {
        let left = generation.left - 1;
        self.ids.of.insert(id, generation.number + generation.count - left);
        self.latch.of = Some(Generation { left, ..generation });
        self.end_in(generation.lasts_ms);
        self.sweep();
        left
    }

    pub(crate) fn look(&self) -> Answer {
        let state = self.state();
        let generation = self.latch.of.filter(|_| state != State::NotArmed);
        let left = generation.filter(|_| state == State::Waits).map_or(0, |now| now.left);
        let number = generation.map_or(0, |now| now.number);
        Answer::Looked { state, generation: number, left }
    }

    pub(crate) fn wait(&mut self, listener: Listener) -> Answer {
        let state = self.state();
        let generation = self.latch.of.filter(|_| state != State::NotArmed);
        let answer = Answer::Waits { state, generation: generation.map_or(0, |now| now.number) };
        if state != State::Waits {
            self.remove([listener]);
            return answer;
        }
        let (now, deadline) = (self.now_ms(), self.now_ms() + self.world.wait_ms);
        self.waiters.of.insert(listener, deadline);
        self.waiters.lasts(deadline);
        let first = self.first_waiters(self.world.most_swept());
        self.remove(first.into_iter().filter(|(deadline, _)| *deadline <= now).map(|(_, one)| one));
        self.check_ms = Some((self.latch.ends_ms - now).clamp(1, CHECK_MS));
        answer
    }

    pub(crate) fn leave(&mut self, listener: Listener) -> Answer {
        let there = self.waiters.of.contains_key(&listener);
        self.remove([listener]);
        Answer::Left(there)
    }

    pub(crate) fn reset(&mut self, meant: u64) -> Answer {
        let state = self.state();
        let armed = self.latch.of.filter(|now| state != State::NotArmed && now.number == meant);
        let Some(generation) = armed else { return Answer::NotThat };
        let done = state != State::Reset;
        if done {
            self.latch.of = Some(Generation { over: true, ..generation });
            self.end_in(KEPT_MS);
        }
        Answer::Reset { done, again: self.tell(meant, State::Reset) }
    }

    fn end_in(&mut self, ms: u64) {
        self.latch.ends_ms = self.now_ms() + ms;
        if !self.ids.of.is_empty() {
            self.ids.ends_ms = self.now_ms() + ms.max(KEPT_MS);
        }
    }

    /// What is of an earlier generation and a minute old leaves, a few at a time.
    fn sweep(&mut self) {
        let Some(generation) = self.latch.of else { return };
        let before = generation.number.min(self.now_us - KEPT_MS * 1_000);
        let mut all: Vec<_> = self.ids.of.iter().map(|(id, score)| (*score, *id)).collect();
        all.sort_by_key(|(score, id)| (*score, id.member()));
        for (score, id) in all.into_iter().take(self.world.most_swept()) {
            if score < before {
                self.ids.of.remove(&id);
            }
        }
    }

    /// Those whose deadline comes first.
    fn first_waiters(&self, most: usize) -> Vec<(u64, Listener)> {
        let mut all: Vec<_> = self.waiters.of.iter().map(|(one, until)| (*until, *one)).collect();
        all.sort_by_key(|(until, one)| (*until, one.member()));
        all.truncate(most);
        all
    }

    fn remove(&mut self, listeners: impl IntoIterator<Item = Listener>) {
        for listener in listeners {
            self.waiters.of.remove(&listener);
        }
        if self.waiters.of.is_empty() {
            self.waiters.ends_ms = 0;
        }
    }

    /// Answers whether there are more.
    fn tell(&mut self, generation: u64, state: State) -> bool {
        let first = self.first_waiters(self.world.most_told());
        let now = self.now_ms();
        let living = first.iter().filter(|(until, _)| *until > now);
        self.told.extend(living.map(|(_, one)| (one.inbox, one.uuid, generation, state)));
        self.remove(first.into_iter().map(|(_, one)| one));
        !self.waiters.of.is_empty()
    }

    /// What the server has otherwise than this; ends may differ by `slack_ms`.
    pub(crate) fn difference(&self, found: &Found, slack_ms: u64) -> Option<String> {
        let latch: BTreeMap<String, String> = self.latch.of.map_or_else(BTreeMap::new, fields);
        let ids: BTreeMap<_, _> =
            self.ids.of.iter().map(|(id, score)| (id.member(), *score)).collect();
        let waiters: BTreeMap<_, _> =
            self.waiters.of.keys().map(|one| one.member()).zip(self.waiters.of.values()).collect();
        let found_waiters: Vec<_> = found.waiters.keys().collect();
        if latch != found.latch {
            return Some(format!("latch: model {latch:?}, server {:?}", found.latch));
        }
        if ids != found.ids {
            return Some(format!("ids: model {ids:?}, server {:?}", found.ids));
        }
        if waiters.keys().collect::<Vec<_>>() != found_waiters {
            return Some(format!("waiters: model {waiters:?}, server {:?}", found.waiters));
        }
        let far = |(ours, theirs): (u64, u64)| ours.abs_diff(theirs) > slack_ms;
        if waiters.values().map(|until| **until).zip(found.waiters.values().copied()).any(far) {
            return Some(format!("deadlines: model {waiters:?}, server {:?}", found.waiters));
        }
        let ends_ms = self.ends_ms();
        let differ = ends_ms.into_iter().zip(found.ends_ms).any(far);
        differ.then(|| format!("ends: model {ends_ms:?}, server {:?}", found.ends_ms))
    }

    /// Takes over what is known only roughly.
    pub(crate) fn align(&mut self, found: &Found) {
        [self.latch.ends_ms, self.ids.ends_ms, self.waiters.ends_ms] = found.ends_ms;
        for (listener, until) in &mut self.waiters.of {
            *until = found.waiters[&listener.member()];
        }
    }
}

fn fields(generation: Generation) -> BTreeMap<String, String> {
    let Generation { number, count, left, lasts_ms, over } = generation;
    let numbers = [("generation", number), ("count", count), ("left", left)];
    let more = [("expires_ms", lasts_ms), ("over", u64::from(over))];
    numbers
        .into_iter()
        .chain(more)
        .map(|(name, value)| (name.to_owned(), value.to_string()))
        .collect()
}
