//! The conformance suite over permits, on one server: one permit of one, and three of three, which shut everybody else out
//! as a mutex does.
//!
//! What the scenarios are, and the locks that are wrong and on which they fail: `tests/src/conformance/mod.rs` and
//! `conformance_mutex.rs`. Line 25 differs on purpose: the key of a semaphore stays for a minute after the last permit,
//! because the limit is in it, so the server's notifications tell neither a release nor the end of a lease; loss is told
//! by the permit and as an event.

use leasehold_tests::conformance;
use leasehold_tests::conformance::Standalone;

/// All of the part `held` but line 25.
macro_rules! held {
    ($kind:ty) => {
        conformance!(@tests held Standalone, $kind:
            c1_take_and_release_again_and_again
            c2_is_locked_only_while_held
            c4_only_the_holder_holds
            c5_holds_go_0_1_0
            c7_release_of_a_lost_hold_is_an_error_and_disturbs_nobody
            c10_remaining_is_the_lease
            c14_force_release_frees_for_everybody
            c16_a_try_dropped_in_flight_leaves_nothing
            c17_a_killed_server_is_an_error_and_not_a_hang
            c28_a_restart_without_data_is_a_loss_and_the_next_hold_is_renewed
        );
    };
}

mod one_permit {
    use super::*;

    type OnePermit = conformance::AllPermits<1>;

    held!(OnePermit);
    conformance!(Standalone, OnePermit: crowd, exclusive, exclusive_crowd, fifo);
}

mod many_permits {
    use super::*;

    type ThreePermits = conformance::AllPermits<3>;

    held!(ThreePermits);
    conformance!(Standalone, ThreePermits: crowd, exclusive, exclusive_crowd, fifo);
}
