//! What the clients of a kind with waiters know, and what they choose.

use std::collections::BTreeSet;
use std::ops::Range;

use leasehold_lua::Share;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest::strategy::Union;

use super::bench::INBOXES;
use super::runner::{Action, CLEAR_AFTER_MS};
use super::waiters::Waiters;
use super::world::{Acquisitions, Attempt};

/// An acquisition of its own owner has this much added to its number as owner.
const OWN: usize = 100;

/// The ticket that a check brings.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ticket {
    Known,
    Tail,
    Future,
}

#[derive(Clone, Debug)]
pub(crate) struct Clients {
    /// The acquisitions that calls spoke for.
    pub(crate) sent: BTreeSet<usize>,
    tickets: Vec<u64>,
}

impl Clients {
    pub(crate) fn of(acquisitions: &Acquisitions) -> Self {
        Self { sent: BTreeSet::new(), tickets: vec![0; acquisitions.len()] }
    }

    /// From the answer to a call that spoke for these.
    pub(crate) fn learn(&mut self, ids: Vec<usize>, waiters: &Waiters) {
        for id in ids {
            self.sent.insert(id);
            if let Some(ticket) = waiters.ticket(id) {
                self.tickets[id] = ticket;
            }
        }
    }

    /// The one that it was told last.
    pub(crate) fn ticket(&self, id: usize) -> u64 {
        self.tickets[id]
    }

    pub(crate) fn bring(&self, waiting: Vec<(usize, Ticket)>, now_us: u64) -> Vec<(usize, u64)> {
        let number = |(id, ticket)| match ticket {
            Ticket::Known => (id, self.ticket(id)),
            Ticket::Tail => (id, 0),
            Ticket::Future => (id, now_us + 60_000_000),
        };
        waiting.into_iter().map(number).collect()
    }

    pub(crate) fn fresh(&self, range: Range<usize>) -> Vec<usize> {
        range.filter(|id| !self.sent.contains(id)).collect()
    }
}

/// The clock goes on to just behind that end of a hold.
pub(crate) fn past<Request>(end_ms: u64, now_us: u64) -> Action<Request> {
    let ms = (end_ms + 2 * CLEAR_AFTER_MS).saturating_sub(now_us / 1_000);
    Action::Clock(ms.cast_signed())
}

/// So many acquisitions with one of these leases, their own owner or one of two, and a share that may depend on their
/// number.
pub(crate) fn acquisitions<S: std::fmt::Debug + 'static>(
    count: usize,
    leases_ms: Vec<u64>,
    (own, shared): (u32, u32),
    drawn: impl Strategy<Value = S> + 'static,
    share: impl Fn(usize, S) -> Share + 'static,
) -> impl Strategy<Value = Acquisitions> {
    let owner = prop_oneof![own => Just(None), shared => (0..2_usize).prop_map(Some)];
    let attempt = (select(leases_ms), owner, 0..INBOXES, drawn);
    proptest::collection::vec(attempt, count).prop_map(move |attempts| {
        let numbered = attempts.into_iter().enumerate();
        let attempts = numbered.map(|(number, (lease_ms, shared, inbox, drawn))| Attempt {
            lease_ms,
            owner: shared.unwrap_or(OWN + number),
            inbox,
            share: share(number, drawn),
        });
        attempts.collect()
    })
}

/// One of the first list that is chosen and not empty; at worst any in the range.
pub(crate) fn one_of(lists: Vec<(u32, Vec<usize>)>, any: Range<usize>) -> BoxedStrategy<usize> {
    let chosen = lists.into_iter().filter(|(_, ids)| !ids.is_empty());
    let mut weighted: Vec<_> = chosen.map(|(weight, ids)| (weight, select(ids).boxed())).collect();
    weighted.push((1, any.boxed()));
    Union::new_weighted(weighted).boxed()
}

/// Whether an acquire queues, and its bound of the queue: none, any, or near to its length, so probably.
pub(crate) fn queues(
    probability: f64,
    waiters: &Waiters,
    (none, any, near): (u32, u32, u32),
) -> impl Strategy<Value = (bool, Option<u32>)> + use<> {
    let length = u32::try_from(waiters.len()).expect("few");
    let bound = prop_oneof![
        none => Just(None),
        any => (0..4_u32).prop_map(Some),
        near => (length.saturating_sub(1)..length + 2).prop_map(Some),
    ];
    (prop::bool::weighted(probability), bound)
        .prop_map(|(queues, bound)| (queues, bound.filter(|_| queues)))
}

/// Whether messages do not reach who checks: one of five, and nothing is drawn for it, so that cases stay what they were.
pub(crate) fn is_deaf(waiting: &[(usize, Ticket)]) -> bool {
    waiting.iter().map(|(id, _)| id).sum::<usize>() % 5 == 0
}

/// Up to six of one of the lists, with the tickets that they bring.
pub(crate) fn checked(
    lists: [(u32, Vec<usize>); 3],
) -> impl Strategy<Value = Vec<(usize, Ticket)>> {
    let lists = lists.into_iter().filter(|(_, ids)| !ids.is_empty());
    let batches = lists.map(|(weight, ids)| {
        let most = ids.len().min(6);
        (weight, subsequence(ids, 1..=most).prop_shuffle().boxed())
    });
    let ticket = prop_oneof![
        8 => Just(Ticket::Known),
        2 => Just(Ticket::Tail),
        1 => Just(Ticket::Future),
    ];
    let tickets = proptest::collection::vec(ticket, 6);
    (Union::new_weighted(batches.collect()), tickets)
        .prop_map(|(ids, tickets)| ids.into_iter().zip(tickets).collect())
}

/// Up to three, for their leases or one of these.
pub(crate) fn renewals(
    id: BoxedStrategy<usize>,
    leases_ms: Vec<u64>,
) -> impl Strategy<Value = Vec<(usize, Option<u64>)>> {
    let lease = prop_oneof![4 => Just(None), 1 => select(leases_ms).prop_map(Some)];
    proptest::collection::vec((id, lease), 1..4)
}
