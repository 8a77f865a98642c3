//! The conformance suite over both sides of the read-write lock, on one server.
//!
//! What the scenarios are, which lines differ on purpose, and the locks that are wrong and on which they fail:
//! `tests/src/conformance/mod.rs` and `conformance_mutex.rs`. Lines about both sides at once: `behaviours_rwlock.rs`.
//! Line 7 of entering again differs on purpose: where many may hold, the server keeps no word of who was replaced, so the
//! guard of an adopted hold knows by the message who has it now; before that its release says no more than that it is over.

use leasehold_rwlock::{LostReason, Options, ReleaseError};
use leasehold_tests::Server;
use leasehold_tests::rwlock::lock;
use leasehold_tests::scene::{SOON, session};

/// Whoever writes shuts everybody else out: everything else applies, unchanged.
mod write {
    use leasehold_tests::conformance::{Standalone, Writing};

    leasehold_tests::conformance!(
        Standalone, Writing: held, crowd, exclusive, exclusive_crowd, fifo
    );

    leasehold_tests::conformance!(@tests reentrant Standalone, Writing:
        c4_an_owner_that_does_not_hold_enters_nothing
        c5_nested_holds_go_0_1_2_1_0
        c11_releases_of_nested_holds_leave_the_lease
        c29_a_task_after_nested_holds_is_renewed_for_ten_leases
    );
}

/// Whoever reads excludes no reader: what is about holding and entering again applies.
mod read {
    use leasehold_tests::conformance::{Reading, Standalone, exclusive, failure_of};

    leasehold_tests::conformance!(Standalone, Reading: held, crowd);

    // Without c4: an owner that does not hold reads beside others.
    leasehold_tests::conformance!(@tests reentrant Standalone, Reading:
        c5_nested_holds_go_0_1_2_1_0
        c11_releases_of_nested_holds_leave_the_lease
        c29_a_task_after_nested_holds_is_renewed_for_ten_leases
    );

    /// The scenarios of the write side are no empty words: readers, who hold together, fail them.
    #[test]
    fn control_readers_are_not_exclusive() {
        let failure = failure_of::<Reading, Standalone>(
            exclusive::c47_a_second_task_waits_and_gets_it_after_release,
        );
        let failure = failure.expect("readers hold together");
        assert!(failure.contains("a second one holds too"), "{failure}");
    }
}

/// I8. Adopted by another client, a hold is that one's: its first guard is told so, and its release ends nothing. Released
/// before it is told, it is an ownership error all the same.
#[tokio::test]
async fn c7_an_adopted_hold_is_no_longer_released_by_its_first_guard() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let [ours, theirs] = [&one, &two].map(|session| lock(session, "a", Options::default()));
    for wait in [true, false] {
        let told = async |lost: leasehold_rwlock::LostFuture| {
            if wait {
                let reason = tokio::time::timeout(SOON, lost).await.expect("it is told");
                assert_eq!(reason, LostReason::NotOwner);
            }
        };
        let first = ours.write().acquire().await.unwrap();
        let adopted = theirs.adopt_write(first.owner()).await.unwrap();
        assert_eq!(first.fencing_token(), adopted.fencing_token(), "the same hold");
        told(first.lost()).await;
        let Err(ReleaseError::Lost(lost)) = first.release().await else { panic!("no error") };
        assert!(!wait || lost.reason == LostReason::NotOwner, "{lost:?}");
        assert_eq!(ours.holders().await.unwrap().writers[0].trace, adopted.trace());
        adopted.release().await.unwrap();
        let first = ours.read().acquire().await.unwrap();
        let adopted = theirs.adopt_read(first.owner()).await.unwrap();
        told(first.lost()).await;
        let Err(ReleaseError::Lost(lost)) = first.release().await else { panic!("no error") };
        assert!(!wait || lost.reason == LostReason::NotOwner, "{lost:?}");
        assert_eq!(ours.holders().await.unwrap().readers[0].trace, adopted.trace());
        adopted.release().await.unwrap();
        assert!(!ours.is_locked().await.unwrap());
    }
}
