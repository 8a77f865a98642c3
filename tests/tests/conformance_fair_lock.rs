//! The conformance suite over the fair lock, on one server: lines 46 and 50 say that what holds for the mutex holds
//! for it.
//!
//! What the scenarios are, which lines differ on purpose, and the locks that are wrong and on which they fail:
//! `tests/src/conformance/mod.rs` and `conformance_mutex.rs`.

use leasehold_fair_lock::FairLock;
use leasehold_tests::conformance::Standalone;

leasehold_tests::conformance!(
    Standalone, FairLock: held, crowd, exclusive, exclusive_crowd, reentrant, fifo
);
