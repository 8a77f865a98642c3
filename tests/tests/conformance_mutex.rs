//! The conformance suite over the mutex, on one server; and over locks that are wrong.
//!
//! What the scenarios are, and which lines differ on purpose: `tests/src/conformance/mod.rs`.

use leasehold_mutex::Mutex;
use leasehold_tests::conformance::broken::{SetNx, Unlocked, Unrenewed};
use leasehold_tests::conformance::{
    Holdable, Rig, Standalone, check, exclusive, exclusive_crowd, failure_of, fifo, held, reentrant,
};

leasehold_tests::conformance!(
    Standalone, Mutex: held, crowd, exclusive, exclusive_crowd, reentrant, fifo
);

/// The scenario must fail, and with these words: another failure would prove nothing.
fn fails_with<H: Holdable>(
    words: &str,
    scenario: impl AsyncFn(&Rig<H, Standalone>) + Copy + Send + 'static,
) {
    let failure = failure_of(scenario);
    assert!(failure.as_ref().is_some_and(|found| found.contains(words)), "{words}: {failure:?}");
}

fn passes<H: Holdable>(scenario: impl AsyncFn(&Rig<H, Standalone>) + Copy + Send + 'static) {
    check(scenario);
}

#[test]
fn control_a_lock_that_ignores_everybody_is_caught() {
    fails_with::<Unlocked>("while held", held::c2_is_locked_only_while_held);
    fails_with::<Unlocked>(
        "granted before the lease ended",
        exclusive::c8_a_waiter_follows_a_lease_that_ends,
    );
    fails_with::<Unlocked>(
        "increments are lost",
        exclusive_crowd::c19_fifteen_tasks_of_one_client_count_exactly,
    );
    fails_with::<Unlocked>("a try takes what is held", exclusive::c41_tries_never_queue);
    fails_with::<Unlocked>(
        "a second one holds too",
        exclusive::c47_a_second_task_waits_and_gets_it_after_release,
    );
}

/// What runs the tests above lets no failure pass.
#[test]
#[should_panic(expected = "while held")]
fn control_a_failure_is_not_excused() {
    check::<Unlocked, Standalone>(held::c2_is_locked_only_while_held);
}

#[test]
fn control_set_nx_is_caught_where_it_is_wrong() {
    fails_with::<SetNx<true>>(
        "the next holder is disturbed",
        held::c7_release_of_a_lost_hold_is_an_error_and_disturbs_nobody,
    );
    fails_with::<SetNx<true>>(
        "not in order of arrival",
        fifo::c34_silent_holders_are_followed_in_order_of_arrival,
    );
    fails_with::<SetNx<false>>("it is held", held::c10_remaining_is_the_lease);
    fails_with::<SetNx<false>>("it is free", held::c16_a_try_dropped_in_flight_leaves_nothing);
}

/// Else the failures above could come from anything.
#[test]
fn control_set_nx_passes_where_it_is_right() {
    passes::<SetNx<true>>(held::c1_take_and_release_again_and_again);
    passes::<SetNx<true>>(held::c2_is_locked_only_while_held);
    passes::<SetNx<true>>(held::c10_remaining_is_the_lease);
    passes::<SetNx<true>>(exclusive_crowd::c19_fifteen_tasks_of_one_client_count_exactly);
    passes::<SetNx<true>>(exclusive::c41_tries_never_queue);
    passes::<SetNx<true>>(exclusive::c47_a_second_task_waits_and_gets_it_after_release);
}

#[test]
fn control_a_mutex_without_its_watchdog_is_caught() {
    fails_with::<Unrenewed>(
        "not renewed",
        held::c28_a_restart_without_data_is_a_loss_and_the_next_hold_is_renewed,
    );
    fails_with::<Unrenewed>(
        "lost after 1 leases",
        reentrant::c29_a_task_after_nested_holds_is_renewed_for_ten_leases,
    );
}
