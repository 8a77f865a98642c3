//! The semaphore as DESIGN §6 states it, in plain Rust: one name, one clock, no server.
//!
//! Time is an argument. Acquisitions, owners and inboxes are numbers; an acquisition's number also orders waiters of one
//! ticket, as its bytes do at the server.

use std::collections::{BTreeMap, BTreeSet};

use super::answer::Answer;
use super::ending::Ending;
use super::gone::Gone;
use super::keys::Key;
use super::pushes::{Inboxes, Push};
use super::request::{Member, Named, Request, World};
use super::serving::Serving;
use super::verdict::Ends;
use super::waiters::Waiters;

#[path = "reference/permits.rs"]
mod permits;
#[path = "reference/queue.rs"]
mod queue;

/// How long the keys stay at the least after a use.
const IDLE_MS: u64 = 60_000;
/// What the usual case of an acquire gives them more.
const SPARE_MS: u64 = 15_000;
const KEEP_LIMIT_MS: u64 = 30 * 24 * 3_600_000;
/// Two readings of one end of a key are so near to each other.
const NEAR_MS: u64 = 10;

/// What is known of a hold beside its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) since_ms: u64,
    /// None in a cool-down.
    pub(crate) owner: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Permit {
    pub(crate) deadline_ms: u64,
    /// A weight that is not its acquisition's.
    pub(crate) changed: Option<u32>,
}

/// What the zset of ended acquisitions remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mark {
    Gone(Ended),
    Forced(usize),
    Adopted(usize),
    /// The first one stayed, the second one became a part of it.
    Merged(usize, usize),
}

/// An ended acquisition, or (true) an owner that a release named with a late mark.
pub(crate) type Ended = (bool, usize);

/// The key of the holds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holds {
    pub(crate) permits: BTreeMap<Member, Permit>,
    pub(crate) used: Option<u32>,
    pub(crate) limit: Option<u32>,
}

/// The key of the notes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Notes {
    pub(crate) of: BTreeMap<Member, Note>,
    pub(crate) lists: BTreeMap<usize, Vec<usize>>,
}

impl Notes {
    fn is_empty(&self) -> bool {
        self.of.is_empty() && self.lists.is_empty()
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Reference {
    pub(crate) world: World,
    pub(crate) now_us: u64,
    pub(crate) holds: Ending<Holds>,
    pub(crate) notes: Ending<Notes>,
    /// More has ended than one sweep takes.
    unswept: bool,
    pub(crate) waiters: Waiters,
    pub(crate) gone: Gone<Mark>,
    pub(crate) inboxes: Inboxes,
    /// Waiters that the last request's settling refused.
    refused: BTreeSet<usize>,
    /// An end of holds or notes may have been moved or not: it was just at the point where it is.
    pub(crate) unsure_of_ends: bool,
}

impl Reference {
    pub(crate) fn new(world: World, now_us: u64) -> Self {
        Self {
            world,
            now_us,
            holds: Ending::default(),
            notes: Ending::default(),
            unswept: false,
            waiters: Waiters::default(),
            gone: Gone::default(),
            inboxes: Inboxes::new(),
            refused: BTreeSet::new(),
            unsure_of_ends: false,
        }
    }

    /// Does what a server whose clock shows `now_us` must.
    pub(crate) fn answer(&mut self, request: &Request, now_us: u64) -> Answer {
        self.at(now_us);
        self.inboxes.clear();
        self.refused.clear();
        (self.unswept, self.unsure_of_ends) = (false, false);
        match request {
            Request::Acquire { id, queues, max_waiters, limit, strict } => {
                self.acquire(*id, queues.then_some(*max_waiters), *limit, *strict)
            }
            Request::Check { waiting, deaf, limit } => {
                self.set_up(*limit);
                self.sweep();
                self.serve(waiting, *deaf)
            }
            Request::Renew { elements } => self.renew(elements),
            Request::Release { id, late, at_least_ms } => self.release(*id, *late, *at_least_ms),
            Request::ReleaseMany { elements } => self.release_many(elements),
            Request::SetLimit { limit } => self.set_limit(*limit),
            Request::Split { old, id } => self.split(*old, *id),
            Request::Merge { kept, merged } => self.merge(*kept, *merged),
            Request::Adopt { id, owner } => self.adopt(*id, *owner),
            Request::Force { members } => self.force(members),
            Request::Inspect { most } => self.inspect(*most),
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
        let now = self.now_ms();
        self.holds.at(now);
        self.notes.at(now);
        self.waiters.at(now);
        self.gone.at(now);
    }

    /// One key is deleted behind the scripts' back.
    pub(crate) fn lose(&mut self, key: Key) {
        match key {
            Key::Holds => self.holds.lose(),
            Key::Notes => self.notes.lose(),
            Key::Queue => self.waiters.queue.lose(),
            Key::Timeouts => self.waiters.clear_timeouts(),
            Key::Gone => self.gone.lose(),
            Key::Token => {}
        }
    }

    pub(crate) fn ends_ms(&self) -> Ends {
        let [queue, timeouts] = self.waiters.ends_ms();
        [self.holds.ends_ms, queue, timeouts, 0, self.gone.ends_ms, self.notes.ends_ms]
    }

    /// `queues`: it may wait, with a bound of the queue or without.
    fn acquire(
        &mut self,
        id: usize,
        queues: Option<Option<u32>>,
        limit: u32,
        strict: bool,
    ) -> Answer {
        if !self.take_quickly(id, limit, strict) {
            self.set_up(limit);
            let server = self.holds.of.limit.unwrap_or(0);
            if strict && server != limit && !self.holds_id(id) && self.waiters.ticket(id).is_none()
            {
                return Answer::new("limit differs").exact(server.into());
            }
            let answer = self.acquire_slowly(id, queues);
            return self.differing(answer, limit);
        }
        let taken = self.taken(Answer::new("taken"), id);
        self.differing(taken, limit)
    }

    fn differing(&self, answer: Answer, ours: u32) -> Answer {
        match self.holds.of.limit.unwrap_or(0) {
            server if server != ours => answer.and("differing").exact(server.into()),
            _ => answer,
        }
    }

    fn acquire_slowly(&mut self, id: usize, queues: Option<Option<u32>>) -> Answer {
        self.sweep();
        if self.holds_id(id) {
            return self.taken(Answer::new("taken"), id);
        }
        if self.is_gone(id) || self.cools(id) {
            return Answer::new("cancelled");
        }
        if self.waiters.ticket(id).is_some() {
            self.refresh(id);
        } else if let Some(max_waiters) = queues {
            if self.fits(id) == Fit::Never {
                return Answer::new("never fits");
            }
            if let Some(again) = self.no_room(id, max_waiters) {
                return Answer::new("saturated").about(self.left_ms()).again(again);
            }
            self.waiters.enter(id, 0, self.now_us, self.world.wait_ms);
        } else {
            return self.try_once(id);
        }
        self.ask(id)
    }

    fn try_once(&mut self, id: usize) -> Answer {
        let again = self.settle(&[]);
        match self.fits(id) {
            Fit::Never => Answer::new("never fits"),
            Fit::Now if !again && self.waiters.is_empty() => {
                let lease_ms = self.world.acquisitions[id].lease_ms;
                self.take(id, lease_ms);
                self.taken(Answer::new("taken"), id)
            }
            Fit::Now | Fit::Later => Answer::new("busy").about(self.left_ms()).again(again),
        }
    }

    fn renew(&mut self, elements: &[(usize, u64)]) -> Answer {
        let mut answer = Answer::new("renewals");
        for (id, lease_ms) in elements {
            if self.holds_id(*id) {
                self.extend(*id, self.now_ms() + lease_ms);
                answer = answer.and("renewed").about(self.deadline(*id) - self.now_ms());
            } else {
                answer = answer.and("not held").and(self.why_not_held(*id));
            }
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
        } else if self.holds_id(id) {
            self.drop_hold(Member::held(id), at_least_ms);
            Answer::new("released")
        } else if let Some(position) = self.waiters.position(id) {
            let answer = Answer::new("left").exact(position as u64).about(self.left_ms());
            self.waiters.leave(id);
            answer.holders(self.who_holds(id))
        } else {
            Answer::new("not held").and(self.why_not_held(id))
        };
        if late {
            self.mark_for_a_minute((false, id));
        }
        let again = self.settle(&[]);
        answer.again(again)
    }

    fn release_many(&mut self, elements: &[(Named, bool, u64)]) -> Answer {
        self.sweep();
        let mut answer = Answer::new("many");
        for (named, late, at_least_ms) in elements {
            let ended = match named {
                Named::Id(id) => self.finish(*id, *at_least_ms),
                Named::Owner(owner) => {
                    // The answer is the last one's; those of one owner are all live.
                    let entries = self.entries_of(*owner).into_iter();
                    entries.map(|id| self.finish(id, *at_least_ms)).last().unwrap_or(Err("absent"))
                }
            };
            answer = match ended {
                Ok(()) => answer.and("released"),
                Err(why) => answer.and("not held").and(why),
            };
            if *late {
                self.mark_for_a_minute(match named {
                    Named::Id(id) => (false, *id),
                    Named::Owner(owner) => (true, *owner),
                });
            }
        }
        let again = self.settle(&[]);
        answer.again(again)
    }

    fn finish(&mut self, id: usize, at_least_ms: u64) -> Result<(), &'static str> {
        if self.cools(id) {
            return Ok(());
        }
        if !self.holds_id(id) {
            self.waiters.leave(id);
            return Err(self.why_not_held(id));
        }
        self.drop_hold(Member::held(id), at_least_ms);
        Ok(())
    }

    fn set_limit(&mut self, limit: u32) -> Answer {
        self.sweep();
        self.set_up(limit);
        self.holds.of.limit = Some(limit);
        self.holds.lasts(self.now_ms() + KEEP_LIMIT_MS);
        let again = self.settle(&[]);
        Answer::new("set").again(again)
    }

    fn force(&mut self, members: &[Member]) -> Answer {
        self.sweep();
        let mut count = 0;
        for Member { id, .. } in members.iter().copied() {
            // A hold and its cool-down are one: what began since it was listed ends too.
            let both = [Member::held(id), Member::cooling(id)];
            if let Some(live) = both.into_iter().find(|one| self.is_live(*one)) {
                self.mark(Mark::Forced(id));
                self.drop_hold(live, 0);
                self.push(id, Push::Forced { id });
                count += 1;
            } else if self.gone.has(&Mark::Forced(id)) {
                count += 1;
            }
        }
        let again = self.settle(&[]);
        Answer::new("ended").exact(count).again(again)
    }

    fn inspect(&mut self, most: u32) -> Answer {
        self.sweep();
        let answer = Answer::new("found").again(self.unswept).exact(self.waiters.len() as u64);
        let (used, limit) = (self.holds.of.used, self.holds.of.limit);
        let answer = answer.exact(used.unwrap_or(0).into()).exact(limit.unwrap_or(0).into());
        self.live().into_iter().take(most as usize).fold(answer, |answer, member| {
            let word = if member.cooling { "cooling" } else { "held" };
            let since_ms = self.notes.of.of.get(&member).map_or(0, |note| note.since_ms);
            let answer = answer.and(word).exact(member.id as u64);
            let answer = answer.exact(self.weight_of(member).into()).exact(self.ends_at(member));
            answer.exact(since_ms)
        })
    }
}

/// Whether there is room for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    Now,
    Later,
    Never,
}
