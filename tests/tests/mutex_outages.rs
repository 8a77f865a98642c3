//! Servers that die, forget their scripts, become replicas, refuse, or do not answer.

use std::error::Error;
use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

use leasehold_mutex::{
    AcquireError, BackendErrorKind, ConfigError, Event, LostReason, Mutex, Options, ReleaseError,
    Session,
};
use leasehold_tests::rig::Watch;
use leasehold_tests::scene::{SOON, impatient, keys_left, mutex, queued, session};
use leasehold_tests::{Server, eventually};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// B50, B155: what was held is told lost, waiters and later acquires are served soon.
#[tokio::test]
async fn b155_a_restarted_server_costs_its_holds_and_serves_again() {
    let server = Server::start();
    let (session, told) = impatient(&server.url(), 2 * SECOND).await;
    let lock = mutex(&session, "a", Options::default().lease(10 * SECOND).max_wait(SOON * 2));
    for round in 1..=3 {
        let guard = lock.acquire().await.unwrap();
        let waiter = {
            let lock = lock.clone();
            tokio::spawn(async move { lock.acquire().await })
        };
        queued(&server, "a", 1).await;
        server.kill();
        server.restart();
        let started = Watch::start();
        // Within a renewal's pause (a third of the lease) and a reconnect; the margin is the lease.
        assert_eq!(guard.lost().await, LostReason::NotOwner, "the waiter has it by then");
        assert!(!guard.is_held());
        let next = waiter.await.unwrap().unwrap();
        let fresh = mutex(&session, "b", Options::default()).acquire().await.unwrap();
        println!("round {round}: loss told and all served {:?} after the start", started.elapsed());
        let told_lost = async || told.count(|event| matches!(event, Event::Lost { .. })) == round;
        eventually(SOON, "the loss is told, once", told_lost).await;
        assert!(matches!(guard.release().await, Err(ReleaseError::Lost(_))));
        next.release().await.unwrap();
        fresh.release().await.unwrap();
    }
}

/// B155: the bound of 2 s after each start, for a waiter and for a newcomer.
#[tokio::test]
async fn acquires_work_within_two_seconds_of_a_restart() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let lock = mutex(&session, "a", Options::default().max_wait(SOON));
    for _ in 0..3 {
        lock.acquire().await.unwrap().release().await.unwrap();
        server.kill();
        let waiting = {
            let lock = lock.clone();
            tokio::spawn(async move { lock.acquire().await })
        };
        tokio::time::sleep(200 * MS).await;
        server.restart();
        let started = Watch::start();
        waiting.await.unwrap().unwrap().release().await.unwrap();
        assert!(started.awake() < 2 * SECOND, "{:?}", started.awake());
    }
    assert_eq!(session.statistics().watched, 0);
}

/// B103: no error, with 20 tasks and a hold that is renewed all the while.
#[tokio::test]
async fn b103_scripts_that_vanish_every_20_ms_cost_no_error() {
    let server = Server::start();
    let (session, told) = impatient(&server.url(), 2 * SECOND).await;
    let until = Instant::now() + 3 * SECOND;
    let kept = mutex(&session, "kept", Options::default().lease(600 * MS)).acquire().await.unwrap();
    let tasks: Vec<_> = (0..20)
        .map(|task| {
            let lock = mutex(&session, &format!("name {}", task % 5), Options::default());
            tokio::spawn(async move {
                let mut rounds = 0;
                while Instant::now() < until {
                    let guard = lock.acquire().await?;
                    guard.extend(40 * SECOND).await?;
                    guard.release().await?;
                    rounds += 1;
                }
                Ok::<u32, Box<dyn Error + Send + Sync>>(rounds)
            })
        })
        .collect();
    let mut connection = server.connection().await;
    let mut flushes = 0;
    while Instant::now() < until {
        let () = redis::cmd("SCRIPT").arg("FLUSH").query_async(&mut connection).await.unwrap();
        flushes += 1;
        tokio::time::sleep(20 * MS).await;
    }
    for task in tasks {
        assert!(task.await.unwrap().unwrap() > 0, "each task had its turns");
    }
    assert!(kept.is_held() && session.statistics().renewals >= 5);
    kept.release().await.unwrap();
    assert!(flushes > 30, "{flushes} flushes");
    assert_eq!(told.all(), [], "nothing to tell");
}

async fn replicate(replica: &Server, of: Option<&Server>) {
    let mut connection = replica.connection().await;
    let (host, port) = match of {
        Some(master) => ("127.0.0.1".to_owned(), master.addr().port().to_string()),
        None => ("NO".to_owned(), "ONE".to_owned()),
    };
    let mut command = redis::cmd("REPLICAOF");
    let () = command.arg(host).arg(port).query_async(&mut connection).await.expect("REPLICAOF");
    let role = if of.is_some() { "master_link_status:up" } else { "role:master" };
    let settled = async || {
        let info: String = redis::cmd("INFO")
            .arg("replication")
            .query_async(&mut connection)
            .await
            .expect("INFO replication");
        info.contains(role)
    };
    eventually(SOON, "the server has its role", settled).await;
}

fn kind_of(error: &AcquireError) -> Option<BackendErrorKind> {
    if let AcquireError::Backend(backend) = error { Some(backend.kind()) } else { None }
}

/// No replica says "not held" or "free": it says that it is one, and a hold is not lost silently.
#[tokio::test]
async fn a_replica_is_told_as_such() {
    let (server, master) = (Server::start(), Server::start());
    let (session, told) = impatient(&server.url(), 2 * SECOND).await;
    let lock = mutex(&session, "a", Options::default());
    let kept = mutex(&session, "b", Options::default().lease(2 * SECOND)).acquire().await.unwrap();
    let guard = lock.acquire().await.unwrap();
    replicate(&server, Some(&master)).await;
    let begin = Watch::start();
    for error in
        [lock.acquire().await.unwrap_err(), lock.try_acquire().await.map(drop).unwrap_err()]
    {
        assert_eq!(kind_of(&error), Some(BackendErrorKind::ReadOnly), "{error:?}");
    }
    // One reconnect each, no wait: the default wait is 5 s.
    assert!(begin.awake() < 2 * SECOND, "{:?}", begin.awake());
    let error = guard.release().await.unwrap_err();
    let ReleaseError::Backend { source, .. } = error else { panic!("surely not run: {error:?}") };
    assert_eq!(source.kind(), BackendErrorKind::ReadOnly);
    assert_eq!(kept.lost().await, LostReason::Unreachable);
    let failed = told.count(|event| matches!(event, Event::RenewalFailed { .. }));
    assert!(failed > 0, "{:?}", told.all());
    replicate(&server, None).await;
    lock.acquire().await.unwrap().release().await.unwrap();
    eventually(SOON, "nothing is left", async || keys_left(&server).await.is_empty()).await;
}

/// Every text that an error can be printed as, its causes included.
fn texts(error: &dyn Error) -> String {
    let mut texts = format!("{error} {error:?} {error:#?}");
    if let Some(source) = error.source() {
        texts += &self::texts(source);
    }
    texts
}

/// I19.
#[tokio::test]
async fn a_wrong_password_is_told_and_never_repeated() {
    let server = Server::builder().password("correct-horse").start();
    let session = session(&server.url()).await;
    assert!(
        !format!("{session:?} {:?}", Session::builder(&server.url())).contains("correct-horse")
    );
    for (user, password) in [("", "battery-staple"), ("nobody", "battery-staple"), ("", "")] {
        let url = match password {
            "" => format!("redis://{}/", server.addr()),
            _ => format!("redis://{user}:{password}@{}/", server.addr()),
        };
        let error = Session::connect(&url).await.unwrap_err();
        let ConfigError::Connect(backend) = &error else { panic!("{error:?}") };
        assert_eq!(backend.kind(), BackendErrorKind::Auth, "{error:?}");
        let texts = texts(&error);
        assert!(!texts.contains("battery") && !texts.contains("horse"), "{texts}");
    }
    let error = Session::connect("redis://:battery-staple@host:no-port/").await.unwrap_err();
    assert!(matches!(error, ConfigError::Url));
    assert!(!texts(&error).contains("battery"));
}

#[tokio::test]
async fn an_unreachable_server_is_told_within_the_connect_timeout() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let silent = format!("redis://{}/", listener.local_addr().unwrap());
    let closed = {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        format!("redis://{}/", listener.local_addr().unwrap())
    };
    for url in [silent, closed] {
        let builder = Session::builder(&url).unwrap().connect_timeout(500 * MS);
        let begin = Watch::start();
        let error = builder.connect().await.unwrap_err();
        assert!(begin.awake() < 1000 * MS, "{:?} for a timeout of 500 ms", begin.awake());
        let ConfigError::Connect(backend) = &error else { panic!("{error:?}") };
        assert_eq!(backend.kind(), BackendErrorKind::Unreachable);
    }
}

/// B136: the wait bounds everything beneath it too; asserted with 300 ms more for the machine.
#[tokio::test]
async fn b136_the_wait_bounds_an_acquire_without_a_server() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let lock = mutex(&session, "a", Options::default());
    server.freeze();
    unreachable_in_time(&lock).await;
    server.thaw();
    server.kill();
    unreachable_in_time(&lock).await;
}

async fn unreachable_in_time(lock: &Mutex) {
    let begin = Watch::start();
    let error = lock.acquire_within(500 * MS).await.expect_err("there is no server");
    let taken = begin.elapsed();
    assert!((490 * MS..1100 * MS).contains(&taken), "{taken:?} for a wait of 500 ms");
    assert_eq!(kind_of(&error), Some(BackendErrorKind::Unreachable), "{error:?}");
}
