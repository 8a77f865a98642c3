//! What the fair lock costs in client commands (DESIGN §9): see `leasehold_tests::cost`.

use leasehold_tests::cost;
use leasehold_tests::fair::lock;

#[tokio::test]
async fn an_uncontended_pair_is_exactly_two_commands() {
    cost::an_uncontended_pair_is_exactly_two_commands(lock).await;
}

/// Flat: a thousand waiters cost no more than one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_contended_acquisition_is_two_commands_however_many_wait() {
    for waiters in [1, 10, 100, 1000] {
        let cost = cost::contended(lock, waiters, 1).await;
        cost.judge(&format!("{waiters} waiters of one session"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_contended_acquisition_across_sessions_is_two_commands_too() {
    for (waiters, sessions) in [(1, 2), (10, 4), (100, 4)] {
        let cost = cost::contended(lock, waiters, sessions).await;
        cost.judge(&format!("{waiters} waiters of {sessions} sessions"));
    }
}

#[tokio::test]
async fn idle_waiters_of_one_process_send_two_commands_a_second_at_most() {
    cost::idle_waiters_of_one_process_send_two_commands_a_second_at_most(lock).await;
}
