//! Breadth-first search over every reachable state, then backwards from the states in which everybody was served.

use std::fmt::Write as _;

use super::case::Case;
use super::server::Server;
use super::state::{Client, HOLDS, Key, Phase, QUEUED, State};
use super::steps::{Step, describe, next};

/// What must not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    /// Clients say "held" that cannot hold together (I1, seen from the clients).
    TwoHolders,
    /// A client says "held" and the server does not (I2).
    HeldButGone,
    /// The server keeps an id that its process has forgotten, and nothing is on its way that could end it (I9).
    Ghost,
    /// After a script the head of the queue is dead or fits (I21).
    HeadFits,
    /// Without any further fault not everybody can be served (I11).
    Stuck,
}

pub(crate) const ALL: &[Violation] = &[
    Violation::TwoHolders,
    Violation::HeldButGone,
    Violation::Ghost,
    Violation::HeadFits,
    Violation::Stuck,
];

/// What was found, and the shortest way there in words.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) violation: Violation,
    pub(crate) steps: usize,
    pub(crate) words: String,
}

/// A search that is over.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) states: usize,
    pub(crate) steps: usize,
    /// States in which everybody was served.
    pub(crate) served: usize,
    pub(crate) found: Option<Found>,
}

/// Searches the whole graph, or until the first of the violations that are looked for.
pub(crate) fn search(case: &Case, looked_for: &[Violation]) -> Outcome {
    Search::new(case, looked_for).run()
}

/// Index of a state; states are numbered as they are found.
type At = u32;
const NOWHERE: At = At::MAX;

struct Search<'a> {
    case: &'a Case,
    looked_for: &'a [Violation],
    table: Table,
    parents: Vec<At>,
    /// Where the steps without faults lead, state by state; `ends[i]` is the end of state i's.
    onward: Vec<At>,
    ends: Vec<usize>,
    served: Vec<bool>,
    steps: usize,
}

impl<'a> Search<'a> {
    fn new(case: &'a Case, looked_for: &'a [Violation]) -> Self {
        let (table, parents) = (Table::new(), Vec::new());
        let (onward, ends, served) = (Vec::new(), Vec::new(), Vec::new());
        Self { case, looked_for, table, parents, onward, ends, served, steps: 0 }
    }

    fn run(mut self) -> Outcome {
        self.enter(State::start(self.case).pack(), NOWHERE);
        let mut found = Vec::new();
        let mut at = 0;
        while at < self.table.keys.len() {
            let here = index(at);
            let from = State::unpack(self.table.keys[at]);
            self.served.push(from.clients.iter().all(is_over));
            next(self.case, &from, &mut found);
            for (step, state) in &mut found {
                self.steps += 1;
                let (key, known) = (state.pack(), self.table.keys.len());
                let there = self.enter(key, here);
                if !step.what.is_fault() {
                    self.onward.push(there);
                }
                let fresh = self.table.keys.len() > known;
                if let Some(violation) = self.violation(state, fresh, step) {
                    return self.over(Some((violation, here, Some(key))));
                }
            }
            self.ends.push(self.onward.len());
            at += 1;
        }
        let stuck = if self.looked_for.contains(&Violation::Stuck) { self.stuck() } else { None };
        self.over(stuck.map(|at| (Violation::Stuck, at, None)))
    }

    fn enter(&mut self, key: Key, parent: At) -> At {
        let at = self.table.enter(key);
        if at as usize == self.parents.len() {
            self.parents.push(parent);
        }
        at
    }

    fn violation(&self, state: &mut State, fresh: bool, step: &Step) -> Option<Violation> {
        let looked_for = |violation| self.looked_for.contains(&violation);
        if step.settles
            && looked_for(Violation::HeadFits)
            && !Server::new(self.case, state).is_settled()
        {
            return Some(Violation::HeadFits);
        }
        if !fresh {
            return None;
        }
        let held = |client: &&Client| client.phase == Phase::Held;
        if looked_for(Violation::HeldButGone)
            && state.clients.iter().filter(held).any(|client| !client.is(HOLDS))
        {
            return Some(Violation::HeldButGone);
        }
        if looked_for(Violation::Ghost) && state.clients.iter().any(is_ghost) {
            return Some(Violation::Ghost);
        }
        if looked_for(Violation::TwoHolders) {
            let holders: Vec<Client> = state.clients.iter().filter(held).copied().collect();
            if !self.case.compatible(&holders) {
                return Some(Violation::TwoHolders);
            }
        }
        None
    }

    /// The first state from which no way without faults leads to one in which everybody was served.
    fn stuck(&self) -> Option<At> {
        let mut can = self.served.clone();
        let mut changed = true;
        // Most steps lead to a later state, so that the first pass from the end decides nearly all of them.
        while std::mem::take(&mut changed) {
            for at in (0..can.len()).rev().filter(|at| !self.served[*at]) {
                let start = if at == 0 { 0 } else { self.ends[at - 1] };
                let onward = &self.onward[start..self.ends[at]];
                if !can[at] && onward.iter().any(|there| can[*there as usize]) {
                    (can[at], changed) = (true, true);
                }
            }
        }
        can.iter().position(|can| !can).map(index)
    }

    fn over(&self, found: Option<(Violation, At, Option<Key>)>) -> Outcome {
        Outcome {
            states: self.table.keys.len(),
            steps: self.steps,
            served: self.served.iter().filter(|served| **served).count(),
            found: found.map(|(violation, at, last)| {
                let mut way = self.way_to(at);
                way.extend(last);
                let words = self.words(&way);
                Found { violation, steps: way.len() - 1, words }
            }),
        }
    }

    fn way_to(&self, mut at: At) -> Vec<Key> {
        let mut way = Vec::new();
        while at != NOWHERE {
            way.push(self.table.keys[at as usize]);
            at = self.parents[at as usize];
        }
        way.reverse();
        way
    }

    /// The keys do not name the clients; walking the way again from the start does.
    fn words(&self, way: &[Key]) -> String {
        let (mut state, mut found, mut words) =
            (State::start(self.case), Vec::new(), String::new());
        for (number, key) in way.iter().enumerate().skip(1) {
            next(self.case, &state, &mut found);
            let taken = found.iter().find(|(_, state)| state.pack() == *key);
            let (step, next) = taken.expect("the way was walked before");
            state = *next;
            writeln!(words, "{number:3}. {step}  [{}]", describe(&state)).expect("a string");
        }
        words
    }
}

fn is_over(client: &Client) -> bool {
    matches!(client.phase, Phase::Done | Phase::Crashed)
}

fn is_ghost(client: &Client) -> bool {
    client.phase == Phase::Done && client.is(HOLDS | QUEUED) && !client.in_flight()
}

fn index(at: usize) -> At {
    At::try_from(at).expect("fewer states than 2^32")
}

/// The states found, and where each stands: open addressing, half of the slots free.
struct Table {
    keys: Vec<Key>,
    slots: Vec<At>,
}

impl Table {
    fn new() -> Self {
        Self { keys: Vec::new(), slots: vec![NOWHERE; 1 << 12] }
    }

    #[expect(clippy::cast_possible_truncation, reason = "a hash takes what it gets")]
    fn slot(&self, key: Key) -> usize {
        let mask = self.slots.len() - 1;
        let (a, b) = (key as u64, (key >> 64) as u64);
        let mixed = (a ^ b.rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
        let mut slot = (mixed >> 32) as usize & mask;
        while self.slots[slot] != NOWHERE && self.keys[self.slots[slot] as usize] != key {
            slot = (slot + 1) & mask;
        }
        slot
    }

    fn enter(&mut self, key: Key) -> At {
        let slot = self.slot(key);
        if self.slots[slot] != NOWHERE {
            return self.slots[slot];
        }
        let at = index(self.keys.len());
        self.keys.push(key);
        self.slots[slot] = at;
        if self.keys.len() * 2 > self.slots.len() {
            self.slots = vec![NOWHERE; self.slots.len() * 2];
            for at in 0..self.keys.len() {
                let slot = self.slot(self.keys[at]);
                self.slots[slot] = index(at);
            }
        }
        at
    }
}
