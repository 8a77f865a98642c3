//! The read-write lock while something fails: lost replies and dropped futures of an exchange, waiters that die or leave,
//! lost pushes, foreign keys, a full server, a replica.

use std::time::{Duration, Instant};

use leasehold_rwlock::{
    AcquireError, BackendErrorKind, LostReason, Options, ReleaseError, RwLock, Session,
    UpgradeError,
};
use leasehold_tests::rig::{Watch, dropped_after, moment};
use leasehold_tests::rwlock::{hash_of, keys, lock, queued, waiter};
use leasehold_tests::scene::{SOON, impatient, keys_left, lost, say, session};
use leasehold_tests::{FaultProxy, Pick, Server, eventually, rounds};
use redis::AsyncCommands;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// What a message may take on two cores that do other work too: far below a check, so that nothing that only a check puts
/// right passes for a message.
const MACHINE: Duration = Duration::from_millis(500);

/// As long as no call takes that is answered.
const RESPONSE: Duration = Duration::from_millis(400);

fn long() -> Options {
    Options::default().lease(20 * SECOND)
}

/// The server knows the script of an exchange: a loss meets the exchange itself.
async fn exchanged_before(lock: &RwLock) {
    let writing = lock.write().acquire().await.expect("it is free");
    let reading = lock.downgrade(writing).await.expect("it writes");
    reading.release().await.expect("it reads");
}

/// Readers and writers, as the server has them.
async fn sides(lock: &RwLock) -> (usize, usize) {
    let holders = lock.holders().await.expect("an answer");
    (holders.readers.len(), holders.writers.len())
}

async fn last_token(server: &Server) -> u64 {
    server.connection().await.get(&*keys("a").token).await.expect("a token")
}

/// Nothing is held or waited for, by this session or on the server.
async fn leaves_nothing(server: &Server, session: &Session) {
    let nothing = async || session.statistics().tracked == 0 && keys_left(server).await.is_empty();
    eventually(SOON, "nothing is left", nothing).await;
    assert_eq!(session.statistics().watched, 0);
}

/// I6. The copy that answers finds what the first one did: one hold, one token, the same lease.
#[tokio::test]
async fn lost_replies_of_an_exchange_change_nothing() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let (session, told) = impatient(proxy.url(), RESPONSE).await;
    let lock = lock(&session, "a", long());
    exchanged_before(&lock).await;
    for cut in [false, true] {
        let lose = || {
            let pick = Pick::next(1).containing(hash_of("exchange"));
            if cut { proxy.cut_after_request(pick) } else { proxy.drop_replies(pick) }
        };
        let reading = lock.read().acquire().await.unwrap();
        lose();
        let writing = lock.try_upgrade(reading).await.unwrap();
        assert_eq!(writing.fencing_token().get(), last_token(&server).await, "minted once");
        assert_eq!(sides(&lock).await, (0, 1));
        lose();
        let token = writing.fencing_token();
        let reading = lock.downgrade(writing).await.unwrap();
        assert_eq!(lock.last_token(&reading), Some(token));
        assert_eq!(sides(&lock).await, (1, 0));
        reading.extend(10 * SECOND).await.unwrap();
        assert!(reading.is_held());
        reading.release().await.unwrap();
        leaves_nothing(&server, &session).await;
    }
    assert_eq!(told.count(lost), 0, "{:?}", told.all());
}

/// The first copy is refused and its answer lost; the copy that is sent again meets a lock where it would not be. The
/// client does not know of the refusal: it is upgraded.
#[tokio::test]
async fn lost_refusal_of_an_upgrade_is_asked_again() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let (far, _told) = impatient(proxy.url(), RESPONSE).await;
    let near = session(&server.url()).await;
    let (ours, theirs) = (lock(&far, "a", long()), lock(&near, "a", long()));
    exchanged_before(&ours).await;
    let (reading, other) =
        (ours.read().acquire().await.unwrap(), theirs.read().acquire().await.unwrap());
    proxy.drop_replies(Pick::next(1).containing(hash_of("exchange")));
    let upgrading = ours.try_upgrade(reading);
    let releasing = async {
        eventually(SOON, "it is lost", async || proxy.replies_dropped() > 0).await;
        other.release().await.unwrap();
    };
    let (upgraded, ()) = tokio::join!(upgrading, releasing);
    let writing = upgraded.unwrap();
    assert_eq!(sides(&theirs).await, (0, 1));
    writing.release().await.unwrap();
    leaves_nothing(&server, &far).await;
}

/// I9. A future of an exchange that is dropped at any moment ends both holds: nothing stays for a lease.
#[tokio::test]
async fn dropped_exchange_leaves_nothing() {
    let server = Server::start();
    let (ours, theirs) = (session(&server.url()).await, session(&server.url()).await);
    let (lock, other) = (lock(&ours, "a", long()), lock(&theirs, "a", long()));
    let mut done = 0;
    for round in 0..rounds(800) {
        let polls = moment(round / 2);
        let finished = if round % 2 == 0 {
            let reading = lock.read().acquire().await.unwrap();
            dropped_after(polls, lock.try_upgrade(reading)).await.map(drop).is_some()
        } else {
            let writing = lock.write().acquire().await.unwrap();
            dropped_after(polls, lock.downgrade(writing)).await.map(drop).is_some()
        };
        done += u32::from(finished);
        // Far below the lease.
        let guard = other.write().acquire_within(SOON).await.unwrap();
        guard.release().await.unwrap();
    }
    println!("{done} of {} exchanges were done before they were dropped", rounds(800));
    leaves_nothing(&server, &ours).await;
}

/// I2. Nobody answers: which of the two is held is not known, and neither says that it is beyond the deadline of the first.
#[tokio::test]
async fn exchange_that_is_never_answered_ends_with_its_lease() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let (far, told) = impatient(proxy.url(), RESPONSE).await;
    let near = session(&server.url()).await;
    let brief = Options::default().lease(SECOND);
    let (ours, theirs) = (lock(&far, "a", brief.clone()), lock(&near, "a", brief));
    exchanged_before(&ours).await;
    let reading = ours.read().acquire().await.unwrap();
    let began = Watch::start();
    proxy.drop_replies(Pick::all().containing(hash_of("exchange")));
    let Err(UpgradeError::Lost(loss)) = ours.try_upgrade(reading).await else {
        panic!("nobody answers")
    };
    assert_eq!(loss.reason, LostReason::Unreachable);
    assert!(began.awake() <= SECOND + MACHINE, "{:?}", began.awake());
    proxy.drop_replies(Pick::none());
    eventually(SOON, "it is told", async || told.count(lost) == 1).await;
    // The upgrade took place, and nobody renews it.
    let writing = theirs.write().acquire_within(SOON).await.unwrap();
    assert!(began.awake() < 3 * SECOND + MACHINE, "{:?}", began.awake());
    writing.release().await.unwrap();
}

/// C4, I21. A writer that gives up lets the readers behind it in at once, by a message.
#[tokio::test]
async fn writer_that_gives_up_lets_readers_in() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let (ours, theirs) = (lock(&one, "a", long()), lock(&two, "a", long()));
    let reading = ours.read().acquire().await.unwrap();
    // Its future is dropped.
    let view = ours.write();
    let writer = tokio::spawn(async move { view.acquire_within(SOON).await.map(drop) });
    queued(&ours, 1).await;
    let other = waiter(&theirs, theirs.read(), 2).await;
    let left = Instant::now();
    writer.abort();
    let (guard, granted) = other.await.unwrap();
    assert!(granted - left < MACHINE, "{:?}", granted - left);
    guard.release().await.unwrap();
    // Its wait is over.
    let view = ours.write();
    let writer =
        tokio::spawn(async move { (view.acquire_within(SECOND / 2).await, Instant::now()) });
    queued(&ours, 1).await;
    let other = waiter(&theirs, theirs.read(), 2).await;
    let (outcome, left) = writer.await.unwrap();
    assert!(matches!(outcome, Err(AcquireError::TimedOut { held_by_this_session: true, .. })));
    let (guard, granted) = other.await.unwrap();
    assert!(granted.saturating_duration_since(left) < MACHINE, "{:?}", granted - left);
    guard.release().await.unwrap();
    reading.release().await.unwrap();
    leaves_nothing(&server, &one).await;
}

/// A writer that died in the queue costs nothing where somebody releases: its inbox has no listener any more.
#[tokio::test]
async fn dead_writer_is_skipped_by_a_release() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let ((dying, _), near) = (impatient(proxy.url(), RESPONSE).await, session(&server.url()).await);
    let (theirs, ours) = (lock(&dying, "a", long()), lock(&near, "a", long()));
    let held = ours.write().acquire().await.unwrap();
    let dead = waiter(&theirs, theirs.write(), 1).await;
    let living = waiter(&ours, ours.read(), 2).await;
    proxy.refuse(true);
    proxy.cut();
    let channels = async || leasehold_tests::scene::inboxes(&server).await == 1;
    eventually(SOON, "its inbox is gone", channels).await;
    let released = Instant::now();
    held.release().await.unwrap();
    let (guard, granted) = living.await.unwrap();
    assert!(granted - released < MACHINE, "{:?}", granted - released);
    guard.release().await.unwrap();
    dead.abort();
}

/// B74. A reader that holds on and on releases nothing: the mark of a writer that died ends with its deadline, and the
/// readers behind it are let in by a check.
#[tokio::test]
async fn dead_writer_stops_readers_no_longer_than_its_deadline() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let brief = |url: &str| {
        let builder = Session::builder(url).expect("a URL");
        builder.waiter_deadline(2 * SECOND).check_every(SECOND / 2)
    };
    let dying = brief(proxy.url()).connect().await.unwrap();
    let near = brief(&server.url()).connect().await.unwrap();
    let (theirs, ours) = (lock(&dying, "a", long()), lock(&near, "a", long()));
    let held = ours.read().acquire().await.unwrap();
    let dead = waiter(&theirs, theirs.write(), 1).await;
    proxy.refuse(true);
    proxy.cut();
    let died = Instant::now();
    let (guard, granted) = waiter(&ours, ours.read(), 2).await.await.unwrap();
    // Its deadline, a check, and the machine.
    assert!(granted - died < 2 * SECOND + SECOND / 2 + 2 * MACHINE, "{:?}", granted - died);
    assert!(held.is_held());
    guard.release().await.unwrap();
    held.release().await.unwrap();
    dead.abort();
}

/// I11. Nothing depends on a message: readers whose pushes were lost are let in by their checks, all of them.
#[tokio::test]
async fn readers_whose_pushes_are_lost_are_let_in_by_the_check() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let ((far, _), near) = (impatient(proxy.url(), SECOND).await, session(&server.url()).await);
    let (theirs, ours) = (lock(&far, "a", long()), lock(&near, "a", long()));
    let held = ours.write().acquire().await.unwrap();
    let mut readers = Vec::new();
    for standing in 1..=5 {
        readers.push(waiter(&theirs, theirs.read(), standing).await);
    }
    proxy.drop_pushes(true);
    let released = Instant::now();
    held.release().await.unwrap();
    for reader in readers {
        let (guard, granted) = reader.await.unwrap();
        assert!(granted - released < SECOND + 2 * MACHINE, "{:?}", granted - released);
        guard.release().await.unwrap();
    }
    assert_eq!(proxy.pushes_dropped(), 5, "the control: they were sent");
    leaves_nothing(&server, &far).await;
}

/// A key that is somebody else's is told as such at once, and stays as it is.
#[tokio::test]
async fn foreign_keys_are_told_and_left_alone() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let mut connection = server.connection().await;
    let keys = keys("a");
    let lock = lock(&session, "a", long());
    let kind = |outcome: Result<(), AcquireError>| match outcome {
        // Busy, and nobody had to look at that key.
        Ok(()) | Err(AcquireError::TimedOut { .. }) => None,
        Err(AcquireError::Backend(error)) => Some(error.kind()),
        Err(other) => panic!("{other:?}"),
    };
    for key in [&keys.holds, &keys.queue, &keys.timeouts, &keys.token, &keys.gone, &keys.notes] {
        // Somebody holds, so that nothing is usual; or nobody does.
        for busy in [true, false] {
            server.flushall().await;
            let held = if busy { lock.write().try_acquire().await.unwrap() } else { None };
            redis::pipe().del(&**key).rpush(&**key, "x").exec_async(&mut connection).await.unwrap();
            let began = Watch::start();
            let read = kind(lock.read().acquire_within(50 * MS).await.map(drop));
            let write = kind(lock.write().try_acquire().await.map(drop));
            let name = key.escape_ascii().to_string();
            // What is not looked at is no trouble: the timeouts of nobody.
            for outcome in [read, write].into_iter().flatten() {
                assert_eq!(outcome, BackendErrorKind::WrongType, "{name}");
            }
            assert!(busy || read.is_some() || name.ends_with("timeout"), "{name}: unnoticed");
            assert!(began.awake() < SECOND, "{name}: {:?}", began.awake());
            let foreign: Vec<String> = connection.lrange(&**key, 0, -1).await.unwrap();
            assert_eq!(foreign, ["x"], "{name}");
            let ttl: i64 = connection.pttl(&**key).await.unwrap();
            assert_eq!(ttl, -1, "{name} was given an end");
            drop(held);
            eventually(SOON, "it is ended", async || session.statistics().watched == 0).await;
        }
    }
}

/// §8. Where the server takes nothing new, what is held is renewed, exchanged and released; who asks anew is told, and
/// leaves nothing.
#[tokio::test]
async fn full_server_refuses_newcomers_alone() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let options = Options::default().lease(SECOND);
    let lock = lock(&session, "a", options.clone());
    exchanged_before(&lock).await;
    let reading = lock.read().acquire().await.unwrap();
    let another = leasehold_tests::rwlock::lock(&session, "b", options);
    say(&server, &["CONFIG", "SET", "maxmemory", "1"]).await;
    for outcome in [
        another.read().try_acquire().await.map(drop),
        another.write().try_acquire().await.map(drop),
    ] {
        let Err(AcquireError::Backend(error)) = outcome else { panic!("{outcome:?}") };
        assert_eq!(error.kind(), BackendErrorKind::OutOfMemory);
    }
    tokio::time::sleep(2 * SECOND).await;
    assert!(reading.is_held(), "renewed");
    let writing = lock.try_upgrade(reading).await.unwrap();
    tokio::time::sleep(2 * SECOND).await;
    assert!(writing.is_held(), "renewed");
    let reading = lock.downgrade(writing).await.unwrap();
    reading.release().await.unwrap();
    leaves_nothing(&server, &session).await;
}

/// A replica cannot know: it says so, and never that a hold is over.
#[tokio::test]
async fn replica_is_told_as_such_and_never_as_a_loss() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let lock = lock(&session, "a", long());
    exchanged_before(&lock).await;
    let (reading, writing) = (
        lock.read().acquire().await.unwrap(),
        leasehold_tests::rwlock::lock(&session, "b", long()).write().acquire().await.unwrap(),
    );
    say(&server, &["REPLICAOF", "127.0.0.1", "1"]).await;
    let upgraded = lock.try_upgrade(reading).await;
    let Err(UpgradeError::Backend { guard: reading, source }) = upgraded else {
        panic!("{upgraded:?}")
    };
    assert_eq!(source.kind(), BackendErrorKind::ReadOnly);
    assert!(reading.is_held());
    let released = writing.release().await;
    let Err(ReleaseError::Backend { source, .. } | ReleaseError::Unknown { source, .. }) = released
    else {
        panic!("{released:?}")
    };
    assert_eq!(source.kind(), BackendErrorKind::ReadOnly);
    let forced = lock.force_release_readers().await.unwrap_err();
    assert_eq!(forced.kind(), BackendErrorKind::ReadOnly);
    say(&server, &["REPLICAOF", "NO", "ONE"]).await;
    let writing = lock.try_upgrade(reading).await.unwrap();
    writing.release().await.unwrap();
    leaves_nothing(&server, &session).await;
}

/// B103. Scripts that vanish are sent anew, each of them.
#[tokio::test]
async fn vanished_scripts_are_no_trouble() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let lock = lock(&session, "a", long());
    let flush = async || say(&server, &["SCRIPT", "FLUSH"]).await;
    for _ in 0..3 {
        flush().await;
        let reading = lock.read().acquire().await.unwrap();
        flush().await;
        let writing = lock.try_upgrade(reading).await.unwrap();
        flush().await;
        let reading = lock.downgrade(writing).await.unwrap();
        flush().await;
        reading.extend(10 * SECOND).await.unwrap();
        let owner = reading.detach();
        flush().await;
        let reading = lock.adopt_read(&owner).await.unwrap();
        let waits = waiter(&lock, lock.write(), 1).await;
        flush().await;
        assert_eq!(lock.force_release_readers().await.unwrap().len(), 1);
        let (writing, _) = waits.await.unwrap();
        assert!(matches!(reading.release().await, Err(ReleaseError::Lost(_))));
        flush().await;
        writing.release().await.unwrap();
    }
    leaves_nothing(&server, &session).await;
}

/// The same owner reads and asks to write: it waits for the others, not for itself, and is let in by the release of the last
/// of them, before writers that came later.
#[tokio::test]
async fn owner_that_reads_writes_when_the_others_have_left() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let (ours, theirs) = (lock(&one, "a", long()), lock(&two, "a", long()));
    let (reading, other) =
        (ours.read().acquire().await.unwrap(), theirs.read().acquire().await.unwrap());
    let writer = waiter(&ours, ours.write().by(reading.owner()), 1).await;
    let stranger = waiter(&theirs, theirs.write(), 2).await;
    let released = Instant::now();
    other.release().await.unwrap();
    let (writing, granted) = writer.await.unwrap();
    assert!(granted - released < MACHINE, "{:?}", granted - released);
    assert!(reading.is_held() && writing.is_held() && !stranger.is_finished());
    writing.release().await.unwrap();
    reading.release().await.unwrap();
    stranger.await.unwrap().0.release().await.unwrap();
    leaves_nothing(&server, &two).await;
}

/// Two owners that read and both ask to write wait for each other: both waits end, and say why.
#[tokio::test]
async fn owners_that_wait_for_each_other_are_told_so() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    // The first reader to end is the other session's, for each of them in turn.
    let (ours, theirs) =
        (lock(&one, "a", long()), lock(&two, "a", Options::default().lease(SECOND)));
    let (reading, other) =
        (ours.read().acquire().await.unwrap(), theirs.read().acquire().await.unwrap());
    let ask = async |lock: &RwLock, guard: &leasehold_rwlock::ReadGuard| {
        lock.write().by(guard.owner()).acquire_within(SECOND / 2).await.map(drop)
    };
    let outcomes = tokio::join!(ask(&ours, &reading), ask(&theirs, &other));
    for outcome in [outcomes.0, outcomes.1] {
        let Err(AcquireError::TimedOut { held_by_this_session, .. }) = outcome else {
            panic!("{outcome:?}")
        };
        assert!(held_by_this_session, "each waits for its own reader too");
    }
    other.release().await.unwrap();
    reading.release().await.unwrap();
    leaves_nothing(&server, &one).await;
}
