//! What clients send, and the world that they live in.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_lua::{Call, Keys, Settings, Share, Terms, mutex, rwlock};

use super::clients::{Clients, Ticket, past};
use super::events::Event;
use super::reference::{Member, Reference};
use super::runner::Action;
use super::tokens::Floor;
use super::world::{Acquisitions, CHECK_MS, Caller, GRANT_MS};

/// The values of `hold_at_least` that releases carry.
pub(crate) const AT_LEAST_MS: [u64; 3] = [0, 2_000, 4_000];
/// How many holds an inspection lists.
pub(crate) const LISTED: u32 = 64;

/// What does not change in a case.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) acquisitions: Acquisitions,
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
    pub(crate) fn writes(&self, number: usize) -> bool {
        self.acquisitions[number].share == Share::Exclusive
    }
}

/// A call, as a client makes it.
#[derive(Clone, Debug)]
pub(crate) enum Request {
    Acquire { id: usize, queues: bool, max_waiters: Option<u32>, floor: u64 },
    Check { waiting: Vec<(usize, u64)>, deaf: bool, floor: u64 },
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
        let caller = Caller {
            acquisitions: &world.acquisitions,
            verbs: &rwlock::VERBS,
            settings: Settings::default(),
            keys,
            terms,
        };
        let text = |id: &usize, owner: &usize| world.acquisitions.text(*id, *owner);
        match self {
            Self::Acquire { id, queues, max_waiters, .. } => {
                caller.acquire(*id, *queues, *max_waiters)
            }
            Self::Check { waiting, deaf, .. } => caller.check(waiting, *deaf),
            Self::Renew { elements } => caller.renew(elements),
            Self::Release { id, late, at_least_ms, .. } => caller.release(*id, *late, *at_least_ms),
            Self::Exchange { old, id, owner, .. } => {
                let old = world.acquisitions.id(*old);
                rwlock::exchange(keys, old.as_bytes(), text(id, owner).wire(), terms)
            }
            Self::Adopt { id, owner, .. } => rwlock::adopt(keys, text(id, owner).wire(), terms),
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
        deaf: bool,
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
    /// To just behind the end of the first or the last of the present holds.
    PastHold {
        last: bool,
    },
    Event(Event),
}

/// The reference model and what its clients know.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    pub(crate) reference: Reference,
    pub(crate) clients: Clients,
    /// Those that an exchange or an adoption was to begin.
    pub(crate) begun: BTreeSet<usize>,
    tokens: BTreeSet<u64>,
    /// Old, new and owner of each exchange that was asked for.
    pub(crate) exchanges: Vec<(usize, usize, usize)>,
    ended: BTreeSet<Member>,
    /// Of holds that came from another: whose that was.
    owners: BTreeMap<usize, usize>,
}

impl Scene {
    pub(crate) fn new(world: World, now_us: u64) -> Self {
        Self {
            clients: Clients::of(&world.acquisitions),
            reference: Reference::new(world, now_us),
            begun: BTreeSet::new(),
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
        let floor = |floor: Floor| floor.token(self.tokens.last().copied(), now_us);
        match step.clone() {
            Step::Acquire { id, queues, max_waiters, floor: f } => {
                Action::Send(Request::Acquire { id, queues, max_waiters, floor: floor(f) })
            }
            Step::Check { waiting, deaf, floor: f } => {
                let waiting = self.clients.bring(waiting, now_us);
                Action::Send(Request::Check { waiting, deaf, floor: floor(f) })
            }
            Step::Renew { elements } => {
                let elements = self.reference.world.acquisitions.leases(elements);
                Action::Send(Request::Renew { elements })
            }
            Step::Release { id, late, at_least_ms, floor: f } => {
                Action::Send(Request::Release { id, late, at_least_ms, floor: floor(f) })
            }
            Step::Exchange { old, id, floor: f } => {
                let owner = self.owner_of(old);
                Action::Send(Request::Exchange { old, id, owner, floor: floor(f) })
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
            Step::PastHold { last } => {
                let ends = self.reference.ends_of_holds();
                let end = if last { ends.last() } else { ends.first() };
                past(end.copied().unwrap_or(0), now_us)
            }
            Step::Event(event) => event.action(),
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
        self.tokens.extend(self.reference.token.of);
        if let Request::Exchange { id, .. } | Request::Adopt { id, .. } = request {
            self.begun.insert(*id);
            self.owners.extend(self.reference.owner_of(*id).map(|owner| (*id, owner)));
        }
        self.clients.learn(request.ids(), &self.reference.waiters);
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
