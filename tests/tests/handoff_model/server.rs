//! The scripts, as far as they are about holds and the queue (leasehold-lua: lua/mutex/*.lua, lua/lib/*.lua).
//!
//! An acquire that finds its id held or cancelled answers so and changes nothing: it does not settle either. Everything
//! else but renew does (I21).

use super::case::{Case, Kind, Mechanism};
use super::state::{Call, DEAD, DEAF, GONE, HOLDS, PUSH, Phase, QUEUED, REFUSAL, State};

/// Runs scripts on a state.
pub(crate) struct Server<'a> {
    pub(crate) case: &'a Case,
    pub(crate) state: &'a mut State,
    /// A script ran that has to leave a settled queue.
    pub(crate) settles: bool,
}

impl<'a> Server<'a> {
    pub(crate) fn new(case: &'a Case, state: &'a mut State) -> Self {
        Self { case, state, settles: false }
    }

    /// acquire.lua, mode wait. Its usual case (nothing there: take) is what entering and settling come to.
    pub(crate) fn acquire(&mut self, who: usize) -> Call {
        let client = self.state.clients[who];
        if client.is(HOLDS) {
            return Call::Taken;
        }
        if client.is(GONE) {
            return Call::Refused;
        }
        if !client.is(QUEUED) && self.kind().refuses(client.role) {
            return Call::Refused;
        }
        self.enter(who, true);
        self.settle(Some(who));
        self.answer(who)
    }

    /// check.lua with one id.
    pub(crate) fn check(&mut self, who: usize, to_tail: bool) -> Call {
        let client = self.state.clients[who];
        let refused = !client.is(HOLDS) && client.is(GONE);
        if !client.is(HOLDS | GONE) && (client.is(QUEUED) || self.case.has(Mechanism::Reentry)) {
            self.enter(who, to_tail);
        }
        self.settle(Some(who));
        if refused { Call::Refused } else { self.answer(who) }
    }

    fn answer(&self, who: usize) -> Call {
        let client = self.state.clients[who];
        if client.is(HOLDS) {
            Call::Taken
        } else if !client.is(QUEUED) && self.kind().refuses(client.role) {
            Call::Refused
        } else {
            Call::Queued
        }
    }

    /// Its deadline is a new one; its place is too, unless it has one.
    fn enter(&mut self, who: usize, to_tail: bool) {
        let client = &mut self.state.clients[who];
        client.clear(DEAD);
        if !client.is(QUEUED) {
            client.set(QUEUED);
            if to_tail {
                self.state.move_to_tail(who);
            }
        }
    }

    /// release.lua: whatever state the id is in.
    pub(crate) fn release(&mut self, who: usize, late: bool) {
        let client = &mut self.state.clients[who];
        let held = client.is(HOLDS);
        client.clear(HOLDS | QUEUED | DEAD);
        if late && self.case.has(Mechanism::Gone) {
            client.set(GONE);
        }
        let settles = if held { Mechanism::SettleOnRelease } else { Mechanism::SettleOnLeave };
        self.settles = true;
        if self.case.has(settles) {
            self.settle(None);
        }
    }

    /// renew.lua: never creates (I4).
    pub(crate) fn renew(&self, who: usize) -> Call {
        if self.state.clients[who].is(HOLDS) { Call::Taken } else { Call::Refused }
    }

    /// settle.lua.
    fn settle(&mut self, caller: Option<usize>) {
        self.settles = true;
        while let Some(head) = self.state.head() {
            let dead = self.state.clients[head].is(DEAD);
            if dead && self.case.has(Mechanism::DeadSkipped) {
                self.state.clients[head].clear(QUEUED | DEAD);
                continue;
            }
            if dead {
                return;
            }
            let is_caller = caller == Some(head);
            match self.room(head) {
                Room::Taken => return,
                Room::Never => self.refuse(head, is_caller),
                Room::Free => self.grant(head, is_caller),
            }
        }
    }

    fn grant(&mut self, who: usize, is_caller: bool) {
        let client = &mut self.state.clients[who];
        client.clear(QUEUED);
        client.set(HOLDS);
        if is_caller && self.case.has(Mechanism::CallerQuiet) {
            return;
        }
        if client.is(DEAF) {
            if !is_caller && self.case.has(Mechanism::CountZero) {
                client.clear(HOLDS);
            }
        } else if client.phase != Phase::Crashed {
            client.set(PUSH);
        }
    }

    fn refuse(&mut self, who: usize, is_caller: bool) {
        let client = &mut self.state.clients[who];
        client.clear(QUEUED);
        if !is_caller && !client.is(DEAF) && client.phase != Phase::Crashed {
            client.set(REFUSAL);
        }
    }

    /// semaphore/set_limit.lua.
    pub(crate) fn change_limit(&mut self) {
        self.state.lowered = !self.state.lowered;
        self.settle(None);
    }

    /// fair/cancel.lua: an operator takes a waiter out of the queue.
    pub(crate) fn remove(&mut self, who: usize) {
        self.state.clients[who].set(GONE);
        self.state.clients[who].clear(DEAD);
        self.refuse(who, false);
        self.settle(None);
    }

    fn kind(&self) -> Kind {
        if self.state.lowered { self.case.kind.lowered() } else { self.case.kind }
    }

    fn room(&self, who: usize) -> Room {
        let role = self.state.clients[who].role;
        let holders = self.state.clients.iter().filter(|client| client.is(HOLDS));
        if self.kind().refuses(role) {
            Room::Never
        } else if self.kind().admits(holders.map(|holder| holder.role), role) {
            Room::Free
        } else {
            Room::Taken
        }
    }

    /// I21: the queue is empty, or its head is alive and does not fit.
    pub(crate) fn is_settled(&self) -> bool {
        let Some(head) = self.state.head() else { return true };
        !self.state.clients[head].is(DEAD) && self.room(head) == Room::Taken
    }
}

/// Whether the head of the queue can be granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Free,
    Taken,
    Never,
}
