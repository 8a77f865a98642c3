//! The read-write lock on a real server: what it promises when nothing goes wrong.

use std::time::Duration;

use leasehold_rwlock::{
    AcquireError, LostReason, Options, ReleaseError, RwLock, Session, UpgradeError,
};
use leasehold_tests::rig::Watch;
use leasehold_tests::scene::{keys_left, session};
use leasehold_tests::{FaultProxy, Server, eventually};

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

fn lock(session: &Session, name: &str) -> RwLock {
    RwLock::new(session, name, Options::default()).expect("a lock")
}

async fn waiting(lock: &RwLock, count: u64) {
    eventually(SECOND, "they wait", async || lock.queue().await.expect("a queue").length == count)
        .await;
}

#[tokio::test]
async fn readers_hold_together_and_a_writer_alone() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let lock = lock(&session, "a");
    let (one, two) = (lock.read().acquire().await.unwrap(), lock.read().acquire().await.unwrap());
    assert!(lock.write().try_acquire().await.unwrap().is_none());
    let holders = lock.holders().await.unwrap();
    assert_eq!((holders.readers.len(), holders.writers.len()), (2, 0));
    assert!(lock.is_locked().await.unwrap() && !lock.is_write_locked().await.unwrap());
    one.release().await.unwrap();
    two.release().await.unwrap();
    let writing = lock.write().acquire().await.unwrap();
    assert!(lock.read().try_acquire().await.unwrap().is_none());
    assert!(lock.write().try_acquire().await.unwrap().is_none());
    assert!(lock.is_write_locked().await.unwrap());
    writing.release().await.unwrap();
    assert!(keys_left(&server).await.is_empty(), "{:?}", keys_left(&server).await);
    assert_eq!((session.statistics().tracked, session.statistics().watched), (0, 0));
}

#[tokio::test]
async fn one_release_lets_neighbouring_readers_in_and_stops_at_the_writer() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let (ours, theirs) = (lock(&one, "a"), lock(&two, "a"));
    let writing = ours.write().acquire().await.unwrap();
    let mut readers = Vec::new();
    for count in 1..=5 {
        let view = theirs.read();
        readers.push(tokio::spawn(async move { view.acquire().await.unwrap() }));
        waiting(&ours, count).await;
    }
    let view = theirs.write();
    let writer = tokio::spawn(async move { view.acquire().await.unwrap() });
    waiting(&ours, 6).await;
    let view = theirs.read();
    let late = tokio::spawn(async move { view.acquire().await.unwrap() });
    waiting(&ours, 7).await;
    let released = Watch::start();
    writing.release().await.unwrap();
    let mut reading = Vec::new();
    for reader in readers {
        reading.push(reader.await.unwrap());
    }
    assert!(released.awake() < SECOND / 2, "{:?}", released.awake());
    assert!(!writer.is_finished() && !late.is_finished(), "a waiting writer stops new readers");
    for reader in reading {
        reader.release().await.unwrap();
    }
    let writing = writer.await.unwrap();
    assert!(!late.is_finished());
    writing.release().await.unwrap();
    late.await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_downgrade_keeps_the_hold_and_admits_waiting_readers() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let lock = lock(&session, "a");
    let writing = lock.write().acquire().await.unwrap();
    let token = writing.fencing_token();
    let view = lock.read();
    let reader = tokio::spawn(async move { view.acquire().await.unwrap() });
    waiting(&lock, 1).await;
    let reading = lock.downgrade(writing).await.unwrap();
    assert_eq!(lock.last_token(&reading), Some(token));
    let other = tokio::time::timeout(SECOND, reader).await.expect("admitted").unwrap();
    assert!(reading.is_held() && other.is_held());
    assert!(lock.write().try_acquire().await.unwrap().is_none());
    reading.release().await.unwrap();
    other.release().await.unwrap();
    assert_eq!(session.statistics().tracked, 0);
}

#[tokio::test]
async fn a_sole_reader_is_upgraded_and_others_are_refused_at_once() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let lock = lock(&session, "a");
    let (one, two) = (lock.read().acquire().await.unwrap(), lock.read().acquire().await.unwrap());
    let began = Watch::start();
    let one = match lock.try_upgrade(one).await {
        Err(UpgradeError::Refused(guard)) => guard,
        other => panic!("{other:?}"),
    };
    assert!(began.awake() < 200 * MS && one.is_held());
    two.release().await.unwrap();
    let writing = lock.try_upgrade(one).await.unwrap();
    assert!(writing.is_held() && lock.is_write_locked().await.unwrap());
    assert!(lock.read().try_acquire().await.unwrap().is_none());
    writing.release().await.unwrap();
    assert!(lock.read().try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn an_owner_reads_while_it_writes_and_the_rest_waits() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let lock = lock(&session, "a");
    let writing = lock.write().acquire().await.unwrap();
    let reading = lock.read().by(writing.owner()).acquire().await.unwrap();
    let again = lock.write().by(writing.owner()).acquire().await.unwrap();
    assert_eq!(again.fencing_token(), writing.fencing_token());
    again.release().await.unwrap();
    let refused = lock.read().acquire_within(100 * MS).await;
    assert!(
        matches!(refused, Err(AcquireError::TimedOut { held_by_this_session: true, .. })),
        "{refused:?}"
    );
    writing.release().await.unwrap();
    assert!(lock.write().try_acquire().await.unwrap().is_none(), "it still reads");
    let other = lock.read().try_acquire().await.unwrap().expect("readers hold together");
    other.release().await.unwrap();
    reading.release().await.unwrap();
}

#[tokio::test]
async fn each_side_is_released_by_force_alone() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let lock = lock(&session, "a");
    let reading = lock.read().acquire().await.unwrap();
    assert!(lock.force_release_writers().await.unwrap().is_empty());
    assert!(reading.is_held());
    assert_eq!(lock.force_release_readers().await.unwrap().len(), 1);
    let reason = tokio::time::timeout(SECOND, reading.lost()).await.expect("told");
    assert_eq!(reason, LostReason::ForceReleased);
    assert!(matches!(reading.release().await, Err(ReleaseError::Lost(_))));
}

#[tokio::test]
async fn what_an_owner_reads_or_writes_goes_on_elsewhere() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let (ours, theirs) = (lock(&one, "a"), lock(&two, "a"));
    let writing = ours.write().acquire().await.unwrap();
    let token = writing.fencing_token();
    let owner = writing.detach();
    assert!(theirs.adopt_read(&owner).await.is_err(), "it does not read");
    let writing = theirs.adopt_write(&owner).await.unwrap();
    assert_eq!(writing.fencing_token(), token);
    assert!(ours.read().try_acquire().await.unwrap().is_none());
    writing.release().await.unwrap();
    let owner = ours.read().acquire().await.unwrap().detach();
    let reading = theirs.adopt_read(&owner).await.unwrap();
    reading.release().await.unwrap();
    assert!(!ours.is_locked().await.unwrap());
}

/// The least length of a writer's hold keeps others out although its owner reads on and leaves the read last.
#[tokio::test]
async fn a_writer_that_leaves_before_its_own_reader_cools_down() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let paced = Options::default().hold_at_least(60 * SECOND);
    let ours = RwLock::new(&one, "a", paced).unwrap();
    let theirs = lock(&two, "a");
    let writing = ours.write().acquire().await.unwrap();
    let owner = writing.owner().clone();
    let reading = lock(&one, "a").read().by(&owner).acquire().await.unwrap();
    writing.release().await.unwrap();
    assert!(theirs.read().try_acquire().await.unwrap().is_none());
    // It does not wait for itself.
    let again = ours.write().by(&owner).try_acquire().await.unwrap().expect("its own");
    again.release().await.unwrap();
    reading.release().await.unwrap();
    assert!(theirs.read().try_acquire().await.unwrap().is_none());
    assert!(theirs.write().try_acquire().await.unwrap().is_none());
    assert_eq!(theirs.holders().await.unwrap().writers.len(), 1, "one cool-down for an owner");
    assert_eq!(theirs.force_release_writers().await.unwrap().len(), 1);
    assert!(theirs.read().try_acquire().await.unwrap().is_some());
}

/// The earlier guard's own release is told so where it overtakes the news.
#[tokio::test]
async fn who_was_adopted_hears_so_from_its_release() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let (one, two) = (session(proxy.url()).await, session(&server.url()).await);
    let (ours, theirs) = (lock(&one, "a"), lock(&two, "a"));
    let reading = ours.read().acquire().await.unwrap();
    proxy.drop_pushes(true);
    let adopted = theirs.adopt_read(reading.owner()).await.unwrap();
    let Err(ReleaseError::Lost(lost)) = reading.release().await else { panic!("it is lost") };
    assert_eq!(lost.reason, LostReason::NotOwner);
    adopted.release().await.unwrap();
}
