//! The fault proxy does what it is told, to the command, and nothing when told nothing.

use std::time::{Duration, Instant};

use leasehold_tests::{FaultProxy, Pick, Server, eventually};
use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands, AsyncConnectionConfig, PushInfo, PushKind, RedisResult, Value};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Far above what any step takes, also on a loaded machine.
const SOON: Duration = Duration::from_secs(10);

async fn incr(connection: &mut MultiplexedConnection) -> RedisResult<u64> {
    connection.incr("count", 1).await
}

/// The count as the server has it, asked past the proxy.
async fn count(server: &Server) -> Option<u64> {
    server.connection().await.get("count").await.expect("a count")
}

#[tokio::test]
async fn without_faults_everything_passes() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let mut connection = proxy.connection().await;
    for expected in 1..=100 {
        assert_eq!(incr(&mut connection).await.unwrap(), expected);
    }
    let large = vec![b'x'; 1 << 20];
    let _: () = connection.set("large", &large).await.unwrap();
    assert_eq!(connection.get::<_, Vec<u8>>("large").await.unwrap(), large);
    assert_eq!((proxy.commands("incrby"), proxy.connections()), (100, 1));
    assert_eq!((proxy.replies_dropped(), proxy.pushes_dropped()), (0, 0));
}

#[tokio::test]
async fn delay_is_kept_and_does_not_add_up() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let connection = proxy.connection().await;
    proxy.delay(Duration::from_millis(20));
    let begin = Instant::now();
    let calls: Vec<_> = (0..100)
        .map(|_| {
            let mut connection = connection.clone();
            tokio::spawn(async move { incr(&mut connection).await })
        })
        .collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    // 100 calls one after the other would take 4 s.
    let taken = begin.elapsed();
    assert!((40..1_000).contains(&taken.as_millis()), "{taken:?} for a delay of 2 x 20 ms");
}

#[tokio::test]
async fn lost_reply_leaves_the_command_done_and_the_link_silent() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let mut connection = proxy.connection().await;
    assert_eq!(incr(&mut connection).await.unwrap(), 1);
    proxy.drop_replies(Pick::next(1).containing("INCRBY"));
    assert!(incr(&mut connection).await.unwrap_err().is_timeout());
    assert!(incr(&mut connection).await.unwrap_err().is_timeout());
    assert_eq!(count(&server).await, Some(3));
    assert_eq!(proxy.replies_dropped(), 1);
    assert_eq!(incr(&mut proxy.connection().await).await.unwrap(), 4);
}

#[tokio::test]
async fn replaced_reply_hits_its_command_only() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let mut connection = proxy.connection().await;
    proxy.replace_replies(Pick::every(3).containing("INCRBY"), "-TRYAGAIN later");
    let mut failed = Vec::new();
    for number in 1..=9 {
        match incr(&mut connection).await {
            Ok(count) => assert_eq!(count, number, "a reply went to the wrong command"),
            Err(error) => failed.push((number, error.code().map(str::to_owned))),
        }
    }
    let tryagain = Some("TRYAGAIN".to_owned());
    assert_eq!(failed, [3, 6, 9].map(|number| (number, tryagain.clone())));
    assert_eq!(count(&server).await, Some(9));
}

#[tokio::test]
async fn link_is_cut_after_the_request_was_delivered() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let mut connection = proxy.connection().await;
    proxy.cut_after_request(Pick::next(1).containing("INCRBY"));
    let error = incr(&mut connection).await.unwrap_err();
    assert!(error.is_connection_dropped(), "{error:?}");
    eventually(SOON, "the command ran", async || count(&server).await == Some(1)).await;
    assert_eq!(incr(&mut proxy.connection().await).await.unwrap(), 2);
}

#[tokio::test]
async fn link_is_cut_in_the_middle_of_a_reply() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let mut connection = proxy.connection().await;
    proxy.cut_mid_reply(Pick::next(1).containing("INCRBY"));
    let error = incr(&mut connection).await.unwrap_err();
    assert!(error.is_unrecoverable_error() && !error.is_timeout(), "{error:?}");
    assert_eq!(count(&server).await, Some(1), "the command ran");
    assert_eq!(incr(&mut proxy.connection().await).await.unwrap(), 2);
}

#[tokio::test]
async fn black_hole_of_one_way_leaves_the_other() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let (mut asking, mut telling) = (proxy.connection().await, proxy.connection().await);
    proxy.black_hole_ways(false, true);
    assert!(incr(&mut asking).await.unwrap_err().is_timeout());
    assert_eq!(count(&server).await, Some(1), "the request arrived");
    proxy.black_hole_ways(true, false);
    assert!(incr(&mut telling).await.unwrap_err().is_timeout());
    assert_eq!(count(&server).await, Some(1), "the request did not arrive");
    proxy.black_hole(false);
    assert_eq!(incr(&mut proxy.connection().await).await.unwrap(), 2);
}

#[tokio::test]
async fn black_hole_swallows_both_ways_and_closes_nothing() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let mut connection = proxy.connection().await;
    proxy.black_hole(true);
    assert!(incr(&mut connection).await.unwrap_err().is_timeout());
    assert_eq!(count(&server).await, None);
    proxy.black_hole(false);
    // The link has lost bytes and stays silent; a new one works.
    assert!(incr(&mut connection).await.unwrap_err().is_timeout());
    assert_eq!(incr(&mut proxy.connection().await).await.unwrap(), 1);
}

#[tokio::test]
async fn black_hole_hides_the_end_of_a_client() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let (connection, _messages) = subscribed(&proxy).await;
    proxy.black_hole(true);
    drop(connection);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(publish(&server, "lost").await, 1, "the server still counts the subscriber");
    proxy.black_hole(false);
    let gone = async || publish(&server, "after").await == 0;
    eventually(SOON, "the server sees the end", gone).await;
}

#[tokio::test]
async fn refused_connections_fail_and_open_ones_stay() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let mut connection = proxy.connection().await;
    proxy.refuse(true);
    assert!(proxy.client().get_multiplexed_async_connection().await.is_err());
    assert_eq!(incr(&mut connection).await.unwrap(), 1);
    proxy.refuse(false);
    assert_eq!(incr(&mut proxy.connection().await).await.unwrap(), 2);
}

#[tokio::test]
async fn cut_breaks_open_links_once() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let mut connection = proxy.connection().await;
    proxy.cut();
    assert!(incr(&mut connection).await.is_err());
    assert_eq!(incr(&mut proxy.connection().await).await.unwrap(), 1);
}

#[tokio::test]
async fn proxy_leads_to_a_restarted_server() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    server.kill();
    assert!(proxy.client().get_multiplexed_async_connection().await.is_err());
    server.restart();
    assert_eq!(incr(&mut proxy.connection().await).await.unwrap(), 1);
}

#[tokio::test]
async fn dropped_pushes_do_not_arrive_and_confirmations_do() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    proxy.drop_pushes(true);
    let (mut connection, mut messages) = subscribed(&proxy).await;
    for text in ["one", "two", "three"] {
        assert_eq!(publish(&server, text).await, 1);
    }
    eventually(SOON, "all are dropped", async || proxy.pushes_dropped() == 3).await;
    proxy.drop_pushes(false);
    assert_eq!(publish(&server, "four").await, 1);
    assert_eq!(message(&mut messages).await, "four");
    // Replies and pushes on one link do not disturb each other.
    assert_eq!(incr(&mut connection).await.unwrap(), 1);
}

#[tokio::test]
async fn subscriptions_keep_replies_with_their_commands() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let (mut connection, _messages) = subscribed(&proxy).await;
    connection.subscribe(&["two", "three"]).await.unwrap();
    connection.unsubscribe(&["two", "inbox"]).await.unwrap();
    proxy.replace_replies(Pick::next(1).containing("INCRBY"), "-TRYAGAIN later");
    let answers = (incr(&mut connection).await, incr(&mut connection).await);
    assert!(answers.0.is_err());
    assert_eq!(answers.1.unwrap(), 2);
}

/// A connection through the proxy that is subscribed to `inbox`.
async fn subscribed(proxy: &FaultProxy) -> (MultiplexedConnection, UnboundedReceiver<PushInfo>) {
    let (sender, messages) = unbounded_channel();
    let config = AsyncConnectionConfig::new().set_push_sender(sender);
    let client = proxy.client();
    let mut connection =
        client.get_multiplexed_async_connection_with_config(&config).await.expect("a connection");
    connection.subscribe("inbox").await.expect("a confirmation");
    (connection, messages)
}

async fn publish(server: &Server, text: &str) -> u64 {
    server.connection().await.publish("inbox", text).await.expect("PUBLISH")
}

/// The text of the next message; other pushes are passed over.
async fn message(messages: &mut UnboundedReceiver<PushInfo>) -> String {
    let next = async {
        loop {
            let push = messages.recv().await.expect("an open connection");
            if push.kind == PushKind::Message {
                return push.data.into_iter().nth(1).unwrap_or(Value::Nil);
            }
        }
    };
    let text = tokio::time::timeout(SOON, next).await.expect("a message");
    redis::from_redis_value(text).expect("a text")
}
