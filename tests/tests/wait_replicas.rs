//! `wait_replicas`: a guard is handed out only once so many replicas have its grant, however it was granted; else
//! nothing is left of it. What that is worth in a failover: `timed_failover`.

use std::time::Duration;

use leasehold_fair_lock::FairLock;
use leasehold_multi_lock::MultiLock;
use leasehold_mutex::{AcquireError, BackendErrorKind, ConfigError, Mutex, Options, Session};
use leasehold_rwlock::{RwLock, UpgradeError};
use leasehold_semaphore::Semaphore;
use leasehold_tests::rig::{MOMENTS, Watch, dropped_after, kill_connections, moment};
use leasehold_tests::scene::{SOON, keys, keys_left, mutex, queued, session};
use leasehold_tests::{Server, eventually};
use redis::AsyncCommands;
use tokio::task::JoinSet;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A master and its replicas, all in step.
struct Farm {
    master: Server,
    replicas: Vec<Server>,
}

impl Farm {
    async fn start(replicas: usize) -> Self {
        let master = Server::builder().arg("--repl-diskless-sync-delay", "0").start();
        let port = master.addr().port().to_string();
        let replica = |_| Server::builder().replica_of(&port).start();
        let farm = Self { replicas: (0..replicas).map(replica).collect(), master };
        farm.in_step().await;
        farm
    }

    async fn in_step(&self) {
        for replica in &self.replicas {
            let up = async || info(replica, "replication").await.contains("master_link_status:up");
            eventually(SOON, "a replica is in step", up).await;
        }
    }

    async fn session(&self) -> Session {
        session(&self.master.url()).await
    }

    fn freeze(&self) {
        self.replicas.iter().for_each(Server::freeze);
    }

    fn thaw(&self) {
        self.replicas.iter().for_each(Server::thaw);
    }

    /// At how many replicas a key is.
    async fn have(&self, key: &[u8]) -> usize {
        let mut have = 0;
        for replica in &self.replicas {
            have += usize::from(
                replica.connection().await.exists::<_, bool>(key).await.expect("EXISTS"),
            );
        }
        have
    }

    /// How often the master was told to wait.
    async fn waits(&self) -> u64 {
        let stats = info(&self.master, "commandstats").await;
        calls(&stats, "cmdstat_wait:calls=")
    }

    /// All is given back.
    async fn rests(&self, session: &Session) {
        let clean =
            async || session.statistics().tracked == 0 && keys_left(&self.master).await.is_empty();
        eventually(SOON, "nothing is left", clean).await;
    }
}

async fn info(server: &Server, section: &str) -> String {
    let mut connection = server.connection().await;
    redis::cmd("INFO").arg(section).query_async(&mut connection).await.expect("INFO")
}

/// Patient, where they will have it.
fn waiting(count: u32) -> Options {
    Options::default().lease(60 * SECOND).wait_replicas(count, SOON)
}

/// Within the 100 ms of the default, where too few will.
fn briefly(count: u32) -> Options {
    Options::default().lease(60 * SECOND).wait_replicas(count, None)
}

fn too_few<T: std::fmt::Debug>(result: Result<T, AcquireError>, wanted: u32, have: u64) {
    match result {
        Err(AcquireError::NotReplicated { wanted: of, acknowledged })
            if (of, acknowledged) == (wanted, have) => {}
        other => panic!("{other:?}, not {have} of {wanted}"),
    }
}

/// The last part is the control: without the option a grant is not always there.
#[tokio::test]
async fn a_grant_is_at_the_replicas_when_it_is_handed_out() {
    let farm = Farm::start(2).await;
    let session = farm.session().await;
    let key = keys("a").holds;
    for count in [1, 2] {
        let lock = mutex(&session, "a", waiting(count));
        for _ in 0..20 {
            let guard = lock.acquire().await.unwrap();
            assert!(guard.is_held());
            assert!(farm.have(&key).await >= count as usize, "{count}");
            guard.release().await.unwrap();
        }
        let guard = lock.try_acquire().await.unwrap().expect("free");
        assert!(lock.try_acquire().await.unwrap().is_none(), "busy is no error");
        guard.release().await.unwrap();
    }
    farm.rests(&session).await;
    farm.freeze();
    kill_connections(&farm.master, "replica").await;
    let guard = mutex(&session, "a", Options::default()).acquire().await.unwrap();
    farm.master.kill();
    farm.thaw();
    assert_eq!(farm.have(&key).await, 0, "and nobody was told");
    assert!(guard.is_held());
}

#[tokio::test]
async fn a_grant_at_too_few_replicas_is_given_back() {
    let farm = Farm::start(2).await;
    let session = farm.session().await;
    let three = Options::default().lease(60 * SECOND).wait_replicas(3, 2 * SECOND);
    too_few(mutex(&session, "a", three.clone()).acquire().await, 3, 2);
    farm.rests(&session).await;
    farm.replicas[0].freeze();
    mutex(&session, "a", waiting(1)).acquire().await.unwrap().release().await.unwrap();
    too_few(mutex(&session, "a", three.wait_replicas(2, SECOND)).acquire().await, 2, 1);
    farm.replicas[1].freeze();
    let began = Watch::start();
    too_few(mutex(&session, "a", briefly(1)).acquire().await, 1, 0);
    assert!(began.elapsed() >= 100 * MS, "{:?}", began.elapsed());
    farm.rests(&session).await;
    // A renewal that changes nothing on the server is waited for as well.
    for options in [briefly(1), Options::default().fixed(60 * SECOND).wait_replicas(1, 50 * MS)] {
        let lock = mutex(&session, "a", options);
        for _ in 0..3 {
            too_few(lock.try_acquire().await, 1, 0);
            farm.rests(&session).await;
        }
    }
    farm.thaw();
    farm.in_step().await;
    mutex(&session, "a", waiting(2)).acquire().await.unwrap().release().await.unwrap();
}

/// Since Redis 7.2 `WAIT` passes over a script that changed nothing, and a renewal in the millisecond of its grant, or
/// near the longest hold, would be one: then it is answered at once, by replicas that have nothing.
#[tokio::test]
async fn each_renewal_before_a_wait_writes() {
    const TIMES: u32 = 40;
    let farm = Farm::start(1).await;
    let session = farm.session().await;
    let minute = Options::default().fixed(60 * SECOND);
    let limited = Options::default().lease(60 * SECOND).hold_at_most(60 * SECOND);
    for options in [minute, limited] {
        let writes = async |lock: &FairLock, permit: &Semaphore| {
            let before = farm.written().await;
            for _ in 0..TIMES {
                drop(lock.try_acquire().await);
                farm.idle(&session).await;
                drop(permit.try_acquire().await);
                farm.idle(&session).await;
            }
            farm.written().await - before
        };
        let make = |options: Options| {
            (
                FairLock::new(&session, "f", options.clone()),
                Semaphore::new(&session, "s", 1, options),
            )
        };
        let (lock, permit) = make(options.clone());
        let (lock, permit) = (lock.unwrap(), permit.unwrap());
        drop(permit.try_acquire().await.unwrap()); // The first use sets the limit.
        farm.idle(&session).await;
        let plain = writes(&lock, &permit).await;
        let (lock, permit) = make(options.wait_replicas(1, SOON));
        let waited = writes(&lock.unwrap(), &permit.unwrap()).await;
        assert_eq!(waited - plain, u64::from(2 * TIMES), "beside {plain}");
    }
}

impl Farm {
    async fn idle(&self, session: &Session) {
        let idle = async || session.statistics().tracked == 0;
        eventually(SOON, "all is given back", idle).await;
    }

    /// How many times scripts have written a hold.
    async fn written(&self) -> u64 {
        let stats = info(&self.master, "commandstats").await;
        ["cmdstat_hset:calls=", "cmdstat_zadd:calls="].iter().map(|word| calls(&stats, word)).sum()
    }
}

fn calls(stats: &str, word: &str) -> u64 {
    let calls = stats.split(word).nth(1);
    calls.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
}

/// No attempt follows one that was not granted: it would end in the same way at once, without an end.
#[tokio::test]
async fn a_lease_within_the_clock_margin_is_told_at_once() {
    let farm = Farm::start(1).await;
    let session = farm.session().await;
    let options = Options::default().lease(2 * MS).wait_replicas(1, MS);
    for options in [options.clone().max_wait(60 * SECOND), options.wait_forever()] {
        let lock = mutex(&session, "a", options);
        let began = Watch::start();
        let refused = lock.acquire().await;
        assert!(matches!(refused, Err(AcquireError::ValidityTooShort { .. })), "{refused:?}");
        assert!(began.awake() < 30 * SECOND, "{:?}", began.awake());
    }
}

/// The releaser wrote the grant, and waited for nobody.
#[tokio::test]
async fn a_pushed_grant_waits_too() {
    let farm = Farm::start(1).await;
    let (one, two) = (farm.session().await, farm.session().await);
    let holder = mutex(&one, "a", Options::default());
    let waiter = |lock: &Mutex| {
        let lock = lock.clone();
        tokio::spawn(async move { lock.acquire().await })
    };
    for frozen in [false, true, false] {
        let options = if frozen { briefly(1) } else { waiting(1) };
        let lock = mutex(&two, "a", options.max_wait(SOON));
        let held = holder.acquire().await.unwrap();
        let next = waiter(&lock);
        queued(&farm.master, "a", 1).await;
        if frozen {
            farm.freeze();
        }
        held.release().await.unwrap();
        let result = next.await.unwrap();
        if frozen {
            too_few(result, 1, 0);
            // Whoever asks for no replica is next.
            holder.acquire_within(SOON).await.unwrap().release().await.unwrap();
            farm.thaw();
        } else {
            let guard = result.unwrap();
            assert_eq!(farm.have(&keys("a").holds).await, 1);
            // No longer the short lease of a pushed grant.
            assert!(guard.remaining() > 50 * SECOND, "{:?}", guard.remaining());
            guard.release().await.unwrap();
        }
    }
    assert_eq!(two.statistics().pushed_grants, 3);
    farm.rests(&two).await;
}

/// Every kind, the multi-lock in one script and one by one.
#[tokio::test]
async fn each_kind_gives_back_what_is_not_replicated() {
    let farm = Farm::start(1).await;
    let session = farm.session().await;
    let plain = mutex(&session, "p", Options::default());
    for options in [waiting(1), briefly(1)] {
        let fair = FairLock::new(&session, "f", options.clone()).unwrap();
        let sides = RwLock::new(&session, "r", options.clone()).unwrap();
        let permits = Semaphore::new(&session, "s", 3, options.clone()).unwrap();
        let all = MultiLock::of(&plain).and(&fair).and(&sides.read()).and(&permits.many(2));
        if options == waiting(1) {
            fair.acquire().await.unwrap().release().await.unwrap();
            sides.read().acquire().await.unwrap().release().await.unwrap();
            sides.write().acquire().await.unwrap().release().await.unwrap();
            permits.many(2).acquire().await.unwrap().release().await.unwrap();
            all.acquire().await.unwrap().release().await.unwrap();
            farm.freeze();
            continue;
        }
        too_few(fair.acquire().await, 1, 0);
        too_few(sides.read().acquire().await, 1, 0);
        too_few(sides.write().acquire().await, 1, 0);
        too_few(permits.many(2).acquire().await, 1, 0);
        let before = farm.waits().await;
        too_few(all.acquire().await, 1, 0);
        let waits = farm.waits().await - before;
        assert!(
            (1..=2).contains(&waits),
            "{waits}: three members, of which one may have come first"
        );
        // One by one, because somebody has one of them: the first that is taken is waited for.
        let held = plain.acquire().await.unwrap();
        too_few(all.acquire_within(SOON).await, 1, 0);
        held.release().await.unwrap();
        let only_the_limit = async || {
            session.statistics().tracked == 0
                && keys_left(&farm.master).await == ["lh1:semaphore:{s}"]
                && permits.usage().await.unwrap().used == 0
        };
        eventually(SOON, "nothing is left", only_the_limit).await;
    }
}

#[tokio::test]
async fn an_upgrade_that_is_not_replicated_reads_on() {
    let farm = Farm::start(1).await;
    let session = farm.session().await;
    let patient = RwLock::new(&session, "a", waiting(1)).unwrap();
    let lock = RwLock::new(&session, "a", briefly(1)).unwrap();
    let reading = patient.read().acquire().await.unwrap();
    let writing = patient.try_upgrade(reading).await.unwrap();
    let reading = lock.downgrade(writing).await.unwrap();
    farm.freeze();
    let refused = lock.try_upgrade(reading).await.unwrap_err();
    let UpgradeError::NotReplicated { guard, wanted: 1, acknowledged: 0 } = refused else {
        panic!("{refused:?}");
    };
    let holders = lock.holders().await.unwrap();
    assert_eq!((holders.readers.len(), holders.writers.len()), (1, 0));
    assert!(guard.is_held());
    farm.thaw();
    let writing = patient.try_upgrade(guard).await.unwrap();
    writing.release().await.unwrap();
    farm.rests(&session).await;
}

/// The writer has the reader's end, so a renewal by the lease would change nothing: it is asked for again, and more.
#[tokio::test]
async fn an_upgrade_of_what_was_extended_is_waited_for() {
    let farm = Farm::start(1).await;
    let session = farm.session().await;
    let patient = RwLock::new(&session, "a", waiting(1)).unwrap();
    let reading = patient.read().acquire().await.unwrap();
    reading.extend(300 * SECOND).await.unwrap();
    let before = farm.waits().await;
    let writing = patient.try_upgrade(reading).await.unwrap();
    assert_eq!(farm.waits().await - before, 2, "the first was for nothing");
    let reading = patient.downgrade(writing).await.unwrap();
    farm.freeze();
    let lock = RwLock::new(&session, "a", briefly(1)).unwrap();
    let refused = lock.try_upgrade(reading).await.unwrap_err();
    assert!(matches!(refused, UpgradeError::NotReplicated { .. }), "{refused:?}");
    drop(refused);
    farm.thaw();
    farm.rests(&session).await;
}

/// What is acquired at one time shares a turn, so one slow answer does not hold up a hundred.
#[tokio::test(flavor = "multi_thread")]
async fn many_holds_share_a_wait() {
    let farm = Farm::start(1).await;
    let session = farm.session().await;
    let take = async |count: u32, options: Options| {
        let mut taking = JoinSet::new();
        for number in 0..count {
            let lock = mutex(&session, &format!("a{number}"), options.clone());
            taking.spawn(async move { lock.acquire().await });
        }
        taking.join_all().await
    };
    drop(take(1, waiting(1)).await);
    let before = farm.waits().await;
    let taken = take(200, waiting(1)).await;
    assert!(taken.iter().all(Result::is_ok));
    let waits = farm.waits().await - before;
    println!("{waits} WAITs for 200 holds");
    assert!((1..=100).contains(&waits), "{waits}");
    drop(taken);
    farm.rests(&session).await;
    // All are answered after about one time limit.
    farm.freeze();
    let began = Watch::start();
    for refused in take(100, briefly(1)).await {
        too_few(refused, 1, 0);
    }
    assert!(began.awake() < 2 * SECOND, "{:?}", began.awake());
    // The control: one after the other there is a WAIT for each.
    farm.thaw();
    let before = farm.waits().await;
    for _ in 0..5 {
        drop(take(1, waiting(1)).await);
    }
    assert_eq!(farm.waits().await - before, 5);
}

#[tokio::test]
async fn a_dropped_acquire_leaves_nothing() {
    let farm = Farm::start(1).await;
    let session = farm.session().await;
    let lock = mutex(&session, "a", briefly(1));
    let mut taken = 0;
    for step in 0..MOMENTS {
        // Half of them while nobody acknowledges.
        if step % 2 == 0 {
            farm.freeze()
        } else {
            farm.thaw()
        }
        if let Some(result) = dropped_after(moment(step), lock.acquire()).await {
            taken += u32::from(result.is_ok());
        }
        farm.rests(&session).await;
    }
    // On a busy machine each of the moments may come too early.
    println!("{taken} of {MOMENTS} taken");
    farm.thaw();
    mutex(&session, "a", waiting(1)).acquire().await.unwrap().release().await.unwrap();
    farm.rests(&session).await;
}

#[tokio::test]
async fn a_shutdown_ends_the_wait() {
    let farm = Farm::start(1).await;
    let session = farm.session().await;
    farm.freeze();
    let options = Options::default().lease(60 * SECOND).wait_replicas(1, 20 * SECOND);
    let lock = mutex(&session, "a", options);
    let taking = tokio::spawn(async move { lock.acquire().await });
    let key = keys("a").holds;
    let held = async || farm.master.connection().await.exists::<_, bool>(&key[..]).await.unwrap();
    eventually(SOON, "it is granted", held).await;
    eventually(SOON, "the server waits", async || farm.waiting().await).await;
    let began = Watch::start();
    session.shutdown(SOON).await.unwrap();
    let ended = taking.await.unwrap();
    assert!(matches!(ended, Err(AcquireError::Closed)), "{ended:?}");
    assert!(began.awake() < 5 * SECOND, "{:?}", began.awake());
    assert_eq!(keys_left(&farm.master).await, [""; 0], "I20");
}

impl Farm {
    /// Whether a client of the master stands in a `WAIT`.
    async fn waiting(&self) -> bool {
        info(&self.master, "clients").await.contains("blocked_clients:1")
    }
}

/// A `WAIT` on a connection that has written nothing would be answered at once with all replicas.
#[tokio::test]
async fn a_connection_that_breaks_tells_no_untruth() {
    let farm = Farm::start(1).await;
    let session = farm.session().await;
    let options = Options::default().lease(60 * SECOND).wait_replicas(1, 500 * MS);
    let lock = mutex(&session, "a", options);
    let patient = mutex(&session, "a", waiting(1));
    patient.acquire().await.unwrap().release().await.unwrap();
    farm.freeze();
    for _ in 0..5 {
        let taking = tokio::spawn({
            let lock = lock.clone();
            async move { lock.acquire().await }
        });
        eventually(SOON, "the server waits", async || farm.waiting().await).await;
        kill_connections(&farm.master, "normal").await;
        too_few(taking.await.unwrap(), 1, 0);
        farm.rests(&session).await;
    }
    farm.thaw();
    patient.acquire_within(SOON).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn what_is_not_allowed_is_told() {
    let farm = Farm::start(1).await;
    let admin = &mut farm.master.connection().await;
    let mut user = redis::cmd("ACL");
    user.arg(&["SETUSER", "narrow", "on", ">secret", "~*", "&*", "+@all", "-wait"]);
    user.exec_async(admin).await.unwrap();
    let url = farm.master.url().replace("redis://", "redis://narrow:secret@");
    let narrow = session(&url).await;
    let refused = mutex(&narrow, "a", briefly(1)).acquire().await.unwrap_err();
    let AcquireError::Backend(error) = &refused else { panic!("{refused:?}") };
    assert_eq!(error.kind(), BackendErrorKind::NoPermission);
    assert!(error.to_string().contains("wait"), "{error}");
    farm.rests(&narrow).await;
    // No replica, no right needed.
    mutex(&narrow, "a", Options::default()).acquire().await.unwrap().release().await.unwrap();
    let bad = Mutex::new(&narrow, "a", Options::default().wait_replicas(1, Duration::ZERO));
    assert!(matches!(bad, Err(ConfigError::Replication { .. })));
}

/// The grant of the first attempt is forced away while the server waits; the second one finds it busy.
#[tokio::test]
async fn all_attempts_together_are_the_wait_that_is_told() {
    let farm = Farm::start(1).await;
    let (session, stranger) = (farm.session().await, farm.session().await);
    farm.freeze();
    let lock = mutex(&session, "a", waiting(1));
    let taking = tokio::spawn(async move { lock.acquire_within(2 * SECOND).await });
    eventually(SOON, "the server waits", async || farm.waiting().await).await;
    let plain = mutex(&stranger, "a", Options::default());
    assert!(plain.force_release().await.unwrap().is_some());
    let guard = plain.acquire().await.unwrap();
    tokio::time::sleep(500 * MS).await; // by so much the second attempt is shorter than both
    farm.thaw();
    let ended = taking.await.unwrap();
    let Err(AcquireError::TimedOut { waited, .. }) = ended else { panic!("{ended:?}") };
    assert!(waited >= 2 * SECOND, "{waited:?}");
    guard.release().await.unwrap();
}
