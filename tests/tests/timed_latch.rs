//! The latch in time: how soon everybody is told, and what waiting costs.
//!
//! Bounds of the table of behaviours are for a quiet machine; each test states what it adds.

use std::time::{Duration, Instant};

use leasehold_latch::{LatchError, LatchOptions, Session};
use leasehold_tests::latch::{hash_of, latch, listening, waiter, waiting};
use leasehold_tests::rig::{Monitor, awake, kill_connections, span};
use leasehold_tests::scene::{SOON, session};
use leasehold_tests::{FaultProxy, Server, eventually};
use tokio::task::JoinSet;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// For two cores that do other work too.
const MACHINE: Duration = Duration::from_millis(300);

fn hour() -> LatchOptions {
    LatchOptions::default()
}

/// 3 clients with 20 waiters each on a count of 5: all 60 are awake within 500 ms, by one message a process and without
/// asking.
#[tokio::test]
async fn b91_all_waiters_of_all_clients_wake() {
    let server = Server::start();
    let mut sessions = Vec::new();
    for _ in 0..3 {
        sessions.push(session(&server.url()).await);
    }
    let opener = latch(&session(&server.url()).await, "a", hour());
    opener.arm(5).await.unwrap();
    let mut waits = Vec::new();
    for session in &sessions {
        let latch = latch(session, "a", hour());
        waits.extend((0..20).map(|_| waiter(&latch)));
    }
    let all = async || sessions.iter().all(|session| session.statistics().listening == 20);
    eventually(SOON, "60 wait", all).await;
    listening(&server, "a", 3).await;
    for _ in 0..4 {
        opener.count_down().await.unwrap();
    }
    // Just after a look of each, so that none comes by chance; of the last one surely none.
    for session in &sessions {
        let looks = session.statistics().looks;
        eventually(SOON, "a look", async || session.statistics().looks > looks).await;
    }
    let looks = sessions[2].statistics().looks;
    assert!(waits.iter().all(|waits| !waits.is_finished()));
    let monitor = Monitor::of(&server);
    let (begin, counted) = (awake(), Instant::now());
    opener.count_down().await.unwrap();
    let mut last = Duration::ZERO;
    for waits in waits {
        let (outcome, at) = waits.await.unwrap();
        outcome.unwrap();
        last = last.max(at.saturating_duration_since(counted));
    }
    let took = awake() - begin;
    println!("60 waiters awake after {last:?}");
    assert!(took < 500 * MS, "{took:?}");
    let heard = monitor.heard(&server).await;
    let published = heard.iter().filter(|line| line.contains("lua] \"PUBLISH\"")).count();
    assert_eq!(published, 3, "one message a process");
    let asked: Vec<_> = heard.iter().filter(|line| line.contains(&hash_of("wait"))).collect();
    assert!(asked.len() <= 2, "a look by chance at the most: {asked:?}");
    assert_eq!(sessions[2].statistics().looks, looks, "the message told all of them");
}

/// One count of two, then nothing: Expired within 1.0 to 1.5 s of it, and the key is gone. Eight latches, at whatever moment
/// between two looks each ends: a look that comes by its regular pause only would be late for some.
#[tokio::test]
async fn b92_an_abandoned_latch_expires_and_is_not_open() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let mut latches = JoinSet::new();
    for number in 0..8 {
        let sessions = [one.clone(), two.clone()];
        latches.spawn(async move { expires(&sessions, number).await });
    }
    let mut longest = Duration::ZERO;
    while let Some(took) = latches.join_next().await {
        longest = longest.max(took.unwrap());
    }
    println!("expired after {longest:?} at the latest");
    assert!(longest < 1500 * MS, "{longest:?}");
    let keys_of_latches = async || server.keys().await.iter().any(|key| key.ends_with(b"}"));
    assert!(!keys_of_latches().await);
}

/// How long after its only count the waiters of a latch of two were told.
async fn expires(sessions: &[Session; 2], number: u32) -> Duration {
    let name = format!("b92-{number}");
    let [first, second] =
        sessions.each_ref().map(|session| latch(session, &name, hour().expires_after(SECOND)));
    first.arm(2).await.expect("an answer");
    let mut waits: Vec<_> = (0..5).map(|_| waiter(&first)).collect();
    waits.extend((0..5).map(|_| waiter(&second)));
    tokio::time::sleep(400 * MS + 50 * MS * number).await;
    let begin = awake();
    first.count_down().await.expect("an answer");
    let counted = Instant::now();
    for waits in waits {
        let (outcome, at) = waits.await.expect("no panic inside");
        assert!(matches!(outcome, Err(LatchError::Expired { .. })), "{outcome:?}");
        let after = at - counted;
        // The count restarted the time; its reply came back a little later than it ran.
        assert!(after > 980 * MS, "{after:?}");
    }
    let took = awake() - begin;
    assert!(matches!(first.count().await, Err(LatchError::NotArmed { .. })));
    took
}

/// 100 tasks of one process that wait at one latch ask about once a second together.
#[tokio::test]
async fn a_hundred_waiting_tasks_ask_once_a_second() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let session = session(proxy.url()).await;
    let latch = latch(&session, "a", hour());
    latch.arm(1).await.unwrap();
    let before = proxy.commands("evalsha");
    let waits: Vec<_> = (0..100).map(|_| waiter(&latch)).collect();
    waiting(&server, "a", &session, 100).await;
    let joined = proxy.commands("evalsha") - before;
    println!("{joined} commands until 100 tasks waited");
    assert!(joined <= 5, "{joined}");
    let (before, seconds) = (proxy.commands("evalsha"), span(20 * SECOND, 5 * SECOND));
    tokio::time::sleep(seconds).await;
    let asked = proxy.commands("evalsha") - before;
    println!("{asked} commands in {seconds:?}");
    // Once a second, jittered downward by a quarter at most.
    let most = seconds.as_secs() * 4 / 3 + 1;
    assert!(asked <= most, "{asked} in {seconds:?}");
    assert!(asked >= seconds.as_secs() / 2, "the control, they do ask: {asked}");
    latch.count_down().await.unwrap();
    for waits in waits {
        waits.await.unwrap().0.unwrap();
    }
}

/// I11: every message lost: the look finds it, at most a second later.
#[tokio::test]
async fn a_lost_push_costs_a_second_at_most() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let (behind, direct) = (session(proxy.url()).await, session(&server.url()).await);
    let (waits_here, opener) = (latch(&behind, "a", hour()), latch(&direct, "a", hour()));
    proxy.drop_pushes(true);
    let mut longest = Duration::ZERO;
    for _ in 0..4 {
        opener.arm(1).await.unwrap();
        let waits: Vec<_> = (0..10).map(|_| waiter(&waits_here)).collect();
        waiting(&server, "a", &behind, 10).await;
        let begin = awake();
        opener.count_down().await.unwrap();
        for waits in waits {
            waits.await.unwrap().0.unwrap();
        }
        longest = longest.max(awake() - begin);
        opener.reset().await.unwrap();
    }
    println!("without messages: {longest:?}");
    assert!(longest < SECOND + MACHINE, "{longest:?}");
    assert!(proxy.pushes_dropped() >= 4, "the control: messages were lost");
    // The control of the bound: with messages it is a matter of milliseconds, not of the look.
    proxy.drop_pushes(false);
    opener.arm(1).await.unwrap();
    let waits = waiter(&waits_here);
    waiting(&server, "a", &behind, 1).await;
    let begin = awake();
    opener.count_down().await.unwrap();
    waits.await.unwrap().0.unwrap();
    assert!(awake() - begin < MACHINE, "{:?}", awake() - begin);
}

/// While the inbox is down looks come every 10 to 200 ms.
#[tokio::test]
async fn without_an_inbox_looks_come_faster() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let builder = Session::builder(proxy.url()).unwrap();
    let behind = builder.connect().await.unwrap();
    let opener = latch(&session(&server.url()).await, "a", hour());
    let waits_here = latch(&behind, "a", hour());
    opener.arm(1).await.unwrap();
    let waits = waiter(&waits_here);
    waiting(&server, "a", &behind, 1).await;
    // Links that are open stay: the look has one. The inbox cannot be opened again.
    proxy.refuse(true);
    assert!(kill_connections(&server, "pubsub").await >= 1);
    let looks = behind.statistics().looks;
    let faster = async || behind.statistics().looks >= looks + 8;
    let took = eventually(SOON, "8 looks", faster).await;
    println!("8 looks in {took:?}");
    // 10, 20, 40, 80, 160 and 3 of 200 ms.
    assert!(took < SECOND + 3 * MACHINE, "{took:?}");
    let begin = awake();
    opener.count_down().await.unwrap();
    waits.await.unwrap().0.unwrap();
    assert!(awake() - begin < 200 * MS + MACHINE, "{:?}", awake() - begin);
    proxy.refuse(false);
}

/// The longest of all waits to hear of an opening, over many of them: a message, never a look.
#[tokio::test]
async fn openings_are_told_by_messages() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let (first, second) = (latch(&one, "a", hour()), latch(&two, "a", hour()));
    let (mut late, rounds) = (0, 100);
    let mut longest = Duration::ZERO;
    for _ in 0..rounds {
        first.arm(1).await.unwrap();
        let waits = waiter(&second);
        listening(&server, "a", 1).await;
        let begin = awake();
        first.count_down().await.unwrap();
        waits.await.unwrap().0.unwrap();
        let took = awake() - begin;
        longest = longest.max(took);
        late += u32::from(took > 100 * MS);
        first.reset().await.unwrap();
    }
    println!("{rounds} openings: the longest took {longest:?}, {late} over 100 ms");
    // A lost wake-up (the push before its waiter listens, say) would cost some 875 ms each.
    assert!(late <= 2, "{late} of {rounds}");
}
