//! Bad input, foreign keys, and what must never be printed.

use std::error::Error;
use std::time::Duration;

use leasehold_mutex::{
    AcquireError, BackendErrorKind, ConfigError, ExtendError, Mutex, Name, Options, Session,
};
use leasehold_tests::rig::Watch;
use leasehold_tests::scene::{Told, entries, keys, mutex, queued, session};
use leasehold_tests::{Server, eventually};
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// How often each command ran, INFO itself apart.
async fn commands(connection: &mut MultiplexedConnection) -> Vec<String> {
    let info: String = redis::cmd("INFO")
        .arg("commandstats")
        .query_async(connection)
        .await
        .expect("INFO commandstats");
    let calls = |line: &str| Some(line.split_once(",usec")?.0.to_owned());
    info.lines().filter(|line| !line.starts_with("cmdstat_info")).filter_map(calls).collect()
}

fn bad_names() -> [Name; 4] {
    [Name::from(""), "x".repeat(513).into(), "é".repeat(257).into(), Name::in_group("", "x")]
}

fn bad_leases() -> [Duration; 5] {
    [
        Duration::ZERO,
        Duration::from_micros(999),
        Duration::from_micros(1500),
        DAY + MS,
        Duration::MAX,
    ]
}

/// B118, B119, B120.
#[tokio::test]
async fn bad_input_is_a_typed_error_and_nothing_is_sent() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let guard = mutex(&session, "held", Options::default()).acquire().await.unwrap();
    let mut connection = server.connection().await;
    let before = commands(&mut connection).await;
    let refused = |name: Name, options: Options| Mutex::new(&session, name, options).unwrap_err();
    for name in bad_names() {
        let error = refused(name, Options::default());
        assert!(matches!(error, ConfigError::Name { .. }), "{error:?}");
    }
    for lease in bad_leases() {
        for options in [Options::default().lease(lease), Options::default().fixed(lease)] {
            let error = refused("a".into(), options);
            assert!(matches!(error, ConfigError::Lease { .. }), "{lease:?}: {error:?}");
        }
        let error = guard.extend(lease).await.unwrap_err();
        assert!(matches!(error, ExtendError::Config(ConfigError::Lease { .. })), "{error:?}");
    }
    let long = Options::default().lease(DAY);
    let error = refused("a".into(), long);
    assert!(matches!(error, ConfigError::LeaseOverHoldAtMost { .. }), "{error:?}");
    let error = refused("a".into(), Options::default().hold_at_most(7 * DAY + MS));
    assert!(matches!(error, ConfigError::HoldAtMost { .. }), "{error:?}");
    let error = refused("a".into(), Options::default().hold_at_least(601 * SECOND));
    assert!(matches!(error, ConfigError::HoldAtLeast { .. }), "{error:?}");
    let error = refused("a".into(), Options::default().label("x".repeat(129)));
    assert!(matches!(error, ConfigError::Label { .. }), "{error:?}");
    assert_eq!(commands(&mut connection).await, before);
    // The control: something that is sent is seen.
    guard.release().await.unwrap();
    assert_ne!(commands(&mut connection).await, before);
}

#[tokio::test]
async fn the_bounds_themselves_are_legal() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let week = Options::default().hold_at_most(7 * DAY);
    let legal = [
        ("x".repeat(512).into(), Options::default()),
        (Name::from(&b"\0\xff{}:=%"[..]), Options::default().lease(MS)),
        ("a".into(), week.clone().lease(DAY).hold_at_least(MS)),
        ("b".into(), Options::default().fixed(DAY).max_wait(Duration::MAX)),
        ("c".into(), Options::default().max_wait(Duration::ZERO).max_waiters(u32::MAX)),
    ];
    for (name, options) in legal {
        let lock = Mutex::new(&session, name, options).unwrap();
        match lock.acquire().await {
            Ok(guard) => drop(guard),
            // A lease of 1 ms is over before it is of use; that too is told as what it is.
            Err(error) => {
                assert!(matches!(error, AcquireError::ValidityTooShort { .. }), "{error:?}")
            }
        }
    }
    eventually(SECOND, "nothing is left", async || session.statistics().tracked == 0).await;
}

#[tokio::test]
async fn wrong_session_options_are_refused_before_connecting() {
    // Nothing listens there: an error of the option itself comes first.
    let builder = || Session::builder("redis://127.0.0.1:1/").unwrap();
    let bad = [
        builder().connect_timeout(Duration::ZERO),
        builder().response_timeout(Duration::MAX),
        builder().check_every(2 * SECOND),
        builder().grant_lease(SECOND).check_every(501 * MS),
        builder().waiter_deadline(SECOND),
        builder().fence_memory(Duration::ZERO),
        builder().clock_drift(500_001, MS),
        builder().prefix("a{b"),
        builder().prefix("x".repeat(257)),
    ];
    for builder in bad {
        let error = builder.connect().await.unwrap_err();
        assert!(matches!(error, ConfigError::SessionOption { .. }), "{error:?}");
    }
    for url in ["", "no url", "http://127.0.0.1/", "redis://127.0.0.1:port/"] {
        let error = Session::connect(url).await.unwrap_err();
        assert!(matches!(error, ConfigError::Url), "{url}: {error:?}");
    }
}

/// Without a runtime there is an error, not a panic of the client library.
#[test]
fn without_a_runtime_a_session_says_so() {
    let mut connecting = Box::pin(Session::connect("redis://127.0.0.1:1/"));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let polled = connecting.as_mut().poll(&mut context);
    let std::task::Poll::Ready(Err(error)) = polled else { panic!("{polled:?}") };
    assert!(matches!(error, ConfigError::NoRuntime), "{error:?}");
}

/// The five keys of the mutex `a`, by their suffix.
fn five() -> [(&'static str, Vec<u8>); 5] {
    let keys = keys("a");
    [
        ("", keys.holds.to_vec()),
        (":queue", keys.queue.to_vec()),
        (":timeout", keys.timeouts.to_vec()),
        (":token", keys.token.to_vec()),
        (":gone", keys.gone.to_vec()),
    ]
}

async fn wrong_type(lock: &Mutex, what: &str) {
    let begin = Watch::start();
    let error = lock.acquire_within(5 * SECOND).await.expect_err(what);
    // B124: 200 ms; doubled for a machine that builds.
    assert!(begin.awake() < 400 * MS, "{what}: {:?}", begin.awake());
    let AcquireError::Backend(error) = error else { panic!("{what}: {error:?}") };
    assert_eq!(error.kind(), BackendErrorKind::WrongType, "{what}: {error:?}");
}

/// B124: whatever somebody keeps under one of our keys, it is told at once and it stays.
#[tokio::test]
async fn b124_a_foreign_value_is_told_at_once_and_stays() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let (lock, other) =
        (mutex(&one, "a", Options::default()), mutex(&two, "a", Options::default()));
    let mut connection = server.connection().await;
    for (suffix, key) in five() {
        // Held by another or free: the queue's keys matter to those who have to wait. (The hold's own
        // key cannot be theirs while it is held; the token is minted when it is free again.)
        let taken = matches!(suffix, ":queue" | ":timeout" | ":gone");
        for held in [false, true].into_iter().take(1 + usize::from(taken)) {
            let what = format!("`{suffix}`, held: {held}");
            let guard = if held { Some(other.acquire().await.unwrap()) } else { None };
            let () = connection.set(&key, "theirs").await.unwrap();
            if suffix == ":timeout" && !held {
                // Who finds the lock free does not look there, and does not harm it either.
                lock.acquire().await.unwrap().release().await.unwrap();
            } else {
                wrong_type(&lock, &what).await;
            }
            drop(lock.try_acquire().await);
            eventually(5 * SECOND, "all is over", async || one.statistics().tracked == 0).await;
            assert_eq!(
                connection.get::<_, Option<String>>(&key).await.expect(&what).as_deref(),
                Some("theirs"),
                "{what}"
            );
            let _: u64 = connection.del(&key).await.unwrap();
            if let Some(guard) = guard {
                guard.release().await.unwrap();
            }
            let guard = lock.acquire().await.expect(&what);
            guard.release().await.unwrap();
        }
    }
}

/// The same for a token key that is no text at all, and for a holder whose release meets it.
#[tokio::test]
async fn a_foreign_value_that_appears_meanwhile_stays_too() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let lock = mutex(&session, "a", Options::default());
    let mut connection = server.connection().await;
    for (suffix, key) in five().into_iter().skip(1) {
        let guard = lock.acquire().await.unwrap();
        let _: u64 = connection.del(&key).await.unwrap();
        let _: u64 = connection.rpush(&key, &["their", "list"]).await.unwrap();
        // Whatever it says: the hold ends, at the latest with its lease, and the list stays.
        drop(guard.release().await);
        drop(lock.try_acquire().await);
        eventually(5 * SECOND, "all is over", async || session.statistics().tracked == 0).await;
        let list: Vec<String> = connection.lrange(&key, 0, -1).await.expect(suffix);
        assert_eq!(list, ["their", "list"], "`{suffix}`");
        server.flushall().await;
    }
}

/// Every text that something can be printed as.
fn printed(error: &dyn Error) -> String {
    let mut texts = format!("{error} {error:?} {error:#?} ");
    if let Some(source) = error.source() {
        texts += &printed(source);
    }
    texts
}

/// The secrets of a running lock: ids, owners and inboxes, as the server has them.
async fn secrets(connection: &mut MultiplexedConnection) -> Vec<String> {
    let mut secrets: Vec<String> =
        connection.zrange(&*keys("a").queue, 0, -1).await.expect("ZRANGE");
    secrets.extend(entries(connection, "a").await.into_iter().map(|entry| entry.id));
    let mut parts: Vec<String> =
        secrets.iter().flat_map(|id| id.split('|')).map(str::to_owned).collect();
    parts.retain(|part| part.len() > 16); // the lease in milliseconds is no secret
    let owner: String = connection.hget(&*keys("a").holds, "owner").await.expect("HGET");
    parts.push(owner);
    let inbox = |part: &String| part.rsplit_once("inbox:").map(|(_, id)| id.to_owned());
    parts.extend(parts.iter().filter_map(inbox).collect::<Vec<_>>());
    parts
}

/// I19: guards, errors, events and the read side, on a server with a password.
#[tokio::test]
async fn no_text_holds_a_password_or_an_acquisition_id() {
    let server = Server::builder().password("correct-horse").start();
    let told = Told::default();
    let builder = told.by(Session::builder(&server.url()).unwrap());
    let mut texts = format!("{builder:?}");
    let session = builder.connect().await.unwrap();
    let lock = mutex(&session, "a", Options::default().lease(SECOND).label("job"));
    let guard = lock.acquire().await.unwrap();
    let waiting = {
        let lock = lock.clone();
        tokio::spawn(async move { lock.acquire_within(SECOND).await.map(drop).unwrap_err() })
    };
    queued(&server, "a", 1).await;
    let mut connection = server.connection().await;
    let mut secrets = secrets(&mut connection).await;
    // Two ids of a uuid and an inbox each, the inbox's own id, the owner.
    assert!(secrets.len() >= 6 && secrets.iter().all(|secret| secret.len() > 16), "{secrets:?}");
    secrets.push("correct-horse".to_owned());
    texts += &format!("{session:?} {lock:?} {guard:?} {:?} {:?}", guard.owner(), guard.lost());
    texts += &format!("{:?} {:?}", lock.holder().await, lock.queue().await);
    texts += &printed(&waiting.await.unwrap());
    let () = connection.set(&*keys("b").holds, "theirs").await.unwrap();
    let b = mutex(&session, "b", Options::default());
    texts += &printed(&b.acquire().await.map(drop).unwrap_err());
    server.freeze();
    texts += &printed(&guard.extend(SECOND).await.unwrap_err());
    texts += &format!("{} {guard:?}", guard.lost().await);
    texts += &printed(&lock.try_acquire().await.map(drop).unwrap_err());
    server.thaw();
    texts += &printed(&guard.release().await.unwrap_err());
    texts += &format!("{:?}", told.all());
    assert!(texts.contains("label: \"job\"") && texts.contains("RenewalFailed"), "{texts}");
    for secret in secrets {
        assert!(!texts.contains(&secret), "{secret} in {texts}");
    }
}
