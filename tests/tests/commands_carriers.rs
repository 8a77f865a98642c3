//! Acquires and releases over what the user has: a pool, a connection, a connection manager.

use std::time::Duration;

use deadpool_redis::{Config, Pool, Runtime};
use leasehold_mutex::{AcquireError, BackendErrorKind, ConfigError, Mutex, Options, Session};
use leasehold_tests::rig::{Watch, kill_connections};
use leasehold_tests::{Server, eventually};

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

fn pool_of(server: &Server, size: usize) -> Pool {
    let config = Config::from_url(server.url());
    let builder = config.builder().expect("a pool");
    builder.max_size(size).runtime(Runtime::Tokio1).build().expect("a pool")
}

async fn pooled(server: &Server, pool: &Pool) -> Result<Session, ConfigError> {
    let builder = Session::builder(&server.url()).expect("an address");
    builder.connect_timeout(200 * MS).commands(pool.clone()).connect().await
}

fn mutex(session: &Session, name: &str) -> Mutex {
    Mutex::new(session, name, Options::default()).expect("a mutex")
}

#[tokio::test]
async fn a_pool_is_asked_once_and_not_per_command() {
    let server = Server::start();
    let pool = pool_of(&server, 4);
    let session = pooled(&server, &pool).await.unwrap();
    let lock = mutex(&session, "a");
    server.reset_stats().await;
    for _ in 0..100 {
        lock.acquire().await.unwrap().release().await.unwrap();
    }
    let calls = server.command_calls().await;
    assert_eq!(calls.of(&["ping", "unwatch"]), 0);
    assert_eq!(calls.of(&["evalsha"]), 200);
    assert_eq!(pool.status().size, 1);
    // The control: this is what a checkout per command costs.
    for _ in 0..10 {
        drop(pool.get().await.unwrap());
    }
    assert!(server.command_calls().await.of(&["ping"]) >= 9);
}

#[tokio::test]
async fn b147_waiters_keep_no_connection_of_the_pool() {
    let server = Server::start();
    let pool = pool_of(&server, 1);
    let session = pooled(&server, &pool).await.unwrap();
    let guard = mutex(&session, "a").acquire().await.unwrap();
    let waiting: Vec<_> = (0..50)
        .map(|_| {
            let lock = Mutex::new(&session, "a", Options::default().max_wait(20 * SECOND)).unwrap();
            tokio::spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() })
        })
        .collect();
    let lock = mutex(&session, "a");
    eventually(5 * SECOND, "all wait", async || lock.queue().await.unwrap().length == 50).await;
    let began = Watch::start();
    guard.release().await.unwrap();
    assert!(began.awake() < SECOND / 2, "the release took {:?}", began.awake());
    for waiter in waiting {
        waiter.await.unwrap();
    }
}

#[tokio::test]
async fn an_exhausted_and_a_closed_pool_are_told_by_kind() {
    let server = Server::start();
    let pool = pool_of(&server, 1);
    let taken = pool.get().await.unwrap();
    let error = pooled(&server, &pool).await.unwrap_err();
    assert!(
        matches!(&error, ConfigError::Connect(cause) if cause.kind() == BackendErrorKind::Pool),
        "{error:?}"
    );
    drop(taken);
    let session = pooled(&server, &pool).await.unwrap();
    pool.close();
    kill_connections(&server, "normal").await;
    let error = mutex(&session, "a").acquire_within(SECOND).await.unwrap_err();
    assert!(
        matches!(&error, AcquireError::Backend(cause) if cause.kind() == BackendErrorKind::Pool),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_killed_connection_of_a_pool_is_replaced_by_another_of_it() {
    let server = Server::start();
    let pool = pool_of(&server, 2);
    let session = pooled(&server, &pool).await.unwrap();
    let lock = mutex(&session, "a");
    for _ in 0..3 {
        lock.acquire().await.unwrap().release().await.unwrap();
        kill_connections(&server, "normal").await;
    }
    lock.acquire().await.unwrap().release().await.unwrap();
    assert!(pool.status().size <= 2);
}

#[tokio::test]
async fn a_given_connection_is_used_until_it_dies_and_then_replaced() {
    let server = Server::start();
    let given = server.connection().await;
    let session = Session::builder(&server.url()).unwrap().commands(given).connect().await.unwrap();
    let lock = mutex(&session, "a");
    lock.acquire().await.unwrap().release().await.unwrap();
    server.kill();
    server.restart();
    lock.acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_connection_manager_carries_commands_over_cuts() {
    let server = Server::start();
    let manager = server.client().get_connection_manager().await.unwrap();
    let session =
        Session::builder(&server.url()).unwrap().commands(manager).connect().await.unwrap();
    let lock = mutex(&session, "a");
    for _ in 0..3 {
        lock.acquire().await.unwrap().release().await.unwrap();
        kill_connections(&server, "normal").await;
    }
    lock.acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn commands_that_lead_elsewhere_are_refused_when_the_session_opens() {
    let (server, another) = (Server::start(), Server::start());
    let elsewhere = another.connection().await;
    let mut other_database = server.connection().await;
    let () =
        redis::cmd("SELECT").arg(1).query_async(&mut other_database).await.expect("database 1");
    for given in [elsewhere, other_database] {
        let builder = Session::builder(&server.url()).unwrap().commands(given);
        let refused = builder.connect().await;
        assert!(matches!(refused, Err(ConfigError::OtherServer)), "{refused:?}");
    }
    assert_eq!((server.dbsize().await, another.dbsize().await), (0, 0));
}
