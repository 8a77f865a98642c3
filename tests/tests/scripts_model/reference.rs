//! The mutex as DESIGN §6 states it, in plain Rust: one name, one clock, no server.
//!
//! Time is an argument. Acquisitions, owners and inboxes are numbers; an acquisition's number also orders waiters of
//! one ticket, as its bytes do at the server.

use std::collections::BTreeMap;

use super::answer::Answer;
use super::gone::Gone;
use super::keys::Key;
use super::pushes::{Inboxes, Push};
use super::request::{AT_LEAST_MS, Request, World};
use super::serving::Serving;
use super::snapshot::Snapshot;
use super::tokens::Token;
use super::verdict::Ends;
use super::waiters::Waiters;

mod state;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) deadline_ms: u64,
    pub(crate) since_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    pub(crate) owner: usize,
    pub(crate) token: u64,
    pub(crate) cooling: Option<usize>,
    pub(crate) entries: BTreeMap<usize, Entry>,
    ends_ms: u64,
}

/// What the zset of ended acquisitions remembers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mark {
    Gone(usize),
    ForcedId(usize),
    ForcedToken(u64),
    /// Ticket and acquisition that an operator named.
    Cancelled(u64, usize),
}

#[derive(Clone, Debug)]
pub(crate) struct Reference {
    pub(crate) world: World,
    pub(crate) now_us: u64,
    floor: u64,
    pub(crate) hold: Option<Hold>,
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
            hold: None,
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
        match request {
            Request::Acquire { id, max_waiters, queues, .. } => {
                self.acquire(*id, *queues, *max_waiters)
            }
            Request::Check { waiting, deaf, .. } => self.serve(waiting, *deaf),
            Request::Renew { elements } => self.renew(elements),
            Request::Release { id, late, at_least_ms, .. } => {
                self.release(*id, *late, *at_least_ms)
            }
            Request::Adopt { id, owner } => self.adopt(*id, *owner),
            Request::Force { token, .. } => self.force(*token),
            Request::Cancel { ticket, id, .. } => self.cancel(*ticket, *id),
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
        self.hold.take_if(|hold| hold.ends_ms <= now);
        self.waiters.at(now);
        self.token.at(now);
        self.gone.at(now);
    }

    /// One key is deleted behind the scripts' back.
    pub(crate) fn lose(&mut self, key: Key) {
        match key {
            Key::Holds => self.hold = None,
            Key::Queue => self.waiters.queue.lose(),
            Key::Timeouts => self.waiters.clear_timeouts(),
            Key::Token => self.token.lose(),
            Key::Gone => self.gone.lose(),
            Key::Notes => {}
        }
    }

    fn acquire(&mut self, id: usize, queues: bool, max_waiters: Option<u32>) -> Answer {
        if self.holds(id) {
            return self.taken(id);
        }
        if self.is_cancelled(id) {
            return Answer::new("cancelled");
        }
        let waits = self.waiters.ticket(id).is_some();
        if self.joinable(self.world.acquisitions[id].owner) {
            let joined = self.join(id);
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
        if !again && self.hold.is_none() {
            let token = self.mint();
            self.take(id, self.world.acquisitions[id].lease_ms, token);
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
            let hold = self.hold.as_mut().expect("it holds");
            let entry = hold.entries.get_mut(id).expect("it holds");
            entry.deadline_ms = entry.deadline_ms.max(now + lease_ms);
            hold.ends_ms = hold.ends_ms.max(entry.deadline_ms);
            answer = answer.and("renewed").about(entry.deadline_ms - now);
        }
        answer
    }

    fn release(&mut self, id: usize, late: bool, at_least_ms: u64) -> Answer {
        let answer = if self.cools(id) {
            Answer::new("released")
        } else if self.holds(id) {
            self.drop_entry(id, at_least_ms);
            Answer::new("released")
        } else if let Some(position) = self.waiters.position(id) {
            let answer = Answer::new("left").exact(position as u64).about(self.left_ms());
            self.waiters.leave(id);
            answer.holders(self.latest_entries())
        } else {
            self.forget_ended();
            Answer::new("not held").and(self.why_not_held(id))
        };
        if late {
            self.mark(Mark::Gone(id));
            self.gone.ends_with_the_newest(self.now_ms());
        }
        let again = self.settle(&[]);
        answer.again(again)
    }

    fn adopt(&mut self, id: usize, owner: usize) -> Answer {
        if self.holds(id) {
            return self.taken(id);
        }
        if self.is_gone(id) {
            return Answer::new("cancelled");
        }
        if !self.joinable(owner) {
            let held = self.hold.as_ref().is_some_and(|hold| hold.cooling.is_none());
            return Answer::new("not held").and(if held { "other holder" } else { "absent" });
        }
        let now = self.now_ms();
        let live = self.live_entries();
        let since_ms = live.values().map(|entry| entry.since_ms).fold(now, u64::min);
        let wanted = now + self.world.acquisitions[id].lease_ms;
        let deadline_ms = live.values().map(|entry| entry.deadline_ms).fold(wanted, u64::max);
        let hold = self.hold.as_mut().expect("joinable");
        // What ended by time goes too: it must not live again beside the heir when the clock goes back.
        hold.entries = BTreeMap::from([(id, Entry { deadline_ms, since_ms })]);
        hold.ends_ms = deadline_ms;
        for earlier in live.into_keys() {
            self.push(earlier, Push::Adopted { id: earlier });
            self.mark(Mark::Gone(earlier));
        }
        self.gone.ends_with_the_newest(now);
        self.taken(id)
    }

    fn force(&mut self, token: u64) -> Answer {
        let mut says = "not that hold";
        if self.hold.as_ref().is_some_and(|hold| hold.token == token) {
            says = "ended";
            self.mark(Mark::ForcedToken(token));
            for id in self.live_entries().into_keys() {
                self.mark(Mark::ForcedId(id));
                self.push(id, Push::Forced { id });
            }
            self.hold = None;
        } else if self.gone.has(&Mark::ForcedToken(token)) {
            says = "ended";
        }
        let again = self.settle(&[]);
        Answer::new(says).again(again)
    }

    fn cancel(&mut self, ticket: u64, id: usize) -> Answer {
        let named = Mark::Cancelled(ticket, id);
        // Without its deadline (the hash was lost) a waiter has no description either: nothing names it.
        let described = self.waiters.timeouts.of.contains_key(&id);
        let waits = described && self.waiters.ticket(id) == Some(ticket);
        let before = self.gone.has(&named);
        if waits {
            self.mark(Mark::Gone(id));
            self.mark(named);
            self.waiters.leave(id);
            self.push(id, Push::Cancelled { id });
        }
        let again = self.settle(&[]);
        Answer::new(if waits || before { "cancelled" } else { "no such waiter" }).again(again)
    }

    fn inspect(&self) -> Answer {
        let entries = self.live_entries();
        let state = match &self.hold {
            None => "free",
            Some(hold) if hold.cooling.is_some() => "cooling down",
            Some(_) => "held",
        };
        let token = self.hold.as_ref().map_or(0, |hold| hold.token);
        let waiters = self.waiters.len() as u64;
        let mut answer = Answer::new(state).about(self.left_ms()).exact(token).exact(waiters);
        for (id, entry) in entries {
            answer = answer.exact(id as u64).exact(entry.deadline_ms).exact(entry.since_ms);
        }
        answer
    }

    /// What the keys must hold.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let hold = self.hold.as_ref();
        Snapshot {
            owner: hold.map(|hold| hold.owner),
            hold_token: hold.map(|hold| hold.token),
            cooling: hold.and_then(|hold| hold.cooling),
            entries: self.live_entries(),
            waiters: self.waiters.clone(),
            token: self.token.of,
            gone: self.gone.of.clone(),
            ends_ms: self.ends_ms(),
        }
    }

    pub(crate) fn ends_ms(&self) -> Ends {
        let [queue, timeouts] = self.waiters.ends_ms();
        let hold = self.hold.as_ref().map_or(0, |hold| hold.ends_ms);
        [hold, queue, timeouts, self.token.ends_ms, self.gone.ends_ms, 0]
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
        let entries = self.hold.iter().flat_map(|hold| hold.entries.values());
        let mut all: Vec<u64> = entries
            .flat_map(|entry| {
                let cool = AT_LEAST_MS.map(|at_least| entry.since_ms + at_least);
                cool.into_iter().chain([entry.deadline_ms])
            })
            .collect();
        all.extend(self.waiters.timeouts.of.values());
        all.extend(self.gone.of.values());
        all.extend(self.ends_ms());
        all
    }
}
