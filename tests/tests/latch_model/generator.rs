//! Which cases are tried: steps that are likely to matter in the state that the steps before lead to.

use leasehold_lua::latch::State;
use proptest::prelude::*;
use proptest::sample::select;
use proptest_state_machine::ReferenceStateMachine;

use super::bench::INBOXES;
use super::events::{Event, back, forward, inbox, lose};
use super::keys::KEYS;
use super::model::{LatchModel, Meant, Step};
use super::reference::{Id, Listener, World};
use super::runner::{Model, START_US};

const ARMS: usize = 8;
/// Few, so that ids come back in later generations, and as calls and names alike.
const IDS: usize = 6;
const UUIDS: usize = 4;

impl ReferenceStateMachine for LatchModel {
    type State = Self;
    type Transition = Step;

    fn init_state() -> BoxedStrategy<Self> {
        let arm = (1..5_u32, select(vec![3_000, 20_000, 90_000, 90_000]));
        let arms = proptest::collection::vec(arm, ARMS);
        (arms, select(vec![4_000, 10_000]), any::<bool>())
            .prop_map(|(arms, wait_ms, small_bounds)| World { arms, wait_ms, small_bounds })
            .prop_map(|world| Self::new(world, START_US))
            .boxed()
    }

    fn transitions(model: &Self) -> BoxedStrategy<Step> {
        let state = model.reference.state();
        let armed = matches!(state, State::Waits | State::Open);
        let open = state == State::Open;
        prop_oneof![
            if armed { 3 } else { 25 } => (0..ARMS).prop_map(|arm| Step::Arm { arm }),
            if armed { 40 } else { 6 } => count_down(model),
            2 => Just(Step::Look),
            if open { 6 } else { 24 } => listener().prop_map(|listener| Step::Wait { listener }),
            3 => leave(model),
            if open { 14 } else { 6 } => meant().prop_map(|meant| Step::Reset { meant }),
            8 => forward(vec![100, 900, 2_100, 4_300, 11_000, 25_000, 61_000]).prop_map(Step::Event),
            2 => Just(Step::PastLatch),
            2 => back().prop_map(Step::Event),
            3 => inbox(0.7).prop_map(Step::Event),
            2 => lose(KEYS.to_vec()).prop_map(Step::Event),
            1 => Just(Step::Event(Event::FlushScripts)),
        ]
        .boxed()
    }

    fn apply(model: Self, step: &Step) -> Self {
        model.step(step)
    }
}

fn meant() -> impl Strategy<Value = Meant> {
    prop_oneof![
        12 => Just(Meant::Present),
        3 => Just(Meant::Earlier),
        1 => Just(Meant::Unknown),
    ]
}

fn id() -> impl Strategy<Value = Id> {
    prop_oneof![
        3 => (0..IDS).prop_map(Id::Named),
        2 => (0..IDS).prop_map(Id::Call),
    ]
}

/// A fresh one as a rule, else one that has counted.
fn count_down(model: &LatchModel) -> BoxedStrategy<Step> {
    let counted = model.reference.counted();
    let id = match counted.is_empty() {
        true => id().boxed(),
        false => prop_oneof![5 => id(), 2 => select(counted)].boxed(),
    };
    (meant(), id).prop_map(|(meant, id)| Step::CountDown { meant, id }).boxed()
}

fn listener() -> impl Strategy<Value = Listener> {
    (0..UUIDS, 0..INBOXES).prop_map(|(uuid, inbox)| Listener { uuid, inbox })
}

fn leave(model: &LatchModel) -> BoxedStrategy<Step> {
    let listening = model.reference.listeners();
    let one = match listening.is_empty() {
        true => listener().boxed(),
        false => prop_oneof![1 => listener(), 3 => select(listening)].boxed(),
    };
    one.prop_map(|listener| Step::Leave { listener }).boxed()
}
