//! Rows P (wake-up, pub/sub) of the table of behaviours, and rows F (fair queue) as far as the
//! mutex's queue shows them. Those whose subject is a bound in time are in `timed_wakeup.rs`.

use std::sync::Arc;
use std::time::Duration;

use leasehold_mutex::{AcquireError, Mutex, Options, Session};
use leasehold_tests::rig::{awake, connections, kill_connections, waiter};
use leasehold_tests::scene::{SOON, hash_of, inboxes, keys, keys_left, mutex, queued, session};
use leasehold_tests::{FaultProxy, Pick, Server, Worker, eventually, rounds};
use redis::AsyncCommands;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

const CROWD: &str = env!("CARGO_BIN_EXE_crowd_worker");
const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

fn patient() -> Options {
    Options::default().lease(30 * SECOND).max_wait(MINUTE)
}

/// A session that takes no pause of the machine for a lost answer.
async fn unhurried(url: &str) -> Session {
    let builder = Session::builder(url).expect("a URL").response_timeout(30 * SECOND);
    builder.connect().await.expect("a session")
}

/// A release at any moment of an acquire, over a slow link. A wake-up that got lost would show as the
/// pause until a check (0.75 s and more); a quiet machine stays under 100 ms.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b45_a_release_during_an_acquire_is_not_missed() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let (near, far) = (unhurried(&server.url()).await, unhurried(proxy.url()).await);
    let (held, wanted) = (mutex(&near, "a", patient()), mutex(&far, "a", patient()));
    proxy.delay(2 * MS + MS / 2);
    let mut slowest = Duration::ZERO;
    for round in 0..rounds(1000) {
        let guard = held.acquire().await.unwrap();
        let acquiring = {
            let wanted = wanted.clone();
            tokio::spawn(async move { wanted.acquire().await.unwrap() })
        };
        tokio::time::sleep(MS / 4 * (round % 32)).await;
        let released = awake();
        // However it ends: released, dropped, ended by force, ended by whoever adopted it.
        match round % 4 {
            0 => guard.release().await.unwrap(),
            1 => drop(guard),
            2 => drop(wanted.force_release().await.unwrap()),
            _ => held.adopt(&guard.detach()).await.unwrap().release().await.unwrap(),
        }
        let next = acquiring.await.unwrap();
        slowest = slowest.max(awake() - released);
        next.release().await.unwrap();
    }
    let queued = far.statistics().pushed_grants;
    println!("slowest {slowest:?}; {queued} handed over by a push");
    assert!(slowest < 600 * MS, "slowest {slowest:?}");
    assert!(queued > u64::from(rounds(1000) / 4), "{queued} did queue");
}

/// One inbox a session, whatever its waiters did: held, timed out, were dropped, failed.
#[tokio::test]
async fn b47_waiters_leave_no_subscription() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let names = rounds(300);
    let mut guards = Vec::new();
    for number in 0..names {
        let lock = mutex(&one, &format!("a{number}"), patient());
        guards.push(lock.acquire().await.unwrap());
    }
    let (mut kept, mut others) = (JoinSet::new(), JoinSet::new());
    for number in 0..names {
        let lock = mutex(&two, &format!("a{number}"), patient());
        let last = lock.clone();
        kept.spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() });
        let short = mutex(&two, &format!("a{number}"), patient().max_waiters(3));
        others.spawn(async move {
            let error = short.acquire_within(700 * MS).await.unwrap_err();
            assert!(matches!(error, AcquireError::TimedOut { .. }), "{error:?}");
        });
        others.spawn(async move {
            assert!(tokio::time::timeout(700 * MS, last.acquire()).await.is_err());
        });
    }
    for number in 0..names {
        queued(&server, &format!("a{number}"), 3).await;
        // One more that fails at once.
        let full = mutex(&two, &format!("a{number}"), patient().max_waiters(3));
        let error = full.acquire().await.unwrap_err();
        assert!(matches!(error, AcquireError::Saturated { .. }), "{error:?}");
        assert_eq!(inboxes(&server).await, 2, "one a session, none a waiter");
    }
    while let Some(done) = others.join_next().await {
        done.unwrap();
    }
    for guard in guards {
        guard.release().await.unwrap();
    }
    while let Some(done) = kept.join_next().await {
        done.unwrap();
    }
    assert_eq!(inboxes(&server).await, 2);
    one.shutdown(SOON).await.unwrap();
    two.shutdown(SOON).await.unwrap();
    eventually(SOON, "no inbox is left", async || inboxes(&server).await == 0).await;
    assert_eq!(keys_left(&server).await, [""; 0]);
}

/// 2 000 names with a waiter each, over a pool of four: inbox and watchdog, and one of the pool's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b49_any_number_of_names_waits_on_one_inbox() {
    const POOL: usize = 4;
    let server = Server::start();
    let pool = deadpool_redis::Config::from_url(server.url())
        .builder()
        .unwrap()
        .max_size(POOL)
        .runtime(deadpool_redis::Runtime::Tokio1)
        .build()
        .unwrap();
    let before = connections(&server).await;
    let session =
        Session::builder(&server.url()).unwrap().commands(pool.clone()).connect().await.unwrap();
    let names = rounds(20_000).min(2000);
    let locks: Vec<_> =
        (0..names).map(|number| mutex(&session, &format!("a{number}"), patient())).collect();
    let held = all(&locks, |lock| async move { lock.acquire().await.unwrap() }).await;
    let waiting: Vec<_> = locks
        .iter()
        .map(|lock| {
            let lock = lock.clone();
            tokio::spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() })
        })
        .collect();
    for number in 0..names {
        queued(&server, &format!("a{number}"), 1).await;
    }
    let connected = connections(&server).await - before;
    println!("{connected} connections, {} waiting", session.statistics().tracked);
    assert!(connected <= POOL + 2, "{connected} connections");
    assert_eq!(inboxes(&server).await, 1);
    drop(held);
    for task in waiting {
        task.await.unwrap();
    }
    eventually(SOON, "all is over", async || keys_left(&server).await.is_empty()).await;
}

async fn all<T, F>(locks: &[Mutex], take: impl Fn(Mutex) -> F) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    for lock in locks {
        tasks.spawn(take(lock.clone()));
    }
    tasks.join_all().await
}

/// A cut inbox comes back, and a server that starts anew is subscribed to again; waiters are checked
/// at once, not at the next pause (which would come after 0.75 s and more): asserted is half a second,
/// and after a restart the 1 s of the table and half a second on top.
#[tokio::test]
async fn b50_subscriptions_come_back() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let (held, wanted) = (mutex(&one, "a", patient()), mutex(&two, "a", patient()));
    for (restart, pause) in [(false, 0), (false, 200), (true, 200), (false, 0), (false, 5)] {
        let guard = held.acquire().await.unwrap();
        let waiting = waiter(&server, &wanted, "a", 1).await;
        if restart {
            server.restart();
        } else {
            assert_eq!(kill_connections(&server, "pubsub").await, 2);
        }
        tokio::time::sleep(pause * MS).await;
        let released = awake();
        // After a restart there is nothing to release: the waiter finds a free lock.
        let outcome = guard.release().await;
        assert!(restart || outcome.is_ok(), "{outcome:?}");
        let (next, _) = waiting.await.unwrap();
        let took = awake() - released;
        println!("restart {restart}, released {pause} ms after it: served after {took:?}");
        assert!(took < if restart { 1500 * MS } else { 500 * MS }, "{took:?}");
        eventually(SOON, "both inboxes are back", async || inboxes(&server).await == 2).await;
        next.release().await.unwrap();
    }
    // And they deliver.
    let pushed = two.statistics().pushed_grants;
    let guard = held.acquire().await.unwrap();
    let waiting = waiter(&server, &wanted, "a", 1).await;
    guard.release().await.unwrap();
    drop(waiting.await.unwrap());
    assert_eq!(two.statistics().pushed_grants, pushed + 1);
}

/// A release that finds no inbox takes the waiter for dead, and the lock lies there free: while its
/// inbox is down, a session asks often (DESIGN: each 10 ms to 200 ms), and at once when it is up again.
#[tokio::test]
async fn b50_a_release_that_finds_no_inbox_is_soon_followed() {
    for comes_back in [false, true] {
        let server = Server::start();
        let proxy = FaultProxy::to(&server);
        let (near, far) = (session(&server.url()).await, session(proxy.url()).await);
        let guard = mutex(&near, "a", patient()).acquire().await.unwrap();
        let waiting = waiter(&server, &mutex(&far, "a", patient()), "a", 1).await;
        proxy.refuse(true);
        if comes_back {
            // Its other connections too: it cannot ask either.
            proxy.cut();
        } else {
            kill_connections(&server, "pubsub").await;
        }
        eventually(SOON, "only one inbox is left", async || inboxes(&server).await == 1).await;
        let released = awake();
        guard.release().await.unwrap();
        proxy.refuse(!comes_back);
        let (next, _) = waiting.await.unwrap();
        let took = awake() - released;
        println!("comes back: {comes_back}; served after {took:?}");
        assert_eq!(far.statistics().pushed_grants, 0, "the release found an inbox");
        assert!(took < 600 * MS, "{took:?}");
        next.release().await.unwrap();
    }
}

/// Waiters numbered in the order in which they queued; they tell their number, and when they held.
async fn numbered(
    server: &Server,
    locks: &[Mutex],
    waiters: u64,
) -> mpsc::UnboundedReceiver<(u64, Duration)> {
    let (tell, order) = mpsc::unbounded_channel();
    for (number, lock) in (1..=waiters).zip(locks.iter().cycle()) {
        let (lock, tell) = (lock.clone(), tell.clone());
        tokio::spawn(async move {
            let guard = lock.acquire().await.expect("a hold");
            let at = awake();
            guard.release().await.expect("still held");
            tell.send((number, at)).expect("the test listens");
        });
        queued(server, "a", number).await;
    }
    order
}

/// Keys that vanish tell nobody: the check finds it within its second (asserted: 1.5 s; the lease is
/// 60 s).
#[tokio::test]
async fn b52_waiters_survive_keys_that_vanish() {
    for vanish in ["holds", "holds queue", "holds timeouts", "holds queue timeouts", "everything"] {
        let server = Server::start();
        let (one, two) = (session(&server.url()).await, session(&server.url()).await);
        let _leaked = mutex(&one, "a", patient().lease(MINUTE)).acquire().await.unwrap();
        let mut order = numbered(&server, &[mutex(&two, "a", patient())], 5).await;
        let begin = awake();
        let (keys, mut connection) = (keys("a"), server.connection().await);
        for (name, key) in
            [("holds", &keys.holds), ("queue", &keys.queue), ("timeouts", &keys.timeouts)]
        {
            if vanish.contains(name) {
                assert_eq!(connection.del(&**key).await, Ok(1), "{name}");
            }
        }
        if vanish == "everything" {
            server.flushall().await;
        }
        let mut served = Vec::new();
        for _ in 0..5 {
            let next = tokio::time::timeout(SOON, order.recv()).await;
            let (number, at) = next.expect("in time").expect("a waiter");
            served.push(number);
            if served.len() == 1 {
                println!("{vanish} vanished: the first after {:?}", at - begin);
                assert!(at - begin < 1500 * MS, "{:?}", at - begin);
            }
        }
        assert_eq!(served, [1, 2, 3, 4, 5], "{vanish} vanished");
    }
}

/// Tickets are remembered by their waiters: with the holder still there, the order outlives the queue
/// (I10), whichever process comes back first.
#[tokio::test]
async fn b52_the_order_outlives_the_queue() {
    for vanish in ["queue", "timeouts", "queue timeouts"] {
        let server = Server::start();
        let (one, two) = (session(&server.url()).await, session(&server.url()).await);
        let guard = mutex(&one, "a", patient()).acquire().await.unwrap();
        let locks = [&two, &one].map(|session| mutex(session, "a", patient()));
        let mut order = numbered(&server, &locks, 6).await;
        let (keys, mut connection) = (keys("a"), server.connection().await);
        let before = tickets(&server).await;
        for (name, key) in [("queue", &keys.queue), ("timeouts", &keys.timeouts)] {
            if vanish.contains(name) {
                assert_eq!(connection.del(&**key).await, Ok(1), "{name}");
            }
        }
        let back = async || {
            let fields: Vec<String> = connection.hkeys(&*keys.timeouts).await.unwrap();
            // Beside the waiters there may be the field with the last ticket.
            let waiters = fields.iter().filter(|field| *field != "#").count();
            waiters == 6 && tickets(&server).await.len() == 6
        };
        eventually(SOON, "all are back", back).await;
        assert_eq!(tickets(&server).await, before, "{vanish} vanished");
        guard.release().await.unwrap();
        for number in 1..=6 {
            let next = tokio::time::timeout(SOON, order.recv()).await;
            assert_eq!(next.unwrap().unwrap().0, number, "{vanish} vanished");
        }
    }
}

/// 500 tasks of four clients on one name: all of them hold, and nothing is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b59_five_hundred_tasks_all_get_their_turn() {
    let server = Server::start();
    let mut tasks = JoinSet::new();
    let inside = Arc::new(tokio::sync::Semaphore::new(1));
    let mut sessions = Vec::new();
    for _ in 0..4 {
        let session = session(&server.url()).await;
        for _ in 0..125 {
            let (lock, inside) = (mutex(&session, "a", patient()), Arc::clone(&inside));
            tasks.spawn(async move {
                let guard = lock.acquire().await.unwrap();
                let alone = inside.try_acquire().expect("I1: one at a time");
                tokio::time::sleep(2 * MS).await;
                drop(alone);
                guard.release().await.unwrap();
            });
        }
        sessions.push(session);
    }
    let mut done = 0;
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
        done += 1;
    }
    assert_eq!((done, keys_left(&server).await), (500, vec![]));
    assert!(sessions.iter().all(|session| session.statistics().tracked == 0));
}

/// I10, I17: names that were used once, each with a waiter, by a process that is killed: all of it
/// ends by itself, with a lease of 2 s, waiters of 3 s and a fence memory of 1 s.
#[tokio::test]
async fn b65_a_killed_crowd_leaves_nothing() {
    let server = Server::start();
    let names = rounds(10_000);
    let mut worker = Worker::start(CROWD, &server.url(), "a", 2 * SECOND).await;
    assert_eq!(worker.ask(&format!("crowd {names}")).await, "crowded");
    let before = server.dbsize().await;
    // Holds, queues and timeouts; tokens may have ended already.
    assert!(before >= u64::from(3 * names), "{before} keys of {names} names");
    worker.kill();
    let killed = awake();
    eventually(SOON, "all of it ends", async || server.dbsize().await == 0).await;
    let took = awake() - killed;
    println!("{before} keys were gone {took:?} after the kill");
    // The longest of them, and a second, by the table.
    assert!(took < 4 * SECOND + SECOND / 2, "{took:?}");
}

/// Leaving the queue is repeated until it is answered, and it moves nobody else: tickets and
/// deadlines of the others stay.
#[tokio::test]
async fn b30_a_lost_answer_to_leaving_moves_nobody() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let near = session(&server.url()).await;
    let builder = Session::builder(proxy.url()).unwrap().response_timeout(300 * MS);
    let far = builder.connect().await.unwrap();
    let holder = mutex(&near, "a", patient());
    let guard = holder.acquire().await.unwrap();
    let first = waiter(&server, &holder, "a", 1).await;
    let leaving = mutex(&far, "a", patient());
    let leaving = tokio::spawn(async move { leaving.acquire_within(500 * MS).await });
    queued(&server, "a", 2).await;
    let last = waiter(&server, &holder, "a", 3).await;
    let before = tickets(&server).await;
    proxy.drop_replies(Pick::next(2).containing(hash_of("release")));
    let error = leaving.await.unwrap().unwrap_err();
    assert!(matches!(error, AcquireError::TimedOut { .. }), "{error:?}");
    queued(&server, "a", 2).await;
    assert_eq!(tickets(&server).await, [before[0].clone(), before[2].clone()]);
    guard.release().await.unwrap();
    let (next, first_at) = first.await.unwrap();
    next.release().await.unwrap();
    let (next, last_at) = last.await.unwrap();
    assert!(first_at < last_at);
    next.release().await.unwrap();
    let quiet = async || keys_left(&server).await.is_empty() && far.statistics().tracked == 0;
    eventually(SOON, "nothing is left", quiet).await;
}

async fn tickets(server: &Server) -> Vec<(String, u64)> {
    let mut connection = server.connection().await;
    connection.zrange_withscores(&*keys("a").queue, 0, -1).await.expect("ZRANGE")
}
