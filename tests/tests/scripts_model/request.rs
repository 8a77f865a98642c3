//! What clients send, and the world that they live in.

use std::collections::BTreeSet;

use leasehold_lua::Share;
use leasehold_lua::wire::acquisition_id;

use super::reference::{INBOXES, Key, Reference};

/// The values of `hold_at_least` that releases carry.
pub(crate) const AT_LEAST_MS: [u64; 3] = [0, 2_000, 4_000];
/// No request runs so shortly before a deadline: more than a call takes on a loaded machine.
const CLEAR_BEFORE_MS: u64 = 300;
/// No request runs so shortly after one: the server's own clock of expiry may be a little behind.
const CLEAR_AFTER_MS: u64 = 10;

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

pub(crate) fn uuid(number: usize) -> String {
    format!("a{number:02}")
}

/// The number of an acquisition from its uuid, or from an id, which begins with it.
pub(crate) fn number_of(uuid: &str) -> usize {
    uuid.get(1..3).and_then(|digits| digits.parse().ok()).expect("an id of this test")
}

pub(crate) fn channel(inbox: usize) -> String {
    format!("inbox|{inbox}")
}

pub(crate) fn owner_name(owner: usize) -> String {
    format!("owner {owner}")
}

/// Opaque to the scripts, with the byte that separates their fields.
pub(crate) fn note(number: usize) -> String {
    format!("{}|note", uuid(number))
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

/// What a step is, once it is known what happened before.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    Send(Request),
    /// Milliseconds.
    Clock(i64),
    Inbox {
        inbox: usize,
        alive: bool,
    },
    Lose(Key),
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
        assert_eq!(reference.inboxes.len(), INBOXES);
        Self { reference, sent: BTreeSet::new(), tickets, tokens: BTreeSet::new() }
    }

    /// How far the clock must go on so that nothing ends by itself while a request runs.
    pub(crate) fn clearance_ms(&self, now_ms: u64) -> u64 {
        let mut deadlines = self.reference.deadlines_ms();
        deadlines.sort_unstable();
        let mut clear = now_ms;
        for deadline in deadlines {
            if deadline + CLEAR_AFTER_MS > clear && deadline < clear + CLEAR_BEFORE_MS {
                clear = deadline + CLEAR_AFTER_MS;
            }
        }
        clear - now_ms
    }

    pub(crate) fn action(&self, step: &Step, now_us: u64) -> Action {
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
