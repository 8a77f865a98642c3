//! The fair lock on a real server: order, positions, the operator's cancel, bounds, re-entry, loss.

use std::sync::{Arc, Mutex as Lock};
use std::time::{Duration, Instant};

use leasehold_fair_lock::{AcquireError, FairLock, LostReason, Options, Position};
use leasehold_tests::fair::{keys, lock, queued, waiter, watched_waiter};
use leasehold_tests::rig::Watch;
use leasehold_tests::scene::{SOON, Told, keys_left, lost, mutex, session, why};
use leasehold_tests::{Server, eventually};
use redis::AsyncCommands;
use tokio::task::JoinHandle;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// For two cores that do other work too.
const MACHINE: Duration = Duration::from_millis(500);

fn patient() -> Options {
    Options::default().max_wait(30 * SECOND)
}

/// Ends a wait that failed with the error, or fails.
async fn error_of<T>(waiting: JoinHandle<Result<T, AcquireError>>) -> AcquireError {
    let ended = tokio::time::timeout(SOON, waiting).await.expect("it ends in time");
    match ended.expect("no panic inside") {
        Ok(_) => panic!("it holds"),
        Err(error) => error,
    }
}

/// A wait that may fail, the last of `standing`.
async fn waits(lock: &FairLock, standing: u64) -> JoinHandle<Result<(), AcquireError>> {
    let waiting = lock.clone();
    let task = tokio::spawn(async move { waiting.acquire().await.map(drop) });
    queued(lock, standing).await;
    task
}

#[tokio::test]
async fn waiters_of_several_processes_hold_in_order_of_arrival() {
    let server = Server::start();
    let mut locks = Vec::new();
    for _ in 0..4 {
        locks.push(lock(&session(&server.url()).await, "a", patient()));
    }
    let guard = locks[0].acquire().await.unwrap();
    let order = Arc::new(Lock::new(Vec::new()));
    let mut tasks = Vec::new();
    for number in 0..40 {
        let (lock, order) = (locks[number * 7 % 4].clone(), order.clone());
        let waiting = lock.clone();
        tasks.push(tokio::spawn(async move {
            let guard = waiting.acquire().await.unwrap();
            order.lock().unwrap().push((number, guard.fencing_token()));
            guard.release().await.unwrap();
        }));
        queued(&lock, number as u64 + 1).await;
    }
    guard.release().await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    let order = order.lock().unwrap().clone();
    assert_eq!(order.iter().map(|(number, _)| *number).collect::<Vec<_>>(), Vec::from_iter(0..40));
    assert!(order.is_sorted_by(|(_, earlier), (_, later)| earlier < later), "I5: {order:?}");
}

#[tokio::test]
async fn a_mutex_of_the_same_name_is_another_lock() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let fair = lock(&session, "a", Options::default()).acquire().await.unwrap();
    let plain = mutex(&session, "a", Options::default()).try_acquire().await.unwrap();
    plain.expect("it is free").release().await.unwrap();
    fair.release().await.unwrap();
}

#[tokio::test]
async fn a_position_is_told_while_others_leave_and_until_the_grant() {
    let server = Server::start();
    let lock = lock(&session(&server.url()).await, "a", patient());
    let guard = lock.acquire().await.unwrap();
    let first = waiter(&lock, 1).await;
    let impatient = waits(&lock, 2).await;
    let (mine, mut position) = watched_waiter(&lock, 3).await;
    assert_eq!(position.next().await, Some(2), "told by the answer to the acquire");
    impatient.abort();
    let asked = Watch::start();
    assert_eq!((position.next().await, position.now()), (Some(1), Some(1)));
    assert!(asked.awake() < SECOND + MACHINE, "one check: {:?}", asked.awake());
    guard.release().await.unwrap();
    let (next, _) = first.await.unwrap();
    let told = position.next().await;
    assert_eq!(told, Some(0), "it is next");
    next.release().await.unwrap();
    let (held, _) = mine.await.unwrap();
    assert_eq!((position.next().await, position.now()), (None, None), "the wait is over");
    assert_eq!(position.returns(), 0);
    held.release().await.unwrap();
}

#[tokio::test]
async fn a_wait_that_ends_without_a_grant_ends_its_positions() {
    let server = Server::start();
    let lock = lock(&session(&server.url()).await, "a", patient());
    let guard = lock.acquire().await.unwrap();
    let (view, mut position) = lock.watched();
    assert!(view.try_acquire().await.unwrap().is_none());
    assert_eq!(position.next().await, None, "a try does not wait");
    assert!(view.acquire_within(100 * MS).await.is_err());
    assert_eq!((position.now(), position.next().await), (None, None), "timed out");
    let dropped = tokio::time::timeout(100 * MS, view.acquire()).await;
    assert!(dropped.is_err());
    assert_eq!((position.now(), position.next().await), (None, None), "dropped");
    guard.release().await.unwrap();
    let held = view.acquire().await.unwrap();
    assert_eq!(position.next().await, None, "never waited");
    held.release().await.unwrap();
    drop(view);
    assert_eq!(position.next().await, None, "nothing to come");
}

/// The positions of a stream, as any consumer of streams reads it.
async fn all_of(mut position: Position) -> Vec<u64> {
    use std::pin::Pin;
    // `Stream` is what is tried here; `next` of the type is not.
    async fn next<S: futures_core::Stream<Item = u64> + Unpin>(stream: &mut S) -> Option<u64> {
        std::future::poll_fn(|context| Pin::new(&mut *stream).poll_next(context)).await
    }
    let mut all = Vec::new();
    while let Some(before) = next(&mut position).await {
        all.push(before);
    }
    all
}

/// 20 before it, which hold for a while each: the stream goes down to 0, tells no position twice, and at least one a
/// check.
#[tokio::test]
async fn the_stream_of_positions_goes_down_to_the_grant() {
    let server = Server::start();
    let lock = lock(&session(&server.url()).await, "a", patient());
    let guard = lock.acquire().await.unwrap();
    let mut tasks = Vec::new();
    for standing in 1..=20 {
        let waiting = lock.clone();
        tasks.push(tokio::spawn(async move {
            let guard = waiting.acquire().await.unwrap();
            tokio::time::sleep(200 * MS).await;
            guard.release().await.unwrap();
        }));
        queued(&lock, standing).await;
    }
    let (mine, position) = watched_waiter(&lock, 21).await;
    let stream = tokio::spawn(all_of(position));
    let began = Instant::now();
    guard.release().await.unwrap();
    let (held, at) = mine.await.unwrap();
    held.release().await.unwrap();
    let told = stream.await.unwrap();
    println!("positions told in {:?}: {told:?}", at - began);
    assert_eq!(told[0], 20);
    assert!(told.is_sorted_by(|earlier, later| earlier > later), "{told:?}");
    let least = (at - began).as_secs_f64() / 1.5;
    assert!(told.len() as f64 >= least, "{} in {:?}", told.len(), at - began);
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test]
async fn the_queue_is_listed_with_labels_and_waiting_times() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let guard = lock(&session, "a", Options::default()).acquire().await.unwrap();
    let mut waiting = Vec::new();
    for (standing, label) in [(1, "first"), (2, "second")] {
        let lock = lock(&session, "a", patient().label(label));
        waiting.push(waiter(&lock, standing).await);
        tokio::time::sleep(150 * MS).await;
    }
    let queue = lock(&session, "a", patient()).queue().await.unwrap();
    assert_eq!(queue.length, 2);
    let listed: Vec<_> = queue.waiters.iter().map(|one| (one.position, &*one.label)).collect();
    assert_eq!(listed, [(0, "first"), (1, "second")]);
    assert!(queue.waiters.iter().all(|one| one.alive && one.pid == std::process::id()));
    let waited: Vec<_> = queue.waiters.iter().map(|one| one.waiting_for).collect();
    assert!(waited[0] >= waited[1] + 100 * MS && waited[1] >= 100 * MS, "{waited:?}");
    guard.release().await.unwrap();
    for waiter in waiting {
        waiter.await.unwrap().0.release().await.unwrap();
    }
}

#[tokio::test]
async fn an_operator_cancels_one_waiter_and_the_order_of_the_others_stays() {
    let server = Server::start();
    let (jobs, operator) = (session(&server.url()).await, session(&server.url()).await);
    let (lock, operator) = (lock(&jobs, "a", patient()), lock(&operator, "a", patient()));
    let guard = lock.acquire().await.unwrap();
    let first = waiter(&lock, 1).await;
    let cancelled = waits(&lock, 2).await;
    let last = waiter(&lock, 3).await;
    let listed = operator.queue().await.unwrap().waiters;
    assert!(operator.cancel(&listed[1]).await.unwrap());
    let began = Watch::start();
    let error = error_of(cancelled).await;
    assert!(matches!(error, AcquireError::Cancelled), "{error:?}");
    assert!(began.awake() < MACHINE, "by the message: {:?}", began.awake());
    assert_eq!(operator.queue_length().await.unwrap(), 2);
    // Nothing brings it back: two checks of its process pass.
    let checks = jobs.statistics().checks;
    eventually(SOON, "checks", async || jobs.statistics().checks > checks + 1).await;
    assert_eq!(operator.queue_length().await.unwrap(), 2);
    guard.release().await.unwrap();
    let (next, first_at) = first.await.unwrap();
    next.release().await.unwrap();
    let (next, last_at) = last.await.unwrap();
    assert!(first_at < last_at);
    next.release().await.unwrap();
    assert_eq!(jobs.statistics().tracked, 0);
}

/// Ticket and trace name one wait: what was listed once never hits another.
#[tokio::test]
async fn a_cancel_of_who_has_left_hits_nobody() {
    let server = Server::start();
    let lock = lock(&session(&server.url()).await, "a", patient());
    let guard = lock.acquire().await.unwrap();
    let (first, second) = (waiter(&lock, 1).await, waits(&lock, 2).await);
    let listed = lock.queue().await.unwrap().waiters;
    guard.release().await.unwrap();
    let (held, _) = first.await.unwrap();
    assert!(!lock.cancel(&listed[0]).await.unwrap(), "it holds");
    assert!(held.is_held() && lock.is_locked().await.unwrap());
    assert!(lock.cancel(&listed[1]).await.unwrap());
    assert!(lock.cancel(&listed[1]).await.unwrap(), "a repeat answers as the first did");
    assert!(matches!(error_of(second).await, AcquireError::Cancelled));
    let third = waiter(&lock, 1).await;
    for stale in &listed {
        lock.cancel(stale).await.unwrap();
    }
    assert_eq!(lock.queue_length().await.unwrap(), 1, "who came later is left alone");
    held.release().await.unwrap();
    third.await.unwrap().0.release().await.unwrap();
}

/// As above for a ticket that came to be another's: the trace is compared too.
#[tokio::test]
async fn a_cancel_compares_the_trace_too() {
    let server = Server::start();
    let lock = lock(&session(&server.url()).await, "a", patient());
    let guard = lock.acquire().await.unwrap();
    let first = waits(&lock, 1).await;
    let listed = lock.queue().await.unwrap().waiters.remove(0);
    first.abort();
    queued(&lock, 0).await;
    let second = waiter(&lock, 1).await;
    let mut connection = server.connection().await;
    let queue = keys("a").queue;
    let ids: Vec<(String, u64)> = connection.zrange_withscores(&*queue, 0, -1).await.unwrap();
    let _: u64 = connection.zadd(&*queue, &ids[0].0, listed.ticket()).await.unwrap();
    let now = lock.queue().await.unwrap().waiters.remove(0);
    assert_eq!(now.ticket(), listed.ticket(), "the same ticket");
    assert!(!lock.cancel(&listed).await.unwrap());
    assert_eq!(lock.queue_length().await.unwrap(), 1);
    guard.release().await.unwrap();
    second.await.unwrap().0.release().await.unwrap();
}

#[tokio::test]
async fn a_full_queue_refuses_at_once_and_says_when_to_come_back() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let lock = lock(&session, "a", patient().lease(20 * SECOND).max_waiters(2));
    let guard = lock.acquire().await.unwrap();
    let (first, second) = (waiter(&lock, 1).await, waiter(&lock, 2).await);
    let began = Watch::start();
    let error = lock.acquire().await.unwrap_err();
    let AcquireError::Saturated { retry_after, .. } = error else { panic!("{error:?}") };
    assert!(began.awake() < MACHINE, "{:?}", began.awake());
    assert!((10 * SECOND..=20 * SECOND).contains(&retry_after), "{retry_after:?}");
    assert_eq!(lock.queue_length().await.unwrap(), 2);
    guard.release().await.unwrap();
    first.await.unwrap().0.release().await.unwrap();
    let third = waiter(&lock, 1).await;
    drop((second, third));
}

/// Behind a head that lives, dead waiters would stay until it is granted; a full queue looks for them.
#[tokio::test]
async fn dead_waiters_do_not_count_against_the_living() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let lock = lock(&session, "a", patient().max_waiters(5));
    let guard = lock.acquire().await.unwrap();
    let head = waiter(&lock, 1).await;
    let mut connection = server.connection().await;
    for number in 0..4 {
        // Behind it, and their deadline has passed.
        let id = format!("dead{number}|30000|w|nobody");
        let ticket = lock.queue().await.unwrap().waiters[0].ticket() + 1 + number;
        let _: u64 = connection.zadd(&*keys("a").queue, &id, ticket).await.unwrap();
        let _: u64 = connection.hset(&*keys("a").timeouts, &id, "1|nobody|none").await.unwrap();
    }
    queued(&lock, 5).await;
    let last = waiter(&lock, 2).await;
    guard.release().await.unwrap();
    let (next, head_at) = head.await.unwrap();
    next.release().await.unwrap();
    let (next, last_at) = last.await.unwrap();
    assert!(head_at < last_at);
    next.release().await.unwrap();
}

#[tokio::test]
async fn an_owner_enters_again_past_the_queue_with_the_same_token() {
    let server = Server::start();
    let lock = lock(&session(&server.url()).await, "a", patient());
    let outer = lock.acquire().await.unwrap();
    let waiting = waiter(&lock, 1).await;
    let inner = lock.by(outer.owner()).acquire().await.unwrap();
    assert_eq!(outer.fencing_token(), inner.fencing_token());
    assert_eq!(lock.holder().await.unwrap().unwrap().entries, 2);
    outer.release().await.unwrap();
    assert!(!waiting.is_finished() && lock.is_locked().await.unwrap());
    let token = inner.fencing_token();
    inner.release().await.unwrap();
    let (next, _) = waiting.await.unwrap();
    assert!(next.fencing_token() > token);
    next.release().await.unwrap();
}

#[tokio::test]
async fn a_watched_view_of_an_owner_enters_again_and_waits_in_its_turn() {
    let server = Server::start();
    let lock = lock(&session(&server.url()).await, "a", patient());
    let outer = lock.acquire().await.unwrap();
    let (view, mut position) = lock.watched();
    let inner = view.by(outer.owner()).acquire().await.unwrap();
    assert_eq!(position.next().await, None, "it did not wait");
    inner.release().await.unwrap();
    let stranger = view.by(&leasehold_fair_lock::Owner::new());
    let waiting = tokio::spawn(async move { stranger.acquire().await });
    assert_eq!(position.next().await, Some(0));
    outer.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn loss_is_told_and_the_waiters_keep_their_order() {
    let server = Server::start();
    let told = Told::default();
    let builder = leasehold_fair_lock::Session::builder(&server.url()).unwrap();
    let losing = told.by(builder).connect().await.unwrap();
    let other = session(&server.url()).await;
    let (mine, lock) = (lock(&losing, "a", patient()), lock(&other, "a", patient()));
    let guard = mine.acquire().await.unwrap();
    let (first, second) = (waiter(&lock, 1).await, waiter(&lock, 2).await);
    assert_eq!(lock.force_release().await.unwrap().unwrap().trace, guard.trace());
    let reason = tokio::time::timeout(SOON, guard.lost()).await.unwrap();
    assert_eq!(reason, LostReason::ForceReleased);
    assert_eq!(why(guard.release().await), LostReason::ForceReleased);
    eventually(SOON, "the event follows", async || told.count(lost) == 1).await;
    let (next, first_at) = first.await.unwrap();
    next.release().await.unwrap();
    let (next, second_at) = second.await.unwrap();
    assert!(first_at < second_at);
    next.release().await.unwrap();
}

#[tokio::test]
async fn a_hold_is_adopted_past_the_queue() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let (first, second) = (lock(&one, "a", patient()), lock(&two, "a", patient()));
    let guard = first.acquire().await.unwrap();
    let waiting = waiter(&first, 1).await;
    let token = guard.fencing_token();
    let adopted = second.adopt(&guard.detach()).await.unwrap();
    assert_eq!(adopted.fencing_token(), token);
    adopted.release().await.unwrap();
    waiting.await.unwrap().0.release().await.unwrap();
}

/// DESIGN §5: DBSIZE 0, apart from the fence memory, which is a second here.
#[tokio::test]
async fn a_quiet_system_leaves_no_key() {
    let server = Server::start();
    let builder = leasehold_fair_lock::Session::builder(&server.url()).unwrap();
    let session = builder.fence_memory(SECOND).connect().await.unwrap();
    let lock = lock(&session, "a", patient());
    let guard = lock.acquire().await.unwrap();
    let (first, second) = (waiter(&lock, 1).await, waiter(&lock, 2).await);
    guard.release().await.unwrap();
    first.await.unwrap().0.release().await.unwrap();
    second.await.unwrap().0.release().await.unwrap();
    assert_eq!(keys_left(&server).await, [""; 0]);
    session.shutdown(SOON).await.unwrap();
    eventually(SOON, "the token ends too", async || server.dbsize().await == 0).await;
}
