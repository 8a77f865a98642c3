//! The read-write lock as DESIGN §6 states it, in plain Rust: one name, one clock, no server.
//!
//! Time is an argument. Acquisitions, owners and inboxes are numbers; an acquisition's number also orders waiters of
//! one ticket, as its bytes do at the server.

use std::collections::BTreeMap;

use super::answer::Answer;
use super::ending::Ending;
use super::gone::Gone;
use super::keys::Key;
use super::pushes::{Inboxes, Push};
use super::request::{AT_LEAST_MS, Request, World};
use super::serving::Serving;
use super::snapshot::Snapshot;
use super::tokens::Token;
use super::waiters::Waiters;

mod changes;
mod holds;
mod queue;

/// A member of the zset of holds, in the order of their bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Member {
    /// `-id`: released, and taking room.
    Cooling(usize),
    Id(usize),
    /// `~w`: until when somebody writes.
    Writing,
}

impl Member {
    pub(crate) fn as_held(self) -> Self {
        match self {
            Self::Cooling(number) => Self::Id(number),
            Self::Id(_) | Self::Writing => self,
        }
    }

    pub(crate) fn name(self, world: &World) -> String {
        let id = |number| world.acquisitions.id(number);
        match self {
            Self::Writing => "~w".to_owned(),
            Self::Cooling(number) => format!("-{}", id(number)),
            Self::Id(number) => id(number),
        }
    }
}

/// What is known of a hold beside its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) since_ms: u64,
    pub(crate) token: u64,
    /// None in a cool-down.
    pub(crate) owner: Option<usize>,
    /// Whose description it is.
    pub(crate) of: usize,
}

/// What the zset of ended acquisitions remembers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mark {
    Gone(usize),
    Forced(usize),
    Adopted(usize),
}

#[derive(Clone, Debug, Default)]
struct Notes {
    of: BTreeMap<Member, Note>,
    lists: BTreeMap<usize, Vec<usize>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Reference {
    pub(crate) world: World,
    pub(crate) now_us: u64,
    floor: u64,
    holds: Ending<BTreeMap<Member, u64>>,
    notes: Ending<Notes>,
    /// More has ended than one sweep takes.
    unswept: bool,
    pub(crate) waiters: Waiters,
    pub(crate) token: Token,
    gone: Gone<Mark>,
    pub(crate) inboxes: Inboxes,
}

impl Reference {
    pub(crate) fn new(world: World, now_us: u64) -> Self {
        Self {
            world,
            now_us,
            floor: 0,
            holds: Ending::default(),
            notes: Ending::default(),
            unswept: false,
            waiters: Waiters::default(),
            token: Token::default(),
            gone: Gone::default(),
            inboxes: Inboxes::new(),
        }
    }

    /// Answers as a server whose clock shows `now_us` must.
    pub(crate) fn answer(&mut self, request: &Request, now_us: u64) -> Answer {
        self.at(now_us);
        self.floor = request.floor();
        self.unswept = false;
        match request {
            Request::Acquire { id, max_waiters, queues, .. } => {
                self.acquire(*id, *queues, *max_waiters)
            }
            Request::Check { waiting, deaf, .. } => {
                self.sweep();
                self.serve(waiting, *deaf)
            }
            Request::Renew { elements } => self.renew(elements),
            Request::Release { id, late, at_least_ms, .. } => {
                self.release(*id, *late, *at_least_ms)
            }
            Request::Exchange { old, id, owner, .. } => self.exchange(*old, *id, *owner),
            Request::Adopt { id, owner, .. } => self.adopt(*id, *owner),
            Request::Force { members, .. } => self.force(members),
            Request::Inspect => self.inspect(),
            Request::Queue { most } => self.waiters.list(*most),
        }
    }

    /// What it is after this request, if the server's clock shows `now_us` then.
    pub(crate) fn after(&self, request: &Request, now_us: u64) -> Self {
        let mut after = self.clone();
        drop(after.answer(request, now_us));
        after
    }

    /// The clock shows `now_us`: keys whose time is over are gone.
    pub(crate) fn at(&mut self, now_us: u64) {
        self.now_us = now_us;
        self.inboxes.clear();
        let now = self.now_ms();
        self.holds.at(now);
        self.notes.at(now);
        self.waiters.at(now);
        self.token.at(now);
        self.gone.at(now);
    }

    /// One key is deleted behind the scripts' back.
    pub(crate) fn lose(&mut self, key: Key) {
        match key {
            Key::Holds => self.holds.lose(),
            Key::Notes => self.notes.lose(),
            Key::Queue => self.waiters.queue.lose(),
            Key::Timeouts => self.waiters.clear_timeouts(),
            Key::Token => self.token.lose(),
            Key::Gone => self.gone.lose(),
        }
    }

    fn acquire(&mut self, id: usize, queues: bool, max_waiters: Option<u32>) -> Answer {
        self.sweep();
        if self.holds(id) {
            return self.taken(id);
        }
        if self.is_cancelled(id) {
            return Answer::new("cancelled");
        }
        let waits = self.waiters.ticket(id).is_some();
        let owner = self.world.acquisitions[id].owner;
        if self.may_reenter(id, owner) {
            let joined = self.reenter(id, owner);
            if waits {
                self.waiters.leave(id);
                self.settle(&[]);
            }
            return if joined { self.taken(id) } else { Answer::new("too many entries") };
        }
        if waits {
            self.refresh(id);
        } else if !queues {
            return self.try_once(id);
        } else {
            if let Some(again) = self.no_room(id, max_waiters) {
                return Answer::new("saturated").about(self.left_ms()).again(again);
            }
            self.waiters.enter(id, 0, self.now_us, self.world.wait_ms);
        }
        self.ask(id)
    }

    fn try_once(&mut self, id: usize) -> Answer {
        let again = self.settle(&[]);
        if !again && self.fits(id) && self.waiters.is_empty() {
            self.take(id, self.world.acquisitions[id].lease_ms);
            return self.taken(id);
        }
        Answer::new("busy").about(self.left_ms()).again(again)
    }

    fn renew(&mut self, elements: &[(usize, u64)]) -> Answer {
        let now = self.now_ms();
        let mut answer = Answer::new("renewals");
        for (id, lease_ms) in elements {
            if !self.holds(*id) {
                answer = answer.and("not held").and(self.why_not_held(*id));
                continue;
            }
            self.extend(*id, now + lease_ms);
            answer = answer.and("renewed").about(self.deadline(Member::Id(*id)) - now);
        }
        answer
    }

    fn release(&mut self, id: usize, late: bool, at_least_ms: u64) -> Answer {
        if !late && at_least_ms == 0 && self.release_quickly(id) {
            return Answer::new("released").again(false);
        }
        self.sweep();
        let answer = if self.cools(id) {
            Answer::new("released")
        } else if self.holds(id) {
            self.drop_entry(Member::Id(id), at_least_ms);
            Answer::new("released")
        } else if let Some(position) = self.waiters.position(id) {
            let answer = Answer::new("left").exact(position as u64).about(self.left_ms());
            self.waiters.leave(id);
            answer.holders(self.who_holds(id).map(|note| (note.of, note.since_ms)))
        } else {
            Answer::new("not held").and(self.why_not_held(id))
        };
        if late {
            self.mark(Mark::Gone(id));
            self.gone.ends_with_the_newest(self.now_ms());
        }
        let again = self.settle(&[]);
        answer.again(again)
    }

    /// What the keys must hold.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let [queue, timeouts] = self.waiters.ends_ms();
        let (holds, notes) = (self.holds.ends_ms, self.notes.ends_ms);
        Snapshot {
            holds: self.holds.of.clone(),
            notes: self.notes.of.of.clone(),
            lists: self.notes.of.lists.clone(),
            waiters: self.waiters.clone(),
            token: self.token.of,
            gone: self.gone.of.clone(),
            ends_ms: [holds, queue, timeouts, self.token.ends_ms, self.gone.ends_ms, notes],
        }
    }

    /// Takes over what was compared with a margin, so that margins do not add up; after the queue was lost alone, also
    /// the orphans that it left (they do no harm, and end with their key).
    pub(crate) fn align(&mut self, server: &Snapshot, orphans: bool) {
        self.gone.of.clone_from(&server.gone);
        self.gone.ends_ms = server.ends_ms[4];
        self.token.ends_ms = server.ends_ms[3];
        if orphans {
            self.waiters.align(&server.waiters);
        }
    }

    /// Every moment at which an answer changes by itself.
    pub(crate) fn deadlines_ms(&self) -> Vec<u64> {
        let snapshot = self.snapshot();
        let since = snapshot.notes.values().map(|note| note.since_ms);
        let mut all: Vec<u64> =
            since.flat_map(|since| AT_LEAST_MS.map(|at_least| since + at_least)).collect();
        all.extend(snapshot.holds.values());
        all.extend(snapshot.waiters.timeouts.of.values());
        all.extend(snapshot.gone.values());
        all.extend(snapshot.ends_ms);
        all
    }
}
