//! The state: a client's registry entry, its calls and pushes on their way, and what the server keeps of its id.

use super::case::Case;

/// Most cases have three; the fourth is then [`NOBODY`].
pub(crate) const CLIENTS: usize = 4;
/// The role of a client that is not there.
pub(crate) const NOBODY: u8 = 0;

/// Where an acquisition stands in its process's registry. `Asking` and `Waiting` are both the registry's *waiting*:
/// before and after the acquire was answered "queued".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Idle,
    Asking,
    Waiting,
    Held,
    Ending,
    /// Forgotten by the registry.
    Done,
    Crashed,
}

/// An acquire, check or renewal whose answer somebody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Unsent,
    Sent,
    /// A check that would re-enter at the tail.
    SentToTail,
    /// Answered: it holds.
    Taken,
    /// Answered so, but the hold ended before the answer was heard.
    Outrun,
    Queued,
    /// Answered: cancelled (an acquire or a check), not held (a renewal).
    Refused,
}

/// A release whose answer somebody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    Unsent,
    Sent,
    SentLate,
    Answered,
}

const PHASES: [Phase; 8] = [
    Phase::Idle,
    Phase::Asking,
    Phase::Waiting,
    Phase::Held,
    Phase::Ending,
    Phase::Done,
    Phase::Crashed,
    Phase::Idle,
];
const CALLS: [Call; 8] = [
    Call::Unsent,
    Call::Sent,
    Call::SentToTail,
    Call::Taken,
    Call::Outrun,
    Call::Queued,
    Call::Refused,
    Call::Unsent,
];
const RELEASES: [Release; 4] =
    [Release::Unsent, Release::Sent, Release::SentLate, Release::Answered];

/// A yes-or-no of a client.
pub(crate) type Flag = u16;
/// A copy of a call was never answered and may still arrive (besides those that are under way now).
pub(crate) const DOUBTFUL: Flag = 1;
/// The client knows its ticket: the next check re-enters at its old place.
pub(crate) const TICKET: Flag = 1 << 1;
/// A push is on its way.
pub(crate) const PUSH: Flag = 1 << 2;
/// A push is on its way whose hold has ended by time.
pub(crate) const OUTRUN_PUSH: Flag = 1 << 3;
/// Copies on their way whose answer nobody will hear.
pub(crate) const STRAY_CHECK: Flag = 1 << 4;
pub(crate) const STRAY_CHECK_TO_TAIL: Flag = 1 << 5;
pub(crate) const STRAY_RELEASE: Flag = 1 << 6;
pub(crate) const STRAY_RELEASE_LATE: Flag = 1 << 7;
/// A push is on its way that says that it was taken out of the queue.
pub(crate) const REFUSAL: Flag = 1 << 8;
/// The server's: it stands in `:gone`.
pub(crate) const GONE: Flag = 1 << 9;
/// The server does not count its inbox.
pub(crate) const DEAF: Flag = 1 << 10;
/// It stands in the queue.
pub(crate) const QUEUED: Flag = 1 << 11;
/// Its deadline in the queue has passed.
pub(crate) const DEAD: Flag = 1 << 12;
/// It holds. Never together with the last two: all three take two bits.
pub(crate) const HOLDS: Flag = 1 << 13;

pub(crate) const PUSHES: Flag = PUSH | OUTRUN_PUSH | REFUSAL;
const STRAYS: Flag = STRAY_CHECK | STRAY_CHECK_TO_TAIL | STRAY_RELEASE | STRAY_RELEASE_LATE;
const FLAG_BITS: u32 = 11;
const AT_THE_SERVER: [Flag; 4] = [0, QUEUED, QUEUED | DEAD, HOLDS];
const CLIENT_BITS: u32 = 31;

/// A client with one acquisition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Client {
    pub(crate) role: u8,
    pub(crate) phase: Phase,
    pub(crate) acquire: Call,
    pub(crate) check: Call,
    pub(crate) renew: Call,
    pub(crate) release: Release,
    /// Copies of the acquire on their way whose answer nobody will hear.
    pub(crate) stray_acquires: u8,
    flags: Flag,
}

impl Client {
    const fn new(role: u8) -> Self {
        Self {
            role,
            phase: if role == NOBODY { Phase::Done } else { Phase::Idle },
            acquire: Call::Unsent,
            check: Call::Unsent,
            renew: Call::Unsent,
            release: Release::Unsent,
            stray_acquires: 0,
            flags: 0,
        }
    }

    pub(crate) fn is(&self, flag: Flag) -> bool {
        self.flags & flag != 0
    }

    pub(crate) fn set(&mut self, flags: Flag) {
        self.flags |= flags;
    }

    pub(crate) fn clear(&mut self, flags: Flag) {
        self.flags &= !flags;
    }

    pub(crate) fn waits(&self) -> bool {
        matches!(self.phase, Phase::Asking | Phase::Waiting)
    }

    /// Something of it is on its way.
    pub(crate) fn in_flight(&self) -> bool {
        let calls = [self.acquire, self.check, self.renew];
        self.is(PUSHES | STRAYS)
            || self.stray_acquires > 0
            || self.release != Release::Unsent
            || calls.iter().any(|call| *call != Call::Unsent)
    }

    /// An acquire or a check of it is on its way to the server.
    fn may_enter(&self) -> bool {
        let sent = |call| matches!(call, Call::Sent | Call::SentToTail);
        self.stray_acquires > 0
            || self.is(STRAY_CHECK | STRAY_CHECK_TO_TAIL)
            || sent(self.acquire)
            || sent(self.check)
    }

    /// Its ticket is of any consequence: it stands in the queue, or may come back to its old place.
    fn seated(&self) -> bool {
        self.is(QUEUED | STRAY_CHECK)
            || self.check == Call::Sent
            || (self.phase == Phase::Waiting && self.is(TICKET))
    }

    /// Forgets what can make no difference any more, so that equal futures are equal states.
    fn tidy(&mut self) {
        if self.phase == Phase::Done || self.phase == Phase::Crashed {
            // Nobody hears these, or what is heard is dropped (registry.rs: an id that is not tracked).
            self.clear(PUSHES);
            self.renew = Call::Unsent;
            if !matches!(self.check, Call::Sent | Call::SentToTail) {
                self.check = Call::Unsent;
            }
            if !self.may_enter() {
                self.clear(GONE); // An id is never used again.
                if !self.is(QUEUED) {
                    self.clear(DEAF);
                }
            }
        }
    }

    fn pack(&self) -> u32 {
        let mut bits = 0;
        let mut push = |value: u32, width: u32| bits = bits << width | value;
        let place = match self.flags & (QUEUED | DEAD | HOLDS) {
            0 => 0,
            QUEUED => 1,
            HOLDS => 3,
            _ => 2,
        };
        push((self.flags & ((1 << FLAG_BITS) - 1)).into(), FLAG_BITS);
        push(place, 2);
        push(self.stray_acquires.into(), 2);
        push(self.release as u32, 2);
        push(self.renew as u32, 3);
        push(self.check as u32, 3);
        push(self.acquire as u32, 3);
        push(self.phase as u32, 3);
        push(self.role.into(), 2);
        bits
    }

    fn unpack(mut bits: u32) -> Self {
        let mut pop = |width: u32| {
            let value = bits & ((1 << width) - 1);
            bits >>= width;
            value as usize
        };
        let role = pop(2).to_le_bytes()[0];
        let phase = PHASES[pop(3)];
        let (acquire, check, renew) = (CALLS[pop(3)], CALLS[pop(3)], CALLS[pop(3)]);
        let release = RELEASES[pop(2)];
        let stray_acquires = pop(2).to_le_bytes()[0];
        let at_the_server = AT_THE_SERVER[pop(2)];
        let [low, high, ..] = pop(FLAG_BITS).to_le_bytes();
        let flags = Flag::from_le_bytes([low, high]) | at_the_server;
        Self { role, phase, acquire, check, renew, release, stray_acquires, flags }
    }
}

/// Everything. `order` lists the clients by their tickets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) clients: [Client; CLIENTS],
    pub(crate) order: [u8; CLIENTS],
    /// So many faults may still happen.
    pub(crate) budget: u8,
    /// The limit is the lower one.
    pub(crate) lowered: bool,
}

/// A state without the clients' names: first those whose ticket counts, in its order, then the others. Clients of one
/// role are alike, so states that differ in names only are one.
pub(crate) type Key = u128;

impl State {
    pub(crate) fn start(case: &Case) -> Self {
        assert!(case.budget < 8, "three bits");
        let clients = case.roles.map(Client::new);
        Self { clients, order: [0, 1, 2, 3], budget: case.budget, lowered: false }
    }

    pub(crate) fn by_ticket(&self) -> impl Iterator<Item = usize> + use<> {
        self.order.into_iter().map(usize::from)
    }

    /// A new ticket, behind all others.
    pub(crate) fn move_to_tail(&mut self, who: usize) {
        let at = self.by_ticket().position(|other| other == who).unwrap_or(0);
        self.order[at..].rotate_left(1);
    }

    pub(crate) fn head(&self) -> Option<usize> {
        self.by_ticket().find(|who| self.clients[*who].is(QUEUED))
    }

    pub(crate) fn tidy(&mut self) {
        self.clients.iter_mut().for_each(Client::tidy);
    }

    pub(crate) fn pack(&self) -> Key {
        let (mut words, mut seats) = ([0_u32; CLIENTS], 0);
        for who in self.by_ticket().filter(|who| self.clients[*who].seated()) {
            words[seats] = self.clients[who].pack();
            seats += 1;
        }
        let others = self.clients.iter().filter(|client| !client.seated());
        for (word, client) in words[seats..].iter_mut().zip(others) {
            *word = client.pack();
        }
        words[seats..].sort_unstable();
        let rest = Key::from(self.budget) << 1 | Key::from(self.lowered);
        words.iter().fold(rest, |key, word| key << CLIENT_BITS | Key::from(*word))
    }

    pub(crate) fn unpack(mut key: Key) -> Self {
        let mut clients = [Client::new(0); CLIENTS];
        for client in clients.iter_mut().rev() {
            let [a, b, c, d, ..] = key.to_le_bytes();
            *client = Client::unpack(u32::from_le_bytes([a, b, c, d]));
            key >>= CLIENT_BITS;
        }
        let rest = key.to_le_bytes()[0];
        Self { clients, order: [0, 1, 2, 3], budget: rest >> 1, lowered: rest & 1 == 1 }
    }
}
