//! The semaphore with many holders and waiters (DESIGN §9): what a script does does not grow with them, and what has ended
//! is cleared away in steps that hold nobody up (I18, W31).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use leasehold_lua::semaphore::{self, Ended, Inspection};
use leasehold_lua::{Acquisition, Call, Mode, Reply, Terms, mutex};
use leasehold_semaphore::{Options, Session};
use leasehold_tests::permits::{keys, seen};
use leasehold_tests::rig::awake;
use leasehold_tests::scene::{server_ms, session};
use leasehold_tests::{Server, eventually};
use redis::aio::MultiplexedConnection;

const MS: Duration = Duration::from_millis(1);
const LIMIT: u32 = 100_000;
const TERMS: Terms =
    Terms { wait_ms: 600_000, check_ms: 1_000, grant_ms: 60_000, fence_ms: 60_000, floor: 0 };

/// The id of one whose messages somebody hears.
fn id(what: &str, number: usize) -> Vec<u8> {
    format!("{what}{number}|60000|1|inbox").into_bytes()
}

fn acquisition<'a>(id: &'a [u8], owner: &'a str) -> Acquisition<'a> {
    Acquisition { id, owner, note: b"t|note", lease_ms: 60_000 }
}

/// Runs a script, and answers its reply and how many calls it made.
async fn run(connection: &mut MultiplexedConnection, call: &Call) -> (redis::Value, u64) {
    let mut reset = redis::cmd("CONFIG");
    reset.arg("RESETSTAT").exec_async(connection).await.expect("CONFIG");
    let mut run = redis::cmd("EVAL");
    run.arg(call.script.source()).arg(call.keys.len());
    for part in call.keys.iter().map(|key| &key[..]).chain(call.args.iter().map(|arg| &arg[..])) {
        run.arg(part);
    }
    let reply = run.query_async(connection).await.expect("a script that runs");
    let mut info = redis::cmd("INFO");
    let info: String = info.arg("commandstats").query_async(connection).await.expect("INFO");
    let calls = info.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let inside = !["eval", "config|resetstat", "info"].contains(&name);
        inside.then(|| rest.split(',').next()?.parse::<u64>().ok())?
    });
    (reply, calls.sum())
}

/// So many holds that end at this moment, each with its note and its owner.
async fn hold(connection: &mut MultiplexedConnection, holders: usize, deadline_ms: u64) {
    let keys = keys("a");
    for chunk in (0..holders).collect::<Vec<_>>().chunks(1000) {
        let mut pipeline = redis::pipe();
        for number in chunk {
            let id = id("h", *number);
            // As MessagePack has a list of one short text.
            let packed = [&[0x91, 0xa0 | u8::try_from(id.len()).expect("short")], &id[..]].concat();
            pipeline.zadd(&*keys.holds, &id, deadline_ms).ignore();
            pipeline.hset(&*keys.notes, &id, format!("1|0|o{number}|t|note")).ignore();
            pipeline.hset(&*keys.notes, format!("=o{number}"), packed).ignore();
        }
        pipeline.exec_async(connection).await.expect("holds");
    }
    let mut pipeline = redis::pipe();
    pipeline.zadd(&*keys.holds, "#u", holders).zadd(&*keys.holds, "#l", LIMIT);
    pipeline.pexpire(&*keys.holds, 900_000).pexpire(&*keys.notes, 900_000);
    pipeline.exec_async(connection).await.expect("a semaphore");
}

/// So many waiters, the first of which does not fit; no holders.
async fn queue(connection: &mut MultiplexedConnection, waiters: usize) {
    let keys = keys("a");
    let deadline = u64::MAX >> 12;
    for chunk in (0..waiters).collect::<Vec<_>>().chunks(1000) {
        let mut pipeline = redis::pipe();
        for number in chunk {
            pipeline.zadd(&*keys.queue, id("w", *number), number + 1).ignore();
            let described = format!("{deadline}|o|t|note");
            pipeline.hset(&*keys.timeouts, id("w", *number), described).ignore();
        }
        pipeline.pexpire(&*keys.queue, 900_000).pexpire(&*keys.timeouts, 900_000);
        pipeline.exec_async(connection).await.expect("a queue");
    }
}

/// Every call, with as many holders or waiters.
fn all_calls(waiters: usize) -> Vec<(&'static str, Call)> {
    let (keys, verbs, limit) = (keys("a"), &semaphore::VERBS, semaphore::settings(LIMIT, false));
    let wait = |max_waiters| Mode::Wait { max_waiters };
    let newcomer =
        |id, owner, mode| verbs.acquire(&keys, &limit, acquisition(id, owner), mode, TERMS);
    let middle = id("w", waiters / 2);
    let named = |name| Ended { name, late: false, at_least_ms: 0 };
    let part = acquisition(b"p|60000|1|inbox", "p");
    vec![
        ("try", newcomer(b"t|60000|1|inbox", "t", Mode::Try)),
        (
            "acquire",
            newcomer(b"n|60000|2|inbox", "n", wait(Some(waiters.try_into().expect("few")))),
        ),
        ("resend", newcomer(b"n|60000|2|inbox", "n", wait(None))),
        ("check", verbs.check(&keys, &limit, [(acquisition(&middle, "o"), 1)], false, TERMS)),
        ("split", semaphore::split(&keys, b"n|60000|2|inbox", part)),
        ("merge", semaphore::merge(&keys, b"n|60000|2|inbox", part.id)),
        ("renew", verbs.renew(&keys, b"n|60000|2|inbox", 70_000)),
        ("adopt", semaphore::adopt(&keys, acquisition(b"a|60000|1|inbox", "n"))),
        ("inspect", semaphore::inspect(&keys, 10)),
        ("list", mutex::queue(&keys, 10)),
        ("release", verbs.release(&keys, b"a|60000|1|inbox", false, 0, TERMS)),
        (
            "release many",
            semaphore::release_many(&keys, &[named(b"h3|60000|1|inbox"), named(b"o4")], TERMS),
        ),
        ("force", semaphore::force_release(&keys, &[b"h5|60000|1|inbox"], TERMS)),
        ("leave", verbs.release(&keys, &middle, false, 0, TERMS)),
        ("set limit", semaphore::set_limit(&keys, LIMIT, TERMS)),
    ]
}

#[tokio::test]
async fn no_script_makes_more_calls_with_more_holders_or_waiters() {
    let server = Server::start();
    let mut connection = server.connection().await;
    // Somebody hears what is granted.
    let mut inbox = server.client().get_connection().unwrap();
    let mut inbox = inbox.as_pubsub();
    inbox.subscribe("inbox").unwrap();
    let far = server_ms(&mut connection).await + 10 * 3_600_000;
    let mut counts: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for count in [100, 1_000, 10_000] {
        for waiting in [false, true] {
            server.flushall().await;
            hold(&mut connection, count, far).await;
            if waiting {
                queue(&mut connection, count).await;
                // Nothing fits: the scripts find a head that waits.
                let mut full = redis::cmd("ZADD");
                full.arg(&*keys("a").holds).arg(count).arg("#l");
                full.exec_async(&mut connection).await.unwrap();
            }
            for (what, call) in all_calls(count) {
                // Where many wait the newcomer queues, and nothing can be made of what it does not hold.
                let parts = [
                    "split",
                    "merge",
                    "renew",
                    "adopt",
                    "release",
                    "set limit",
                    "force",
                    "release many",
                ];
                if waiting && parts.contains(&what) {
                    continue;
                }
                // Its time to live is lengthened only if a millisecond has passed: so that each call finds the same.
                let mut forget = redis::cmd("DEL");
                forget.arg(&*keys("a").gone).exec_async(&mut connection).await.unwrap();
                let (_, calls) = run(&mut connection, &call).await;
                let what = format!("{what}{}", if waiting { " behind a queue" } else { "" });
                counts.entry(what).or_default().push(calls);
            }
        }
    }
    println!("calls with 100, 1 000 and 10 000 holders or waiters:");
    for (what, counts) in &counts {
        println!("  {what}: {counts:?}");
        assert!(counts.iter().all(|count| *count == counts[0]), "{what}: {counts:?}");
        assert!(counts[0] > 1, "{what} was counted: {counts:?}");
    }
    // The usual cases, beside 5 and 4 of a mutex.
    assert!(counts["try"][0] <= 9, "{counts:?}");
    let pair = counts["try"][0] + counts["release"][0];
    println!("an uncontended pair: {pair} calls");
    assert!(pair <= 17, "{pair}");
}

/// What one sweep clears away of so many that have ended, step by step: calls of each step, and how long each took by the
/// server's own clock.
async fn swept(server: &Server, expired: usize) -> Vec<(u64, Duration)> {
    let mut connection = server.connection().await;
    server.flushall().await;
    let now = server_ms(&mut connection).await;
    hold(&mut connection, expired, now - 1).await;
    let call = semaphore::inspect(&keys("a"), 0);
    let mut steps = Vec::new();
    loop {
        let began = Instant::now();
        let (reply, calls) = run(&mut connection, &call).await;
        steps.push((calls, began.elapsed()));
        let found = Inspection::decode(&value(reply)).expect("an inspection");
        let cleared = LIMIT.min(u32::try_from(expired).expect("few")) - found.used;
        assert!(cleared as usize >= (steps.len() * 256).min(expired), "no progress: {found:?}");
        if !found.again {
            assert_eq!((found.used, found.limit), (0, LIMIT));
            return steps;
        }
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the client's enum is open")]
fn value(value: redis::Value) -> Reply {
    match value {
        redis::Value::Int(number) => Reply::Int(number),
        redis::Value::BulkString(bytes) => Reply::Bytes(bytes),
        redis::Value::Array(values) => Reply::List(values.into_iter().map(self::value).collect()),
        other => panic!("{other:?}"),
    }
}

/// I18: however many have ended, a step clears 256 away, with a bounded number of calls, in far less than 20 ms.
#[tokio::test]
async fn ten_thousand_expired_permits_are_swept_in_bounded_steps() {
    let server = Server::start();
    let (began, began_awake) = (Instant::now(), awake());
    let steps = swept(&server, 10_000).await;
    let stood_still = began.elapsed().saturating_sub(awake() - began_awake);
    let (calls, longest) = steps.iter().fold((0, Duration::ZERO), |(calls, longest), step| {
        (calls.max(step.0), longest.max(step.1))
    });
    println!(
        "{} steps, at most {calls} calls and {longest:?} each, with the way there and back; the machine stood still for \
         {stood_still:?}",
        steps.len()
    );
    assert_eq!(steps.len(), 10_000_usize.div_ceil(256));
    assert!(calls <= 256 * 4 + 32, "{calls} calls in one script");
    assert!(longest <= 20 * MS + stood_still, "{longest:?}");
    // The control: few have ended, and one step finds that out.
    assert_eq!(swept(&server, 100).await.len(), 1);
}

/// W31: where `unpack` of all that has ended fails (8 000 and more), every look, acquire and release still works.
#[tokio::test]
async fn w31_thousands_of_expired_permits_are_no_error_to_anybody() {
    let server = Server::start();
    let session: Session = session(&server.url()).await;
    let semaphore = leasehold_tests::permits::semaphore(&session, "a", LIMIT, Options::default());
    let mut connection = server.connection().await;
    for expired in [8_000, 20_000] {
        for verb in 0..4 {
            server.flushall().await;
            let now = server_ms(&mut connection).await;
            hold(&mut connection, expired, now - 1).await;
            let began = awake();
            match verb {
                0 => assert_eq!(semaphore.available().await.unwrap(), LIMIT),
                1 => {
                    let all = semaphore.many(LIMIT).acquire().await.unwrap();
                    all.release().await.unwrap();
                }
                2 => {
                    let permit = semaphore.try_acquire().await.unwrap().expect("it is free");
                    assert!(semaphore.release_all(vec![permit]).await.unwrap().is_clean());
                }
                _ => semaphore.set_limit(LIMIT).await.unwrap(),
            }
            println!("verb {verb} with {expired} expired: {:?}", awake() - began);
            let swept = async || seen(&semaphore).await == (LIMIT, 0, 0);
            eventually(Duration::from_secs(10), "all of them are cleared away", swept).await;
        }
    }
}
