//! A push that says "never fits" and arrives late: a check was quicker, and the waiter stands in the queue again because
//! the limit was raised meanwhile. Found by the model of the hand-off (handoff_model.rs, `RefusalEnded`).

use std::time::Duration;

use leasehold_mutex::{AcquireError, Options};
use leasehold_tests::scene::{keys, mutex, queued, session};
use leasehold_tests::{Server, eventually};

/// Far less than the 10 s after which the server would give a silent waiter up.
const SOON: Duration = Duration::from_secs(3);

/// The message is the same for every kind, so that a mutex and a message of our own show it without a race.
#[tokio::test]
async fn a_refusal_of_the_past_leaves_no_waiter_behind() {
    let server = Server::start();
    let (holds, waits) = (session(&server.url()).await, session(&server.url()).await);
    let guard = mutex(&holds, "a", Options::default()).acquire().await.unwrap();
    let waiter = mutex(&waits, "a", Options::default());
    let waiting = tokio::spawn(async move { waiter.acquire_within(Duration::from_secs(60)).await });
    queued(&server, "a", 1).await;

    let mut connection = server.connection().await;
    let queue = keys("a").queue;
    let ids: Vec<String> = redis::cmd("ZRANGE")
        .arg(&queue[..])
        .arg(0)
        .arg(-1)
        .query_async(&mut connection)
        .await
        .unwrap();
    let parts: Vec<&str> = ids[0].splitn(4, '|').collect();
    let refusal = format!("{} 5", parts[0]);
    let heard: u64 = redis::cmd("PUBLISH")
        .arg(parts[3])
        .arg(refusal)
        .query_async(&mut connection)
        .await
        .unwrap();
    assert_eq!(heard, 1);

    let refused = waiting.await.unwrap();
    assert!(matches!(refused, Err(AcquireError::NeverFits)), "{refused:?}");
    eventually(SOON, "it has left the queue (I9)", async || {
        redis::cmd("EXISTS").arg(&queue[..]).query_async::<u64>(&mut connection).await.unwrap() == 0
    })
    .await;
    guard.release().await.unwrap();
    eventually(SOON, "it is forgotten", async || waits.statistics().tracked == 0).await;
}
