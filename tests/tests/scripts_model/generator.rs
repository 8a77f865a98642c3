//! Which cases are tried: steps that are likely to matter in the state that the steps before lead to.

use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest::strategy::Union;
use proptest_state_machine::ReferenceStateMachine;

use super::bench::INBOXES;
use super::keys::{KEYS, Key};
use super::model::Exclusive;
use super::reference::Mark;
use super::request::{AT_LEAST_MS, Attempt, Floor, Named, Scene, Step, Ticket, World};
use super::runner::{Action, Model, clearance_ms};

/// No more than `max_waiters` looks at (16), so that the model need not guess which.
const ACQUISITIONS: usize = 16;
/// Where the virtual clock of the generator starts.
const START_US: u64 = 1_700_000_000_000_000;
/// What a step takes.
const STEP_US: u64 = 1_000;
/// An acquisition of its own owner has this much added to its number as owner.
const OWN: usize = 100;

impl ReferenceStateMachine for Exclusive {
    type State = Self;
    type Transition = Step;

    fn init_state() -> BoxedStrategy<Self> {
        let attempt = (
            select(vec![1_000, 2_000, 3_000, 5_000, 8_000, 30_000, 30_000]),
            prop_oneof![2 => Just(None), 3 => (0..2_usize).prop_map(Some)],
            0..INBOXES,
        );
        let attempts = proptest::collection::vec(attempt, ACQUISITIONS);
        let world = (attempts, select(vec![4_000, 10_000]), any::<bool>(), any::<bool>());
        let world = world.prop_map(|(attempts, wait_ms, short_memory, small_bounds)| World {
            acquisitions: attempts
                .into_iter()
                .enumerate()
                .map(|(number, (lease_ms, shared, inbox))| Attempt {
                    lease_ms,
                    owner: shared.unwrap_or(OWN + number),
                    inbox,
                })
                .collect(),
            wait_ms,
            fence_ms: if short_memory { 20_000 } else { 3_600_000 },
            small_bounds,
            most_heads: if small_bounds { 2 } else { 32 },
            most_entries: if small_bounds { 2 } else { 64 },
        });
        world.prop_map(|world| Self::new(Scene::new(world, START_US))).boxed()
    }

    fn transitions(model: &Self) -> BoxedStrategy<Step> {
        let scene = &model.scene;
        let snapshot = scene.reference.snapshot();
        let ended = !ended(scene).is_empty();
        prop_oneof![
            30 => acquire(scene),
            16 => check(scene),
            18 => release(scene),
            if ended { 14 } else { 7 } => renew(scene),
            3 => (any_id(), any_id()).prop_map(|(id, owner_of)| Step::Adopt { id, owner_of }),
            if ended { 20 } else { 4 } => adopt_holder(scene),
            3 => named().prop_map(|named| Step::Force { named }),
            if snapshot.queue.is_empty() { 1 } else { 5 } => cancel(scene),
            1 => Just(Step::Inspect),
            1 => (0..5_u32).prop_map(|most| Step::Queue { most }),
            8 => select(vec![100, 900, 2_100, 4_300, 11_000, 45_000, 61_000])
                .prop_map(|ms| Step::Forward { ms }),
            if snapshot.owner.is_some() { 5 } else { 1 } => Just(Step::PastHold),
            if snapshot.entries.is_empty() { 2 } else { 5 } => select(vec![1_500, 3_000])
                .prop_map(|ms| Step::Back { ms }),
            5 => (0..INBOXES, prop::bool::weighted(0.6))
                .prop_map(|(inbox, alive)| Step::Inbox { inbox, alive }),
            2 => select(keys()).prop_map(|key| Step::Lose { key }),
            1 => Just(Step::FlushScripts),
        ]
        .boxed()
    }

    fn apply(mut model: Self, step: &Step) -> Self {
        let now_us = model.scene.reference.now_us + STEP_US;
        let now_us = now_us + clearance_ms(model.deadlines_ms(), now_us / 1_000) * 1_000;
        let scene = &mut model.scene;
        scene.reference.at(now_us);
        match scene.action(step, now_us) {
            Action::Send(request) => {
                drop(scene.reference.answer(&request, now_us));
                scene.learn(&request);
            }
            Action::Clock(ms) => scene.reference.at(now_us.saturating_add_signed(ms * 1_000)),
            Action::Inbox { inbox, alive } => scene.reference.inboxes[inbox] = alive,
            Action::Lose(key) => scene.reference.lose(key),
            Action::FlushScripts => {}
        }
        model
    }
}

/// Those that a mutex has.
fn keys() -> Vec<Key> {
    KEYS.into_iter().filter(|key| *key != Key::Notes).collect()
}

fn any_id() -> impl Strategy<Value = usize> {
    0..ACQUISITIONS
}

fn fresh(scene: &Scene) -> Vec<usize> {
    (0..ACQUISITIONS).filter(|id| !scene.sent.contains(id)).collect()
}

fn holding(scene: &Scene) -> Vec<usize> {
    (0..ACQUISITIONS).filter(|id| scene.reference.holds(*id)).collect()
}

/// Entries that ended by time beside others that live.
fn ended(scene: &Scene) -> Vec<usize> {
    let all = scene.reference.hold.iter().flat_map(|hold| hold.entries.keys().copied());
    all.filter(|id| !scene.reference.holds(*id)).collect()
}

/// Waiting although its owner holds: it may join.
fn joining(scene: &Scene) -> Vec<usize> {
    let owner = scene.reference.snapshot().owner;
    let attempts = &scene.reference.world.acquisitions;
    let waiting = scene.reference.queue.ids().into_iter();
    waiting.filter(|id| Some(attempts[*id].owner) == owner).collect()
}

/// Cancelled before, whether that is still remembered or not.
fn cancelled(scene: &Scene) -> Vec<usize> {
    let marks = scene.reference.snapshot().gone;
    let id = |mark: Mark| match mark {
        Mark::Gone(id) => Some(id),
        Mark::ForcedId(_) | Mark::ForcedToken(_) | Mark::Cancelled(..) => None,
    };
    marks.into_keys().filter_map(id).collect()
}

/// One of the first list that is chosen and not empty; any at worst.
fn one_of(lists: Vec<(u32, Vec<usize>)>) -> BoxedStrategy<usize> {
    let chosen = lists.into_iter().filter(|(_, ids)| !ids.is_empty());
    let mut weighted: Vec<_> = chosen.map(|(weight, ids)| (weight, select(ids).boxed())).collect();
    weighted.push((1, any_id().boxed()));
    Union::new_weighted(weighted).boxed()
}

fn floor() -> impl Strategy<Value = Floor> {
    prop_oneof![
        70 => Just(Floor::None),
        26 => Just(Floor::Seen),
        1 => Just(Floor::Ahead),
        3 => Just(Floor::TooFar),
    ]
}

fn named() -> impl Strategy<Value = Named> {
    prop_oneof![4 => Just(Named::Current), 2 => Just(Named::Earlier), 1 => Just(Named::Unknown)]
}

fn acquire(scene: &Scene) -> BoxedStrategy<Step> {
    let sent = scene.sent.iter().copied().collect();
    let id = one_of(vec![
        (12, fresh(scene)),
        (3, sent),
        (2, scene.reference.queue.ids()),
        (1, holding(scene)),
        (4, cancelled(scene)),
        (4, joining(scene)),
    ]);
    let length = u32::try_from(scene.reference.queue.ids().len()).expect("few");
    let bound = prop_oneof![
        5 => Just(None),
        1 => (0..4_u32).prop_map(Some),
        3 => (length.saturating_sub(1)..length + 2).prop_map(Some),
    ];
    let queues = prop::bool::weighted(0.8);
    (id, queues, bound, floor())
        .prop_map(|(id, queues, max_waiters, floor)| Step::Acquire {
            id,
            queues,
            max_waiters: max_waiters.filter(|_| queues),
            floor,
        })
        .boxed()
}

fn check(scene: &Scene) -> BoxedStrategy<Step> {
    let waiting = scene.reference.queue.ids();
    let sent: Vec<usize> = scene.sent.iter().copied().collect();
    let all: Vec<usize> = (0..ACQUISITIONS).collect();
    let lists = [(8, waiting), (4, sent), (1, all)].into_iter().filter(|(_, ids)| !ids.is_empty());
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
    (Union::new_weighted(batches.collect()), tickets, floor())
        .prop_map(|(ids, tickets, floor)| Step::Check {
            waiting: ids.into_iter().zip(tickets).collect(),
            floor,
        })
        .boxed()
}

fn release(scene: &Scene) -> BoxedStrategy<Step> {
    let sent = scene.sent.iter().copied().collect();
    let cooling = scene.reference.snapshot().cooling.into_iter().collect();
    let id = one_of(vec![
        (10, holding(scene)),
        (4, scene.reference.queue.ids()),
        (3, sent),
        (3, cooling),
        // Cancelled before its acquire arrives.
        (2, fresh(scene)),
    ]);
    let at_least = prop_oneof![3 => Just(AT_LEAST_MS[0]), 1 => select(AT_LEAST_MS.to_vec())];
    (id, prop::bool::weighted(0.3), at_least, floor())
        .prop_map(|(id, late, at_least_ms, floor)| Step::Release { id, late, at_least_ms, floor })
        .boxed()
}

fn renew(scene: &Scene) -> BoxedStrategy<Step> {
    let sent = scene.sent.iter().copied().collect();
    let cooling = scene.reference.snapshot().cooling.into_iter().collect();
    let id = one_of(vec![(10, holding(scene)), (3, sent), (2, cooling), (4, ended(scene))]);
    let lease = prop_oneof![
        4 => Just(None),
        1 => select(vec![500, 10_000, 40_000]).prop_map(Some),
    ];
    proptest::collection::vec((id, lease), 1..4)
        .prop_map(|elements| Step::Renew { elements })
        .boxed()
}

/// Mostly somebody who waits, named rightly; else the ticket of one with the trace of another, or somebody who has left.
fn cancel(scene: &Scene) -> BoxedStrategy<Step> {
    let waiting = || one_of(vec![(8, scene.reference.queue.ids()), (2, cancelled(scene))]);
    let rightly = prop::bool::weighted(0.7);
    (waiting(), waiting(), rightly, floor())
        .prop_map(|(id, other, rightly, floor)| Step::Cancel {
            ticket_of: id,
            trace_of: if rightly { id } else { other },
            floor,
        })
        .boxed()
}

fn adopt_holder(scene: &Scene) -> BoxedStrategy<Step> {
    let holder = one_of(vec![(9, holding(scene))]);
    let heir = one_of(vec![(6, fresh(scene)), (1, holding(scene))]);
    (heir, holder).prop_map(|(id, owner_of)| Step::Adopt { id, owner_of }).boxed()
}
