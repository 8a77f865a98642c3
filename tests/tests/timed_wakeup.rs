//! Rows of the table of behaviours, for the mutex, whose subject is how long a waiter waits.
//!
//! Bounds of the table are for a quiet machine; each test states what it adds.

use std::time::{Duration, Instant};

use leasehold_mutex::{AcquireError, Guard, Mutex, Options, Session};
use leasehold_tests::rig::{Watch, span, waiter};
use leasehold_tests::scene::{SOON, keys, keys_left, mutex, queued, session};
use leasehold_tests::{FaultProxy, Server, Worker, eventually, rounds};
use redis::AsyncCommands;
use tokio::task::{JoinHandle, JoinSet};

const WORKER: &str = env!("CARGO_BIN_EXE_mutex_worker");
const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// For two cores that do other work too.
const MACHINE: Duration = Duration::from_millis(300);

fn patient() -> Options {
    Options::default().max_wait(30 * SECOND)
}

/// A killed process: its lease of 1 s, and not more. (`timed_recovery` measures the same by the
/// server's clock, to the millisecond.)
#[tokio::test]
async fn b44_a_killed_holder_costs_one_lease() {
    let server = Server::start();
    let lock = mutex(&session(&server.url()).await, "a", patient());
    let mut holder = Worker::start(WORKER, &server.url(), "a", SECOND).await;
    holder.ask("acquire").await;
    let waiting = waiter(&server, &lock, "a", 1).await;
    // It lives beyond its first lease; its last renewal is at most a third of a lease ago.
    tokio::time::sleep(1500 * MS).await;
    assert!(!waiting.is_finished());
    holder.kill();
    let killed = Instant::now();
    let (next, at) = waiting.await.unwrap();
    println!("granted {:?} after the kill", at - killed);
    assert!(at - killed > 500 * MS, "{:?}", at - killed);
    assert!(at - killed < 1400 * MS + MACHINE, "{:?}", at - killed);
    next.release().await.unwrap();
}

/// Whoever loses the first race goes on waiting: three clients, and the winner holds for a second.
#[tokio::test]
async fn b54_a_waiter_that_is_passed_by_goes_on_waiting() {
    let server = Server::start();
    let mut sessions = Vec::new();
    for _ in 0..3 {
        sessions.push(session(&server.url()).await);
    }
    let lock = |client: usize| mutex(&sessions[client], "a", patient().max_wait(5 * SECOND));
    let guard = lock(0).acquire().await.unwrap();
    let begin = Instant::now();
    let mut tasks = JoinSet::new();
    for client in [1, 2] {
        let lock = lock(client);
        tasks.spawn(async move {
            let guard = lock.acquire().await.unwrap();
            let held = begin.elapsed();
            tokio::time::sleep(SECOND).await;
            guard.release().await.unwrap();
            held
        });
    }
    queued(&server, "a", 2).await;
    guard.release().await.unwrap();
    let mut held = tasks.join_all().await;
    held.sort();
    println!("held after {held:?}");
    assert!(held[0] < SECOND && held[1] - held[0] >= SECOND, "{held:?}");
    assert!(held[1] < 1500 * MS + MACHINE, "{held:?}");
}

/// Nobody moves another's deadline, and dead waiters push none: at all times a ticket ends within
/// the waiters' deadline. Three clients that wait for 500 ms, and in one of ten rounds a holder that
/// leaves its hold behind.
#[tokio::test]
async fn b57_no_ticket_lives_longer_than_its_waiter_may_be_silent() {
    let server = Server::start();
    let deadline = 4 * SECOND;
    let longest = tokio::spawn(longest_ticket(server.connection().await));
    let mut clients = JoinSet::new();
    for client in 0..3 {
        let builder = Session::builder(&server.url()).unwrap().waiter_deadline(deadline);
        let session = builder.connect().await.unwrap();
        clients.spawn(tries(session, client));
    }
    let timed_out: u32 = clients.join_all().await.into_iter().sum();
    longest.abort();
    let mut connection = server.connection().await;
    let longest: u64 = connection.get("longest").await.unwrap();
    println!("{timed_out} timed out; no ticket longer than {longest} ms");
    assert!(timed_out > 0, "there were waiters that gave up");
    assert!(longest > 3000, "the control, tickets were seen: {longest} ms");
    assert!(u128::from(longest) <= deadline.as_millis(), "{longest} ms");
}

async fn tries(session: Session, client: u32) -> u32 {
    let lock = mutex(&session, "a", Options::default().fixed(700 * MS));
    let mut timed_out = 0;
    for round in 0..rounds(100) {
        match lock.acquire_within(500 * MS).await {
            Ok(guard) if (round + client).is_multiple_of(5) => std::mem::forget(guard),
            Ok(guard) => {
                tokio::time::sleep(100 * MS).await;
                drop(guard.release().await);
            }
            Err(AcquireError::TimedOut { .. }) => timed_out += 1,
            Err(error) => panic!("{error:?}"),
        }
    }
    timed_out
}

/// Looks again and again, in one script a look, and keeps the greatest in a key.
async fn longest_ticket(mut connection: redis::aio::MultiplexedConnection) {
    let look = redis::Script::new(
        "local t = redis.call('TIME') \
         local now, most = t[1] * 1000 + math.floor(t[2] / 1000), tonumber(redis.call('GET', KEYS[2]) or 0) \
         for _, value in ipairs(redis.call('HVALS', KEYS[1])) do \
           local deadline = string.match(value, '^(%d+)[!|]') \
           if deadline then most = math.max(most, deadline - now) end \
         end \
         redis.call('SET', KEYS[2], string.format('%d', most))",
    );
    loop {
        let timeouts = keys("a").timeouts;
        let mut invocation = look.key(&*timeouts);
        let _: () = invocation.key("longest").invoke_async(&mut connection).await.expect("EVAL");
        tokio::time::sleep(5 * MS).await;
    }
}

/// The end of a lease wakes the head of the queue, without any message. The holder is leaked: nobody
/// renews a fixed lease.
#[tokio::test]
async fn b61_the_head_wakes_when_the_lease_ends() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let begin = Instant::now();
    let leaked = mutex(&one, "a", Options::default().fixed(SECOND)).acquire().await.unwrap();
    std::mem::forget(leaked);
    let (next, at) = waiter(&server, &mutex(&two, "a", patient()), "a", 1).await.await.unwrap();
    println!("granted after {:?}", at - begin);
    assert!((1000 * MS - MS..1300 * MS + MACHINE).contains(&(at - begin)), "{:?}", at - begin);
    next.release().await.unwrap();
}

/// I12: a thousand dead waiters before the living one cost their one deadline, together; here it has
/// passed when the lock is released. They died silently: their inbox still looks open.
#[tokio::test]
async fn b63_dead_waiters_cost_their_deadline_once() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let builder = Session::builder(proxy.url()).unwrap().check_every(300 * MS);
    let dying = builder.waiter_deadline(SECOND).connect().await.unwrap();
    let living = session(&server.url()).await;
    let guard = mutex(&living, "a", patient()).acquire().await.unwrap();
    let crowd = crowd(&dying, 1000);
    queued(&server, "a", 1000).await;
    proxy.black_hole(true);
    let died = Watch::start();
    let waiting = waiter(&server, &mutex(&living, "a", patient()), "a", 1001).await;
    tokio::time::sleep((1100 * MS).saturating_sub(died.elapsed())).await;
    let released = Instant::now();
    guard.release().await.unwrap();
    let (next, at) = waiting.await.unwrap();
    println!("granted {:?} after the release", at - released);
    assert!(at - released < SECOND, "{:?}", at - released);
    next.release().await.unwrap();
    drop(crowd);
}

/// The same for a newcomer on a lock that its dead holder left behind, with the dead still in the
/// queue: 2 s by the table.
#[tokio::test]
async fn b63_a_newcomer_passes_the_dead() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let builder = Session::builder(proxy.url()).unwrap().check_every(300 * MS);
    let dying = builder.waiter_deadline(SECOND).connect().await.unwrap();
    let options = Options::default().fixed(1500 * MS);
    let held = mutex(&dying, "a", options).acquire().await.unwrap();
    let crowd = crowd(&dying, 1000);
    queued(&server, "a", 1000).await;
    proxy.black_hole(true);
    let died = Watch::start();
    let living = session(&server.url()).await;
    let guard = mutex(&living, "a", patient()).acquire().await.unwrap();
    println!("granted {:?} after all had died", died.elapsed());
    assert!(died.awake() < 2 * SECOND + MACHINE, "{:?}", died.awake());
    guard.release().await.unwrap();
    drop((crowd, held));
}

fn crowd(session: &Session, waiters: u32) -> JoinSet<Result<Guard, AcquireError>> {
    let mut crowd = JoinSet::new();
    for _ in 0..waiters {
        let lock = mutex(session, "a", patient());
        crowd.spawn(async move { lock.acquire().await });
    }
    crowd
}

/// Eight leases one after the other, none released: they fit into the wait, in order, a lease apart;
/// the waiters of one process, and those of four, where whoever notices the end of a lease is often
/// not whose turn it is.
#[tokio::test]
async fn b64_leases_that_end_hand_over_in_order() {
    let lease = span(SECOND, 400 * MS);
    for processes in [1, 4] {
        let server = Server::start();
        let mut locks = Vec::new();
        for _ in 0..processes {
            let options = Options::default().fixed(lease).max_wait(lease * 10);
            locks.push(mutex(&session(&server.url()).await, "a", options));
        }
        let begin = Instant::now();
        let mut waiting: Vec<JoinHandle<Duration>> = Vec::new();
        for number in 0..8 {
            let lock = &locks[number % processes];
            waiting.push(tokio::spawn(leaks(lock.clone(), begin)));
            let standing = async || lock.queue().await.unwrap().length == number as u64;
            eventually(SOON, "it holds or queues", standing).await;
            eventually(SOON, "one holds", async || lock.is_locked().await.unwrap()).await;
        }
        let mut held = Vec::new();
        for task in waiting {
            held.push(task.await.unwrap());
        }
        println!("{processes} processes; held after {held:?}");
        for pair in held.windows(2) {
            let apart = pair[1].saturating_sub(pair[0]);
            assert!((lease - MACHINE / 3..lease + MACHINE).contains(&apart), "{apart:?}: {held:?}");
        }
        let ended = async || keys_left(&server).await.is_empty();
        eventually(SOON, "the last lease ends", ended).await;
    }
}

async fn leaks(lock: Mutex, begin: Instant) -> Duration {
    let guard = lock.acquire().await.expect("a hold");
    std::mem::forget(guard);
    begin.elapsed()
}
