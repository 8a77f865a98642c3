//! The latch under lost replies, lost messages, dead processes and servers.

use std::time::{Duration, Instant};

use leasehold_latch::{BackendErrorKind, Latch, LatchError, LatchOptions};
use leasehold_tests::latch::{hash_of, keys, keys_left, latch, listening, waiter, waiting};
use leasehold_tests::rig::{Monitor, kill_connections};
use leasehold_tests::scene::{SOON, say, session};
use leasehold_tests::{FaultProxy, Pick, Server, Worker, eventually, rounds};
use redis::AsyncCommands;

const WORKER: &str = env!("CARGO_BIN_EXE_latch_worker");
const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn hour() -> LatchOptions {
    LatchOptions::default()
}

fn kind_of(error: &LatchError) -> Option<BackendErrorKind> {
    match error {
        LatchError::Backend { source, .. } | LatchError::Unknown { source, .. } => {
            Some(source.kind())
        }
        LatchError::NotArmed { .. }
        | LatchError::Expired { .. }
        | LatchError::Reset { .. }
        | LatchError::TimedOut { .. }
        | LatchError::Closed
        | LatchError::Config(_)
        | _ => None,
    }
}

/// I6: the reply of each call is lost once; its resend is answered as the first copy was.
#[tokio::test]
async fn a_resend_of_each_call_does_nothing_twice() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let (one, two) = (session(proxy.url()).await, session(&server.url()).await);
    let (first, second) = (latch(&one, "a", hour()), latch(&two, "a", hour()));
    second.arm(1).await.unwrap();
    second.count_down().await.unwrap();
    second.reset().await.unwrap(); // the scripts are loaded
    for _ in 0..20 {
        let lose = |verb: &str| proxy.cut_after_request(Pick::next(1).containing(hash_of(verb)));
        lose("arm");
        assert!(first.arm(3).await.unwrap(), "the first copy armed it");
        lose("count_down");
        assert_eq!(first.count_down().await.unwrap(), 2);
        lose("count_down");
        assert_eq!(first.count_down_as("x").await.unwrap(), 1);
        assert_eq!(second.count_down_as("x").await.unwrap(), 1);
        lose("look");
        assert_eq!(first.count().await.unwrap(), 1);
        lose("wait");
        let waits = waiter(&first);
        listening(&server, "a", 1).await;
        second.count_down().await.unwrap();
        waits.await.unwrap().0.unwrap();
        lose("reset");
        assert!(first.reset().await.unwrap());
    }
    assert!(proxy.connections() > 100, "the control, links were cut: {}", proxy.connections());
}

/// B33: any command may reach the server twice. Every 10th link is cut behind its request.
#[tokio::test]
async fn b33_counts_equal_the_model_while_links_break() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let (one, two) = (session(proxy.url()).await, session(&server.url()).await);
    let (first, second) = (latch(&one, "a", hour()), latch(&two, "a", hour()));
    let counts = rounds(1000);
    second.arm(counts + 1).await.unwrap();
    proxy.cut_after_request(Pick::every(10).containing(hash_of("count_down")));
    for number in 0..counts {
        let left = match number % 2 {
            0 => first.count_down().await,
            _ => first.count_down_as(number.to_be_bytes()).await,
        };
        assert_eq!(left.unwrap(), u64::from(counts - number));
    }
    assert_eq!(second.count().await.unwrap(), 1);
    assert!(proxy.connections() > u64::from(counts / 10), "the control: {}", proxy.connections());
}

/// A count whose link breaks before its reply, and whose resend arrives when `meanwhile` has happened.
async fn count_resent_after(
    server: &Server,
    proxy: &FaultProxy,
    counts: &Latch,
    meanwhile: impl AsyncFnOnce(),
) -> LatchError {
    let ran = async || server.command_calls().await.of(&["evalsha"]);
    let before = ran().await;
    // Links that are open stay; the one that breaks cannot be made anew.
    proxy.refuse(true);
    proxy.cut_after_request(Pick::next(1).containing(hash_of("count_down")));
    let counting = tokio::spawn({
        let counts = counts.clone();
        async move { counts.count_down_as("job").await }
    });
    // Nothing else runs scripts here.
    eventually(SOON, "it has run", async || ran().await > before).await;
    meanwhile().await;
    assert!(!counting.is_finished());
    proxy.refuse(false);
    counting.await.expect("no panic inside").expect_err("not told as counted")
}

/// I6, I15: a resend that meets a later generation does not count there, and says so.
#[tokio::test]
async fn a_resend_in_a_later_generation_counts_nothing() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let (one, two) = (session(proxy.url()).await, session(&server.url()).await);
    let (first, second) = (latch(&one, "a", hour()), latch(&two, "a", hour()));
    second.arm(5).await.unwrap();
    for again in [true, false] {
        first.count_down().await.unwrap(); // it knows the generation
        let error = count_resent_after(&server, &proxy, &first, async || {
            assert_eq!(second.count().await.unwrap(), 3, "the first copy counted");
            assert!(second.reset().await.unwrap());
            if again {
                assert!(second.arm(5).await.unwrap());
            }
        })
        .await;
        assert!(matches!(error, LatchError::Reset { .. }), "{error:?}");
        if again {
            assert_eq!(second.count().await.unwrap(), 5, "nothing was counted");
        }
    }
    second.arm(1).await.unwrap();
    assert_eq!(first.count_down_as("job").await.unwrap(), 0, "it may be repeated");
}

/// The same where the latch is gone altogether: whether it counted there, nobody can say.
#[tokio::test]
async fn a_resend_that_finds_no_latch_says_that_it_expired() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let session = session(proxy.url()).await;
    let latch = latch(&session, "a", hour());
    latch.arm(5).await.unwrap();
    latch.count_down().await.unwrap();
    let gone = async || server.flushall().await;
    let error = count_resent_after(&server, &proxy, &latch, gone).await;
    assert!(matches!(error, LatchError::Expired { .. }), "{error:?}");
}

/// Unknown is told from surely not done.
#[tokio::test]
async fn a_call_without_an_answer_says_whether_it_may_have_run() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let builder = leasehold_latch::Session::builder(proxy.url()).unwrap();
    let session = builder.response_timeout(300 * MS).connect().await.unwrap();
    let latch = latch(&session, "a", hour());
    latch.arm(9).await.unwrap();
    latch.count_down().await.unwrap();
    proxy.drop_replies(Pick::all().containing(hash_of("count_down")));
    let error = latch.count_down().await.unwrap_err();
    assert!(matches!(error, LatchError::Unknown { .. }), "{error:?}");
    assert_eq!(kind_of(&error), Some(BackendErrorKind::Unreachable));
    assert!(error.to_string().contains("the latch a got no answer"), "{error}");
    proxy.drop_replies(Pick::none());
    eventually(SOON, "it had counted", async || latch.count().await.is_ok_and(|left| left == 7))
        .await;
    proxy.refuse(true);
    proxy.cut();
    // A link that broke under nothing: nothing was sent.
    eventually(SOON, "surely not", async || {
        matches!(latch.count_down().await, Err(LatchError::Backend { .. }))
    })
    .await;
    let unreachable = latch.wait_within(300 * MS).await.unwrap_err();
    assert!(matches!(unreachable, LatchError::Backend { .. }), "{unreachable:?}");
    assert_eq!(kind_of(&unreachable), Some(BackendErrorKind::Unreachable));
}

/// B50: the inbox breaks while tasks wait; after it is open again it was looked at, and pushes arrive.
#[tokio::test]
async fn b50_a_killed_inbox_costs_nobody_the_news() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let (first, second) = (latch(&one, "a", hour()), latch(&two, "a", hour()));
    for _ in 0..5 {
        first.arm(1).await.unwrap();
        let waits = waiter(&second);
        waiting(&server, "a", &two, 1).await;
        assert!(kill_connections(&server, "pubsub").await >= 2);
        first.count_down().await.unwrap();
        let counted = Instant::now();
        let (outcome, at) = waits.await.unwrap();
        outcome.unwrap();
        // A look was just made, so without the inbox telling of its end the next would be 750 ms away at the least.
        assert!(at - counted < 600 * MS, "{:?}", at - counted);
        first.reset().await.unwrap();
        let inboxes = async || leasehold_tests::scene::inboxes(&server).await == 2;
        eventually(SOON, "both inboxes are open", inboxes).await;
    }
}

/// A server that restarts without its data has no latch: that is an error, never "open" (I15).
#[tokio::test]
async fn a_restart_without_data_expires_the_latch() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let latch = latch(&session, "a", hour());
    latch.arm(1).await.unwrap();
    let waits = waiter(&latch);
    waiting(&server, "a", &session, 1).await;
    server.kill();
    tokio::time::sleep(300 * MS).await;
    assert!(!waits.is_finished(), "while nothing is known it goes on waiting");
    server.restart();
    let back = Instant::now();
    let (outcome, at) = waits.await.unwrap();
    assert!(matches!(outcome, Err(LatchError::Expired { .. })), "{outcome:?}");
    assert!(at.saturating_duration_since(back) < 2 * SECOND);
    assert!(latch.arm(1).await.unwrap());
    let waits = waiter(&latch);
    listening(&server, "a", 1).await;
    assert_eq!(latch.count_down().await.unwrap(), 0);
    waits.await.unwrap().0.unwrap();
}

/// Processes that die: a dead waiter costs nothing, a dead counter is told by the expiry.
#[tokio::test]
async fn killed_processes_hold_nobody_up() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let latch = latch(&session, "a", hour().expires_after(2 * SECOND));
    let mut waits = Worker::start(WORKER, &server.url(), "a", 2 * SECOND).await;
    let mut counts = Worker::start(WORKER, &server.url(), "a", 2 * SECOND).await;
    assert!(latch.arm(2).await.unwrap());
    let (own, mut other) =
        (waiter(&latch), Worker::start(WORKER, &server.url(), "a", SECOND).await);
    waits.say("wait");
    other.say("wait");
    listening(&server, "a", 3).await;
    waits.kill();
    assert_eq!(counts.ask("count_down").await, "left 1");
    assert_eq!(latch.count_down().await.unwrap(), 0);
    own.await.unwrap().0.unwrap();
    assert_eq!(other.hear().await, "open");
    // Now the one that should count dies.
    assert!(latch.reset().await.unwrap() && latch.arm(2).await.unwrap());
    let own = waiter(&latch);
    other.say("wait");
    listening(&server, "a", 2).await;
    assert_eq!(counts.ask("count_down").await, "left 1");
    counts.kill();
    let expired = own.await.unwrap().0;
    assert!(matches!(expired, Err(LatchError::Expired { .. })), "{expired:?}");
    assert!(other.hear().await.starts_with("failed Expired"));
    assert_eq!(other.ask("arm 1").await, "armed true");
}

/// B22: killed at any moment, no process leaves a key without an end.
#[tokio::test]
async fn b22_a_killed_client_leaves_no_key_without_an_end() {
    let server = Server::start();
    for round in 0..rounds(100) {
        let name = format!("b22-{round}");
        let mut worker = Worker::start(WORKER, &server.url(), &name, 60 * SECOND).await;
        worker.ask("spin").await;
        let begun = async || {
            server
                .keys()
                .await
                .iter()
                .any(|key| key.windows(name.len()).any(|part| part == name.as_bytes()))
        };
        eventually(SOON, "it has begun", begun).await;
        tokio::time::sleep(Duration::from_micros(u64::from(round * 37 % 5000))).await;
        worker.kill();
        let mut connection = server.connection().await;
        for key in server.keys().await {
            let ttl: i64 = connection.pttl(&key).await.unwrap();
            assert_ne!(ttl, -1, "I17: {} never ends", key.escape_ascii());
        }
    }
}

/// I15: those who counted are lost alone. What kept an id from counting twice is gone, so the latch is too.
#[tokio::test]
async fn a_latch_whose_ids_are_lost_does_not_open_early() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let latch = latch(&session, "a", hour());
    latch.arm(2).await.unwrap();
    latch.count_down_as("shard-1").await.unwrap();
    let waits = waiter(&latch);
    listening(&server, "a", 1).await;
    let _: u64 = server.connection().await.del(&*keys("a").ids).await.unwrap();
    assert!(matches!(latch.count_down_as("shard-1").await, Err(LatchError::NotArmed { .. })));
    let outcome = waits.await.unwrap().0;
    assert!(matches!(outcome, Err(LatchError::Expired { .. })), "{outcome:?}");
    assert!(latch.arm(1).await.unwrap());
    assert_eq!(latch.count_down_as("shard-1").await.unwrap(), 0);
}

/// B90: whichever key is lost, idle or waited for: it is told, and the next use works.
#[tokio::test]
async fn b90_any_lost_key_leaves_a_latch_that_can_be_used() {
    let server = Server::start();
    let session = session(&server.url()).await;
    for which in 0..3 {
        for waited in [false, true] {
            let name = format!("{which} {waited}");
            let latch = latch(&session, &name, hour());
            latch.arm(2).await.unwrap();
            latch.count_down().await.unwrap();
            let waits = waited.then(|| waiter(&latch));
            listening(&server, &name, u64::from(waited)).await;
            let keys = keys(&name);
            let key = [&keys.latch, &keys.ids, &keys.waiters][which];
            let _: u64 = server.connection().await.del(&**key).await.unwrap();
            let counted = latch.count_down().await;
            match which {
                2 => assert_eq!(counted.unwrap(), 0),
                _ => assert!(matches!(counted, Err(LatchError::NotArmed { .. })), "{counted:?}"),
            }
            if let Some(waits) = waits {
                let begin = Instant::now();
                let (outcome, at) = waits.await.unwrap();
                match which {
                    2 => outcome.unwrap(),
                    _ => assert!(matches!(outcome, Err(LatchError::Expired { .. })), "{outcome:?}"),
                }
                // The check, and what the machine needs.
                assert!(at.saturating_duration_since(begin) < 2 * SECOND);
            }
            latch.reset().await.unwrap();
            assert!(latch.arm(1).await.unwrap(), "{name}");
            let waits = waiter(&latch);
            listening(&server, &name, 1).await;
            assert_eq!(latch.count_down().await.unwrap(), 0);
            waits.await.unwrap().0.unwrap();
        }
    }
}

/// At maxmemory nothing new begins, but what was begun can be finished.
#[tokio::test]
async fn at_maxmemory_counting_waiting_and_resetting_go_on() {
    let server = Server::builder().arg("--maxmemory-policy", "noeviction").start();
    let session = session(&server.url()).await;
    let (armed, fresh) = (latch(&session, "a", hour()), latch(&session, "b", hour()));
    armed.arm(3).await.unwrap();
    armed.count_down().await.unwrap();
    say(&server, &["CONFIG", "SET", "maxmemory", "1"]).await;
    let refused = fresh.arm(1).await.unwrap_err();
    assert!(matches!(refused, LatchError::Backend { .. }), "{refused:?}");
    assert_eq!(kind_of(&refused), Some(BackendErrorKind::OutOfMemory));
    let waits = waiter(&armed);
    listening(&server, "a", 1).await;
    assert_eq!(armed.count_down().await.unwrap(), 1);
    assert_eq!(armed.count_down_as("x").await.unwrap(), 0);
    waits.await.unwrap().0.unwrap();
    assert!(armed.reset().await.unwrap());
    say(&server, &["CONFIG", "SET", "maxmemory", "0"]).await;
    assert!(fresh.arm(1).await.unwrap());
    fresh.reset().await.unwrap();
    assert_eq!(keys_left(&server).await, [""; 0]);
}

/// A replica says that it is one, and never "not armed" or "open".
#[tokio::test]
async fn a_replica_answers_no_verdict() {
    let (server, master) = (Server::start(), Server::start());
    let builder = leasehold_latch::Session::builder(&server.url()).unwrap();
    let session = builder.response_timeout(500 * MS).connect().await.unwrap();
    let latch = latch(&session, "a", hour());
    latch.arm(2).await.unwrap();
    let waits = waiter(&latch);
    listening(&server, "a", 1).await;
    let port = master.addr().port().to_string();
    say(&server, &["REPLICAOF", "127.0.0.1", &port]).await;
    // One that knows no generation yet asks first.
    let fresh = leasehold_tests::latch::latch(&session, "a", hour());
    for outcome in [
        latch.count_down().await.map(drop),
        fresh.count_down().await.map(drop),
        latch.arm(1).await.map(drop),
        latch.count().await.map(drop),
        latch.reset().await.map(drop),
        latch.wait_within(Duration::ZERO).await,
        latch.wait_within(500 * MS).await,
    ] {
        let error = outcome.unwrap_err();
        assert_eq!(kind_of(&error), Some(BackendErrorKind::ReadOnly), "{error:?}");
    }
    assert!(!waits.is_finished());
    say(&server, &["REPLICAOF", "NO", "ONE"]).await;
    // Its data may be the other's by now, which has none, or not.
    match latch.count().await {
        Ok(2) => {
            latch.count_down().await.unwrap();
            latch.count_down().await.unwrap();
            waits.await.unwrap().0.unwrap();
        }
        Err(LatchError::NotArmed { .. }) => {
            let outcome = waits.await.unwrap().0;
            assert!(matches!(outcome, Err(LatchError::Expired { .. })), "{outcome:?}");
        }
        other => panic!("{other:?}"),
    }
}

/// I18: of more processes than one call may tell, all are told at once; those that died are passed over.
#[tokio::test]
async fn hundreds_of_processes_are_told_in_bounded_calls() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let (first, second) = (latch(&one, "a", hour()), latch(&two, "a", hour()));
    first.arm(1).await.unwrap();
    let waits = waiter(&second);
    listening(&server, "a", 1).await;
    let mut connection = server.connection().await;
    let now_ms = leasehold_tests::scene::server_ms(&mut connection).await;
    let mut pipeline = redis::pipe();
    for number in 0..350_u64 {
        // Before the living one; the first 50 are dead.
        let until = if number < 50 { now_ms - 1 } else { now_ms + 1000 };
        pipeline.zadd(&*keys("a").waiters, format!("{number}|nobody"), until).ignore();
    }
    let () = pipeline.query_async(&mut connection).await.unwrap();
    let monitor = Monitor::of(&server);
    let counted = Instant::now();
    assert_eq!(first.count_down().await.unwrap(), 0);
    let (outcome, at) = waits.await.unwrap();
    outcome.unwrap();
    assert!(at - counted < SECOND / 2, "by the push and not by a look: {:?}", at - counted);
    listening(&server, "a", 0).await;
    let heard = monitor.heard(&server).await;
    let published = |line: &&String| line.contains("lua] \"PUBLISH\"");
    assert!((301..=351).contains(&heard.iter().filter(published).count()));
    let calls = heard.iter().filter(|line| line.contains(&hash_of("count_down"))).count();
    assert_eq!(calls, 4, "a hundred a call");
}
