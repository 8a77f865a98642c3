//! For everything that can be held, alone or by many at once.

use std::time::{Duration, Instant};

use leasehold_runtime::{AcquireError, BackendErrorKind, LostReason, ReleaseError};

use super::rig::{NAME, free, release, take};
use super::{Hold, Holdable, Lease, MACHINE, MS, Rig, SECOND, Site, scaled};
use crate::scene::SOON;
use crate::{eventually, rounds};

/// Take, release, take, release on one object: all succeed.
pub async fn c1_take_and_release_again_and_again<H: Holdable, S: Site>(rig: &Rig<H, S>) {
    let object = rig.open(Lease::LONG).await;
    for _ in 0..3 {
        let hold = take(&object).await;
        assert!(hold.is_held());
        release(hold).await;
    }
}

/// Not locked before, locked while held, not locked after.
pub async fn c2_is_locked_only_while_held<H: Holdable, S: Site>(rig: &Rig<H, S>) {
    let object = rig.open(Lease::LONG).await;
    assert!(!object.is_locked().await, "before");
    let hold = take(&object).await;
    assert!(object.is_locked().await, "while held");
    release(hold).await;
    assert!(!object.is_locked().await, "after");
}

/// The server names the holder and nobody else, and only while it holds.
pub async fn c4_only_the_holder_holds<H: Holdable, S: Site>(rig: &Rig<H, S>) {
    let (one, two) = (rig.open(Lease::LONG).await, rig.open(Lease::LONG).await);
    let mut earlier = None;
    for (holder, stranger) in [(&one, &two), (&two, &one)] {
        assert_eq!(stranger.holder().await, None, "nobody holds before");
        let hold = take(holder).await;
        let trace = hold.trace();
        assert!(hold.is_held());
        assert_eq!(stranger.holder().await.as_ref(), Some(&trace), "seen by a stranger");
        assert_ne!(earlier.as_ref(), Some(&trace), "each hold has a trace of its own");
        release(hold).await;
        assert_eq!(holder.holder().await, None, "nobody holds after");
        earlier = Some(trace);
    }
}

/// The count of holds goes 0, 1, 0.
pub async fn c5_holds_go_0_1_0<H: Holdable, S: Site>(rig: &Rig<H, S>) {
    let object = rig.open(Lease::LONG).await;
    assert_eq!(object.holds().await, 0);
    let hold = take(&object).await;
    assert_eq!(object.holds().await, 1);
    release(hold).await;
    assert_eq!(object.holds().await, 0);
}

/// I7, I8. A hold that the server lost (its data is gone) is released by its guard, which has heard
/// nothing of that, while another already holds: an error, and the other still holds.
pub async fn c7_release_of_a_lost_hold_is_an_error_and_disturbs_nobody<H: Holdable, S: Site>(
    rig: &Rig<H, S>,
) {
    let (one, two) = (rig.open(Lease::LONG).await, rig.open(Lease::LONG).await);
    let stale = take(&one).await;
    rig.site.run(&["FLUSHALL"]).await;
    let next = take(&two).await;
    let verdict = stale.release().await;
    assert_eq!(two.holder().await, Some(next.trace()), "the next holder is disturbed");
    assert!(matches!(verdict, Err(ReleaseError::Lost(_))), "an ownership error: {verdict:?}");
    release(next).await;
}

/// A lease of an hour has an hour left, less what has passed (the line allows 10 ms on top); a renewed
/// one its lease; a released one nothing.
pub async fn c10_remaining_is_the_lease<H: Holdable, S: Site>(rig: &Rig<H, S>) {
    let client = rig.client().await;
    let hour = 3600 * SECOND;
    let renewed = 30 * SECOND;
    for (lease, length) in [(Lease::Fixed(hour), hour), (Lease::Renewed(renewed), renewed)] {
        let object = H::open(&client, NAME, lease);
        let began = Instant::now();
        let hold = take(&object).await;
        let left = object.remaining().await.expect("it is held");
        let least = length - 10 * MS - began.elapsed();
        assert!((least..=length).contains(&left), "{left:?} left of {length:?}");
        release(hold).await;
        assert_eq!(object.remaining().await, None, "absent after the release");
    }
}

/// Ended by force by anyone: free, also to a fresh handle; and its holder is told.
pub async fn c14_force_release_frees_for_everybody<H: Holdable, S: Site>(rig: &Rig<H, S>) {
    let (holder, operator) = (rig.open(Lease::LONG).await, rig.open(Lease::LONG).await);
    let hold = take(&holder).await;
    assert!(operator.force_release().await);
    let fresh = rig.open(Lease::LONG).await;
    for handle in [&holder, &operator, &fresh] {
        assert!(!handle.is_locked().await, "it is free");
    }
    let told = tokio::time::timeout(SOON, hold.lost()).await;
    assert_eq!(told.expect("the holder is told"), LostReason::ForceReleased);
    assert!(!hold.is_held());
    assert!(matches!(hold.release().await, Err(ReleaseError::Lost(_))));
    assert!(!operator.force_release().await, "there is nothing left to end");
    release(take(&fresh).await).await;
}

/// I9. A try is dropped at any moment, also while the server has it before it and does not answer:
/// nothing is left that anybody renews. Free after 1.5 leases (45 s of a lease of 30 s there), and in
/// truth much sooner.
pub async fn c16_a_try_dropped_in_flight_leaves_nothing<H: Holdable, S: Site>(rig: &Rig<H, S>) {
    let client = rig.client().await;
    let lease = scaled(4 * SECOND);
    let object = H::open(&client, NAME, Lease::Renewed(lease));
    for round in 0..rounds(200) {
        let after = Duration::from_micros(u64::from(round) * 977 % 1500);
        let tried = tokio::time::timeout(after, object.try_acquire()).await;
        drop(tried.map(|answer| answer.expect("no error")));
    }
    rig.site.run(&["CLIENT", "PAUSE", "60000", "WRITE"]).await;
    for _ in 0..3 {
        let tried = tokio::time::timeout(50 * MS, object.try_acquire()).await;
        assert!(tried.is_err(), "the server does not answer now");
    }
    rig.site.run(&["CLIENT", "UNPAUSE"]).await;
    free(&object, lease * 3 / 2 + MACHINE).await;
    client.is_idle().await;
    // Renewals of an orphan would show now.
    tokio::time::sleep(lease * 3 / 2).await;
    assert!(!object.is_locked().await, "an orphan is renewed");
    release(take(&object).await).await;
}

/// The server is killed, then a take with a limit: an error of the connection, in time; not busy.
pub async fn c17_a_killed_server_is_an_error_and_not_a_hang<H: Holdable, S: Site>(rig: &Rig<H, S>) {
    let client = rig.client_with(|builder| builder.response_timeout(SECOND)).await;
    let object = H::open(&client, NAME, Lease::LONG);
    release(take(&object).await).await;
    rig.site.kill();
    let began = Instant::now();
    for (attempt, limit) in [("timed", Some(SECOND / 2)), ("try", None)] {
        let outcome = match limit {
            Some(limit) => object.acquire_within(limit).await.map(|_| "held"),
            None => object.try_acquire().await.map(|_| "busy or held"),
        };
        let Err(AcquireError::Backend(error)) = outcome else {
            panic!("{attempt}: {outcome:?} where nobody answers")
        };
        assert_eq!(error.kind(), BackendErrorKind::Unreachable, "{attempt}");
    }
    let (took, most) = (began.elapsed(), SECOND / 2 + SECOND + 2 * MACHINE);
    assert!(took < most, "{took:?} for half a second and one response timeout");
    rig.site.restart();
    release(take(&object).await).await;
}

/// Who listens to the key hears one event for a release and one for a lease that ended, and nothing
/// once the listener is removed.
pub async fn c25_one_event_for_a_release_and_one_for_a_lease_that_ends<H: Holdable, S: Site>(
    rig: &Rig<H, S>,
) {
    let client = rig.client().await;
    let (renewed, fixed) =
        (H::open(&client, NAME, Lease::LONG), H::open(&client, NAME, Lease::Fixed(300 * MS)));
    let mut removed = rig.site.key_events(&H::key(NAME)).await;
    let control = rig.site.key_events(&H::key(NAME)).await;
    let both = async |events| {
        let told = async || removed.ends() == events && control.ends() == events;
        eventually(SOON, &format!("{events:?} deleted and expired"), told).await;
    };
    release(take(&renewed).await).await;
    both((1, 0)).await;
    let ended = take(&fixed).await;
    both((1, 1)).await;
    assert!(matches!(ended.release().await, Err(ReleaseError::Lost(_))));
    removed.stop();
    release(take(&renewed).await).await;
    let told = async || control.ends() == (2, 1);
    eventually(SOON, "who still listens hears the second release", told).await;
    assert_eq!(removed.ends(), (1, 1), "a removed listener hears nothing");
}

/// The server restarts without its data: the holder's renewal fails and its release says so (and
/// `lost()` before it); the next hold of the same name is renewed as ever, beyond two leases.
pub async fn c28_a_restart_without_data_is_a_loss_and_the_next_hold_is_renewed<
    H: Holdable,
    S: Site,
>(
    rig: &Rig<H, S>,
) {
    let lease = scaled(4 * SECOND);
    let object = rig.open(Lease::Renewed(lease)).await;
    let hold = take(&object).await;
    rig.site.restart();
    let told = tokio::time::timeout(lease + SOON, hold.lost()).await;
    told.expect("the holder is told");
    assert!(matches!(hold.release().await, Err(ReleaseError::Lost(_))));
    let next = take(&object).await;
    tokio::time::sleep(lease * 5 / 2).await;
    assert!(next.is_held() && object.is_locked().await, "not renewed");
    release(next).await;
}
