//! Which cases are tried: steps that are likely to matter in the state that the steps before lead to.

use leasehold_lua::Share;
use proptest::prelude::*;
use proptest::sample::select;
use proptest_state_machine::ReferenceStateMachine;

use super::clients::{self, acquisitions, checked, is_deaf, queues, renewals};
use super::events::{Event, back, forward, inbox, lose};
use super::keys::{KEYS, Key};
use super::model::ReadWrite;
use super::reference::Mark;
use super::request::{AT_LEAST_MS, Bounds, Named, Scene, Step, World};
use super::runner::{Model, START_US};
use super::tokens::floor;

/// Those that are acquired. No more than `max_waiters` looks at (16), so that the model need not guess which.
const ACQUIRED: usize = 14;
/// Further ones that never queue: holds are exchanged for them, or adopted by them. Half of them write.
const HEIRS: usize = 12;
const REAL: Bounds = Bounds { dead: 32, grants: 128, expired: 256, entries: 64 };
/// As the changes of the suite make them.
pub(crate) const SMALL: Bounds = Bounds { dead: 2, grants: 2, expired: 2, entries: 2 };

impl ReferenceStateMachine for ReadWrite {
    type State = Self;
    type Transition = Step;

    fn init_state() -> BoxedStrategy<Self> {
        let leases_ms = vec![1_000, 2_000, 3_000, 5_000, 8_000, 30_000, 30_000];
        let writes = prop::bool::weighted(0.4);
        let attempts = acquisitions(ACQUIRED + HEIRS, leases_ms, (3, 2), writes, share);
        let flags = (any::<bool>(), any::<bool>(), any::<bool>());
        let world = (attempts, select(vec![4_000, 10_000]), flags);
        let world =
            world.prop_map(|(acquisitions, wait_ms, (calm, short_memory, small_bounds))| World {
                calm,
                acquisitions,
                wait_ms,
                fence_ms: if short_memory { 20_000 } else { 3_600_000 },
                small_bounds,
                bounds: if small_bounds { SMALL } else { REAL },
            });
        world.prop_map(|world| Self::new(Scene::new(world, START_US))).boxed()
    }

    fn transitions(model: &Self) -> BoxedStrategy<Step> {
        let scene = &model.scene;
        let calm = scene.reference.world.calm;
        let held = !scene.reference.listed().is_empty();
        let ended = !scene.reference.ended_ids().is_empty();
        prop_oneof![
            34 => acquire(scene),
            14 => check(scene),
            16 => release(scene),
            if ended { 10 } else { 6 } => renew(scene),
            if held { 12 } else { 2 } => exchange(scene),
            2 => (0..4_usize).prop_map(|which| Step::ExchangeAgain { which }),
            if held { 6 } else { 2 } => adopt(scene),
            if calm { 1 } else { 4 } => named().prop_map(|named| Step::Force { named }),
            2 => Just(Step::Inspect),
            1 => (0..5_u32).prop_map(|most| Step::Queue { most }),
            7 => forward(vec![100, 900, 2_100, 4_300, 11_000, 45_000, 61_000]).prop_map(Step::Event),
            if held { 5 } else { 1 } => any::<bool>().prop_map(|last| Step::PastHold { last }),
            2 => back().prop_map(Step::Event),
            5 => inbox(0.6).prop_map(Step::Event),
            2 => lose(KEYS.to_vec()).prop_map(Step::Event),
            if calm && held { 2 } else { 1 } => Just(Step::Event(Event::Lose { key: Key::Notes })),
            1 => Just(Step::Event(Event::FlushScripts)),
        ]
        .boxed()
    }

    fn apply(model: Self, step: &Step) -> Self {
        model.step(step)
    }
}

fn share(number: usize, drawn_to_write: bool) -> Share {
    let writes = if number < ACQUIRED { drawn_to_write } else { number.is_multiple_of(2) };
    if writes { Share::Exclusive } else { Share::Read }
}

fn acquired(of: impl Fn(usize) -> bool) -> Vec<usize> {
    (0..ACQUIRED).filter(|id| of(*id)).collect()
}

fn heirs(of: impl Fn(usize) -> bool) -> Vec<usize> {
    (ACQUIRED..ACQUIRED + HEIRS).filter(|id| of(*id)).collect()
}

fn fresh(scene: &Scene) -> Vec<usize> {
    scene.clients.fresh(0..ACQUIRED)
}

fn sent(scene: &Scene) -> Vec<usize> {
    acquired(|id| scene.clients.sent.contains(&id))
}

/// All that hold, whether they were acquired or came from another hold.
fn holding(scene: &Scene) -> Vec<usize> {
    (0..ACQUIRED + HEIRS).filter(|id| scene.reference.holds(*id)).collect()
}

/// Holds whose notes were lost.
fn undescribed(scene: &Scene) -> Vec<usize> {
    holding(scene).into_iter().filter(|id| scene.reference.owner_of(*id).is_none()).collect()
}

/// Fresh or waiting, although its owner holds: it may join.
fn joining(scene: &Scene) -> Vec<usize> {
    let owners: Vec<_> = holding(scene).into_iter().map(|id| scene.owner_of(id)).collect();
    acquired(|id| !scene.reference.holds(id) && owners.contains(&scene.owner_of(id)))
}

/// Writing while its owner has another hold.
fn writing_beside(scene: &Scene) -> Vec<usize> {
    let owners: Vec<_> = holding(scene).into_iter().map(|id| scene.owner_of(id)).collect();
    let beside = |id: &usize| owners.iter().filter(|one| **one == scene.owner_of(*id)).count() > 1;
    let writes = |id: &usize| scene.reference.world.writes(*id);
    holding(scene).into_iter().filter(writes).filter(beside).collect()
}

/// Their owner holds, and cools down from writing.
fn writing_again(scene: &Scene) -> Vec<usize> {
    let cools = (0..ACQUIRED + HEIRS).any(|id| writes_and_cools(scene, id));
    joining(scene).into_iter().filter(|id| cools && scene.reference.world.writes(*id)).collect()
}

fn writes_and_cools(scene: &Scene, id: usize) -> bool {
    scene.reference.world.writes(id) && scene.reference.cools(id)
}

fn joining_from_the_queue(scene: &Scene) -> Vec<usize> {
    let waiting = scene.reference.waiters.ids();
    joining(scene).into_iter().filter(|id| waiting.contains(id)).collect()
}

/// Cancelled before, whether that is still remembered or not.
fn cancelled(scene: &Scene) -> Vec<usize> {
    let id = |mark: Mark| match mark {
        Mark::Gone(id) => Some(id),
        Mark::Forced(_) | Mark::Adopted(_) => None,
    };
    let ids = scene.reference.snapshot().gone.into_keys().filter_map(id);
    ids.filter(|id| *id < ACQUIRED).collect()
}

/// One of the first list that is chosen and not empty; any at worst.
fn one_of(lists: Vec<(u32, Vec<usize>)>) -> BoxedStrategy<usize> {
    clients::one_of(lists, 0..ACQUIRED)
}

fn named() -> impl Strategy<Value = Named> {
    prop_oneof![
        2 => Just(Named::Present),
        3 => Just(Named::First),
        1 => Just(Named::Earlier),
        2 => Just(Named::AsHeld),
    ]
}

fn acquire(scene: &Scene) -> BoxedStrategy<Step> {
    let id = one_of(vec![
        (12, fresh(scene)),
        (3, sent(scene)),
        (2, scene.reference.waiters.ids()),
        (1, acquired(|id| scene.reference.holds(id))),
        (4, undescribed(scene)),
        (3, cancelled(scene)),
        (5, joining(scene)),
        (8, writing_again(scene)),
        // A late copy.
        (3, acquired(|id| scene.reference.cools(id))),
        (4, joining_from_the_queue(scene)),
    ]);
    (id, queues(0.8, &scene.reference.waiters, (6, 1, 3)), floor())
        .prop_map(|(id, (queues, max_waiters), floor)| Step::Acquire {
            id,
            queues,
            max_waiters,
            floor,
        })
        .boxed()
}

fn check(scene: &Scene) -> BoxedStrategy<Step> {
    let lists = [(8, scene.reference.waiters.ids()), (4, sent(scene)), (1, acquired(|_| true))];
    (checked(lists), floor())
        .prop_map(|(waiting, floor)| Step::Check { deaf: is_deaf(&waiting), waiting, floor })
        .boxed()
}

fn release(scene: &Scene) -> BoxedStrategy<Step> {
    let id = one_of(vec![
        (10, holding(scene)),
        (4, scene.reference.waiters.ids()),
        (3, sent(scene)),
        (4, scene.reference.ended_ids()),
        (3, undescribed(scene)),
        (3, acquired(|id| scene.reference.cools(id))),
        (5, writing_beside(scene)),
        // Cancelled before its acquire arrives, or before an exchange does.
        (2, fresh(scene)),
        (1, heirs(|_| true)),
    ]);
    let at_least = prop_oneof![1 => Just(AT_LEAST_MS[0]), 1 => select(AT_LEAST_MS.to_vec())];
    let late = prop::bool::weighted(if scene.reference.world.calm { 0.03 } else { 0.4 });
    (id, late, at_least, floor())
        .prop_map(|(id, late, at_least_ms, floor)| Step::Release { id, late, at_least_ms, floor })
        .boxed()
}

fn renew(scene: &Scene) -> BoxedStrategy<Step> {
    let ended = scene.reference.ended_ids();
    let cooling = acquired(|id| scene.reference.cools(id));
    let id = one_of(vec![(10, holding(scene)), (3, sent(scene)), (2, cooling), (4, ended)]);
    renewals(id, vec![500, 10_000, 40_000]).prop_map(|elements| Step::Renew { elements }).boxed()
}

/// Whoever begins a hold that was another's begins it once: no id is ever used again.
fn unused_heirs(scene: &Scene) -> Vec<usize> {
    heirs(|id| !scene.begun.contains(&id))
}

/// From a hold to an heir of the other side; where there is none any more, an earlier exchange once more.
fn exchange(scene: &Scene) -> BoxedStrategy<Step> {
    let again = (0..4_usize).prop_map(|which| Step::ExchangeAgain { which }).boxed();
    let old = one_of(vec![(12, holding(scene)), (12, undescribed(scene)), (1, sent(scene))]);
    let world = scene.reference.world.clone();
    let unused = unused_heirs(scene);
    let heir = move |old: usize| {
        let side = |id: &usize| world.writes(*id) != world.writes(old);
        let ids: Vec<_> = unused.iter().copied().filter(side).collect();
        if ids.is_empty() {
            return again.clone();
        }
        let heir = (select(ids), floor());
        heir.prop_map(move |(id, floor)| Step::Exchange { old, id, floor }).boxed()
    };
    old.prop_flat_map(heir).boxed()
}

fn adopt(scene: &Scene) -> BoxedStrategy<Step> {
    let holder = one_of(vec![(12, holding(scene))]);
    let heir = unused_heirs(scene);
    if heir.is_empty() {
        return Just(Step::Inspect).boxed();
    }
    (select(heir), holder).prop_map(|(id, owner_of)| Step::Adopt { id, owner_of }).boxed()
}
