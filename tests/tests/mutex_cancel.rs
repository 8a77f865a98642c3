//! The future of an acquire dropped at every moment of its life (I9): nothing of it stays, and
//! nobody waits for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leasehold_mutex::{Mutex, Options, Session};
use leasehold_tests::scene::{SOON, keys_left, mutex, session};
use leasehold_tests::{FaultProxy, Server, eventually, rounds};
use tokio::task::JoinHandle;

const MICRO: Duration = Duration::from_micros(1);
const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// B40: dropped after 0 to 3 ms in steps of 50 µs.
const STEPS: u32 = 61;

/// A hold that got lost on the way would stay for this long, and be seen.
fn options() -> Options {
    Options::default().lease(30 * SECOND).max_wait(20 * SECOND)
}

/// Drops the future of an acquire after `after`; whether it had become a guard by then.
async fn dropped_after(lock: &Mutex, after: Duration) -> bool {
    // The runtime's timer counts whole milliseconds; a thread sleeps to some 50 µs.
    let time = tokio::task::spawn_blocking(move || std::thread::sleep(after));
    tokio::select! {
        biased;
        _ = time => false,
        guard = lock.acquire() => {
            drop(guard.expect("the server answers"));
            true
        }
    }
}

/// The soak, beside a rival that takes the same lock all the while; how many became guards.
async fn soak(lock: &Mutex, rival: &Mutex) -> u32 {
    let rival = Rival::start(rival.clone());
    let mut guards = 0;
    let full = rounds(5_000);
    for round in 0..full {
        guards += u32::from(dropped_after(lock, 50 * MICRO * (round % STEPS)).await);
    }
    let (turns, longest) = rival.stop().await;
    println!(
        "{full} rounds, {guards} became guards; rival: {turns} turns, waited at most {longest:?}"
    );
    assert!(turns > full / 20, "the rival is served: {turns} turns beside {full} rounds");
    // A ghost costs its grant lease (2 s) or its lease (30 s); a loaded machine less than this.
    assert!(longest < 1500 * MS, "the rival waited {longest:?}");
    guards
}

/// Takes and gives back until it is stopped.
struct Rival {
    stop: Arc<AtomicBool>,
    task: JoinHandle<(u32, Duration)>,
}

impl Rival {
    fn start(lock: Mutex) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let task = tokio::spawn(async move {
            let (mut turns, mut longest) = (0, Duration::ZERO);
            while !stopped.load(Ordering::Relaxed) {
                let begin = Instant::now();
                let guard = lock.acquire().await.expect("served");
                longest = longest.max(begin.elapsed());
                tokio::time::sleep(MS * (turns % 2)).await;
                guard.release().await.expect("still held");
                turns += 1;
            }
            (turns, longest)
        });
        Self { stop, task }
    }

    async fn stop(self) -> (u32, Duration) {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.expect("no panic inside")
    }
}

/// What a dropped acquire has left; `None` when all is as if it had never been.
async fn leftovers(server: &Server, session: &Session) -> Option<String> {
    let (keys, statistics) = (keys_left(server).await, session.statistics());
    let clean = keys.is_empty() && statistics.watched == 0 && statistics.tracked == 0;
    (!clean).then(|| format!("{keys:?}, {statistics:?}"))
}

/// Within 2 s nothing is left, and then nothing is renewed: a second long no script runs at all.
async fn ends_clean(server: &Server, session: &Session) {
    let clean = async || leftovers(server, session).await.is_none();
    eventually(2 * SECOND, "nothing is left", clean).await;
    let before = (session.statistics().renewals, scripts_run(server).await);
    tokio::time::sleep(SECOND).await;
    assert_eq!((session.statistics().renewals, scripts_run(server).await), before);
    assert_eq!(leftovers(server, session).await, None);
}

async fn scripts_run(server: &Server) -> u64 {
    server.command_calls().await.of(&["eval", "evalsha"])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b40_an_acquire_dropped_at_any_moment_leaves_nothing() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let guards = soak(&mutex(&one, "a", options()), &mutex(&two, "a", options())).await;
    assert!(guards > 0, "some moments are too late to drop it");
    ends_clean(&server, &one).await;
    ends_clean(&server, &two).await;
}

/// The same where answers come late and out of step with the drops: the link takes 0.5 ms each way,
/// the server is held up for 2 ms again and again, and 32 other tasks crowd the connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b40_an_acquire_dropped_behind_a_backlog_leaves_nothing() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let (one, two) = (session(proxy.url()).await, session(&server.url()).await);
    proxy.delay(500 * MICRO);
    let crowd: Vec<_> = (0..32)
        .map(|name| Rival::start(mutex(&one, &format!("crowd {name}"), options())))
        .collect();
    let busy = Busy::keep(&server);
    soak(&mutex(&one, "a", options()), &mutex(&two, "a", options())).await;
    for member in crowd {
        let (turns, _) = member.stop().await;
        assert!(turns > 0, "each of the crowd is served");
    }
    busy.stop().await;
    ends_clean(&server, &one).await;
    ends_clean(&server, &two).await;
}

/// Keeps the server from answering, about 2 ms at a time.
struct Busy {
    stop: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Busy {
    /// It counts, since from Redis 7.2 on the clock stands still inside a script.
    const SCRIPT: &str = "local n = 0 for i = 1, 300000 do n = n + i end return n";

    fn keep(server: &Server) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, client) = (Arc::clone(&stop), server.client());
        let task = tokio::spawn(async move {
            let mut connection =
                client.get_multiplexed_async_connection().await.expect("a connection");
            while !stopped.load(Ordering::Relaxed) {
                let mut command = redis::cmd("EVAL");
                let _: i64 = command
                    .arg(Self::SCRIPT)
                    .arg(0)
                    .query_async(&mut connection)
                    .await
                    .expect("EVAL");
                tokio::time::sleep(3 * MS).await;
            }
        });
        Self { stop, task }
    }

    async fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.expect("no panic inside");
    }
}

/// The negative control: a future that is leaked instead of dropped is found, in the queue first
/// and as a hold that nobody has afterwards.
#[tokio::test]
async fn a_leaked_acquire_is_found() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let holder = mutex(&two, "a", options()).acquire().await.unwrap();
    let lock = mutex(&one, "a", options());
    let mut leaked = Box::pin(async move { lock.acquire().await });
    assert!(tokio::time::timeout(100 * MS, &mut leaked).await.is_err());
    std::mem::forget(leaked);
    assert!(leftovers(&server, &one).await.is_some_and(|what| what.contains(":queue")));
    holder.release().await.unwrap();
    eventually(SOON, "it is granted", async || one.statistics().watched == 1).await;
    assert!(leftovers(&server, &one).await.is_some());
}
