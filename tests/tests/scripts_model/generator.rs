//! Which cases are tried: steps that are likely to matter in the state that the steps before lead to.

use leasehold_lua::Share;
use proptest::prelude::*;
use proptest::sample::select;
use proptest_state_machine::ReferenceStateMachine;

use super::clients::{self, acquisitions, checked, is_deaf, queues, renewals};
use super::events::{Event, back, forward, inbox, lose};
use super::keys::{KEYS, Key};
use super::model::Exclusive;
use super::reference::Mark;
use super::request::{AT_LEAST_MS, Named, Scene, Step, World};
use super::runner::{Model, START_US};
use super::tokens::floor;

/// No more than `max_waiters` looks at (16), so that the model need not guess which.
const ACQUISITIONS: usize = 16;

impl ReferenceStateMachine for Exclusive {
    type State = Self;
    type Transition = Step;

    fn init_state() -> BoxedStrategy<Self> {
        let leases_ms = vec![1_000, 2_000, 3_000, 5_000, 8_000, 30_000, 30_000];
        let attempts =
            acquisitions(ACQUISITIONS, leases_ms, (2, 3), Just(()), |_, ()| Share::Exclusive);
        let world = (attempts, select(vec![4_000, 10_000]), any::<bool>(), any::<bool>());
        let world = world.prop_map(|(acquisitions, wait_ms, short_memory, small_bounds)| World {
            acquisitions,
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
            if scene.reference.waiters.is_empty() { 1 } else { 5 } => cancel(scene),
            1 => Just(Step::Inspect),
            1 => (0..5_u32).prop_map(|most| Step::Queue { most }),
            8 => forward(vec![100, 900, 2_100, 4_300, 11_000, 45_000, 61_000]).prop_map(Step::Event),
            if snapshot.owner.is_some() { 5 } else { 1 } => Just(Step::PastHold),
            if snapshot.entries.is_empty() { 2 } else { 5 } => back().prop_map(Step::Event),
            5 => inbox(0.6).prop_map(Step::Event),
            2 => lose(keys()).prop_map(Step::Event),
            1 => Just(Step::Event(Event::FlushScripts)),
        ]
        .boxed()
    }

    fn apply(model: Self, step: &Step) -> Self {
        model.step(step)
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
    scene.clients.fresh(0..ACQUISITIONS)
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
    let waiting = scene.reference.waiters.ids().into_iter();
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
    clients::one_of(lists, 0..ACQUISITIONS)
}

fn named() -> impl Strategy<Value = Named> {
    prop_oneof![4 => Just(Named::Current), 2 => Just(Named::Earlier), 1 => Just(Named::Unknown)]
}

fn acquire(scene: &Scene) -> BoxedStrategy<Step> {
    let sent = scene.clients.sent.iter().copied().collect();
    let id = one_of(vec![
        (12, fresh(scene)),
        (3, sent),
        (2, scene.reference.waiters.ids()),
        (1, holding(scene)),
        (4, cancelled(scene)),
        (4, joining(scene)),
    ]);
    (id, queues(0.8, &scene.reference.waiters, (5, 1, 3)), floor())
        .prop_map(|(id, (queues, max_waiters), floor)| Step::Acquire {
            id,
            queues,
            max_waiters,
            floor,
        })
        .boxed()
}

fn check(scene: &Scene) -> BoxedStrategy<Step> {
    let waiting = scene.reference.waiters.ids();
    let sent: Vec<usize> = scene.clients.sent.iter().copied().collect();
    let all: Vec<usize> = (0..ACQUISITIONS).collect();
    (checked([(8, waiting), (4, sent), (1, all)]), floor())
        .prop_map(|(waiting, floor)| Step::Check { deaf: is_deaf(&waiting), waiting, floor })
        .boxed()
}

fn release(scene: &Scene) -> BoxedStrategy<Step> {
    let sent = scene.clients.sent.iter().copied().collect();
    let cooling = scene.reference.snapshot().cooling.into_iter().collect();
    let id = one_of(vec![
        (10, holding(scene)),
        (4, scene.reference.waiters.ids()),
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
    let sent = scene.clients.sent.iter().copied().collect();
    let cooling = scene.reference.snapshot().cooling.into_iter().collect();
    let id = one_of(vec![(10, holding(scene)), (3, sent), (2, cooling), (4, ended(scene))]);
    renewals(id, vec![500, 10_000, 40_000]).prop_map(|elements| Step::Renew { elements }).boxed()
}

/// Mostly somebody who waits, named rightly; else the ticket of one with the trace of another, or somebody who has left.
fn cancel(scene: &Scene) -> BoxedStrategy<Step> {
    let waiting = || one_of(vec![(8, scene.reference.waiters.ids()), (2, cancelled(scene))]);
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
