//! What clients send, and the world that they live in.

use std::collections::BTreeSet;

use leasehold_lua::wire::acquisition_id;
use leasehold_lua::{Acquisition, Call, Keys, Mode, Settings, Share, Terms, fair, mutex};

use super::bench::channel;
use super::keys::Key;
use super::names::{note, number_of, owner_name, uuid};
use super::reference::{CHECK_MS, GRANT_MS, Reference};
use super::runner::{Action, CLEAR_AFTER_MS};

/// The values of `hold_at_least` that releases carry.
pub(crate) const AT_LEAST_MS: [u64; 3] = [0, 2_000, 4_000];
/// One acquisition; its number is its place in the world.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) lease_ms: u64,
    pub(crate) owner: usize,
    pub(crate) inbox: usize,
}

/// What does not change in a case.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) acquisitions: Vec<Attempt>,
    pub(crate) wait_ms: u64,
    pub(crate) fence_ms: u64,
    /// The scripts' bounds: as they are, or so small that a case reaches them.
    pub(crate) small_bounds: bool,
    pub(crate) most_heads: usize,
    pub(crate) most_entries: usize,
}

impl World {
    /// `uuid|lease_ms|inbox`; ids sort as their numbers do.
    pub(crate) fn id(&self, number: usize) -> Vec<u8> {
        let attempt = &self.acquisitions[number];
        acquisition_id(
            &uuid(number),
            attempt.lease_ms,
            Share::Exclusive,
            channel(attempt.inbox).as_bytes(),
        )
    }
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
    pub(crate) fn ids(&self) -> Vec<usize> {
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
        let text = |id: usize, owner: usize| (world.id(id), owner_name(owner), note(id));
        let own = |id: usize| text(id, world.acquisitions[id].owner);
        let (verbs, none) = (&mutex::VERBS, Settings::default());
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
            Self::Adopt { id, owner } => {
                mutex::adopt(keys, acquisition(world, *id, &text(*id, *owner)))
            }
            Self::Force { token, .. } => mutex::force_release(keys, *token, terms),
            Self::Cancel { ticket, id, .. } => fair::cancel(keys, *ticket, &uuid(*id), terms),
            Self::Inspect => mutex::inspect(keys),
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
    Forward {
        ms: u64,
    },
    /// To just behind the end of the present hold.
    PastHold,
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

/// The reference model and what its clients were told.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    pub(crate) reference: Reference,
    pub(crate) sent: BTreeSet<usize>,
    tickets: Vec<u64>,
    tokens: BTreeSet<u64>,
}

impl Scene {
    pub(crate) fn new(world: World, now_us: u64) -> Self {
        let tickets = vec![0; world.acquisitions.len()];
        let reference = Reference::new(world, now_us);
        Self { reference, sent: BTreeSet::new(), tickets, tokens: BTreeSet::new() }
    }

    pub(crate) fn action(&self, step: &Step, now_us: u64) -> Action<Request> {
        let floor = |floor: &Floor| match floor {
            Floor::None => 0,
            Floor::Seen => self.tokens.last().copied().unwrap_or(0),
            Floor::Ahead => now_us + 3_600_000_000,
            Floor::TooFar => now_us + 48 * 3_600_000_000,
        };
        match step.clone() {
            Step::Acquire { id, queues, max_waiters, floor: f } => {
                Action::Send(Request::Acquire { id, queues, max_waiters, floor: floor(&f) })
            }
            Step::Check { waiting, floor: f } => {
                let waiting = waiting.into_iter().map(|(id, ticket)| {
                    let ticket = match ticket {
                        Ticket::Known => self.tickets[id],
                        Ticket::Tail => 0,
                        Ticket::Future => now_us + 60_000_000,
                    };
                    (id, ticket)
                });
                Action::Send(Request::Check { waiting: waiting.collect(), floor: floor(&f) })
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
                floor: floor(&f),
            }),
            Step::Inspect => Action::Send(Request::Inspect),
            Step::Queue { most } => Action::Send(Request::Queue { most }),
            Step::Forward { ms } => Action::Clock(ms.cast_signed()),
            Step::PastHold => {
                let hold_ends_ms = self.reference.snapshot().ends_ms[0];
                let ms = (hold_ends_ms + 2 * CLEAR_AFTER_MS).saturating_sub(now_us / 1_000);
                Action::Clock(ms.cast_signed())
            }
            Step::Back { ms } => Action::Clock(-ms.cast_signed()),
            Step::Inbox { inbox, alive } => Action::Inbox { inbox, alive },
            Step::Lose { key } => Action::Lose(key),
            Step::FlushScripts => Action::FlushScripts,
        }
    }

    /// As it stands in the queue, or as it was last told.
    fn ticket(&self, id: usize) -> u64 {
        let queue = self.reference.snapshot().queue;
        let stands = queue.iter().find(|(_, waits)| *waits == id);
        stands.map_or(self.tickets[id], |(ticket, _)| *ticket)
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
        let snapshot = self.reference.snapshot();
        self.tokens.extend(snapshot.token);
        for id in request.ids() {
            self.sent.insert(id);
            if let Some((ticket, _)) = snapshot.queue.iter().find(|(_, waits)| *waits == id) {
                self.tickets[id] = *ticket;
            }
        }
    }
}
