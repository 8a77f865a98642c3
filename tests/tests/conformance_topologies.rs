//! The conformance suite over the mutex, on a cluster and on a master that sentinels watch.
//!
//! Of the part `crowd` only one scenario: neither takes a connection of the user's, which is what the other is about.
//! That the scenarios can fail is shown where they run on one server.

mod cluster {
    use leasehold_mutex::Mutex;
    use leasehold_tests::conformance::Clustered;

    leasehold_tests::conformance!(
        Clustered, Mutex: held, exclusive, exclusive_crowd, reentrant, fifo
    );
    leasehold_tests::conformance!(@tests crowd Clustered, Mutex:
        c22_one_inbox_serves_many_tasks_and_names
    );
}

mod sentinel {
    use leasehold_mutex::Mutex;
    use leasehold_tests::conformance::Watched;

    leasehold_tests::conformance!(
        Watched, Mutex: held, exclusive_crowd, reentrant, fifo
    );
    // Without c44: sentinels announce themselves by PUBLISH, so a master whose writes are paused answers them no more,
    // and is replaced after a second.
    leasehold_tests::conformance!(@tests exclusive Watched, Mutex:
        c8_a_waiter_follows_a_lease_that_ends
        c13_a_wait_that_is_interrupted_and_kept_goes_on
        c23_waiters_of_two_names_are_both_woken
        c41_tries_never_queue
        c43_a_wait_that_ended_leaves_no_ghost
        c47_a_second_task_waits_and_gets_it_after_release
        c49_a_second_handle_waits_and_gets_it_after_release
        c112_a_wait_is_granted_by_release_or_ends_in_time
        c113_checks_back_off_to_200_ms_while_the_inbox_is_down
    );
    leasehold_tests::conformance!(@tests crowd Watched, Mutex:
        c22_one_inbox_serves_many_tasks_and_names
    );
}
