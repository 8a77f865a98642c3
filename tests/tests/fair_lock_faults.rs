//! The fair lock over a link that loses messages and answers: cancels are told, nobody is cancelled twice, the order stays.

use std::sync::{Arc, Mutex as Lock};
use std::time::Duration;

use leasehold_fair_lock::{AcquireError, BackendErrorKind, FairLock, Options, Session};
use leasehold_tests::fair::{brisk, lock, queued, waiter, watched_waiter};
use leasehold_tests::rig::Watch;
use leasehold_tests::scene::{SOON, hash_of, keys_left, session};
use leasehold_tests::{FaultProxy, Pick, Server, eventually};
use tokio::task::JoinHandle;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// For two cores that do other work too.
const MACHINE: Duration = Duration::from_millis(500);

fn patient() -> Options {
    Options::default().max_wait(30 * SECOND)
}

/// A session behind a proxy, which asks again after 300 ms without an answer.
async fn behind(proxy: &FaultProxy) -> Session {
    brisk(proxy.url()).response_timeout(300 * MS).connect().await.expect("a session")
}

fn acquires(lock: &FairLock) -> JoinHandle<Result<(), AcquireError>> {
    let lock = lock.clone();
    tokio::spawn(async move { lock.acquire().await.map(drop) })
}

async fn is_cancelled(waiting: JoinHandle<Result<(), AcquireError>>) {
    let ended = tokio::time::timeout(SOON, waiting).await.expect("in time");
    let ended = ended.expect("no panic inside");
    assert!(matches!(ended, Err(AcquireError::Cancelled)), "{ended:?}");
}

/// Nothing depends on a message (I11).
#[tokio::test]
async fn a_cancel_whose_message_is_lost_is_told_by_the_check() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let far = behind(&proxy).await;
    let near = lock(&session(&server.url()).await, "a", patient());
    let guard = near.acquire().await.unwrap();
    let waiting = acquires(&lock(&far, "a", patient()));
    queued(&near, 1).await;
    proxy.drop_pushes(true);
    let began = Watch::start();
    assert!(near.cancel(&near.queue().await.unwrap().waiters[0]).await.unwrap());
    is_cancelled(waiting).await;
    println!("told after {:?}", began.elapsed());
    assert!(began.awake() < SECOND + MACHINE, "{:?}", began.awake());
    assert_eq!(proxy.pushes_dropped(), 1);
    eventually(SOON, "nothing is tracked", async || far.statistics().tracked == 0).await;
    guard.release().await.unwrap();
    assert_eq!(keys_left(&server).await, [""; 0]);
}

/// The answer to the acquire is lost, and so is the message: the copy that is sent again finds the mark.
#[tokio::test]
async fn a_cancel_is_told_by_the_acquire_that_is_sent_again() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let far = behind(&proxy).await;
    let near = lock(&session(&server.url()).await, "a", patient());
    let guard = near.acquire().await.unwrap();
    proxy.drop_pushes(true);
    proxy.drop_replies(Pick::next(1).containing(hash_of("acquire")));
    let waiting = acquires(&lock(&far, "a", patient()));
    queued(&near, 1).await;
    assert!(near.cancel(&near.queue().await.unwrap().waiters[0]).await.unwrap());
    is_cancelled(waiting).await;
    assert_eq!((proxy.replies_dropped(), proxy.pushes_dropped()), (1, 1));
    assert_eq!(near.queue_length().await.unwrap(), 0, "the copy did not queue");
    eventually(SOON, "nothing is tracked", async || far.statistics().tracked == 0).await;
    guard.release().await.unwrap();
}

/// I6: an operator who hears nothing repeats the cancel. It answers what the first one did, and hits nobody else.
#[tokio::test]
async fn a_cancel_that_is_repeated_hits_just_one() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let operator = lock(&behind(&proxy).await, "a", patient());
    let near = lock(&session(&server.url()).await, "a", patient());
    let guard = near.acquire().await.unwrap();
    // The server has to know the script, else the answer that is lost says that it does not.
    let gone = acquires(&near);
    queued(&near, 1).await;
    assert!(operator.cancel(&operator.queue().await.unwrap().waiters[0]).await.unwrap());
    is_cancelled(gone).await;
    let first = acquires(&near);
    queued(&near, 1).await;
    let second = waiter(&near, 2).await;
    let listed = operator.queue().await.unwrap().waiters;
    proxy.drop_replies(Pick::next(1).containing("EVALSHA"));
    let mut unheard = 0;
    let cancelled = loop {
        match operator.cancel(&listed[0]).await {
            Ok(cancelled) => break cancelled,
            Err(error) => assert_eq!(error.kind(), BackendErrorKind::Unreachable),
        }
        unheard += 1;
    };
    println!("heard after {unheard} cancels without an answer");
    assert!(cancelled && (1..5).contains(&unheard));
    is_cancelled(first).await;
    assert_eq!((proxy.replies_dropped(), near.queue_length().await.unwrap()), (1, 1));
    guard.release().await.unwrap();
    second.await.unwrap().0.release().await.unwrap();
}

/// Positions come with the checks: no message brings them.
#[tokio::test]
async fn positions_are_told_while_messages_are_lost() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let near = lock(&session(&server.url()).await, "a", patient());
    let far = lock(&behind(&proxy).await, "a", patient());
    let guard = near.acquire().await.unwrap();
    let first = waiter(&near, 1).await;
    let (second, mut position) = watched_waiter(&far, 2).await;
    assert_eq!(position.next().await, Some(1));
    proxy.drop_pushes(true);
    guard.release().await.unwrap();
    let (next, _) = first.await.unwrap();
    assert_eq!(position.next().await, Some(0));
    next.release().await.unwrap();
    second.await.unwrap().0.release().await.unwrap();
    assert_eq!(position.next().await, None);
}

/// One of five answers is lost, of every call: who stands in the queue is granted in just that order.
#[tokio::test]
async fn the_order_outlives_lost_answers() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let far = lock(&behind(&proxy).await, "a", patient());
    let near = lock(&session(&server.url()).await, "a", patient());
    let guard = near.acquire().await.unwrap();
    proxy.drop_replies(Pick::at_random(20, 7));
    let held = Arc::new(Lock::new(Vec::new()));
    let mut tasks = Vec::new();
    for _ in 0..30 {
        let (lock, held) = (far.clone(), held.clone());
        tasks.push(tokio::spawn(async move {
            let guard = lock.acquire().await.expect("a hold");
            held.lock().expect("no panic inside").push((guard.trace(), guard.fencing_token()));
            drop(guard.release().await); // its answer may be lost for good
        }));
    }
    queued(&near, 30).await;
    let arrived: Vec<_> =
        near.queue().await.unwrap().waiters.into_iter().map(|waiter| waiter.trace).collect();
    guard.release().await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    let held = held.lock().unwrap().clone();
    println!("{} answers were lost", proxy.replies_dropped());
    assert!(proxy.replies_dropped() > 5);
    assert_eq!(held.iter().map(|(trace, _)| *trace).collect::<Vec<_>>(), arrived);
    assert!(held.is_sorted_by(|(_, earlier), (_, later)| earlier < later), "I5: {held:?}");
}
