//! The read-write lock in time and in commands: what a hand-over to many readers costs, what a writer costs, and that a
//! reader's release does not grow with the readers.
//!
//! Commands are counted as `leasehold_tests::cost` says.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use leasehold_lua::{Acquisition, Call, Mode, Settings, Terms, rwlock};
use leasehold_rwlock::Options;
use leasehold_tests::conformance::{Holdable, Writing};
use leasehold_tests::measure::p50;
use leasehold_tests::rig::Monitor;
use leasehold_tests::rwlock::{hash_of, keys, lock, queued};
use leasehold_tests::scene::{SOON, keys_left, session};
use leasehold_tests::{Server, cost, eventually};
use redis::aio::MultiplexedConnection;
use tokio::task::JoinSet;

const MS: Duration = Duration::from_millis(1);
/// For two cores that do other work too.
const MACHINE: Duration = Duration::from_millis(600);

#[tokio::test]
async fn an_uncontended_writer_is_exactly_two_commands() {
    cost::an_uncontended_pair_is_exactly_two_commands(Writing::of).await;
}

/// Readers beside readers too: nothing but an acquire and a release each.
#[tokio::test]
async fn a_reader_beside_readers_is_exactly_two_commands() {
    let server = Server::start();
    let session = session(&server.url()).await;
    cost::warm(&session, Writing::of).await;
    let lock = lock(&session, "a", Options::default());
    let mut others = Vec::new();
    for _ in 0..10 {
        others.push(lock.read().acquire().await.unwrap());
    }
    server.reset_stats().await;
    for _ in 0..500 {
        lock.read().acquire().await.unwrap().release().await.unwrap();
    }
    let calls = server.command_calls().await;
    assert_eq!(calls.of(&cost::SENT), 1000, "{calls:?}");
}

/// Flat: a thousand waiting writers cost no more than one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_contended_writer_is_two_commands_however_many_wait() {
    for waiters in [1, 10, 100, 1000] {
        let cost = cost::contended(Writing::of, waiters, 1).await;
        cost.judge(&format!("{waiters} waiting writers of one session"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_contended_writer_across_sessions_is_two_commands_too() {
    cost::contended(Writing::of, 100, 4).await.judge("100 waiting writers of 4 sessions");
}

#[tokio::test]
async fn idle_waiters_of_one_process_send_two_commands_a_second_at_most() {
    cost::idle_waiters_of_one_process_send_two_commands_a_second_at_most(Writing::of).await;
}

/// The release of a writer lets so many readers of two processes in, all of them by a push; answers how many releases and
/// acquires the server got for that, and how long it took.
async fn hand_over(readers: u64) -> (usize, usize, Duration) {
    let server = Server::start();
    let (writer, sessions) = (
        session(&server.url()).await,
        [session(&server.url()).await, session(&server.url()).await],
    );
    cost::warm(&writer, Writing::of).await;
    let held = Writing::of(&writer, "a", Options::default());
    let hold = held.try_acquire().await.expect("an answer").expect("it is free");
    let mut waiting = JoinSet::new();
    for (_, session) in (0..readers).zip(sessions.iter().cycle()) {
        let view = lock(session, "a", Options::default()).read();
        waiting.spawn(async move {
            let guard = view.acquire_within(SOON * 6).await.expect("a hold");
            (guard, Instant::now())
        });
    }
    let observer = lock(&writer, "a", Options::default());
    queued(&observer, readers).await;
    let monitor = Monitor::of(&server);
    let released = Instant::now();
    hold.release().await.expect("an answer");
    let mut guards = Vec::new();
    let mut last = Duration::ZERO;
    while let Some(granted) = waiting.join_next().await {
        let (guard, at) = granted.expect("no panic inside");
        last = last.max(at - released);
        guards.push(guard);
    }
    let sent = monitor.heard(&server).await;
    let count = |verb| sent.iter().filter(|line| line.contains(&hash_of(verb))).count();
    let counts = (count("release"), count("acquire"));
    drop(monitor);
    let holding = observer.holders().await.expect("an answer");
    assert_eq!(holding.readers.len() as u64, readers.min(128), "all hold together, 128 are listed");
    for guard in guards {
        guard.release().await.expect("an answer");
    }
    assert_eq!(keys_left(&server).await, [""; 0]);
    (counts.0, counts.1, last)
}

/// One release, and nothing of the readers' own; all of them are in within half a second (and what the machine needs). Far
/// more than a script grants at once take a call for each 128 (I18).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_to_many_readers_is_one_release() {
    for readers in [1, 10, 100] {
        let (releases, acquires, took) = hand_over(readers).await;
        println!(
            "{readers} readers: {releases} release, {acquires} acquires, all in after {took:?}"
        );
        assert_eq!((releases, acquires), (1, 0), "{readers} readers");
        assert!(took < 500 * MS + MACHINE, "{readers} readers: {took:?}");
    }
    // The control of the count: what takes more than one call is seen.
    let (releases, acquires, took) = hand_over(300).await;
    println!("300 readers: {releases} releases, {acquires} acquires, all in after {took:?}");
    assert_eq!((releases, acquires), (3, 0));
}

const TERMS: Terms =
    Terms { wait_ms: 600_000, check_ms: 1_000, grant_ms: 60_000, fence_ms: 60_000, floor: 0 };

fn acquisition<'a>(id: &'a [u8], owner: &'a str) -> Acquisition<'a> {
    Acquisition { id, owner, note: b"t|note", lease_ms: 600_000 }
}

fn reader(number: usize) -> Vec<u8> {
    format!("r{number}|600000|r|inbox").into_bytes()
}

fn command(call: &Call) -> redis::Cmd {
    let digest = |source: &str| redis::Script::new(source).get_hash().to_owned();
    let mut run = redis::cmd("EVALSHA");
    run.arg(call.script.hash(digest)).arg(call.keys.len());
    for part in call.keys.iter().map(|key| &key[..]).chain(call.args.iter().map(|arg| &arg[..])) {
        run.arg(part);
    }
    run
}

/// Runs a script, and answers how many calls it made. No key ends so soon that it would have to be lengthened, which some
/// milliseconds more or less would decide.
async fn calls_of(connection: &mut MultiplexedConnection, call: &Call) -> u64 {
    for key in &call.keys {
        redis::cmd("PEXPIRE")
            .arg(&**key)
            .arg(900_000)
            .exec_async(connection)
            .await
            .expect("an answer");
    }
    redis::cmd("CONFIG").arg("RESETSTAT").exec_async(connection).await.expect("CONFIG");
    command(call).exec_async(connection).await.expect("a script that runs");
    let info: String =
        redis::cmd("INFO").arg("commandstats").query_async(connection).await.expect("INFO");
    let calls = info.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let inside = !["evalsha", "config|resetstat", "info"].contains(&name);
        inside.then(|| rest.split(',').next()?.parse::<u64>().ok())?
    });
    calls.sum()
}

fn read(id: &[u8], owner: &str) -> Call {
    let mode = Mode::Wait { max_waiters: None };
    rwlock::VERBS.acquire(&keys("a"), &Settings::default(), acquisition(id, owner), mode, TERMS)
}

/// So many living readers, each of an owner of its own, as the scripts make them.
async fn fill(connection: &mut MultiplexedConnection, readers: usize) {
    redis::cmd("FLUSHALL").exec_async(connection).await.expect("FLUSHALL");
    for script in rwlock::scripts() {
        redis::cmd("SCRIPT")
            .arg("LOAD")
            .arg(script.source())
            .exec_async(connection)
            .await
            .expect("an answer");
    }
    for chunk in (0..readers).collect::<Vec<_>>().chunks(1000) {
        let mut pipeline = redis::pipe();
        for number in chunk {
            let owner = format!("o{number}");
            pipeline.add_command(command(&read(&reader(*number), &owner))).ignore();
        }
        pipeline.exec_async(connection).await.expect("readers");
    }
    let held: usize =
        redis::cmd("ZCARD").arg(&*keys("a").holds).query_async(connection).await.expect("ZCARD");
    assert_eq!(held, readers);
}

/// Every way in and out beside so many readers, and every look at them.
fn all_calls() -> Vec<(&'static str, Call)> {
    let (keys, none, verbs) = (keys("a"), Settings::default(), &rwlock::VERBS);
    let release = |number| verbs.release(&keys, &reader(number), false, 0, TERMS);
    let try_write =
        verbs.acquire(&keys, &none, acquisition(b"w|600000|w|inbox", "w"), Mode::Try, TERMS);
    let upgrade =
        rwlock::exchange(&keys, &reader(5), acquisition(b"up|600000|w|inbox", "o5"), TERMS);
    let check = [(acquisition(b"w|600000|w|inbox", "w"), 1)];
    vec![
        ("read", read(b"n|600000|r|inbox", "n")),
        ("resend", read(b"n|600000|r|inbox", "n")),
        ("re-entry", read(b"m|600000|r|inbox", "n")),
        ("renew", verbs.renew(&keys, &reader(1), 600_000)),
        ("release", release(1)),
        ("refused upgrade", upgrade),
        ("try to write", try_write),
        ("queue as a writer", read(b"w|600000|w|inbox", "w")),
        ("queue behind it", read(b"q|600000|r|inbox", "q")),
        ("check", verbs.check(&keys, &none, check.into_iter(), false, TERMS)),
        ("release while one waits", release(2)),
        ("leave", verbs.release(&keys, b"q|600000|r|inbox", false, 0, TERMS)),
        ("list 5", rwlock::inspect(&keys, 5)),
    ]
}

/// I18. What a script does beside ten thousand readers is what it does beside ten.
#[tokio::test]
async fn no_script_makes_more_calls_beside_more_readers() {
    let server = Server::start();
    let mut connection = server.connection().await;
    let mut inbox = server.client().get_connection().unwrap();
    let mut inbox = inbox.as_pubsub();
    inbox.subscribe("inbox").unwrap();
    let mut counts: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for readers in [10, 1_000, 10_000] {
        fill(&mut connection, readers).await;
        for (what, call) in all_calls() {
            counts.entry(what).or_default().push(calls_of(&mut connection, &call).await);
        }
    }
    println!("calls beside 10, 1 000 and 10 000 readers: {counts:?}");
    for (what, counts) in &counts {
        assert!(counts.iter().all(|count| *count == counts[0]), "{what}: {counts:?}");
        assert!(counts[0] > 1, "{what} was counted: {counts:?}");
    }
    // The control of the count: what a script does for more holds is seen.
    let listed = calls_of(&mut connection, &rwlock::inspect(&keys("a"), 100)).await;
    assert!(listed >= counts["list 5"][0] + 90, "{listed}");
}

/// The server's own time of each of so many reads and releases beside so many readers, in its slow log; a writer waits or
/// not.
async fn release_times(
    connection: &mut MultiplexedConnection,
    readers: usize,
    waits: bool,
) -> Duration {
    const SAMPLES: usize = 300;
    fill(connection, readers).await;
    let (keys, verbs) = (keys("a"), &rwlock::VERBS);
    // Readers that come after the writer would queue.
    for number in 0..SAMPLES {
        let id = format!("s{number}|600000|r|inbox");
        command(&read(id.as_bytes(), &format!("s{number}")))
            .exec_async(connection)
            .await
            .expect("an answer");
    }
    if waits {
        command(&read(b"w|600000|w|inbox", "w")).exec_async(connection).await.expect("an answer");
    }
    let set = async |connection: &mut MultiplexedConnection, option: &str, value: &str| {
        let mut set = redis::cmd("CONFIG");
        set.arg("SET").arg(option).arg(value).exec_async(connection).await.expect("CONFIG SET");
    };
    set(connection, "slowlog-max-len", "10000").await;
    redis::cmd("SLOWLOG").arg("RESET").exec_async(connection).await.expect("SLOWLOG");
    set(connection, "slowlog-log-slower-than", "0").await;
    for number in 0..SAMPLES {
        let id = format!("s{number}|600000|r|inbox");
        let release = verbs.release(&keys, id.as_bytes(), false, 0, TERMS);
        command(&release).exec_async(connection).await.expect("a release");
    }
    set(connection, "slowlog-log-slower-than", "-1").await;
    let mut get = redis::cmd("SLOWLOG");
    let entries: Vec<Vec<redis::Value>> =
        get.arg("GET").arg(-1).query_async(connection).await.expect("SLOWLOG");
    let digest = hash_of("release");
    let times = entries.iter().filter_map(|entry| {
        let words: Vec<Vec<u8>> = redis::from_redis_value_ref(&entry[3]).expect("a command");
        let us: u64 = redis::from_redis_value_ref(&entry[2]).expect("microseconds");
        (words.get(1)? == digest.as_bytes()).then_some(Duration::from_micros(us))
    });
    let times: Vec<_> = times.collect();
    assert_eq!(times.len(), SAMPLES);
    p50(&times)
}

/// A reader's release is O(log readers): a thousand times as many may cost three times as much (a walk over them would cost
/// hundreds of times as much). 30 µs are the grain of the clock and the machine's.
#[tokio::test]
async fn a_readers_release_takes_no_longer_beside_ten_thousand_readers() {
    let server = Server::start();
    let mut connection = server.connection().await;
    for (waits, what) in [(false, "nobody waits"), (true, "a writer waits")] {
        let few = release_times(&mut connection, 10, waits).await;
        let many = release_times(&mut connection, 10_000, waits).await;
        let ratio = many.as_secs_f64() / few.as_secs_f64();
        println!("release, {what}: {few:?} beside 10, {many:?} beside 10 000 readers: {ratio:.2}");
        assert!(many <= few * 3 + 30 * MS / 1000, "{what}: {few:?}, {many:?}");
    }
    // The control of the measure: a walk over them is seen.
    let walk = "local all = redis.call('ZRANGE', KEYS[1], 0, -1) for _, id in ipairs(all) do \
                redis.call('ZSCORE', KEYS[1], id) end return #all";
    let script = redis::Script::new(walk);
    let began = Instant::now();
    let walked: usize =
        script.key(&*keys("a").holds).invoke_async(&mut connection).await.expect("a walk");
    assert!(walked >= 10_000 && began.elapsed() > MS, "{walked} in {:?}", began.elapsed());
    let left = async || keys_left(&server).await.len() <= 5;
    eventually(SOON, "only keys of the lock", left).await;
}
