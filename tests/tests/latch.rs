//! The latch on a real server: what it promises when nothing goes wrong.

use std::time::{Duration, Instant};

use leasehold_latch::{
    ConfigError, LARGEST_COUNT, LONGEST_ID, Latch, LatchError, LatchOptions, Name,
};
use leasehold_mutex::Options;
use leasehold_tests::latch::{keys, keys_left, lasting, latch, listening, waiter, waiting};
use leasehold_tests::rig::Watch;
use leasehold_tests::scene::{SOON, mutex, session};
use leasehold_tests::{FaultProxy, Server, eventually};
use redis::AsyncCommands;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn hour() -> LatchOptions {
    LatchOptions::default()
}

#[tokio::test]
async fn it_opens_when_as_many_counted_as_it_was_armed_with() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let latch = latch(&session, "a", hour());
    assert!(latch.arm(3).await.unwrap());
    let waiting = waiter(&latch);
    listening(&server, "a", 1).await;
    for left in [2, 1] {
        assert_eq!(latch.count_down().await.unwrap(), left);
        assert_eq!(latch.count().await.unwrap(), left);
        assert!(!waiting.is_finished());
    }
    assert_eq!(latch.count_down().await.unwrap(), 0);
    waiting.await.unwrap().0.unwrap();
    assert_eq!(session.statistics().listening, 0);
    latch.reset().await.unwrap();
    assert_eq!(keys_left(&server).await, [""; 0]);
}

/// Redisson 97: count 2: down, down is 0; a wait returns at once; further downs stay 0.
#[tokio::test]
async fn c97_an_open_latch_stays_open_and_at_zero() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let latch = latch(&session, "a", hour());
    latch.arm(2).await.unwrap();
    assert_eq!(latch.count_down().await.unwrap(), 1);
    assert_eq!(latch.count_down().await.unwrap(), 0);
    for _ in 0..3 {
        let begin = Watch::start();
        latch.wait().await.unwrap();
        assert!(begin.awake() < SECOND, "{:?}", begin.awake());
        latch.wait_within(Duration::ZERO).await.unwrap();
        assert_eq!(latch.count_down().await.unwrap(), 0);
        assert_eq!(latch.count().await.unwrap(), 0);
    }
    let kept: u64 = server.connection().await.zcard(&*keys("a").ids).await.unwrap();
    assert_eq!(kept, 3, "counts at zero are not kept: the arm and two counts are");
}

/// Redisson 98: waiting on a latch that was never set returns at once, and counting leaves 0. Ours differs on purpose:
/// what was never armed is not open (I15).
#[tokio::test]
async fn c98_a_latch_that_was_never_armed_says_so() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let latch = latch(&session, "a", hour());
    let not_armed = |error: LatchError| {
        assert!(error.to_string().contains("the latch a is not armed"), "{error}");
        assert!(matches!(error, LatchError::NotArmed { .. }), "{error:?}");
    };
    let begin = Watch::start();
    not_armed(latch.wait().await.unwrap_err());
    not_armed(latch.wait_within(Duration::ZERO).await.unwrap_err());
    not_armed(latch.count_down().await.unwrap_err());
    not_armed(latch.count_down_as("x").await.unwrap_err());
    not_armed(latch.count().await.unwrap_err());
    assert!(!latch.reset().await.unwrap());
    assert!(begin.awake() < 2 * SECOND, "each is told at once: {:?}", begin.awake());
    assert_eq!(server.dbsize().await, 0);
}

/// Redisson 100: 5 waiters, 5 downs: all five are told, not just one.
#[tokio::test]
async fn c100_all_waiters_are_told() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let (first, second) = (latch(&one, "a", hour()), latch(&two, "a", hour()));
    first.arm(5).await.unwrap();
    let waiters: Vec<_> = (0..5).map(|_| waiter(&first)).collect();
    // Just after a look that all five were in time for: whoever is not told would sleep for 750 ms at the least.
    waiting(&server, "a", &one, 5).await;
    for _ in 0..5 {
        second.count_down().await.unwrap();
    }
    let counted = Instant::now();
    for waiter in waiters {
        let (outcome, at) = waiter.await.unwrap();
        outcome.unwrap();
        assert!(at.saturating_duration_since(counted) < 600 * MS, "{:?}", at - counted);
    }
}

/// Redisson 101: set only when absent; delete true, then false; a missing count is 0. The last differs on purpose: a
/// latch that is not armed says so, as in 98.
#[tokio::test]
async fn c101_armed_only_when_absent_and_reset_once() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let latch = latch(&session, "a", hour());
    assert!(latch.arm(2).await.unwrap());
    assert!(!latch.arm(7).await.unwrap());
    assert_eq!(latch.count().await.unwrap(), 2, "a refused arm changes nothing");
    latch.count_down().await.unwrap();
    latch.count_down().await.unwrap();
    assert!(!latch.arm(7).await.unwrap(), "an open latch counts as armed");
    assert!(latch.reset().await.unwrap());
    assert!(!latch.reset().await.unwrap());
    assert!(matches!(latch.count().await, Err(LatchError::NotArmed { .. })));
    assert!(latch.arm(7).await.unwrap());
    assert_eq!(latch.count().await.unwrap(), 7);
}

/// I6: a job that is retried, by whatever process, counts once.
#[tokio::test]
async fn an_id_counts_once_in_a_generation() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let (first, second) = (latch(&one, "a", hour()), latch(&two, "a", hour()));
    first.arm(3).await.unwrap();
    assert_eq!(first.count_down_as("shard-1").await.unwrap(), 2);
    assert_eq!(second.count_down_as("shard-2").await.unwrap(), 1);
    // Each repeat is answered as its first call was.
    assert_eq!(second.count_down_as("shard-1").await.unwrap(), 2);
    assert_eq!(first.count_down_as(b"shard-2").await.unwrap(), 1);
    assert_eq!(first.count().await.unwrap(), 1);
    // An id that looks like another's bytes is another.
    assert_eq!(first.count_down_as([0, 255, b'|']).await.unwrap(), 0);
    assert_eq!(first.count_down_as("shard-1").await.unwrap(), 2, "also when it is open");
    assert!(second.reset().await.unwrap());
    assert!(second.arm(2).await.unwrap());
    assert_eq!(first.count_down_as("shard-1").await.unwrap(), 1, "it counts in the next one");
}

#[tokio::test]
async fn a_reset_tells_its_waiters_and_those_who_come_later_wait_for_the_next() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let latch = latch(&session, "a", hour());
    for _ in 0..20 {
        assert!(latch.arm(1).await.unwrap());
        let early = waiter(&latch);
        listening(&server, "a", 1).await;
        assert!(latch.reset().await.unwrap());
        assert!(latch.arm(1).await.unwrap());
        // The push about the reset may still be under way: it is none of this one's business.
        let late = waiter(&latch);
        let error = early.await.unwrap().0.unwrap_err();
        assert!(matches!(error, LatchError::Reset { .. }), "{error:?}");
        assert!(error.to_string().contains("the latch a was reset"), "{error}");
        listening(&server, "a", 1).await;
        latch.count_down().await.unwrap();
        late.await.unwrap().0.unwrap();
        latch.reset().await.unwrap();
    }
}

/// A value that knows an earlier generation goes on with the present one: nothing of its call is in doubt.
#[tokio::test]
async fn a_count_finds_the_present_generation() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let (one, two) = (session(proxy.url()).await, session(&server.url()).await);
    let (first, second) = (latch(&one, "a", hour()), latch(&two, "a", hour()));
    second.arm(9).await.unwrap();
    first.count_down().await.unwrap(); // loads the scripts
    let calls = async |latch: &Latch| {
        let before = proxy.commands("evalsha");
        latch.count_down().await.unwrap();
        proxy.commands("evalsha") - before
    };
    assert_eq!(calls(&first).await, 1, "it knows the generation");
    assert_eq!(calls(&latch(&one, "a", hour())).await, 2, "a new value asks first");
    second.reset().await.unwrap();
    second.arm(5).await.unwrap();
    assert_eq!(calls(&first).await, 2, "the generation is another");
    assert_eq!(second.count().await.unwrap(), 4);
    second.reset().await.unwrap();
    assert!(matches!(first.count_down().await, Err(LatchError::NotArmed { .. })));
}

#[tokio::test]
async fn waiting_ends_in_time_and_leaves_nothing() {
    let server = Server::start();
    let session = lasting(&server.url()).await;
    let latch = latch(&session, "a", hour().max_wait(200 * MS));
    latch.arm(1).await.unwrap();
    let begin = Watch::start();
    let error = latch.wait().await.unwrap_err();
    assert!((200 * MS..SECOND).contains(&begin.elapsed()), "{:?}", begin.elapsed());
    assert!(
        matches!(error, LatchError::TimedOut { waited, .. } if waited >= 200 * MS),
        "{error:?}"
    );
    assert!(error.to_string().starts_with("the latch a did not open within"), "{error}");
    let error = latch.wait_within(Duration::ZERO).await.unwrap_err();
    assert!(matches!(error, LatchError::TimedOut { .. }), "{error:?}");
    listening(&server, "a", 0).await;
    assert_eq!(session.statistics().listening, 0);
}

/// However a wait is left, with the last one of a process its entry goes.
#[tokio::test]
async fn dropped_waits_leave_nothing() {
    let server = Server::start();
    let session = lasting(&server.url()).await;
    let latch = latch(&session, "a", hour());
    latch.arm(1).await.unwrap();
    let (one, two) = (waiter(&latch), waiter(&latch));
    listening(&server, "a", 1).await;
    one.abort();
    assert!(one.await.unwrap_err().is_cancelled());
    eventually(SOON, "one is left", async || session.statistics().listening == 1).await;
    listening(&server, "a", 1).await;
    two.abort();
    listening(&server, "a", 0).await;
    for polls in 0..200 {
        drop(leasehold_tests::rig::dropped_after(polls % 40, latch.wait_within(SOON)).await);
    }
    eventually(SOON, "all left", async || session.statistics().listening == 0).await;
    listening(&server, "a", 0).await;
}

/// A runtime that ends drops its waits, and costs those of others nothing.
#[tokio::test]
async fn the_end_of_a_runtime_ends_its_waits_only() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let latch = latch(&session, "a", hour());
    latch.arm(1).await.unwrap();
    let stays = waiter(&latch);
    let other = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let waits = latch.clone();
    std::thread::spawn(move || {
        let begun = waits.wait_within(SOON);
        other.block_on(async { tokio::time::timeout(100 * MS, begun).await.unwrap_err() });
        drop(other.spawn(async move { waits.wait_within(SOON).await }));
        other.block_on(async { tokio::time::sleep(100 * MS).await });
        drop(other);
    })
    .join()
    .unwrap();
    eventually(SOON, "one is left", async || session.statistics().listening == 1).await;
    latch.count_down().await.unwrap();
    stays.await.unwrap().0.unwrap();
}

/// I20: a shutdown ends waiting, and takes the entry away before it is confirmed.
#[tokio::test]
async fn shutdown_ends_waiting_and_leaves_nothing() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let (first, second) = (latch(&one, "a", hour()), latch(&two, "a", hour()));
    first.arm(1).await.unwrap();
    let (ends, stays) = (waiter(&first), waiter(&second));
    listening(&server, "a", 2).await;
    one.shutdown(SOON).await.unwrap();
    assert!(matches!(ends.await.unwrap().0, Err(LatchError::Closed)));
    let listening: u64 = server.connection().await.zcard(&*keys("a").waiters).await.unwrap();
    assert_eq!(listening, 1, "I20: the other session's");
    let begin = Watch::start();
    assert!(matches!(first.wait().await, Err(LatchError::Closed)));
    assert!(matches!(first.arm(1).await, Err(LatchError::Closed)));
    assert!(matches!(first.count_down().await, Err(LatchError::Closed)));
    assert!(matches!(first.count().await, Err(LatchError::Closed)));
    assert!(matches!(first.reset().await, Err(LatchError::Closed)));
    assert!(begin.awake() < SECOND);
    second.count_down().await.unwrap();
    stays.await.unwrap().0.unwrap();
}

#[tokio::test]
async fn what_is_out_of_bounds_is_refused_before_anything_is_sent() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let session = session(proxy.url()).await;
    let before = proxy.commands("evalsha");
    for after in [Duration::ZERO, Duration::from_micros(1500), Duration::MAX] {
        let made = Latch::new(&session, "a", hour().expires_after(after));
        assert!(matches!(made, Err(ConfigError::SessionOption { .. })), "{after:?}");
    }
    for name in [Name::new(""), Name::new([7; 513]), Name::in_group("", "a")] {
        assert!(matches!(Latch::new(&session, name, hour()), Err(ConfigError::Name { .. })));
    }
    let latch = latch(&session, "a", hour());
    for count in [0, LARGEST_COUNT + 1, u32::MAX] {
        assert!(matches!(latch.arm(count).await, Err(LatchError::Config(_))), "{count}");
    }
    for id in [vec![], vec![7; LONGEST_ID + 1]] {
        assert!(matches!(latch.count_down_as(id).await, Err(LatchError::Config(_))));
    }
    assert_eq!(proxy.commands("evalsha"), before);
    assert!(latch.arm(LARGEST_COUNT).await.unwrap());
    assert_eq!(latch.count_down_as([0; LONGEST_ID]).await.unwrap(), u64::from(LARGEST_COUNT) - 1);
}

/// Names of any bytes, in groups or not: each is a latch of its own, and none meets a mutex (B125).
#[tokio::test]
async fn names_groups_prefixes_and_kinds_are_latches_of_their_own() {
    let server = Server::start();
    let plain = session(&server.url()).await;
    let prefixed = leasehold_latch::Session::builder(&server.url()).unwrap().prefix("app:");
    let prefixed = prefixed.connect().await.unwrap();
    let names = || {
        ["a", "a}", "{a}", "a:ids", "a:waiters", "ключ{x}"].map(Name::new).into_iter().chain([
            Name::new([0, 255, b'}']),
            Name::in_group("a", "b"),
            Name::in_group("a", "a"),
        ])
    };
    let guard = mutex(&plain, "a", Options::default()).acquire().await.unwrap();
    let mut latches = Vec::new();
    for session in [&plain, &prefixed] {
        for name in names() {
            latches.push(Latch::new(session, name, hour()).unwrap());
        }
    }
    for (latch, count) in latches.iter().zip(1..) {
        assert!(latch.arm(count).await.unwrap(), "{latch:?}");
    }
    for (latch, count) in latches.iter().zip(1..) {
        assert_eq!(latch.count().await.unwrap(), count, "{latch:?}");
        latch.count_down().await.unwrap();
    }
    guard.release().await.unwrap();
}

/// The same types, whichever crate they are taken from.
#[tokio::test]
async fn the_facade_has_it() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let options = leasehold::latch::LatchOptions::default();
    let latch: leasehold::Latch = latch(&session, "a", options);
    let refused: leasehold::LatchError = latch.count().await.unwrap_err();
    assert!(matches!(refused, LatchError::NotArmed { .. }));
}

#[tokio::test]
async fn outside_a_runtime_it_says_so() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let latch = latch(&session, "a", hour());
    let outside = std::thread::spawn(move || {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let mut wait = Box::pin(latch.wait());
        let mut arm = Box::pin(latch.arm(1));
        (wait.as_mut().poll(&mut context), arm.as_mut().poll(&mut context))
    });
    let (wait, arm) = outside.join().unwrap();
    let config = |polled: std::task::Poll<Result<(), LatchError>>| {
        matches!(polled, std::task::Poll::Ready(Err(LatchError::Config(ConfigError::NoRuntime))))
    };
    assert!(config(wait) && config(arm.map(|armed| armed.map(drop))));
}

/// I19: nothing prints an inbox, the uuid of an entry or an id.
#[tokio::test]
async fn nothing_prints_an_id() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let latch = latch(&session, "a", hour());
    latch.arm(1).await.unwrap();
    let waiting = waiter(&latch);
    listening(&server, "a", 1).await;
    let members: Vec<String> =
        server.connection().await.zrange(&*keys("a").waiters, 0, -1).await.unwrap();
    let secrets: Vec<_> = members[0].split('|').collect();
    assert_eq!(secrets.len(), 2);
    let printed = format!("{latch:?} {session:?} {:?}", latch.wait_within(MS).await);
    assert!(secrets.iter().all(|secret| !printed.contains(secret)), "I19: {printed}");
    latch.count_down().await.unwrap();
    waiting.await.unwrap().0.unwrap();
}
