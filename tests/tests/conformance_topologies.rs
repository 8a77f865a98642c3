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
        Watched, Mutex: held, exclusive, exclusive_crowd, reentrant, fifo
    );
    leasehold_tests::conformance!(@tests crowd Watched, Mutex:
        c22_one_inbox_serves_many_tasks_and_names
    );
}
