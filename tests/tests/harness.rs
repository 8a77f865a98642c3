//! The helpers of this package do what the other suites take for granted.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold_tests::{Server, eventually};
use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands, Value};

/// Far above what any step takes, also on a loaded machine.
const SOON: Duration = Duration::from_secs(10);

#[tokio::test]
async fn servers_share_nothing() {
    let (one, other) = (Server::start(), Server::start());
    let _: () = one.connection().await.set("key", 1).await.unwrap();
    assert_eq!(one.keys().await, [b"key"]);
    assert_eq!((one.dbsize().await, other.dbsize().await), (1, 0));
    one.flushall().await;
    assert_eq!(one.dbsize().await, 0);
}

#[tokio::test]
async fn connections_speak_resp3() {
    let server = Server::start();
    let mut connection = server.connection().await;
    let greeting: HashMap<String, Value> =
        redis::cmd("HELLO").query_async(&mut connection).await.unwrap();
    assert_eq!(greeting["proto"], Value::Int(3));
}

#[tokio::test]
async fn frozen_server_answers_after_thaw_only() {
    let server = Server::start();
    let mut connection = server.connection().await;
    server.freeze();
    let mut late = connection.clone();
    let answer = tokio::spawn(async move { late.incr::<_, _, u64>("count", 1).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!answer.is_finished(), "a frozen server answered");
    server.thaw();
    assert_eq!(answer.await.unwrap().unwrap(), 1);
    assert_eq!(connection.incr::<_, _, u64>("count", 1).await.unwrap(), 2);
}

#[tokio::test]
async fn killed_server_refuses_until_it_restarts_empty_on_its_port() {
    let server = Server::start();
    let (addr, pid) = (server.addr(), server.pid());
    let _: () = server.connection().await.set("key", 1).await.unwrap();
    server.kill();
    assert!(TcpStream::connect(addr).is_err());
    server.restart();
    assert_eq!(server.addr(), addr);
    assert_ne!(server.pid(), pid);
    assert_eq!(server.dbsize().await, 0);
}

#[tokio::test]
async fn dropped_server_is_gone_even_when_frozen() {
    let server = Server::start();
    let addr = server.addr();
    assert!(TcpStream::connect(addr).is_ok());
    server.freeze();
    drop(server);
    assert!(TcpStream::connect(addr).is_err());
}

#[tokio::test]
async fn server_ends_with_its_test_process() {
    let mut process = Command::new(env!("CARGO_BIN_EXE_serve"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut url = String::new();
    BufReader::new(process.stdout.as_mut().unwrap()).read_line(&mut url).unwrap();
    let addr = url.trim().trim_start_matches("redis://").trim_end_matches('/');
    assert!(TcpStream::connect(addr).is_ok());
    process.kill().unwrap();
    process.wait().unwrap();
    eventually(SOON, "the server ends", async || TcpStream::connect(addr).is_err()).await;
}

#[tokio::test]
async fn password_is_in_the_url_and_is_asked_for() {
    let server = Server::builder().password("secret").start();
    assert_eq!(server.dbsize().await, 0);
    let without =
        redis::Client::open(format!("redis://{}/?protocol=resp3", server.addr())).unwrap();
    let refused = without.get_multiplexed_async_connection().await.unwrap_err();
    assert_eq!(refused.code(), Some("NOAUTH"), "{refused}");
}

#[tokio::test]
async fn arguments_reach_the_server() {
    let server = Server::builder().arg("--maxmemory", "7mb").start();
    let mut connection = server.connection().await;
    let (_, limit): (String, u64) =
        redis::cmd("CONFIG").arg(&["GET", "maxmemory"]).query_async(&mut connection).await.unwrap();
    assert_eq!(limit, 7 * 1024 * 1024);
}

#[tokio::test]
async fn command_calls_are_counted_since_the_reset() {
    let server = Server::start();
    let mut connection = server.connection().await;
    let _: u64 = connection.incr("count", 1).await.unwrap();
    server.reset_stats().await;
    for _ in 0..3 {
        let _: u64 = connection.incr("count", 1).await.unwrap();
    }
    let _: Option<u64> = connection.get("count").await.unwrap();
    let calls = server.command_calls().await;
    assert_eq!(
        (calls.of(&["incrby"]), calls.of(&["get", "incrby"]), calls.of(&["del"])),
        (3, 4, 0)
    );
}

#[tokio::test]
async fn shifted_clock_moves_time_and_ttl() {
    let server = Server::builder().clock_shim().start();
    let mut connection = server.connection().await;
    assert!(ahead_ms(&mut connection).await.abs() < 1_000);
    let _: () = connection.pset_ex("key", 1, 100_000).await.unwrap();

    server.clock().forward(Duration::from_secs(60));
    assert!((59_000..61_000).contains(&ahead_ms(&mut connection).await));
    let left: i64 = connection.pttl("key").await.unwrap();
    assert!((30_000..=40_000).contains(&left), "{left} ms left");

    server.clock().back(Duration::from_secs(90));
    assert!((-31_000..-29_000).contains(&ahead_ms(&mut connection).await));
    let left: i64 = connection.pttl("key").await.unwrap();
    assert!((120_000..=130_000).contains(&left), "{left} ms left");
}

#[tokio::test]
async fn shifted_clock_of_one_server_leaves_another_alone() {
    let shifted = Server::builder().clock_shim().start();
    let other = Server::builder().clock_shim().start();
    shifted.clock().forward(Duration::from_secs(60));
    assert!(ahead_ms(&mut shifted.connection().await).await > 59_000);
    assert!(ahead_ms(&mut other.connection().await).await.abs() < 1_000);
}

/// How far the server's clock is ahead of ours.
async fn ahead_ms(connection: &mut MultiplexedConnection) -> i64 {
    let (seconds, micros): (i64, i64) =
        redis::cmd("TIME").query_async(connection).await.expect("TIME");
    let ours = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis();
    seconds * 1000 + micros / 1000 - i64::try_from(ours).expect("a time in this age")
}

#[tokio::test]
#[should_panic(expected = "not within 20ms: pigs fly")]
async fn eventually_fails_with_what_did_not_happen() {
    eventually(Duration::from_millis(20), "pigs fly", async || false).await;
}
