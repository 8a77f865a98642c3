//! For what an owner enters again.

use std::time::Instant;

use leasehold_runtime::{AdoptError, LostReason, Owner, ReleaseError};

use super::rig::{NAME, release, take};
use super::{Hold, Lease, MS, Reentrant, Rig, SECOND, Site, scaled};
use crate::scene::SOON;

/// Enters again, as the owner of this hold.
async fn nested<H: Reentrant>(object: &H, owner: &Owner) -> H::Hold {
    object.acquire_by(owner).await.expect("no error").expect("its owner enters at once")
}

/// An owner that does not hold is told so, while another does and after it: it enters nothing, and
/// adopts nothing.
pub async fn c4_an_owner_that_does_not_hold_enters_nothing<H: Reentrant, S: Site>(rig: &Rig<H, S>) {
    let (one, two) = (rig.open(Lease::LONG).await, rig.open(Lease::LONG).await);
    let (hold, stranger) = (take(&one).await, Owner::new());
    assert!(two.acquire_by(&stranger).await.expect("no error").is_none());
    let adopted = two.adopt(&stranger).await.map(|_| "adopted");
    assert!(matches!(adopted, Err(AdoptError::Lost(_))), "{adopted:?}");
    let owner = H::owner(&hold);
    assert_eq!(one.holds().await, 1, "the holder is not disturbed");
    release(hold).await;
    for former in [&stranger, &owner] {
        let adopted = two.adopt(former).await.map(|_| "adopted");
        assert!(matches!(adopted, Err(AdoptError::Lost(_))), "{adopted:?}");
    }
    assert!(!one.is_locked().await, "adopting takes nothing");
}

/// The count of nested holds goes 0, 1, 2, 1, 0, whichever of them is released first.
pub async fn c5_nested_holds_go_0_1_2_1_0<H: Reentrant, S: Site>(rig: &Rig<H, S>) {
    let object = rig.open(Lease::LONG).await;
    for outer_first in [false, true] {
        assert_eq!(object.holds().await, 0);
        let outer = take(&object).await;
        assert_eq!(object.holds().await, 1);
        let inner = nested(&object, &H::owner(&outer)).await;
        assert_eq!(object.holds().await, 2);
        assert_eq!(H::token(&outer), H::token(&inner), "one hold, one token");
        let (first, last) = if outer_first { (outer, inner) } else { (inner, outer) };
        release(first).await;
        assert_eq!(object.holds().await, 1);
        assert!(last.is_held(), "the other entry is not disturbed");
        release(last).await;
    }
    assert_eq!(object.holds().await, 0);
}

/// I8. Adopted by another client, the hold is that one's: the release of its first guard is an
/// ownership error and does not end it.
pub async fn c7_an_adopted_hold_is_no_longer_released_by_its_first_guard<H: Reentrant, S: Site>(
    rig: &Rig<H, S>,
) {
    let (one, two) = (rig.open(Lease::LONG).await, rig.open(Lease::LONG).await);
    let first = take(&one).await;
    let adopted = two.adopt(&H::owner(&first)).await.expect("its owner holds");
    assert_eq!(H::token(&first), H::token(&adopted), "the same hold");
    let Err(ReleaseError::Lost(lost)) = first.release().await else { panic!("no error") };
    assert_eq!(lost.reason, LostReason::NotOwner);
    assert_eq!(one.holder().await, Some(adopted.trace()), "the adopted hold goes on");
    release(adopted).await;
    assert!(!one.is_locked().await);
}

/// Three nested takes of 10 s, two releases: 9 to 10 s are left, not the default lease.
pub async fn c11_releases_of_nested_holds_leave_the_lease<H: Reentrant, S: Site>(rig: &Rig<H, S>) {
    let lease = 10 * SECOND;
    let object = rig.open(Lease::Fixed(lease)).await;
    let began = Instant::now();
    let outer = take(&object).await;
    let owner = H::owner(&outer);
    let holds = [nested(&object, &owner).await, nested(&object, &owner).await];
    for hold in holds {
        release(hold).await;
        let left = object.remaining().await.expect("it is held");
        let least = lease - 10 * MS - began.elapsed();
        assert!((least..=lease).contains(&left), "{left:?} left of {lease:?}");
    }
    release(outer).await;
    assert_eq!(object.remaining().await, None);
}

/// Two nested takes, two releases, then another task takes: it is renewed for ten leases.
pub async fn c29_a_task_after_nested_holds_is_renewed_for_ten_leases<H: Reentrant, S: Site>(
    rig: &Rig<H, S>,
) {
    let (client, lease) = (rig.client().await, scaled(3 * SECOND));
    let object = H::open(&client, NAME, Lease::Renewed(lease));
    let outer = take(&object).await;
    let inner = nested(&object, &H::owner(&outer)).await;
    release(inner).await;
    release(outer).await;
    let next = object.clone();
    let next = tokio::spawn(async move { next.acquire_within(SOON).await });
    let next = next.await.expect("no panic inside").expect("it is free");
    let before = client.session().statistics().renewals;
    for passed in 1..=10 {
        tokio::time::sleep(lease).await;
        assert!(next.is_held(), "lost after {passed} leases");
        assert!(object.remaining().await.is_some(), "gone after {passed} leases");
    }
    let renewals = client.session().statistics().renewals - before;
    assert!(renewals >= 20, "{renewals} renewals in ten leases, due at each third");
    release(next).await;
    assert_eq!(client.session().statistics().watched, 0, "nobody is renewed any more");
}
