//! Which cases are tried: steps that are likely to matter in the state that the steps before lead to.

use leasehold_lua::Share;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::Union;
use proptest_state_machine::ReferenceStateMachine;

use super::clients::{self, acquisitions, checked, is_deaf, queues, renewals};
use super::events::{Event, back, forward, inbox, lose};
use super::keys::Key;
use super::reference::{Mark, Reference};
use super::request::{AT_LEAST_MS, Member, Named, World};
use super::runner::{Model, START_US};
use super::scene::{Scene, Step};

/// No more than `max_waiters` looks at (16), so that the model need not guess which.
const ACQUISITIONS: usize = 16;
/// Those from here on begin by a split or an adoption, the others by an acquire: no client begins one twice.
const PARTS: usize = 11;
/// Runs the reference model on a virtual clock while it chooses the steps.
impl ReferenceStateMachine for Scene {
    type State = Self;
    type Transition = Step;

    fn init_state() -> BoxedStrategy<Self> {
        let leases_ms = vec![1_000, 2_000, 3_000, 5_000, 8_000, 30_000, 30_000, 70_000];
        let weights = select(vec![1, 1, 2, 2, 3]);
        let attempts = acquisitions(ACQUISITIONS, leases_ms, (3, 1), weights, |_, weight| {
            Share::Weight(weight)
        });
        let world = (attempts, 1..5_u32, select(vec![4_000, 10_000]), any::<bool>());
        let world = world.prop_map(|(acquisitions, limit, wait_ms, small_bounds)| World {
            acquisitions,
            limit,
            wait_ms,
            small_bounds,
            most_dead: if small_bounds { 2 } else { 32 },
            most_grants: if small_bounds { 2 } else { 128 },
            most_expired: if small_bounds { 2 } else { 256 },
        });
        world.prop_map(|world| Self::new(world, START_US)).boxed()
    }

    fn transitions(scene: &Self) -> BoxedStrategy<Step> {
        let live = !scene.reference.live().is_empty();
        prop_oneof![
            30 => acquire(scene),
            14 => check(scene),
            14 => release(scene),
            6 => release_many(scene),
            7 => renew(scene),
            6 => (1..6_u32).prop_map(|limit| Step::SetLimit { limit }),
            9 => split(scene),
            6 => merge(scene),
            5 => adopt(scene),
            4 => force(scene),
            2 => (0..4_u32).prop_map(|most| Step::Inspect { most }),
            1 => (0..5_u32).prop_map(|most| Step::Queue { most }),
            10 => select(vec![0, 0, 1, 1, 2, 4, 9]).prop_map(|back| Step::Resend { back }),
            7 => forward(vec![100, 900, 2_100, 4_300, 11_000, 45_000, 61_000]).prop_map(Step::Event),
            if live { 6 } else { 1 } => any::<bool>().prop_map(|last| Step::PastHold { last }),
            2 => back().prop_map(Step::Event),
            5 => inbox(0.6).prop_map(Step::Event),
            3 => lose(vec![
                Key::Holds,
                Key::Holds,
                Key::Notes,
                Key::Notes,
                Key::Queue,
                Key::Timeouts,
                Key::Gone,
            ])
            .prop_map(Step::Event),
            1 => Just(Step::Event(Event::FlushScripts)),
        ]
        .boxed()
    }

    fn apply(scene: Self, step: &Step) -> Self {
        scene.step(step)
    }
}

fn any_id() -> impl Strategy<Value = usize> {
    0..ACQUISITIONS
}

fn fresh(scene: &Scene) -> Vec<usize> {
    scene.clients.fresh(0..ACQUISITIONS)
}

fn sent(scene: &Scene) -> Vec<usize> {
    scene.clients.sent.iter().copied().collect()
}

/// Those of the lists that begin by an acquire, one of the first list that is chosen and not empty; any at worst.
fn begins_by_acquire(lists: Vec<(u32, Vec<usize>)>) -> BoxedStrategy<usize> {
    chosen(lists, 0..PARTS)
}

/// The same for those that begin by a split or an adoption.
fn begins_as_part(lists: Vec<(u32, Vec<usize>)>) -> BoxedStrategy<usize> {
    chosen(lists, PARTS..ACQUISITIONS)
}

fn ids(members: Vec<Member>, cooling: bool) -> Vec<usize> {
    let wanted = members.into_iter().filter(|member| member.cooling == cooling);
    wanted.map(|member| member.id).collect()
}

fn holding(reference: &Reference) -> Vec<usize> {
    ids(reference.live(), false)
}

/// Holds whose notes were lost.
fn undescribed(reference: &Reference) -> Vec<usize> {
    let noted = |id: &usize| reference.notes.of.of.contains_key(&Member::held(*id));
    holding(reference).into_iter().filter(|id| !noted(id)).collect()
}

/// Those that have something to split off.
fn heavy(reference: &Reference) -> Vec<usize> {
    let weighs = |id: &usize| reference.weight_of(Member::held(*id)) > 1;
    holding(reference).into_iter().filter(weighs).collect()
}

/// Those whose weight is not their acquisition's.
fn changed(reference: &Reference) -> Vec<usize> {
    let permit = |id: &usize| reference.holds.of.permits.get(&Member::held(*id)).copied();
    let is_changed = |id: &usize| permit(id).is_some_and(|permit| permit.changed.is_some());
    holding(reference).into_iter().filter(is_changed).collect()
}

/// Cancelled before, whether that is still remembered or not.
fn cancelled(reference: &Reference) -> Vec<usize> {
    let id = |mark: &Mark| match mark {
        Mark::Gone((false, id)) => Some(*id),
        Mark::Gone(_) | Mark::Forced(_) | Mark::Adopted(_) | Mark::Merged(..) => None,
    };
    reference.gone.of.keys().filter_map(id).collect()
}

/// One of the first list that is chosen and not empty; any at worst.
fn one_of(lists: Vec<(u32, Vec<usize>)>) -> BoxedStrategy<usize> {
    chosen(lists, 0..ACQUISITIONS)
}

fn chosen(lists: Vec<(u32, Vec<usize>)>, range: std::ops::Range<usize>) -> BoxedStrategy<usize> {
    let in_range = lists.into_iter().map(|(weight, ids)| {
        let ids: Vec<_> = ids.into_iter().filter(|id| range.contains(id)).collect();
        (weight, ids)
    });
    clients::one_of(in_range.collect(), range.clone())
}

/// What the sending process goes by.
fn limit(scene: &Scene) -> impl Strategy<Value = u32> + use<> {
    let server = scene.reference.holds.of.limit.unwrap_or(scene.reference.world.limit);
    prop_oneof![6 => Just(scene.reference.world.limit), 3 => Just(server), 1 => 1..6_u32]
}

fn acquire(scene: &Scene) -> BoxedStrategy<Step> {
    let reference = &scene.reference;
    let id = begins_by_acquire(vec![
        (14, fresh(scene)),
        (3, sent(scene)),
        (2, reference.waiters.ids()),
        (2, holding(reference)),
        (4, ids(reference.live(), true)),
        (2, cancelled(reference)),
        (6, undescribed(reference)),
    ]);
    let queues = queues(0.75, &reference.waiters, (6, 1, 2));
    (id, queues, limit(scene), prop::bool::weighted(0.15))
        .prop_map(|(id, (queues, max_waiters), limit, strict)| Step::Acquire {
            id,
            queues,
            max_waiters,
            limit,
            strict,
        })
        .boxed()
}

fn check(scene: &Scene) -> BoxedStrategy<Step> {
    let all: Vec<usize> = (0..PARTS).collect();
    let sent = sent(scene).into_iter().filter(|id| *id < PARTS).collect();
    let lists = [(8, scene.reference.waiters.ids()), (4, sent), (1, all)];
    (checked(lists), limit(scene))
        .prop_map(|(waiting, limit)| Step::Check { deaf: is_deaf(&waiting), waiting, limit })
        .boxed()
}

fn at_least() -> impl Strategy<Value = u64> {
    prop_oneof![2 => Just(AT_LEAST_MS[0]), 1 => select(AT_LEAST_MS.to_vec())]
}

/// Whom a release may name.
fn released(scene: &Scene) -> BoxedStrategy<usize> {
    let reference = &scene.reference;
    one_of(vec![
        (10, holding(reference)),
        (2, changed(reference)),
        (4, reference.waiters.ids()),
        (3, sent(scene)),
        (2, ids(reference.live(), true)),
        (1, ids(reference.expired(), false)),
        // Cancelled before its acquire arrives.
        (2, fresh(scene)),
    ])
}

fn release(scene: &Scene) -> BoxedStrategy<Step> {
    (released(scene), prop::bool::weighted(0.3), at_least())
        .prop_map(|(id, late, at_least_ms)| Step::Release { id, late, at_least_ms })
        .boxed()
}

fn release_many(scene: &Scene) -> BoxedStrategy<Step> {
    let owners: Vec<_> =
        (0..ACQUISITIONS).map(|id| scene.reference.world.acquisitions[id].owner).collect();
    let named = (released(scene), prop::bool::weighted(0.35)).prop_map(move |(id, by_owner)| {
        if by_owner { Named::Owner(owners[id]) } else { Named::Id(id) }
    });
    let element = (named, prop::bool::weighted(0.2), at_least());
    proptest::collection::vec(element, 0..5)
        .prop_map(|elements| Step::ReleaseMany { elements })
        .boxed()
}

fn renew(scene: &Scene) -> BoxedStrategy<Step> {
    let reference = &scene.reference;
    let id = one_of(vec![
        (10, holding(reference)),
        (3, sent(scene)),
        (2, ids(reference.live(), true)),
        (4, ids(reference.expired(), false)),
    ]);
    renewals(id, vec![500, 10_000, 40_000, 80_000])
        .prop_map(|elements| Step::Renew { elements })
        .boxed()
}

fn split(scene: &Scene) -> BoxedStrategy<Step> {
    let reference = &scene.reference;
    let old = one_of(vec![(12, heavy(reference)), (2, holding(reference))]);
    let ended = ids(reference.expired(), false);
    let id = begins_as_part(vec![(12, fresh(scene)), (2, cancelled(reference)), (3, ended)]);
    // Another that begins as a part, if it is the same: an id is used once.
    let next = |id: usize| if id + 1 < ACQUISITIONS { id + 1 } else { PARTS };
    (old, id)
        .prop_map(move |(old, id)| (old, if id == old { next(id) } else { id }))
        .prop_map(|(old, id)| Step::Split { old, id })
        .boxed()
}

/// No client has two guards of one acquisition.
fn apart(one: usize, other: usize) -> (usize, usize) {
    (one, if other == one { (one + 1) % ACQUISITIONS } else { other })
}

fn merge(scene: &Scene) -> BoxedStrategy<Step> {
    let reference = &scene.reference;
    let either = || {
        one_of(vec![
            (12, holding(reference)),
            (2, changed(reference)),
            (1, ids(reference.expired(), false)),
        ])
    };
    let pair = (either(), either()).prop_map(|(kept, merged)| apart(kept, merged));
    pair.prop_map(|(kept, merged)| Step::Merge { kept, merged }).boxed()
}

fn adopt(scene: &Scene) -> BoxedStrategy<Step> {
    let holder = one_of(vec![(9, holding(&scene.reference))]);
    let ended = ids(scene.reference.expired(), false);
    let known = holding(&scene.reference);
    let heir = begins_as_part(vec![(6, fresh(scene)), (1, known), (2, ended)]);
    let notes = scene.reference.notes.of.of.clone();
    let attempts = scene.reference.world.acquisitions.clone();
    (heir, holder)
        .prop_map(move |(id, holder)| {
            let noted = notes.get(&Member::held(holder)).and_then(|note| note.owner);
            Step::Adopt { id, owner: noted.unwrap_or(attempts[holder].owner) }
        })
        .boxed()
}

fn force(scene: &Scene) -> BoxedStrategy<Step> {
    let live = scene.reference.live();
    // As they were listed before any of them cooled down.
    let as_held = live.iter().map(|member| Member::held(member.id)).collect();
    let ended = scene.reference.gone.of.keys().filter_map(|mark| match mark {
        Mark::Forced(id) => Some(Member::held(*id)),
        Mark::Gone(_) | Mark::Adopted(_) | Mark::Merged(..) => None,
    });
    let lists = [(5, live), (2, as_held), (2, ended.collect::<Vec<_>>())];
    let known = lists.into_iter().filter(|(_, members)| !members.is_empty());
    let mut weighted: Vec<_> =
        known.map(|(weight, members)| (weight, select(members).boxed())).collect();
    weighted.push((
        1,
        (any_id(), any::<bool>()).prop_map(|(id, cooling)| Member { id, cooling }).boxed(),
    ));
    (Union::new_weighted(weighted), prop::bool::weighted(0.2))
        .prop_map(|(member, with_all)| Step::Force { member, with_all })
        .boxed()
}
