//! The semaphore on a real server: what it promises when nothing goes wrong, and when a holder goes away.

use std::time::{Duration, Instant};

use leasehold_semaphore::{
    AcquireError, AdoptError, ConfigError, Event, LimitError, LostReason, MergeError, Options,
    Owner, ReleaseError, Semaphore, Session, SplitError,
};
use leasehold_tests::permits::{seen, waiter, waiting};
use leasehold_tests::rig::Watch;
use leasehold_tests::scene::{SOON, Told, session};
use leasehold_tests::{Server, eventually};

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

fn semaphore(session: &Session, limit: u32, options: Options) -> Semaphore {
    leasehold_tests::permits::semaphore(session, "a", limit, options)
}

#[tokio::test]
async fn so_many_hold_and_no_more() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let (here, there) =
        (semaphore(&one, 3, Options::default()), semaphore(&two, 3, Options::default()));
    assert_eq!(seen(&here).await, (3, 0, 0));
    let first = here.acquire().await.unwrap();
    let two_more = there.many(2).acquire().await.unwrap();
    assert_eq!((first.weight(), two_more.weight()), (1, 2));
    assert_eq!(seen(&here).await, (3, 3, 0));
    assert!(here.try_acquire().await.unwrap().is_none());
    assert!(there.many(2).try_acquire().await.unwrap().is_none());
    first.release().await.unwrap();
    assert!(there.many(2).try_acquire().await.unwrap().is_none(), "all or none");
    assert_eq!(there.available().await.unwrap(), 1);
    let third = there.try_acquire().await.unwrap().unwrap();
    two_more.release().await.unwrap();
    third.release().await.unwrap();
    assert_eq!(seen(&here).await, (3, 0, 0));
}

#[tokio::test]
async fn waiters_are_granted_by_release_and_nobody_light_passes_a_heavy_one() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let (here, there) =
        (semaphore(&one, 3, Options::default()), semaphore(&two, 3, Options::default()));
    let (first, second) = (here.many(2).acquire().await.unwrap(), here.acquire().await.unwrap());
    let (heavy, light) = (waiter(&there, 3, 1).await, waiter(&there, 1, 2).await);
    first.release().await.unwrap();
    assert_eq!(seen(&here).await, (3, 1, 2), "two are free, and nobody passes");
    assert!(here.try_acquire().await.unwrap().is_none(), "nor does a newcomer");
    let released = Watch::start();
    second.release().await.unwrap();
    let heavy = heavy.await.unwrap();
    assert!(released.awake() < SECOND / 2, "handed over in {:?}", released.awake());
    assert_eq!(seen(&here).await, (3, 3, 1));
    heavy.release().await.unwrap();
    light.await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn raising_the_limit_grants_at_once_and_lowering_it_revokes_nothing() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let semaphore = semaphore(&session, 1, Options::default());
    let first = semaphore.acquire().await.unwrap();
    let (second, third) = (waiter(&semaphore, 1, 1).await, waiter(&semaphore, 1, 2).await);
    let raised = Watch::start();
    semaphore.set_limit(3).await.unwrap();
    let (second, third) = (second.await.unwrap(), third.await.unwrap());
    assert!(raised.awake() < SECOND / 2, "woken after {:?}", raised.awake());
    semaphore.set_limit(1).await.unwrap();
    assert_eq!(seen(&semaphore).await, (1, 3, 0));
    assert_eq!(semaphore.available().await.unwrap(), 0);
    assert!(first.is_held() && second.is_held() && third.is_held());
    let next = waiter(&semaphore, 1, 1).await;
    first.release().await.unwrap();
    second.release().await.unwrap();
    assert_eq!(seen(&semaphore).await, (1, 1, 1), "what is out does not fit the limit yet");
    third.release().await.unwrap();
    next.await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn more_than_the_limit_is_refused_at_once_and_in_the_queue() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let semaphore = semaphore(&session, 3, Options::default());
    assert!(matches!(semaphore.many(4).acquire().await, Err(AcquireError::NeverFits)));
    assert!(matches!(semaphore.many(4).try_acquire().await, Err(AcquireError::NeverFits)));
    let held = semaphore.acquire().await.unwrap();
    let refused = |weight| {
        let many = semaphore.many(weight);
        tokio::spawn(async move { many.acquire_within(6 * SOON).await })
    };
    let (head, behind) = (refused(3), refused(2));
    waiting(&semaphore, 2).await;
    let last = waiter(&semaphore, 1, 3).await;
    let lowered = Watch::start();
    semaphore.set_limit(1).await.unwrap();
    for refused in [head, behind] {
        assert!(matches!(refused.await.unwrap(), Err(AcquireError::NeverFits)));
    }
    assert!(lowered.awake() < 3 * SECOND, "told after {:?}", lowered.awake());
    held.release().await.unwrap();
    last.await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_permit_is_split_and_merged_while_all_of_it_is_held() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let semaphore = semaphore(&session, 4, Options::default());
    let mut permit = semaphore.many(4).acquire().await.unwrap();
    let part = semaphore.split(&mut permit, 3).await.unwrap();
    assert_eq!((permit.weight(), part.weight()), (1, 3));
    assert_ne!(permit.owner(), part.owner());
    assert_eq!(seen(&semaphore).await, (4, 4, 0), "nothing became free");
    let mut weights: Vec<_> =
        semaphore.holders().await.unwrap().iter().map(|holder| holder.weight).collect();
    weights.sort_unstable();
    assert_eq!(weights, [1, 3]);
    permit.release().await.unwrap();
    assert_eq!(seen(&semaphore).await, (4, 3, 0));
    let other = semaphore.acquire().await.unwrap();
    let merged = semaphore.merge(part, other).await.unwrap();
    assert_eq!(merged.weight(), 4);
    assert_eq!(seen(&semaphore).await, (4, 4, 0));
    assert_eq!(semaphore.holders().await.unwrap().len(), 1);
    merged.release().await.unwrap();
    assert_eq!(seen(&semaphore).await, (4, 0, 0));
    eventually(SECOND, "nothing is tracked", async || session.statistics().tracked == 0).await;
}

#[tokio::test]
async fn what_cannot_be_split_or_merged_stays_as_it_is() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let semaphore = semaphore(&session, 4, Options::default());
    let other = Semaphore::new(&session, "b", 4, Options::default()).unwrap();
    let mut permit = semaphore.many(2).acquire().await.unwrap();
    let error = semaphore.split(&mut permit, 2).await.unwrap_err();
    assert!(matches!(error, SplitError::TooMuch { asked: 2, weight: 2 }), "{error}");
    let error = semaphore.split(&mut permit, 0).await.unwrap_err();
    assert!(matches!(error, SplitError::Config(ConfigError::Weight { weight: 0 })), "{error}");
    assert!(matches!(other.split(&mut permit, 1).await, Err(SplitError::Foreign)));
    let stranger = other.acquire().await.unwrap();
    let Err(MergeError::Foreign { kept, other: stranger }) =
        semaphore.merge(permit, stranger).await
    else {
        panic!("merged across semaphores")
    };
    assert!(kept.is_held() && kept.weight() == 2 && stranger.is_held());
    assert!(semaphore.release_by(&[kept.owner().clone()]).await.unwrap().is_clean());
    let live = semaphore.acquire().await.unwrap();
    let Err(MergeError::Lost { lost, left: Some(left) }) = semaphore.merge(kept, live).await else {
        panic!("merged with what is not held")
    };
    assert_eq!(lost.reason, LostReason::Expired);
    assert!(left.is_held());
    assert_eq!(seen(&semaphore).await, (4, 1, 0));
    left.release().await.unwrap();
}

#[tokio::test]
async fn permits_are_released_by_their_ids_and_adopted_by_their_owner() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let (here, there) =
        (semaphore(&one, 5, Options::default()), semaphore(&two, 5, Options::default()));
    let given = here.many(2).acquire().await.unwrap().detach();
    let kept = here.acquire().await.unwrap();
    let report = there.release_by(&[given.clone(), Owner::new()]).await.unwrap();
    assert_eq!(report.released, std::slice::from_ref(&given));
    assert_eq!(report.lost.len(), 1);
    assert!(!report.is_clean() && report.unknown.is_empty());
    assert_eq!(seen(&there).await, (5, 1, 0));
    assert!(matches!(there.adopt(&given).await, Err(AdoptError::Lost(_))), "never creates");
    let given = here.many(3).acquire().await.unwrap().detach();
    let adopted = there.adopt(&Owner::parse(given.as_str()).unwrap()).await.unwrap();
    assert_eq!(adopted.weight(), 3);
    assert_eq!(seen(&there).await, (5, 4, 0));
    let adopted_too = there.adopt(kept.owner()).await.unwrap();
    let reason = tokio::time::timeout(SOON, kept.lost()).await.unwrap();
    assert_eq!(reason, LostReason::NotOwner);
    let report = there.release_all(vec![adopted, adopted_too]).await.unwrap();
    assert!(report.is_clean() && report.released.len() == 2);
    assert_eq!(seen(&there).await, (5, 0, 0));
}

#[tokio::test]
async fn an_operator_ends_just_the_hold_that_he_looked_at() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let semaphore = semaphore(&session, 2, Options::default().label("worker"));
    let (first, second) = (semaphore.acquire().await.unwrap(), semaphore.acquire().await.unwrap());
    let holders = semaphore.holders().await.unwrap();
    let found = holders.iter().find(|found| found.holder.trace == first.trace()).unwrap();
    assert_eq!((&*found.holder.label, found.weight, found.cooling), ("worker", 1, false));
    assert!(semaphore.force_release(&found.holder).await.unwrap());
    let reason = tokio::time::timeout(SOON, first.lost()).await.unwrap();
    assert_eq!(reason, LostReason::ForceReleased);
    assert!(second.is_held());
    assert_eq!(seen(&semaphore).await, (2, 1, 0));
    assert!(matches!(first.release().await, Err(ReleaseError::Lost(_))));
    second.release().await.unwrap();
}

#[tokio::test]
async fn limits_and_weights_out_of_bounds_are_refused_before_anything_is_sent() {
    let server = Server::start();
    let session = session(&server.url()).await;
    for limit in [0, 1_000_000_000, u32::MAX] {
        let made = Semaphore::new(&session, "a", limit, Options::default());
        assert!(matches!(made, Err(ConfigError::Limit { .. })), "{made:?}");
    }
    let semaphore = semaphore(&session, 999_999_999, Options::default());
    for weight in [0, 1_000_000_000, u32::MAX] {
        let error = semaphore.many(weight).try_acquire().await.unwrap_err();
        assert!(matches!(error, AcquireError::Config(ConfigError::Weight { .. })), "{error}");
        let error = semaphore.set_limit(weight).await.unwrap_err();
        assert!(matches!(error, LimitError::Config(ConfigError::Limit { .. })), "{error}");
    }
    assert_eq!(server.dbsize().await, 0);
    // The largest of both work: they stay below all deadlines.
    let all = semaphore.many(999_999_999).acquire().await.unwrap();
    assert_eq!(seen(&semaphore).await, (999_999_999, 999_999_999, 0));
    assert!(semaphore.try_acquire().await.unwrap().is_none());
    all.release().await.unwrap();
}

#[tokio::test]
async fn a_differing_limit_is_told_once_and_refused_where_that_was_asked_for() {
    let server = Server::start();
    let told = Told::default();
    let builder = told.by(Session::builder(&server.url()).unwrap());
    let (one, two) = (session(&server.url()).await, builder.connect().await.unwrap());
    let (here, there) =
        (semaphore(&one, 3, Options::default()), semaphore(&two, 5, Options::default()));
    let held = here.acquire().await.unwrap();
    for _ in 0..3 {
        there.acquire().await.unwrap().release().await.unwrap();
        drop(there.many(2).try_acquire().await.unwrap());
    }
    let differs = |event: &Event| matches!(event, Event::LimitDiffers { ours: 5, server: 3, .. });
    assert_eq!((told.count(differs), told.all().len()), (1, 1), "{:?}", told.all());
    let strict = there.clone().strict_limit();
    for many in [1, 2] {
        let error = strict.many(many).acquire().await.unwrap_err();
        assert!(matches!(error, AcquireError::LimitDiffers { ours: 5, server: 3 }), "{error}");
    }
    here.set_limit(5).await.unwrap();
    strict.acquire().await.unwrap().release().await.unwrap();
    held.release().await.unwrap();
}

#[tokio::test]
async fn a_full_queue_says_when_the_first_permit_ends() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let fixed = |lease| semaphore(&session, 2, Options::default().fixed(lease));
    let _long = fixed(60 * SECOND).acquire().await.unwrap();
    let _short = fixed(20 * SECOND).acquire().await.unwrap();
    let bounded = semaphore(&session, 2, Options::default().max_waiters(1));
    let waits = waiter(&bounded, 1, 1).await;
    let AcquireError::Saturated { retry_after, .. } = bounded.acquire().await.unwrap_err() else {
        panic!("a queue of one has room for one")
    };
    assert!((15 * SECOND..=20 * SECOND).contains(&retry_after), "{retry_after:?}");
    waits.abort();
}

/// A shortest hold makes of a limit of concurrency a limit of rate: what is released early comes back at its end.
#[tokio::test]
async fn permits_that_are_released_early_cool_down() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let options = Options::default().hold_at_least(400 * MS).label("paced");
    let semaphore = semaphore(&session, 3, options);
    let begun = Instant::now();
    let mut permit = semaphore.many(3).acquire().await.unwrap();
    let part = semaphore.split(&mut permit, 1).await.unwrap();
    permit.release().await.unwrap();
    let holders = semaphore.holders().await.unwrap();
    let cooling = holders.iter().find(|found| found.cooling).expect("a cool-down");
    assert_eq!((cooling.weight, &*cooling.holder.label), (2, "paced"));
    assert_eq!(seen(&semaphore).await, (3, 3, 0));
    assert!(semaphore.try_acquire().await.unwrap().is_none());
    let next = semaphore.many(2).acquire().await.unwrap();
    assert!(begun.elapsed() >= 390 * MS, "granted after {:?}", begun.elapsed());
    let holders = semaphore.holders().await.unwrap();
    assert!(holders.iter().all(|found| !found.cooling), "{holders:?}");
    // An operator ends a cool-down too.
    part.release().await.unwrap();
    next.release().await.unwrap();
    for found in semaphore.holders().await.unwrap() {
        assert!(semaphore.force_release(&found.holder).await.unwrap());
    }
    assert_eq!(seen(&semaphore).await, (3, 0, 0));
}

/// An operator saw who held; by then it cools down, and that ends too, as a mutex's does.
#[tokio::test]
async fn a_permit_that_cools_down_since_it_was_listed_is_ended_by_force() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let semaphore = semaphore(&session, 3, Options::default().hold_at_least(60 * SECOND));
    let permit = semaphore.many(2).acquire().await.unwrap();
    let listed = semaphore.holders().await.unwrap();
    permit.release().await.unwrap();
    assert_eq!(seen(&semaphore).await, (3, 2, 0));
    assert!(semaphore.force_release(&listed[0].holder).await.unwrap());
    assert_eq!(seen(&semaphore).await, (3, 0, 0));
}

#[tokio::test]
async fn many_are_released_together_and_each_has_a_verdict() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let semaphore = semaphore(&session, 400, Options::default());
    let other = leasehold_tests::permits::semaphore(&session, "b", 1, Options::default());
    let mut permits = Vec::new();
    for _ in 0..300 {
        permits.push(semaphore.acquire().await.unwrap());
    }
    permits.push(other.acquire().await.unwrap());
    let owners: Vec<_> = permits.iter().map(|permit| permit.owner().clone()).collect();
    // One of them is released by its id before.
    assert!(semaphore.release_by(&owners[7..8]).await.unwrap().is_clean());
    let report = semaphore.release_all(permits).await.unwrap();
    assert_eq!((report.released.len(), report.unknown.len()), (300, 0));
    assert_eq!(report.lost, [(owners[7].clone(), LostReason::Expired)]);
    assert_eq!((seen(&semaphore).await.1, seen(&other).await.1), (0, 0), "whatever it is of");
    assert_eq!(format!("{report:?}").matches(owners[0].as_str()).count(), 0, "an owner is a power");
    let report = semaphore.release_by(&owners[..300]).await.unwrap();
    assert_eq!((report.released.len(), report.lost.len()), (0, 300), "released once");
}

/// What may be passed to other tasks and threads.
#[test]
fn permits_and_views_can_be_sent_and_kept() {
    fn sendable<T: Send + Sync + 'static>() {}
    sendable::<leasehold_semaphore::Permit>();
    sendable::<leasehold_semaphore::Many>();
    sendable::<Semaphore>();
    sendable::<MergeError>();
    sendable::<SplitError>();
}
