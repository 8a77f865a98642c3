//! The fair lock with a long queue (DESIGN §9): what a script does does not grow with it, and no script holds the server
//! up. Durations are those that the server measures of each script by itself, in its slow log; how long a
//! millisecond's work took in the same run says how much of them is the machine's.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leasehold_fair_lock::{FairLock, Options, Session};
use leasehold_lua::{Acquisition, Call, Mode, Settings, Terms, fair, mutex};
use leasehold_tests::fair::{keys, lock, queued};
use leasehold_tests::rig::awake;
use leasehold_tests::{Server, eventually};
use redis::aio::MultiplexedConnection;
use tokio::task::JoinSet;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

const TERMS: Terms =
    Terms { wait_ms: 600_000, check_ms: 1_000, grant_ms: 60_000, fence_ms: 60_000, floor: 0 };

/// The id of a waiter whose messages somebody hears.
fn id(number: usize) -> Vec<u8> {
    format!("u{number}|60000|w|inbox").into_bytes()
}

fn acquisition<'a>(id: &'a [u8], owner: &'a str) -> Acquisition<'a> {
    Acquisition { id, owner, note: b"t|note", lease_ms: 60_000 }
}

/// Runs a script, and answers how many calls it made.
async fn calls_of(connection: &mut MultiplexedConnection, call: &Call) -> u64 {
    let mut reset = redis::cmd("CONFIG");
    reset.arg("RESETSTAT").exec_async(connection).await.expect("CONFIG");
    let mut run = redis::cmd("EVAL");
    run.arg(call.script.source()).arg(call.keys.len());
    for part in call.keys.iter().map(|key| &key[..]).chain(call.args.iter().map(|arg| &arg[..])) {
        run.arg(part);
    }
    run.exec_async(connection).await.expect("a script that runs");
    let mut info = redis::cmd("INFO");
    let info: String = info.arg("commandstats").query_async(connection).await.expect("INFO");
    let calls = info.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let inside = !["eval", "config|resetstat", "info"].contains(&name);
        inside.then(|| rest.split(',').next()?.parse::<u64>().ok())?
    });
    calls.sum()
}

/// A queue of so many living waiters behind a holder.
async fn fill(connection: &mut MultiplexedConnection, waiters: usize) {
    redis::cmd("FLUSHALL").exec_async(connection).await.expect("FLUSHALL");
    let (keys, none) = (keys("a"), Settings::default());
    let wait = Mode::Wait { max_waiters: None };
    let holder =
        fair::VERBS.acquire(&keys, &none, acquisition(b"h|60000|w|inbox", "h"), wait, TERMS);
    assert!(calls_of(connection, &holder).await > 0);
    let deadline = u64::MAX >> 12;
    for chunk in (0..waiters).collect::<Vec<_>>().chunks(1000) {
        let mut pipeline = redis::pipe();
        for number in chunk {
            let described = format!("{deadline}|o|t|note");
            pipeline.zadd(&*keys.queue, id(*number), number + 1).ignore();
            pipeline.hset(&*keys.timeouts, id(*number), described).ignore();
        }
        // Longer than a waiter lives: nobody has to lengthen it, in any length of the queue.
        pipeline.pexpire(&*keys.queue, 900_000).pexpire(&*keys.timeouts, 900_000);
        pipeline.exec_async(connection).await.expect("a queue");
    }
}

/// Every way into and out of the queue, and every look at it.
fn all_calls(waiters: usize) -> Vec<(&'static str, Call)> {
    let (keys, none, verbs) = (keys("a"), Settings::default(), &fair::VERBS);
    let middle = |offset: usize| id(waiters / 2 + offset);
    let wait = |max_waiters| Mode::Wait { max_waiters };
    let newcomer =
        |mode| verbs.acquire(&keys, &none, acquisition(b"n|60000|w|inbox", "n"), mode, TERMS);
    let check = |count: usize| {
        let ids: Vec<_> = (0..count).map(middle).collect();
        verbs.check(&keys, &none, ids.iter().map(|id| (acquisition(id, "o"), 1)), false, TERMS)
    };
    vec![
        ("try", newcomer(Mode::Try)),
        ("full", newcomer(wait(Some(5)))),
        ("queue", newcomer(wait(None))),
        ("resend", newcomer(wait(None))),
        ("check of 1", check(1)),
        ("check of 32", check(32)),
        ("leave", verbs.release(&keys, &middle(40), false, 0, TERMS)),
        ("cancel", fair::cancel(&keys, waiters as u64 / 2 + 42, "t", TERMS)),
        ("inspect", mutex::inspect(&keys)),
        ("list", mutex::queue(&keys, 10)),
        ("renew", verbs.renew(&keys, b"h|60000|w|inbox", 60_000)),
        ("release", verbs.release(&keys, b"h|60000|w|inbox", false, 0, TERMS)),
    ]
}

#[tokio::test]
async fn no_script_makes_more_calls_in_a_longer_queue() {
    let server = Server::start();
    let mut connection = server.connection().await;
    let mut inbox = server.client().get_connection().unwrap();
    let mut inbox = inbox.as_pubsub();
    inbox.subscribe("inbox").unwrap();
    let mut counts: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for waiters in [100, 1_000, 10_000] {
        fill(&mut connection, waiters).await;
        for (what, call) in all_calls(waiters) {
            counts.entry(what).or_default().push(calls_of(&mut connection, &call).await);
        }
    }
    println!("calls with 100, 1 000 and 10 000 waiters: {counts:?}");
    for (what, counts) in &counts {
        assert!(counts.iter().all(|count| *count == counts[0]), "{what}: {counts:?}");
        assert!(counts[0] > 1, "{what} was counted: {counts:?}");
    }
    // The control of the count: what a script does for 31 waiters more is seen.
    assert_eq!(counts["check of 32"][0], counts["check of 1"][0] + 31);
}

/// Adds up so many numbers: work whose length is always the same.
const ADD_UP: &str =
    "local sum = 0 for i = 1, ARGV[1] do sum = sum + i end return string.format('%d', sum)";
/// What takes less is not in the slow log.
const LOGGED: Duration = Duration::from_micros(30);

/// How long the runs of one script took, by the server's own clock.
#[derive(Clone, Debug, Default)]
struct Runs {
    /// Those that took longer than [`LOGGED`], sorted.
    logged: Vec<Duration>,
    /// How many there were at the least, with those that are not in the log.
    all: usize,
}

impl Runs {
    /// So many thousandths took no longer.
    fn at(&self, thousandths: usize) -> Duration {
        let longer = self.all.max(self.logged.len()) * (1000 - thousandths) / 1000;
        let place = self.logged.len().checked_sub(longer + 1);
        place.map_or(LOGGED, |place| self.logged[place])
    }

    /// What it exceeds of DESIGN §9: 99 % within 1 ms, all within 20 ms; the middle is held to 1 ms too. For a millisecond
    /// stands what a millisecond's work took at the same share of its runs on this machine; margins are twice as much in
    /// the middle, and three times where few runs decide. For so long the whole machine stood still; the slowest run may
    /// have met that.
    fn judge(&self, millisecond: &Self, stood_still: Duration) -> Result<(), String> {
        let none = Duration::ZERO;
        for (thousandths, times, more) in
            [(500, 2, none), (990, 3, none), (1000, 3 * 20, stood_still)]
        {
            let took = self.at(thousandths);
            let most = millisecond.at(thousandths).max(MS) * times + more;
            if took > most {
                return Err(format!("{took:?} at {thousandths} thousandths, at most {most:?}"));
            }
        }
        Ok(())
    }
}

fn hash(source: &str) -> String {
    redis::Script::new(source).get_hash().to_owned()
}

/// What the slow log has of each script; the adding up by what it adds.
async fn logged(connection: &mut MultiplexedConnection) -> BTreeMap<String, Runs> {
    let scripts = [&mutex::scripts()[..], &fair::scripts()].concat();
    let names: BTreeMap<_, _> =
        scripts.iter().map(|script| (script.hash(hash).to_owned(), script.name())).collect();
    let mut get = redis::cmd("SLOWLOG");
    let entries: Vec<Vec<redis::Value>> =
        get.arg("GET").arg(-1).query_async(connection).await.expect("SLOWLOG");
    let mut all: BTreeMap<String, Runs> = BTreeMap::new();
    for entry in entries {
        let us: u64 = redis::from_redis_value_ref(&entry[2]).expect("microseconds");
        let words: Vec<Vec<u8>> = redis::from_redis_value_ref(&entry[3]).expect("a command");
        let word = |at: usize| words.get(at).map(|word| String::from_utf8_lossy(word).into_owned());
        let script = word(1).and_then(|digest| match names.get(&*digest) {
            Some(name) => Some((*name).to_owned()),
            None => word(3).filter(|_| digest == hash(ADD_UP)),
        });
        if let Some(script) = script {
            all.entry(script).or_default().logged.push(Duration::from_micros(us));
        }
    }
    all.values_mut().for_each(|runs| runs.logged.sort());
    all
}

async fn set(connection: &mut MultiplexedConnection, words: [&str; 2]) {
    redis::cmd("CONFIG").arg("SET").arg(&words).exec_async(connection).await.expect("CONFIG SET");
}

/// How much has to be added up to take a millisecond on this machine, with nobody else at the server: by the shortest of
/// many runs.
async fn a_millisecond(connection: &mut MultiplexedConnection) -> u64 {
    const TRIAL: u64 = 100_000;
    let mut shortest = SECOND;
    for _ in 0..50 {
        let began = Instant::now();
        add_up(connection, TRIAL).await;
        shortest = shortest.min(began.elapsed());
    }
    let shortest = u64::try_from(shortest.as_micros()).expect("less than a second");
    TRIAL * 1_000 / shortest
}

async fn add_up(connection: &mut MultiplexedConnection, count: u64) {
    let script = redis::Script::new(ADD_UP);
    let sum: String = script.arg(count).invoke_async(connection).await.expect("a sum");
    assert_eq!(sum, (count * (count + 1) / 2).to_string());
}

async fn add_up_again_and_again(mut connection: MultiplexedConnection, count: u64) {
    loop {
        add_up(&mut connection, count).await;
        tokio::time::sleep(20 * MS).await;
    }
}

/// How often the waiters asked, and how often one held.
#[derive(Debug, Default)]
struct Turns {
    asked: AtomicUsize,
    held: AtomicUsize,
}

/// Acquires and releases, again and again.
async fn takes_turns(lock: FairLock, turns: Arc<Turns>) {
    loop {
        turns.asked.fetch_add(1, Ordering::Relaxed);
        let guard = lock.acquire().await.expect("a hold");
        turns.held.fetch_add(1, Ordering::Relaxed);
        guard.release().await.expect("still held");
    }
}

/// Ten processes with a thousand waiters each: they queue, check, are granted and queue again, and in the end all leave at
/// once.
async fn ten_thousand_waiters(server: &Server) -> BTreeMap<String, Runs> {
    let mut connection = server.connection().await;
    let mut sessions: Vec<Session> = Vec::new();
    for _ in 0..10 {
        // Nobody asks twice because thousands ask at once.
        let builder = Session::builder(&server.url()).expect("a URL").response_timeout(30 * SECOND);
        sessions.push(builder.connect().await.expect("a session"));
    }
    let lock_of = |session: usize| lock(&sessions[session], "a", Options::default().wait_forever());
    let guard = lock_of(0).acquire().await.expect("a hold");
    let millisecond = a_millisecond(&mut connection).await;
    set(&mut connection, ["slowlog-max-len", "200000"]).await;
    set(&mut connection, ["slowlog-log-slower-than", &LOGGED.as_micros().to_string()]).await;
    let yardstick = tokio::spawn(add_up_again_and_again(server.connection().await, millisecond));
    let (turns, mut waiters) = (Arc::new(Turns::default()), JoinSet::new());
    for number in 0..10_000 {
        waiters.spawn(takes_turns(lock_of(number % 10), turns.clone()));
    }
    queued(&lock_of(0), 10_000).await;
    tokio::time::sleep(2 * SECOND).await; // two rounds of checks
    guard.release().await.expect("still held");
    let enough = async || turns.held.load(Ordering::Relaxed) >= 3_000;
    eventually(60 * SECOND, "three thousand turns", enough).await;
    waiters.shutdown().await;
    let empty = async || lock_of(0).queue_length().await.expect("an answer") == 0;
    eventually(60 * SECOND, "all have left", empty).await;
    yardstick.abort();
    for _ in 0..20 {
        add_up(&mut connection, millisecond * 10).await;
    }
    set(&mut connection, ["slowlog-log-slower-than", "-1"]).await;
    let mut runs = logged(&mut connection).await;
    let (asked, held) = (turns.asked.load(Ordering::Relaxed), turns.held.load(Ordering::Relaxed));
    let checks: u64 = sessions.iter().map(|session| session.statistics().checks).sum();
    let checks = usize::try_from(checks).expect("few");
    for (script, all) in
        [("mutex/acquire", asked), ("mutex/release", held + 9_000), ("mutex/check", checks)]
    {
        runs.get_mut(script).expect("some took long enough for the log").all = all;
    }
    for (count, name) in [(millisecond, MILLISECOND), (millisecond * 10, TOO_MUCH)] {
        let adding = runs.remove(&count.to_string()).expect("it was logged");
        runs.insert(name.to_owned(), adding);
    }
    runs
}

/// The names of what was added up.
const MILLISECOND: &str = "a millisecond's work";
const TOO_MUCH: &str = "ten milliseconds' work";

/// I18, DESIGN §9, in the run above.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_waiters_hold_the_server_up_for_a_millisecond_at_most() {
    let (began, began_awake) = (Instant::now(), awake());
    let mut runs = ten_thousand_waiters(&Server::start()).await;
    let stood_still = began.elapsed().saturating_sub(awake() - began_awake);
    println!("the machine stood still for {stood_still:?}");
    for (script, of_one) in &runs {
        let [p50, p99, most] = [500, 990, 1000].map(|share| of_one.at(share));
        let all = of_one.all.max(of_one.logged.len());
        println!("{script}: p50 {p50:?}, p99 {p99:?}, max {most:?} of {all} runs");
    }
    let millisecond = runs.remove(MILLISECOND).expect("it was measured");
    assert!(millisecond.logged.len() > 100, "{}", millisecond.logged.len());
    let too_much = runs.remove(TOO_MUCH).expect("it was measured");
    too_much
        .judge(&millisecond, stood_still)
        .expect_err("the control: what takes too long is caught");
    for script in ["mutex/acquire", "mutex/check", "mutex/release"] {
        let judged = runs[script].judge(&millisecond, stood_still);
        judged.unwrap_or_else(|why| panic!("{script}: {why}"));
    }
}
