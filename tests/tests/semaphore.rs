//! The semaphore on a real server: what it promises when nothing goes wrong, and when a holder goes away.

use std::time::{Duration, Instant};

use leasehold_semaphore::{
    AcquireError, AdoptError, ConfigError, LostReason, MergeError, Options, Owner, Permit,
    ReleaseError, Semaphore, Session, SplitError,
};
use leasehold_tests::scene::{SOON, session};
use leasehold_tests::{Server, eventually};

const SECOND: Duration = Duration::from_secs(1);

fn semaphore(session: &Session, limit: u32, options: Options) -> Semaphore {
    Semaphore::new(session, "a", limit, options).expect("legal options")
}

/// Limit, used and waiting.
async fn seen(semaphore: &Semaphore) -> (u32, u32, u64) {
    let usage = semaphore.usage().await.expect("a server that answers");
    (usage.limit, usage.used, usage.waiting)
}

async fn waiting(semaphore: &Semaphore, count: u64) {
    let fact = async || semaphore.waiting().await.expect("an answer") == count;
    eventually(SOON, "they wait", fact).await;
}

fn spawn(semaphore: &Semaphore, weight: u32) -> tokio::task::JoinHandle<Permit> {
    let many = semaphore.many(weight);
    tokio::spawn(async move { many.acquire_within(6 * SOON).await.expect("it is granted") })
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
    let heavy = spawn(&there, 3);
    waiting(&here, 1).await;
    let light = spawn(&there, 1);
    waiting(&here, 2).await;
    first.release().await.unwrap();
    assert_eq!(seen(&here).await, (3, 1, 2), "two are free, and nobody passes");
    assert!(here.try_acquire().await.unwrap().is_none(), "nor does a newcomer");
    let released = Instant::now();
    second.release().await.unwrap();
    let heavy = heavy.await.unwrap();
    assert!(released.elapsed() < SECOND / 2, "handed over in {:?}", released.elapsed());
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
    let (second, third) = (spawn(&semaphore, 1), spawn(&semaphore, 1));
    waiting(&semaphore, 2).await;
    let raised = Instant::now();
    semaphore.set_limit(3).await.unwrap();
    let (second, third) = (second.await.unwrap(), third.await.unwrap());
    assert!(raised.elapsed() < SECOND / 2, "woken after {:?}", raised.elapsed());
    semaphore.set_limit(1).await.unwrap();
    assert_eq!(seen(&semaphore).await, (1, 3, 0));
    assert_eq!(semaphore.available().await.unwrap(), 0);
    assert!(first.is_held() && second.is_held() && third.is_held());
    let next = spawn(&semaphore, 1);
    waiting(&semaphore, 1).await;
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
    let last = spawn(&semaphore, 1);
    waiting(&semaphore, 3).await;
    let lowered = Instant::now();
    semaphore.set_limit(1).await.unwrap();
    for refused in [head, behind] {
        assert!(matches!(refused.await.unwrap(), Err(AcquireError::NeverFits)));
    }
    assert!(lowered.elapsed() < 3 * SECOND, "told after {:?}", lowered.elapsed());
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
