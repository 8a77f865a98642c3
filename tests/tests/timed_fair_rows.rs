//! Rows of the tables of behaviours and of conformance for the fair lock whose subject is how long a waiter waits.
//!
//! Bounds of the tables are for a quiet machine; `MACHINE` is what is added.

use std::time::{Duration, Instant};

use leasehold_fair_lock::{AcquireError, FairLock, Guard, Options, Session};
use leasehold_tests::fair::{CHECK, WAITER_DEADLINE, brisk, keys, lock, queued, waiter};
use leasehold_tests::rig::{Watch, span};
use leasehold_tests::scene::{SOON, keys_left, session};
use leasehold_tests::{FaultProxy, Server, Worker, eventually, rounds};
use redis::AsyncCommands;
use tokio::task::{JoinHandle, JoinSet};

const WORKER: &str = env!("CARGO_BIN_EXE_fair_worker");
const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// For two cores that do other work too.
const MACHINE: Duration = Duration::from_millis(300);

fn patient() -> Options {
    Options::default().max_wait(30 * SECOND)
}

/// Looks at all deadlines of waiters again and again, in one script a look, and keeps the one that is farthest ahead.
async fn longest_deadline(mut connection: redis::aio::MultiplexedConnection) {
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
        let looked: Result<(), _> = invocation.key("longest").invoke_async(&mut connection).await;
        looked.expect("EVAL");
        tokio::time::sleep(5 * MS).await;
    }
}

/// Tries to hold again and again with a wait of 500 ms, and in one of five rounds leaves the hold behind; how often the
/// wait ended without.
async fn tries(session: Session, client: u32, times: u32) -> u32 {
    let lock = lock(&session, "a", Options::default().fixed(700 * MS));
    let mut timed_out = 0;
    for round in 0..times {
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

/// The farthest deadline that was seen while three clients tried, and, if so wanted, one died.
async fn longest_of_three(times: u32, one_dies: bool) -> Duration {
    let server = Server::start();
    let longest = tokio::spawn(longest_deadline(server.connection().await));
    let mut clients = JoinSet::new();
    for client in 0..3 {
        let session = brisk(&server.url()).connect().await.expect("a session");
        clients.spawn(tries(session, client, times));
    }
    if one_dies {
        let mut dying = Worker::start(WORKER, &server.url(), "a", SECOND).await;
        assert_eq!(dying.ask("wait 3").await, "begun");
        tokio::time::sleep(CHECK * 2).await;
        dying.freeze();
        tokio::time::sleep(CHECK * 2).await;
        dying.kill();
    }
    let timed_out: u32 = clients.join_all().await.into_iter().sum();
    longest.abort();
    let longest: u64 = server.connection().await.get("longest").await.expect("GET");
    println!("{timed_out} timed out; no deadline farther than {longest} ms");
    assert!(timed_out > 0, "there were waiters that gave up");
    Duration::from_millis(longest)
}

/// I12: nobody moves another's deadline, and dead waiters push none: at all times a ticket ends within the waiters'
/// deadline.
#[tokio::test]
async fn b57_no_ticket_lives_longer_than_its_waiter_may_be_silent() {
    let longest = longest_of_three(rounds(100), false).await;
    assert!(longest <= WAITER_DEADLINE, "{longest:?}");
    assert!(longest > WAITER_DEADLINE / 2, "the control, tickets were seen: {longest:?}");
}

/// Line 37, ours: no deadline is later than the waiters' deadline, also when a client dies among them.
#[tokio::test]
async fn c37_a_client_that_dies_makes_no_deadline_later() {
    let longest = longest_of_three(rounds(50), true).await;
    assert!(longest <= WAITER_DEADLINE, "{longest:?}");
    assert!(longest > WAITER_DEADLINE / 2, "the control, tickets were seen: {longest:?}");
}

/// The end of a lease wakes the head of the queue, without any message. The holder is leaked: nobody renews a fixed lease.
#[tokio::test]
async fn b61_the_head_wakes_when_the_lease_ends() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let begin = Instant::now();
    let leaked = lock(&one, "a", Options::default().fixed(SECOND)).acquire().await.unwrap();
    std::mem::forget(leaked);
    let (next, at) = waiter(&lock(&two, "a", patient()), 1).await.await.unwrap();
    println!("granted after {:?}", at - begin);
    assert!((SECOND - MS..1300 * MS + MACHINE).contains(&(at - begin)), "{:?}", at - begin);
    next.release().await.unwrap();
}

fn crowd(session: &Session, waiters: u32) -> JoinSet<Result<Guard, AcquireError>> {
    let mut crowd = JoinSet::new();
    for _ in 0..waiters {
        let lock = lock(session, "a", patient());
        crowd.spawn(async move { lock.acquire().await });
    }
    crowd
}

/// A session whose waiters may be silent for a second, through a proxy that can swallow all of it.
async fn dying(server: &Server) -> (Session, FaultProxy) {
    let proxy = FaultProxy::to(server);
    let builder = Session::builder(proxy.url()).expect("a URL").check_every(300 * MS);
    (builder.waiter_deadline(SECOND).connect().await.expect("a session"), proxy)
}

/// I12: a thousand dead waiters before the living one cost their one deadline, together; here it has passed when the lock
/// is released. They died silently: their inbox still looks open.
#[tokio::test]
async fn b63_dead_waiters_cost_their_deadline_once() {
    let server = Server::start();
    let (dying, proxy) = dying(&server).await;
    let living = lock(&session(&server.url()).await, "a", patient());
    let guard = living.acquire().await.unwrap();
    let crowd = crowd(&dying, 1000);
    queued(&living, 1000).await;
    proxy.black_hole(true);
    let died = Watch::start();
    let waiting = waiter(&living, 1001).await;
    tokio::time::sleep((1100 * MS).saturating_sub(died.elapsed())).await;
    let released = Instant::now();
    guard.release().await.unwrap();
    let (next, at) = waiting.await.unwrap();
    println!("granted {:?} after the release", at - released);
    assert!(at - released < SECOND, "{:?}", at - released);
    next.release().await.unwrap();
    drop(crowd);
}

/// The same for a newcomer on a lock that its dead holder left behind, with the dead still in the queue: 2 s by the table.
#[tokio::test]
async fn b63_a_newcomer_passes_the_dead() {
    let server = Server::start();
    let (dying, proxy) = dying(&server).await;
    let held = lock(&dying, "a", Options::default().fixed(1500 * MS)).acquire().await.unwrap();
    let living = lock(&session(&server.url()).await, "a", patient());
    let crowd = crowd(&dying, 1000);
    queued(&living, 1000).await;
    proxy.black_hole(true);
    let died = Watch::start();
    let guard = living.acquire().await.unwrap();
    println!("granted {:?} after all had died", died.elapsed());
    assert!(died.awake() < 2 * SECOND + MACHINE, "{:?}", died.awake());
    guard.release().await.unwrap();
    drop((crowd, held));
}

/// Eight leases one after the other, none released: they fit into the wait, in order, a lease apart; the waiters of one
/// process, and those of four, where whoever notices the end of a lease is often not whose turn it is.
#[tokio::test]
async fn b64_leases_that_end_hand_over_in_order() {
    let lease = span(SECOND, 400 * MS);
    for processes in [1, 4] {
        let server = Server::start();
        let mut locks = Vec::new();
        for _ in 0..processes {
            let options = Options::default().fixed(lease).max_wait(lease * 10);
            locks.push(lock(&session(&server.url()).await, "a", options));
        }
        let begin = Instant::now();
        let mut waiting: Vec<JoinHandle<Duration>> = Vec::new();
        for number in 0..8 {
            let lock = &locks[number % processes];
            waiting.push(tokio::spawn(leaks(lock.clone(), begin)));
            queued(lock, number as u64).await;
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

async fn leaks(lock: FairLock, begin: Instant) -> Duration {
    let guard = lock.acquire().await.expect("a hold");
    std::mem::forget(guard);
    begin.elapsed()
}
