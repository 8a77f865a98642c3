//! BEHAVIOURS.md, kind I: what may be asked for, and what is found under a name. One test a row, named
//! after it.

use std::time::Duration;

use leasehold_lua::{Acquisition, Keys, Mode, ObjectName, Settings, Terms, mutex as scripts};
use leasehold_mutex::{
    AcquireError, BackendErrorKind, ConfigError, ExtendError, LostReason, Mutex, Name, Options,
    ReleaseError, Session,
};
use leasehold_tests::rig::{Watch, waiter};
use leasehold_tests::scene::{SOON, impatient, keys, mutex, session};
use leasehold_tests::{FaultProxy, Pick, Server, eventually};
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 3600);

fn kind_of(error: &AcquireError) -> Option<BackendErrorKind> {
    if let AcquireError::Backend(cause) = error { Some(cause.kind()) } else { None }
}

async fn acquires(session: &Session, name: &str, options: Options) {
    let guard = mutex(session, name, options).acquire().await.expect("a hold");
    guard.release().await.expect("still held");
}

/// Leases that Redis could not keep, or would take for a deletion.
const NO_LEASE: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_micros(999),
    Duration::from_micros(1_500),
    MS.saturating_mul(86_400_001),
    Duration::MAX,
];

#[tokio::test]
async fn b118_a_lease_in_parts_of_a_millisecond_is_refused_before_anything_is_sent() {
    let server = Server::start();
    let session = session(&server.url()).await;
    server.reset_stats().await;
    for lease in NO_LEASE {
        for options in [Options::default().lease(lease), Options::default().fixed(lease)] {
            let made = Mutex::new(&session, "a", options);
            assert!(matches!(made, Err(ConfigError::Lease { .. })), "{lease:?}");
        }
    }
    assert_eq!(server.command_calls().await.of(&["evalsha", "eval"]), 0);
    // Any wait is legal, and none is too short for a lock that is free.
    for wait in [Duration::ZERO, Duration::from_nanos(1), Duration::from_micros(999), Duration::MAX]
    {
        let lock = mutex(&session, "a", Options::default().max_wait(wait));
        lock.acquire().await.unwrap().release().await.unwrap();
        lock.acquire_within(wait).await.unwrap().release().await.unwrap();
    }
    assert!(server.command_calls().await.of(&["evalsha", "eval"]) > 0, "the control");
}

/// The other half of B118: what the server refuses is never counted as busy.
#[tokio::test]
async fn b118_a_refusal_by_the_server_is_not_contention() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let session = session(proxy.url()).await;
    let lock = mutex(&session, "a", Options::default());
    proxy.replace_replies(Pick::all().containing("EVALSHA"), "-ERR value is not an integer");
    let begin = Watch::start();
    let waited = lock.acquire_within(5 * SECOND).await.unwrap_err();
    assert_eq!(kind_of(&waited), Some(BackendErrorKind::Server));
    let tried = lock.try_acquire().await.unwrap_err();
    assert_eq!(kind_of(&tried), Some(BackendErrorKind::Server));
    assert!(begin.awake() < SECOND, "no retry: {:?}", begin.awake());
}

#[tokio::test]
async fn b119_a_lease_of_nothing_is_refused_and_frees_nothing() {
    let server = Server::start();
    let session = session(&server.url()).await;
    assert!(Mutex::new(&session, "a", Options::default().lease(Duration::ZERO)).is_err());
    assert_eq!(server.dbsize().await, 0);
    let guard = mutex(&session, "a", Options::default()).acquire().await.unwrap();
    for by in NO_LEASE {
        let error = guard.extend(by).await.unwrap_err();
        assert!(matches!(error, ExtendError::Config(ConfigError::Lease { .. })), "{by:?}");
    }
    let left: i64 = server.connection().await.pttl(&*keys("a").holds).await.unwrap();
    assert!(left > 20_000, "PEXPIRE 0 would have deleted it: {left}");
    // The session's own times become expiries too.
    let zero = Duration::ZERO;
    let build = || Session::builder(&server.url()).unwrap();
    for builder in [
        build().grant_lease(zero),
        build().check_every(zero),
        build().waiter_deadline(zero),
        build().fence_memory(zero),
    ] {
        let refused = builder.connect().await.unwrap_err();
        assert!(matches!(refused, ConfigError::SessionOption { .. }), "{refused}");
    }
    guard.release().await.unwrap();
}

#[tokio::test]
async fn b120_the_largest_settings_together_still_work() {
    let server = Server::start();
    let builder = Session::builder(&server.url()).unwrap();
    let builder = builder.waiter_deadline(DAY).grant_lease(DAY).fence_memory(30 * DAY);
    let builder = builder.response_timeout(60 * SECOND).connect_timeout(60 * SECOND);
    let session = builder.clock_drift(500_000, SECOND).connect().await.unwrap();
    let most = Options::default().lease(DAY).hold_at_most(7 * DAY).max_wait(Duration::MAX);
    let lock = mutex(&session, "a", most.clone().max_waiters(u32::MAX));
    let guard = lock.acquire().await.unwrap();
    guard.extend(DAY).await.unwrap();
    let next = waiter(&server, &lock, "a", 1).await;
    guard.release().await.unwrap();
    let (next, _) = tokio::time::timeout(SOON, next).await.unwrap().unwrap();
    next.release().await.unwrap();
    lock.acquire_within(Duration::MAX).await.unwrap().release().await.unwrap();
    acquires(&session, "a", most.clone().wait_forever()).await;
    // A cool-down of a week is a key of a week, not of an overflowed time.
    acquires(&session, "b", most.hold_at_least(7 * DAY)).await;
    let left: i64 = server.connection().await.pttl(&*keys("b").holds).await.unwrap();
    assert!((6 * 86_400_000..=7 * 86_400_000).contains(&left), "{left}");
    for key in server.keys().await {
        let left: i64 = server.connection().await.pttl(&key).await.unwrap();
        assert!((1..=30 * 86_400_000).contains(&left), "{}: {left}", key.escape_ascii());
    }
}

/// Overflow checks are on in tests. A panic on the session's thread would end it: the last lines
/// need that thread.
#[tokio::test]
async fn b123_leases_shorter_than_every_pause_end_in_errors_not_in_panics() {
    let server = Server::start();
    let (session, _) = impatient(&server.url(), 2 * SECOND).await;
    for lease in [MS, 2 * MS, 3 * MS, 5 * MS, 8 * MS] {
        for options in [Options::default().lease(lease), Options::default().fixed(lease)] {
            let lock = mutex(&session, "a", options.max_wait(100 * MS));
            for round in 0..4 {
                if round == 3 {
                    server.freeze();
                }
                let acquiring = tokio::spawn({
                    let lock = lock.clone();
                    async move { lock.acquire().await }
                });
                if round == 3 {
                    tokio::time::sleep(50 * MS).await;
                    server.thaw();
                }
                match acquiring.await.expect("no panic") {
                    // However late: it says no longer that it holds, or it may be released.
                    Ok(guard) => drop(guard.release().await),
                    Err(AcquireError::ValidityTooShort { remaining }) => assert!(remaining < lease),
                    Err(AcquireError::TimedOut { .. } | AcquireError::Backend(_)) => {}
                    Err(error) => panic!("{error:?}"),
                }
            }
        }
    }
    // The margin for drift (2 ms) is more than this lease: never held.
    let never = mutex(&session, "b", Options::default().lease(MS)).acquire().await.unwrap_err();
    assert!(matches!(never, AcquireError::ValidityTooShort { .. }), "{never:?}");
    let lock = mutex(&session, "c", Options::default().lease(300 * MS));
    let guard = lock.acquire().await.unwrap();
    let next = waiter(&server, &lock, "c", 1).await;
    let renewals = session.statistics().renewals;
    eventually(SOON, "the thread renews", async || session.statistics().renewals > renewals + 3)
        .await;
    guard.release().await.unwrap();
    next.await.unwrap().0.release().await.unwrap();
}

/// What lies under a key of ours, and how it was put there.
async fn foreign(connection: &mut MultiplexedConnection, key: &[u8]) -> String {
    redis::cmd("SET").arg(key).arg("x").query_async(connection).await.expect("SET")
}

#[tokio::test]
async fn b124_a_name_used_by_other_data_is_told_at_once_and_left_alone() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let mut connection = server.connection().await;
    let keys = keys("a");
    for key in [&keys.holds, &keys.queue, &keys.token, &keys.gone] {
        server.flushall().await;
        foreign(&mut connection, key).await;
        let lock = mutex(&session, "a", Options::default());
        let begin = Watch::start();
        let waited = lock.acquire_within(5 * SECOND).await.unwrap_err();
        let tried = lock.try_acquire().await.unwrap_err();
        assert!(begin.awake() < SECOND, "{:?}", begin.awake());
        let expected = Some(BackendErrorKind::WrongType);
        assert_eq!(
            (kind_of(&waited), kind_of(&tried)),
            (expected, expected),
            "{}",
            key.escape_ascii()
        );
        // Nothing half done. (What met an error in its midst is marked as ended, for a minute.)
        let found = server.keys().await;
        assert!(found.iter().all(|left| *left == **key || *left == *keys.gone), "{found:?}");
        assert_eq!(connection.get::<_, String>(&**key).await.unwrap(), "x");
    }
    // The hash beside the queue is not looked at before somebody waits.
    server.flushall().await;
    foreign(&mut connection, &keys.timeouts).await;
    let lock = mutex(&session, "a", Options::default());
    let guard = lock.acquire().await.unwrap();
    let waited = lock.acquire_within(5 * SECOND).await.unwrap_err();
    assert_eq!(kind_of(&waited), Some(BackendErrorKind::WrongType));
    assert_eq!(connection.zcard::<_, u64>(&*keys.queue).await.unwrap(), 0);
    assert_eq!(connection.get::<_, String>(&*keys.timeouts).await.unwrap(), "x");
    guard.release().await.unwrap();
}

/// The sibling of B124: the key changes its type under a running hold.
#[tokio::test]
async fn b124_a_hold_whose_key_was_overwritten_is_lost_and_the_data_left_alone() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let lock = mutex(&session, "a", Options::default().lease(900 * MS));
    let guard = lock.acquire().await.unwrap();
    let mut connection = server.connection().await;
    foreign(&mut connection, &keys("a").holds).await;
    let reason = tokio::time::timeout(SOON, guard.lost()).await.unwrap();
    assert_eq!(reason, LostReason::NotOwner);
    assert!(matches!(guard.release().await, Err(ReleaseError::Lost(_))));
    assert_eq!(connection.get::<_, String>(&*keys("a").holds).await.unwrap(), "x");
}

/// Takes under these keys, as a primitive of that kind would.
async fn take(connection: &mut MultiplexedConnection, keys: &Keys) -> Vec<redis::Value> {
    let terms =
        Terms { wait_ms: 10_000, check_ms: 1_000, grant_ms: 2_000, fence_ms: 3_600_000, floor: 0 };
    let owner = uuid::Uuid::new_v4().simple().to_string();
    let id = format!("{owner}|30000|w|inbox");
    let acquisition = Acquisition { id: id.as_bytes(), owner: &owner, note: b"", lease_ms: 30_000 };
    let call = scripts::VERBS.acquire(keys, &Settings::default(), acquisition, Mode::Try, terms);
    let mut command = redis::cmd("EVAL");
    command.arg(call.script.source()).arg(call.keys.len());
    for word in call.keys.iter().map(|key| &**key).chain(call.args.iter().map(Vec::as_slice)) {
        command.arg(word);
    }
    command.query_async(connection).await.expect("a reply")
}

#[tokio::test]
async fn b125_kinds_groups_prefixes_and_look_alike_names_are_locks_of_their_own() {
    let server = Server::start();
    let mut connection = server.connection().await;
    let taken = redis::Value::Int(1);
    for kind in ["mutex", "fair", "rwlock", "semaphore", "latch", "multi"] {
        let keys = Keys::new(ObjectName { prefix: b"", kind, group: None, name: b"a" });
        assert_eq!(take(&mut connection, &keys).await[0], taken, "{kind}");
    }
    let same = take(&mut connection, &keys("a")).await;
    assert_eq!(same[0], redis::Value::Int(2), "the control: the same kind and name are busy");
    let plain = session(&server.url()).await;
    let prefixed = Session::builder(&server.url()).unwrap().prefix("app:").connect().await.unwrap();
    let names = [
        Name::new("b"),
        Name::new("b:queue"),
        Name::new("b}:queue"),
        Name::new("{b}"),
        Name::new("b%3Aqueue"),
        Name::new("g=b"),
        Name::in_group("g", "b"),
        Name::in_group("g=b", "b"),
        Name::new(b"\0\xff"),
        Name::new([b'n'; 512]),
    ];
    let mut guards = Vec::new();
    for session in [&plain, &prefixed] {
        for name in &names {
            let lock = Mutex::new(session, name.clone(), Options::default()).unwrap();
            guards.push(
                lock.try_acquire().await.unwrap().unwrap_or_else(|| panic!("{name} is free")),
            );
            assert!(lock.try_acquire().await.unwrap().is_none());
        }
    }
    for guard in guards {
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn b127_an_owner_of_another_version_is_busy_and_never_a_panic() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let lock = mutex(&session, "a", Options::default());
    let mut connection = server.connection().await;
    let holds = keys("a").holds;
    let layouts: [&[(&[u8], &[u8])]; 5] = [
        &[(b"\xff\0\x01", b"\xfe\0junk")],
        &[(b"owner", b"\xff"), (b"token", b"not a number"), (b"u|30000|w|i", b"99999999999999|x")],
        &[
            (b"owner", b"o"),
            (b"token", b"7"),
            (b"id", b"99999999999999999|1|a note of another version"),
        ],
        &[(b"id", b"|||"), (b"token", b"")],
        &[(b"id", b"1e400|1|"), (b"cooling", b"other")],
    ];
    for fields in layouts {
        server.flushall().await;
        let _: () = connection.hset_multiple(&*holds, fields).await.unwrap();
        let before: Vec<(Vec<u8>, Vec<u8>)> = connection.hgetall(&*holds).await.unwrap();
        assert!(lock.try_acquire().await.unwrap().is_none());
        let waited = lock.acquire_within(50 * MS).await.unwrap_err();
        assert!(
            matches!(waited, AcquireError::TimedOut { held_by_this_session: false, .. }),
            "{waited:?}"
        );
        assert!(lock.is_locked().await.unwrap());
        assert!(lock.remaining().await.unwrap().is_some());
        drop(lock.holder().await.unwrap());
        drop(lock.queue().await.unwrap());
        let after: Vec<(Vec<u8>, Vec<u8>)> = connection.hgetall(&*holds).await.unwrap();
        assert_eq!(before, after, "it is left alone");
    }
}

/// The sibling of B127: a queue that another version, or somebody by hand, wrote.
#[tokio::test]
async fn b127_unreadable_waiters_are_passed_over() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let lock = mutex(&session, "a", Options::default());
    let mut connection = server.connection().await;
    let keys = keys("a");
    let guard = lock.acquire().await.unwrap();
    // Without a deadline, with an unreadable one, and one that looks alive but names no inbox.
    for (id, value) in [("dead", None), ("odd", Some("x|y")), ("alive", Some("99999999999999|o|n"))]
    {
        let _: u64 = connection.zadd(&*keys.queue, id, 1).await.unwrap();
        if let Some(value) = value {
            let _: u64 = connection.hset(&*keys.timeouts, id, value).await.unwrap();
        }
    }
    assert_eq!(lock.queue().await.unwrap().length, 3);
    let next = waiter(&server, &lock, "a", 4).await;
    guard.release().await.unwrap();
    let (next, _) = tokio::time::timeout(SOON, next).await.unwrap().unwrap();
    next.release().await.unwrap();
    // And whatever is published to an inbox.
    let channels: Vec<String> =
        redis::cmd("PUBSUB").arg("CHANNELS").query_async(&mut connection).await.unwrap();
    for message in ["", "x", "x 1", "x 1 2 3", "x 1 -1 99999999999999999999 x", "\u{0} 2", "proof"]
    {
        let _: u64 = connection.publish(&channels[0], message).await.unwrap();
    }
    let guard = lock.acquire().await.unwrap();
    let next = waiter(&server, &lock, "a", 1).await;
    guard.release().await.unwrap();
    next.await.unwrap().0.release().await.unwrap();
}
