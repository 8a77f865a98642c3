//! BEHAVIOURS.md, kinds G and N: what grows, what a crowd costs, what becomes of connections. One
//! test a row, named after it; B147 is in `commands_carriers.rs`. Long runs are scaled: all of them
//! with `scripts/test --soak`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use leasehold_mutex::{Options, Session};
use leasehold_tests::rig::{Watch, kill_connections};
use leasehold_tests::scene::{SOON, impatient, keys, mutex, queued, session};
use leasehold_tests::{Server, Worker, acl, eventually, rounds};
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn patient() -> Options {
    Options::default().max_wait(Duration::from_secs(60))
}

async fn used_memory(connection: &mut MultiplexedConnection) -> u64 {
    let info: String =
        redis::cmd("INFO").arg("memory").query_async(connection).await.expect("INFO");
    let line = info.lines().find_map(|line| line.strip_prefix("used_memory:")).expect("a line");
    line.trim().parse().expect("a number")
}

/// Half of the holds are abandoned. Counted when the last lease (2 s) and the fence memory (1 s) are
/// over, and what the server needs to notice.
#[tokio::test]
async fn b143_names_that_were_used_leave_nothing() {
    let server = Server::start();
    let mut connection = server.connection().await;
    let builder = Session::builder(&server.url()).unwrap().fence_memory(SECOND);
    let session = builder.connect().await.unwrap();
    mutex(&session, "warm", patient()).acquire().await.unwrap().release().await.unwrap();
    eventually(SOON, "a base", async || server.dbsize().await == 0).await;
    let base = used_memory(&mut connection).await;
    let (names, next) = (u64::from(rounds(200_000)), Arc::new(AtomicU64::new(0)));
    let tasks: Vec<_> = (0..32)
        .map(|_| {
            let (session, next) = (session.clone(), next.clone());
            tokio::spawn(async move {
                while let Some(name) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).filter(|name| *name < names)
                {
                    let lock =
                        mutex(&session, &format!("name {name}"), patient().fixed(2 * SECOND));
                    let guard = lock.acquire().await.expect("a hold");
                    match name % 4 {
                        0 | 1 => drop(guard.detach()),
                        2 => drop(guard),
                        _ => guard.release().await.expect("still held"),
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert!(server.dbsize().await > 100, "the control: there was something to leave");
    eventually(SOON, "all keys end", async || server.dbsize().await == 0).await;
    let settled = async || used_memory(&mut connection).await < base + 1_000_000;
    eventually(SOON, "the memory is free again", settled).await;
    assert_eq!((session.statistics().tracked, session.statistics().watched), (0, 0));
}

/// I18: purges are bounded. A queue of dead tickets, and one acquire.
#[tokio::test]
async fn b145_a_queue_of_dead_waiters_blocks_neither_server_nor_waiter() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let mut connection = server.connection().await;
    let dead = rounds(200_000);
    let fill = "for i = 1, ARGV[1] do \
                redis.call('ZADD', KEYS[1], i, 'dead' .. i .. '|1000|inbox') \
                redis.call('HSET', KEYS[2], 'dead' .. i .. '|1000|inbox', '1|o|n') end";
    for batch in 0..dead / 1000 {
        let shifted = fill.replace("'dead' .. i", &format!("'dead{batch}-' .. i"));
        let mut command = redis::cmd("EVAL");
        command.arg(shifted).arg(2).arg(&*keys("a").queue).arg(&*keys("a").timeouts).arg(1000);
        command.exec_async(&mut connection).await.unwrap();
    }
    let length: u32 = connection.zcard(&*keys("a").queue).await.unwrap();
    assert_eq!(length, dead, "the control");
    let mut slow = redis::cmd("CONFIG");
    slow.arg(&["SET", "slowlog-log-slower-than", "20000"]);
    slow.exec_async(&mut connection).await.unwrap();
    redis::cmd("SLOWLOG").arg("RESET").exec_async(&mut connection).await.unwrap();
    let begin = Watch::start();
    let guard = mutex(&session, "a", patient()).acquire().await.unwrap();
    println!("granted behind {dead} dead waiters after {:?}", begin.elapsed());
    assert!(begin.awake() < SOON, "{:?}", begin.awake());
    let slowest: u64 = redis::cmd("SLOWLOG").arg("LEN").query_async(&mut connection).await.unwrap();
    assert_eq!(slowest, 0, "commands over 20 ms");
    guard.release().await.unwrap();
}

/// Eight processes start together, and no message ever arrives: the right to subscribe is gone, and
/// the inboxes are cut after they have proved themselves.
#[tokio::test]
async fn b149_pollers_that_start_together_are_all_served() {
    let server = Server::start();
    acl::user(&server, "polls", "").await;
    let url = acl::url(&server, "polls");
    let program = env!("CARGO_BIN_EXE_mutex_worker");
    let mut workers = Vec::new();
    for _ in 0..8 {
        workers.push(Worker::start(program, &url, "a", 5 * SECOND).await);
    }
    acl::change(&server, "polls", "-subscribe").await;
    assert_eq!(kill_connections(&server, "pubsub").await, 8);
    let begin = Watch::start();
    let served = workers.into_iter().map(|mut worker| {
        tokio::spawn(async move {
            assert!(worker.ask("acquire").await.starts_with("held "));
            tokio::time::sleep(50 * MS).await;
            assert_eq!(worker.ask("release").await, "released");
            worker
        })
    });
    let mut workers = Vec::new();
    for worker in served.collect::<Vec<_>>() {
        workers.push(worker.await.unwrap());
    }
    println!("eight pollers were served in {:?} (bound 3 s)", begin.elapsed());
    // 3 s on a quiet machine: 0.4 s of work, and each hand-over waits for a poll of up to 0.2 s.
    assert!(begin.awake() < 5 * SECOND, "{:?}", begin.awake());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b151_a_thousand_waiters_cost_five_commands_a_grant_at_the_most() {
    const WAITERS: u64 = 1000;
    let server = Server::start();
    let session = session(&server.url()).await;
    let lock = mutex(&session, "a", patient());
    let guard = lock.acquire().await.unwrap();
    server.reset_stats().await;
    let waiting: Vec<_> = (0..WAITERS)
        .map(|_| {
            let lock = lock.clone();
            tokio::spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() })
        })
        .collect();
    queued(&server, "a", WAITERS).await;
    guard.release().await.unwrap();
    for waiter in waiting {
        waiter.await.unwrap();
    }
    let calls = server.command_calls().await;
    let sent = calls.of(&["evalsha", "eval"]);
    let checks = session.statistics().checks;
    println!("{sent} commands for {WAITERS} grants, {checks} of them checks");
    assert!(sent <= 5 * WAITERS, "{sent} for {WAITERS}");
    assert!(sent >= 2 * WAITERS, "the control: an acquire and a release each");
}

/// Lock futures are dropped at any moment on a connection that others use too: nobody reads an answer
/// that is another's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b152_dropped_futures_shift_no_answers_on_a_shared_connection() {
    let server = Server::start();
    let shared = server.connection().await;
    let builder = Session::builder(&server.url()).unwrap().commands(shared.clone());
    let session = builder.connect().await.unwrap();
    let goes_on = Arc::new(AtomicBool::new(true));
    let readers: Vec<_> = (0..8_u64)
        .map(|number| {
            let (mut connection, goes_on) = (shared.clone(), goes_on.clone());
            tokio::spawn(async move {
                let key = format!("key {number}");
                let () = connection.set(&key, number).await.expect("SET");
                let mut reads = 0;
                while goes_on.load(Ordering::Relaxed) {
                    let read: u64 = connection.get(&key).await.expect("a number");
                    assert_eq!(read, number, "an answer that is another's");
                    reads += 1;
                }
                reads
            })
        })
        .collect();
    let lock = mutex(&session, "a", patient());
    let mut taken = 0;
    for round in 0..rounds(2000) {
        let acquires =
            tokio::time::timeout(Duration::from_micros(u64::from(round % 40) * 50), lock.acquire());
        taken += u32::from(acquires.await.is_ok());
    }
    goes_on.store(false, Ordering::Relaxed);
    for reader in readers {
        assert!(reader.await.unwrap() > 100_u32);
    }
    assert!(taken < rounds(2000), "the control: some were dropped on their way");
    eventually(SOON, "all is released", async || session.statistics().tracked == 0).await;
    assert!(lock.try_acquire().await.unwrap().is_some());
}

/// The server closes what is idle for a second (messages' connections apart).
#[tokio::test]
async fn b154_idle_connections_that_are_cut_cost_no_error_and_no_hold() {
    let server = Server::builder().arg("--timeout", "1").start();
    let (session, told) = impatient(&server.url(), 2 * SECOND).await;
    let before = connections_made(&server).await;
    // Renewed every two seconds: each renewal meets a cut connection, or one made anew.
    let guard = mutex(&session, "held", patient().lease(6 * SECOND)).acquire().await.unwrap();
    let lock = mutex(&session, "a", patient());
    for _ in 0..3 {
        tokio::time::sleep(2500 * MS).await;
        lock.acquire().await.unwrap().release().await.unwrap();
    }
    assert!(session.statistics().renewals >= 3 && guard.is_held());
    guard.extend(7 * SECOND).await.unwrap();
    guard.release().await.unwrap();
    let lost = |event: &leasehold_mutex::Event| event.name().is_some() && !is_failed_once(event);
    assert_eq!(told.count(lost), 0, "{:?}", told.all());
    // A cut that is heard of in time costs not even a repeated renewal: what shows it is the connection made anew.
    let made = connections_made(&server).await;
    assert!(made >= before + 3, "the control: connections were cut, {before} and then {made}");
}

fn is_failed_once(event: &leasehold_mutex::Event) -> bool {
    matches!(event, leasehold_mutex::Event::RenewalFailed { failures: 1, .. })
}

/// So many connections the server has taken since it runs; asking makes one of them.
async fn connections_made(server: &Server) -> u64 {
    let mut connection = server.connection().await;
    let info: redis::InfoDict =
        redis::cmd("INFO").arg("stats").query_async(&mut connection).await.expect("INFO");
    info.get("total_connections_received").expect("a number")
}

#[tokio::test]
async fn b155_a_session_recovers_from_every_restart() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let lock = mutex(&session, "a", patient());
    for round in 0..3 {
        let guard = lock.acquire().await.unwrap();
        let watched = session.statistics().pushed_grants;
        server.kill();
        tokio::time::sleep(500 * MS).await;
        server.restart();
        let started = Watch::start();
        lock.acquire_within(SOON).await.unwrap().release().await.unwrap();
        assert!(started.awake() < 2 * SECOND, "round {round}: {:?}", started.awake());
        drop(guard);
        // The inbox, too: the next hand-over is by a message.
        let pushed = async || {
            let guard = lock.acquire().await.unwrap();
            let next = tokio::spawn({
                let lock = lock.clone();
                async move { lock.acquire().await.unwrap().release().await.unwrap() }
            });
            queued(&server, "a", 1).await;
            guard.release().await.unwrap();
            next.await.unwrap();
            session.statistics().pushed_grants > watched
        };
        eventually(SOON, "grants are pushed again", pushed).await;
        assert!(started.awake() < 4 * SECOND, "round {round}: {:?}", started.awake());
    }
}
