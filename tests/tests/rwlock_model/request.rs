//! What clients send, and the world that they live in.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_lua::wire::acquisition_id;
use leasehold_lua::{Acquisition, Call, Keys, Mode, Settings, Share, Terms, mutex, rwlock};

use super::bench::channel;
use super::keys::Key;
use super::names::{note, number_of, owner_name, uuid};
use super::reference::{CHECK_MS, GRANT_MS, Member, Reference};
use super::runner::{Action, CLEAR_AFTER_MS};

/// The values of `hold_at_least` that releases carry.
pub(crate) const AT_LEAST_MS: [u64; 3] = [0, 2_000, 4_000];
/// How many holds an inspection lists.
pub(crate) const LISTED: u32 = 64;

/// One acquisition; its number is its place in the world.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) lease_ms: u64,
    pub(crate) owner: usize,
    pub(crate) inbox: usize,
    pub(crate) writes: bool,
}

/// What does not change in a case.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) acquisitions: Vec<Attempt>,
    /// Hardly anything is cancelled: the usual cases are usual.
    pub(crate) calm: bool,
    pub(crate) wait_ms: u64,
    pub(crate) fence_ms: u64,
    /// The scripts' bounds: as they are, or so small that a case reaches them.
    pub(crate) small_bounds: bool,
    pub(crate) bounds: Bounds,
}

/// The scripts' bounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) dead: usize,
    pub(crate) grants: usize,
    pub(crate) expired: usize,
    pub(crate) entries: usize,
}

impl World {
    /// `uuid|lease_ms|share|inbox`; ids sort as their numbers do.
    pub(crate) fn id(&self, number: usize) -> Vec<u8> {
        let attempt = &self.acquisitions[number];
        let share = if attempt.writes { Share::Exclusive } else { Share::Read };
        let inbox = channel(attempt.inbox);
        acquisition_id(&uuid(number), attempt.lease_ms, share, inbox.as_bytes())
    }

    pub(crate) fn writes(&self, number: usize) -> bool {
        self.acquisitions[number].writes
    }
}

/// A call, as a client makes it.
#[derive(Clone, Debug)]
pub(crate) enum Request {
    Acquire { id: usize, queues: bool, max_waiters: Option<u32>, floor: u64 },
    Check { waiting: Vec<(usize, u64)>, floor: u64 },
    Renew { elements: Vec<(usize, u64)> },
    Release { id: usize, late: bool, at_least_ms: u64, floor: u64 },
    Exchange { old: usize, id: usize, owner: usize, floor: u64 },
    Adopt { id: usize, owner: usize, floor: u64 },
    Force { members: Vec<Member>, floor: u64 },
    Inspect,
    Queue { most: u32 },
}

impl Request {
    pub(crate) fn floor(&self) -> u64 {
        match self {
            Self::Acquire { floor, .. }
            | Self::Check { floor, .. }
            | Self::Release { floor, .. }
            | Self::Exchange { floor, .. }
            | Self::Adopt { floor, .. }
            | Self::Force { floor, .. } => *floor,
            Self::Renew { .. } | Self::Inspect | Self::Queue { .. } => 0,
        }
    }

    /// The acquisitions that it speaks for.
    fn ids(&self) -> Vec<usize> {
        match self {
            Self::Acquire { id, .. }
            | Self::Release { id, .. }
            | Self::Exchange { id, .. }
            | Self::Adopt { id, .. } => vec![*id],
            Self::Check { waiting, .. } => waiting.iter().map(|(id, _)| *id).collect(),
            Self::Renew { elements } => elements.iter().map(|(id, _)| *id).collect(),
            Self::Force { .. } | Self::Inspect | Self::Queue { .. } => vec![],
        }
    }

    /// As the encoders make it.
    pub(crate) fn call(&self, world: &World, keys: &Keys) -> Call {
        let terms = Terms {
            wait_ms: world.wait_ms,
            check_ms: CHECK_MS,
            grant_ms: GRANT_MS,
            fence_ms: world.fence_ms,
            floor: self.floor(),
        };
        let text = |id: usize, owner: usize| (world.id(id), owner_name(owner), note(id));
        let own = |id: usize| text(id, world.acquisitions[id].owner);
        let (verbs, none) = (&rwlock::VERBS, Settings::default());
        match self {
            Self::Acquire { id, queues, max_waiters, .. } => {
                let wait = Mode::Wait { max_waiters: *max_waiters };
                let mode = if *queues { wait } else { Mode::Try };
                verbs.acquire(keys, &none, acquisition(world, *id, &own(*id)), mode, terms)
            }
            Self::Check { waiting, .. } => {
                let texts: Vec<_> =
                    waiting.iter().map(|(id, ticket)| (*id, own(*id), *ticket)).collect();
                let waiting =
                    texts.iter().map(|(id, text, ticket)| (acquisition(world, *id, text), *ticket));
                verbs.check(keys, &none, waiting, terms)
            }
            Self::Renew { elements } => {
                let mut calls =
                    elements.iter().map(|(id, ms)| verbs.renew(keys, &world.id(*id), *ms));
                let mut call = calls.next().expect("at least one");
                calls.for_each(|other| call.join(other));
                call
            }
            Self::Release { id, late, at_least_ms, .. } => {
                verbs.release(keys, &world.id(*id), *late, *at_least_ms, terms)
            }
            Self::Exchange { old, id, owner, .. } => {
                let text = text(*id, *owner);
                rwlock::exchange(keys, &world.id(*old), acquisition(world, *id, &text), terms)
            }
            Self::Adopt { id, owner, .. } => {
                rwlock::adopt(keys, acquisition(world, *id, &text(*id, *owner)), terms)
            }
            Self::Force { members, .. } => {
                let names: Vec<_> = members.iter().map(|member| member.name(world)).collect();
                let names: Vec<_> = names.iter().map(String::as_bytes).collect();
                rwlock::force_release(keys, &names, terms)
            }
            Self::Inspect => rwlock::inspect(keys, LISTED),
            Self::Queue { most } => mutex::queue(keys, *most),
        }
    }
}

fn acquisition<'a>(
    world: &World,
    id: usize,
    (bytes, owner, note): &'a (Vec<u8>, String, String),
) -> Acquisition<'a> {
    debug_assert_eq!(number_of(note), id);
    let lease_ms = world.acquisitions[id].lease_ms;
    Acquisition { id: bytes, owner, note: note.as_bytes(), lease_ms }
}

/// The highest token that a client says it has seen.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Floor {
    None,
    /// The highest there was.
    Seen,
    /// An hour ahead of the server's clock.
    Ahead,
    /// So far ahead that it must be ignored.
    TooFar,
}

/// The ticket that a check brings.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ticket {
    Known,
    Tail,
    Future,
}

/// The holds that a force_release names.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Named {
    Present,
    First,
    Earlier,
    /// As they were listed before any of them cooled down.
    AsHeld,
}

/// One step of a case; what it means depends on what happened before.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Acquire {
        id: usize,
        queues: bool,
        max_waiters: Option<u32>,
        floor: Floor,
    },
    Check {
        waiting: Vec<(usize, Ticket)>,
        floor: Floor,
    },
    Renew {
        elements: Vec<(usize, Option<u64>)>,
    },
    Release {
        id: usize,
        late: bool,
        at_least_ms: u64,
        floor: Floor,
    },
    Exchange {
        old: usize,
        id: usize,
        floor: Floor,
    },
    ExchangeAgain {
        which: usize,
    },
    Adopt {
        id: usize,
        owner_of: usize,
    },
    Force {
        named: Named,
    },
    Inspect,
    Queue {
        most: u32,
    },
    Forward {
        ms: u64,
    },
    /// To just behind the end of the first or the last of the present holds.
    PastHold {
        last: bool,
    },
    Back {
        ms: u64,
    },
    Inbox {
        inbox: usize,
        alive: bool,
    },
    Lose {
        key: Key,
    },
    FlushScripts,
}

/// The reference model and what its clients know.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    pub(crate) reference: Reference,
    pub(crate) sent: BTreeSet<usize>,
    /// Those that an exchange or an adoption was to begin.
    pub(crate) begun: BTreeSet<usize>,
    tickets: Vec<u64>,
    tokens: BTreeSet<u64>,
    /// Old, new and owner of each exchange that was asked for.
    pub(crate) exchanges: Vec<(usize, usize, usize)>,
    ended: BTreeSet<Member>,
    /// Of holds that came from another: whose that was.
    owners: BTreeMap<usize, usize>,
}

impl Scene {
    pub(crate) fn new(world: World, now_us: u64) -> Self {
        let tickets = vec![0; world.acquisitions.len()];
        Self {
            reference: Reference::new(world, now_us),
            sent: BTreeSet::new(),
            begun: BTreeSet::new(),
            tickets,
            tokens: BTreeSet::new(),
            exchanges: Vec::new(),
            ended: BTreeSet::new(),
            owners: BTreeMap::new(),
        }
    }

    /// As its client knows it, whatever the server has lost.
    pub(crate) fn owner_of(&self, id: usize) -> usize {
        self.owners.get(&id).copied().unwrap_or(self.reference.world.acquisitions[id].owner)
    }

    pub(crate) fn action(&self, step: &Step, now_us: u64) -> Action<Request> {
        let floor = |floor: &Floor| match floor {
            Floor::None => 0,
            Floor::Seen => self.tokens.last().copied().unwrap_or(0),
            Floor::Ahead => now_us + 3_600_000_000,
            Floor::TooFar => now_us + 48 * 3_600_000_000,
        };
        let clock = |to_ms: u64| Action::Clock(to_ms.saturating_sub(now_us / 1_000).cast_signed());
        match step.clone() {
            Step::Acquire { id, queues, max_waiters, floor: f } => {
                Action::Send(Request::Acquire { id, queues, max_waiters, floor: floor(&f) })
            }
            Step::Check { waiting, floor: f } => {
                let ticket = |(id, ticket)| match ticket {
                    Ticket::Known => (id, self.tickets[id]),
                    Ticket::Tail => (id, 0),
                    Ticket::Future => (id, now_us + 60_000_000),
                };
                let waiting = waiting.into_iter().map(ticket).collect();
                Action::Send(Request::Check { waiting, floor: floor(&f) })
            }
            Step::Renew { elements } => {
                let leases = &self.reference.world.acquisitions;
                let lease =
                    |(id, other): (usize, Option<u64>)| (id, other.unwrap_or(leases[id].lease_ms));
                Action::Send(Request::Renew { elements: elements.into_iter().map(lease).collect() })
            }
            Step::Release { id, late, at_least_ms, floor: f } => {
                Action::Send(Request::Release { id, late, at_least_ms, floor: floor(&f) })
            }
            Step::Exchange { old, id, floor: f } => {
                let owner = self.owner_of(old);
                Action::Send(Request::Exchange { old, id, owner, floor: floor(&f) })
            }
            Step::ExchangeAgain { which } => match self.exchanges.get(which) {
                Some(&(old, id, owner)) if owner == self.owner_of(old) => {
                    Action::Send(Request::Exchange { old, id, owner, floor: 0 })
                }
                Some(_) | None => Action::Send(Request::Inspect),
            },
            Step::Adopt { id, owner_of } => {
                let owner = self.owner_of(owner_of);
                Action::Send(Request::Adopt { id, owner, floor: 0 })
            }
            Step::Force { named } => {
                Action::Send(Request::Force { members: self.named(named), floor: 0 })
            }
            Step::Inspect => Action::Send(Request::Inspect),
            Step::Queue { most } => Action::Send(Request::Queue { most }),
            Step::Forward { ms } => Action::Clock(ms.cast_signed()),
            Step::PastHold { last } => {
                let ends = self.reference.ends_of_holds();
                let end = if last { ends.last() } else { ends.first() };
                clock(end.map_or(0, |end| end + 2 * CLEAR_AFTER_MS))
            }
            Step::Back { ms } => Action::Clock(-ms.cast_signed()),
            Step::Inbox { inbox, alive } => Action::Inbox { inbox, alive },
            Step::Lose { key } => Action::Lose(key),
            Step::FlushScripts => Action::FlushScripts,
        }
    }

    /// At least one: a call without elements is not made.
    fn named(&self, named: Named) -> Vec<Member> {
        let present = self.reference.listed();
        let members: Vec<_> = match named {
            Named::Present => present,
            Named::First => present.into_iter().take(1).collect(),
            Named::Earlier => self.ended.iter().rev().take(2).copied().collect(),
            Named::AsHeld => present.into_iter().map(Member::as_held).collect(),
        };
        if members.is_empty() { vec![Member::Id(0)] } else { members }
    }

    /// Keeps what the clients of a request learnt from its answer.
    pub(crate) fn learn(&mut self, request: &Request) {
        self.tokens.extend(self.reference.last_token());
        if let Request::Exchange { id, .. } | Request::Adopt { id, .. } = request {
            self.begun.insert(*id);
            self.owners.extend(self.reference.owner_of(*id).map(|owner| (*id, owner)));
        }
        for id in request.ids() {
            self.sent.insert(id);
            if let Some(ticket) = self.reference.queue.ticket(id) {
                self.tickets[id] = ticket;
            }
        }
        match request {
            Request::Exchange { old, id, owner, .. } => self.exchanges.push((*old, *id, *owner)),
            Request::Force { members, .. } => self.ended.extend(members),
            Request::Acquire { .. }
            | Request::Check { .. }
            | Request::Renew { .. }
            | Request::Release { .. }
            | Request::Adopt { .. }
            | Request::Inspect
            | Request::Queue { .. } => {}
        }
    }
}
