//! What clients send, and the world that they live in.

use std::collections::BTreeSet;

use leasehold_lua::{Call, Keys, Settings, Terms, fair, mutex};

use super::clients::{Clients, Ticket, past};
use super::events::Event;
use super::names::uuid;
use super::reference::Reference;
use super::runner::Action;
use super::tokens::Floor;
use super::world::{Acquisitions, CHECK_MS, Caller, GRANT_MS};

/// The values of `hold_at_least` that releases carry.
pub(crate) const AT_LEAST_MS: [u64; 3] = [0, 2_000, 4_000];

/// What does not change in a case.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) acquisitions: Acquisitions,
    pub(crate) wait_ms: u64,
    pub(crate) fence_ms: u64,
    /// The scripts' bounds: as they are, or so small that a case reaches them.
    pub(crate) small_bounds: bool,
    pub(crate) most_heads: usize,
    pub(crate) most_entries: usize,
}

/// A call, as a client makes it.
#[derive(Clone, Debug)]
pub(crate) enum Request {
    Acquire {
        id: usize,
        queues: bool,
        max_waiters: Option<u32>,
        floor: u64,
    },
    Check {
        waiting: Vec<(usize, u64)>,
        deaf: bool,
        floor: u64,
    },
    Renew {
        elements: Vec<(usize, u64)>,
    },
    Release {
        id: usize,
        late: bool,
        at_least_ms: u64,
        floor: u64,
    },
    Adopt {
        id: usize,
        owner: usize,
    },
    Force {
        token: u64,
        floor: u64,
    },
    /// By an operator; the trace is that of `id`.
    Cancel {
        ticket: u64,
        id: usize,
        floor: u64,
    },
    Inspect,
    Queue {
        most: u32,
    },
}

impl Request {
    pub(crate) fn floor(&self) -> u64 {
        match self {
            Self::Acquire { floor, .. }
            | Self::Check { floor, .. }
            | Self::Release { floor, .. }
            | Self::Force { floor, .. }
            | Self::Cancel { floor, .. } => *floor,
            Self::Renew { .. } | Self::Adopt { .. } | Self::Inspect | Self::Queue { .. } => 0,
        }
    }

    /// The acquisitions that it speaks for.
    fn ids(&self) -> Vec<usize> {
        match self {
            Self::Acquire { id, .. } | Self::Release { id, .. } | Self::Adopt { id, .. } => {
                vec![*id]
            }
            Self::Check { waiting, .. } => waiting.iter().map(|(id, _)| *id).collect(),
            Self::Renew { elements } => elements.iter().map(|(id, _)| *id).collect(),
            Self::Force { .. } | Self::Cancel { .. } | Self::Inspect | Self::Queue { .. } => vec![],
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
            verbs: &mutex::VERBS,
            settings: Settings::default(),
            keys,
            terms,
        };
        match self {
            Self::Acquire { id, queues, max_waiters, .. } => {
                caller.acquire(*id, *queues, *max_waiters)
            }
            Self::Check { waiting, deaf, .. } => caller.check(waiting, *deaf),
            Self::Renew { elements } => caller.renew(elements),
            Self::Release { id, late, at_least_ms, .. } => caller.release(*id, *late, *at_least_ms),
            Self::Adopt { id, owner } => {
                mutex::adopt(keys, world.acquisitions.text(*id, *owner).wire())
            }
            Self::Force { token, .. } => mutex::force_release(keys, *token, terms),
            Self::Cancel { ticket, id, .. } => fair::cancel(keys, *ticket, &uuid(*id), terms),
            Self::Inspect => mutex::inspect(keys),
            Self::Queue { most } => mutex::queue(keys, *most),
        }
    }
}

/// The hold that a force_release names.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Named {
    Current,
    Earlier,
    Unknown,
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
    Adopt {
        id: usize,
        owner_of: usize,
    },
    Force {
        named: Named,
    },
    Cancel {
        ticket_of: usize,
        trace_of: usize,
        floor: Floor,
    },
    Inspect,
    Queue {
        most: u32,
    },
    /// To just behind the end of the present hold.
    PastHold,
    Event(Event),
}

/// The reference model and what its clients were told.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    pub(crate) reference: Reference,
    pub(crate) clients: Clients,
    tokens: BTreeSet<u64>,
}

impl Scene {
    pub(crate) fn new(world: World, now_us: u64) -> Self {
        let clients = Clients::of(&world.acquisitions);
        Self { reference: Reference::new(world, now_us), clients, tokens: BTreeSet::new() }
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
            Step::Adopt { id, owner_of } => {
                let owner = self.reference.world.acquisitions[owner_of].owner;
                Action::Send(Request::Adopt { id, owner })
            }
            Step::Force { named } => {
                Action::Send(Request::Force { token: self.token(named), floor: 0 })
            }
            Step::Cancel { ticket_of, trace_of, floor: f } => Action::Send(Request::Cancel {
                ticket: self.ticket(ticket_of),
                id: trace_of,
                floor: floor(f),
            }),
            Step::Inspect => Action::Send(Request::Inspect),
            Step::Queue { most } => Action::Send(Request::Queue { most }),
            Step::PastHold => past(self.reference.ends_ms()[0], now_us),
            Step::Event(event) => event.action(),
        }
    }

    /// As it stands in the queue, or as it was last told.
    fn ticket(&self, id: usize) -> u64 {
        self.reference.waiters.ticket(id).unwrap_or_else(|| self.clients.ticket(id))
    }

    fn token(&self, named: Named) -> u64 {
        let mut newest = self.tokens.iter().rev();
        match named {
            Named::Current => newest.next().copied().unwrap_or(1),
            Named::Earlier => newest.nth(1).copied().unwrap_or(1),
            Named::Unknown => 1,
        }
    }

    /// Keeps what the clients of a request learnt from its answer.
    pub(crate) fn learn(&mut self, request: &Request) {
        self.tokens.extend(self.reference.token.of);
        self.clients.learn(request.ids(), &self.reference.waiters);
    }
}
