//! The conformance suite over everything that can be held, on a cluster and on a master that sentinels watch: one test a
//! kind, its scenarios several at a time, each on a topology of its own.
//!
//! That the scenarios can fail is shown where they run on one server. Left out by name, for every kind: c26, because
//! neither takes a connection of the user's, which is what it is about. And for some kinds what differs for them on one
//! server too, for the reasons given there: `conformance_rwlock.rs` (c4 and c7 of entering again),
//! `conformance_semaphore.rs` (c25).

use leasehold_tests::conformance::{Case, Kind, Topology, side_by_side};
use leasehold_tests::scenarios;

const GIVEN_CONNECTION: &str = "c26_a_connection_shared_with_other_commands_finishes";
const KEY_EVENTS: &str = "c25_one_event_for_a_release_and_one_for_a_lease_that_ends";
const ADOPTED: &str = "c7_an_adopted_hold_is_no_longer_released_by_its_first_guard";
const STRANGER: &str = "c4_an_owner_that_does_not_hold_enters_nothing";

/// The longest scenarios are in `reentrant`, so these come first.
fn cases(kind: Kind) -> Vec<Case> {
    match kind {
        Kind::Mutex | Kind::FairLock | Kind::Write => {
            scenarios!(reentrant, held, crowd, exclusive, exclusive_crowd, fifo)
        }
        // Whoever reads excludes no reader.
        Kind::Read => scenarios!(reentrant, held, crowd),
        // Permits are not entered again.
        Kind::OnePermit | Kind::ManyPermits => {
            scenarios!(held, crowd, exclusive, exclusive_crowd, fifo)
        }
    }
}

fn left_out(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Mutex | Kind::FairLock => &[GIVEN_CONNECTION],
        Kind::Write => &[GIVEN_CONNECTION, ADOPTED],
        Kind::Read => &[GIVEN_CONNECTION, ADOPTED, STRANGER],
        Kind::OnePermit | Kind::ManyPermits => &[GIVEN_CONNECTION, KEY_EVENTS],
    }
}

fn conforms(kind: Kind, topology: Topology) {
    side_by_side(kind, topology, &cases(kind), left_out(kind));
}

/// The scenarios are no empty words, and the kind that is meant is the one that is taken: readers fail what the others pass.
#[test]
#[should_panic(expected = "a second one holds too")]
fn control_readers_are_not_exclusive() {
    let mut cases = scenarios!(exclusive);
    cases.retain(|(name, _)| name.starts_with("c47_"));
    assert_eq!(cases.len(), 1);
    side_by_side(Kind::Read, Topology::Cluster, &cases, &[]);
}

mod cluster {
    use super::*;

    #[test]
    fn mutex() {
        conforms(Kind::Mutex, Topology::Cluster);
    }

    #[test]
    fn fair_lock() {
        conforms(Kind::FairLock, Topology::Cluster);
    }

    #[test]
    fn write() {
        conforms(Kind::Write, Topology::Cluster);
    }

    #[test]
    fn read() {
        conforms(Kind::Read, Topology::Cluster);
    }

    #[test]
    fn one_permit() {
        conforms(Kind::OnePermit, Topology::Cluster);
    }

    #[test]
    fn many_permits() {
        conforms(Kind::ManyPermits, Topology::Cluster);
    }
}

mod sentinel {
    use super::*;

    #[test]
    fn mutex() {
        conforms(Kind::Mutex, Topology::Sentinel);
    }

    #[test]
    fn fair_lock() {
        conforms(Kind::FairLock, Topology::Sentinel);
    }

    #[test]
    fn write() {
        conforms(Kind::Write, Topology::Sentinel);
    }

    #[test]
    fn read() {
        conforms(Kind::Read, Topology::Sentinel);
    }

    #[test]
    fn one_permit() {
        conforms(Kind::OnePermit, Topology::Sentinel);
    }

    #[test]
    fn many_permits() {
        conforms(Kind::ManyPermits, Topology::Sentinel);
    }
}
