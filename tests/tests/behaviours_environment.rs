//! BEHAVIOURS.md, kind E: scripts that vanish, replicas, eviction, promotion, lost keys, undeclared
//! keys, clocks. One test a row, named after it. Rights are in `acl.rs`, refusals in `fake_server.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold_mutex::{AcquireError, LostReason, Mutex, Options, Session};
use leasehold_tests::fake::Switch;
use leasehold_tests::rig::{Monitor, Watch, waiter};
use leasehold_tests::scene::{
    SOON, entries, hash_of, keys, mutex, queued, say, server_ms, session,
};
use leasehold_tests::{Server, Worker, eventually, rounds};
use redis::AsyncCommands;

const WORKER: &str = env!("CARGO_BIN_EXE_mutex_worker");
const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// For two cores that build something meanwhile.
const MACHINE: Duration = Duration::from_millis(600);

fn patient() -> Options {
    Options::default().max_wait(Duration::from_secs(30))
}

/// Which of the five keys of a mutex is lost, and how the lock is used meanwhile.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Use {
    Idle,
    Held,
    Queued,
}

/// Deletes one key; then the lock is taken within the lease (1 s) and the check (1 s).
async fn loses_a_key(server: &Server, session: &Session, which: usize, used: Use) {
    let name = format!("{which} {used:?}");
    let lock = mutex(session, &name, patient().lease(SECOND));
    let keys = keys(&name);
    let key = [&keys.holds, &keys.queue, &keys.timeouts, &keys.token, &keys.gone][which];
    let mut connection = server.connection().await;
    let earlier = lock.acquire().await.expect("a hold");
    let token = earlier.fencing_token();
    let mut waits = None;
    match used {
        Use::Idle => earlier.release().await.expect("still held"),
        Use::Held => waits = Some((earlier, None)),
        Use::Queued => {
            let next = waiter(server, &lock, &name, 1).await;
            waits = Some((earlier, Some(next)));
        }
    }
    let _: u64 = connection.del(&**key).await.expect("DEL");
    let begin = Watch::start();
    let bound = 2 * SECOND + MACHINE;
    if let Some((earlier, next)) = waits {
        if which == 0 {
            let reason = tokio::time::timeout(bound, earlier.lost()).await.expect("told in time");
            assert!(
                matches!(reason, LostReason::Expired | LostReason::NotOwner),
                "{name}: {reason:?}"
            );
        } else {
            earlier.release().await.expect("still held");
        }
        if let Some(next) = next {
            let (next, _) =
                tokio::time::timeout(bound, next).await.expect("in time").expect("no panic");
            assert!(which == 3 || next.fencing_token() > token, "{name}");
            next.release().await.expect("still held");
        }
    }
    let guard =
        lock.acquire_within(bound).await.unwrap_or_else(|error| panic!("{name}: {error:?}"));
    assert!(begin.awake() < bound + MACHINE, "{name}: {:?}", begin.awake());
    // I5 even then: tokens follow the server's clock.
    assert!(guard.fencing_token() > token, "{name}");
    guard.release().await.expect("still held");
}

#[tokio::test]
async fn b90_a_lock_recovers_from_the_loss_of_any_of_its_keys() {
    let server = Rc::new(Server::start());
    let session = session(&server.url()).await;
    let trials = tokio::task::LocalSet::new();
    let mut all = Vec::new();
    for which in 0..5 {
        for used in [Use::Idle, Use::Held, Use::Queued] {
            let (server, session) = (server.clone(), session.clone());
            let trial = async move { loses_a_key(&server, &session, which, used).await };
            all.push(trials.spawn_local(trial));
        }
    }
    trials.await;
    for trial in all {
        trial.await.unwrap();
    }
    eventually(SOON, "nothing stays", async || session.statistics().tracked == 0).await;
}

/// Every verb, again and again, while it may.
async fn use_everything(session: Session, name: String, goes_on: Arc<AtomicBool>) -> u32 {
    let lock = mutex(&session, &name, patient().lease(600 * MS));
    let mut turns = 0;
    while goes_on.load(Ordering::Relaxed) {
        let guard = lock.acquire().await.expect("a hold");
        let inner = lock.by(guard.owner()).acquire().await.expect("re-entry");
        guard.extend(SECOND).await.expect("an extension");
        assert!(lock.try_acquire().await.expect("an answer").is_none());
        assert!(lock.is_locked().await.expect("an answer"));
        drop(lock.queue().await.expect("an answer"));
        inner.release().await.expect("still held");
        let adopted = lock.adopt(&guard.detach()).await.expect("an adoption");
        if turns % 4 == 0 {
            tokio::time::sleep(250 * MS).await; // a renewal is due
            adopted.release().await.expect("still held");
        } else if turns % 4 == 1 {
            drop(adopted);
        } else {
            assert!(lock.force_release().await.expect("an answer").is_some());
        }
        turns += 1;
    }
    turns
}

#[tokio::test]
async fn b103_scripts_that_vanish_all_the_time_cost_no_error() {
    let server = Server::start();
    let session = session(&server.url()).await;
    server.reset_stats().await;
    let goes_on = Arc::new(AtomicBool::new(true));
    let tasks: Vec<_> = (0..20)
        .map(|task| {
            tokio::spawn(use_everything(session.clone(), format!("{}", task / 2), goes_on.clone()))
        })
        .collect();
    for _ in 0..rounds(500).max(100) {
        say(&server, &["SCRIPT", "FLUSH"]).await;
        tokio::time::sleep(20 * MS).await;
    }
    goes_on.store(false, Ordering::Relaxed);
    for task in tasks {
        assert!(task.await.expect("no error") > 0);
    }
    let calls = server.command_calls().await;
    let again = calls.of(&["eval"]);
    assert!(again > 50 && session.statistics().renewals > 0, "the control: {again} sent in full");
}

/// The first server becomes a replica of the second, and then new connections reach the second.
#[tokio::test]
async fn b105_a_client_of_a_demoted_master_finds_the_new_one() {
    let (one, two) = (Server::start(), Server::start());
    let switch = Switch::to(&one);
    let session = session(&switch.url()).await;
    let held = mutex(&session, "held", patient().lease(1500 * MS)).acquire().await.unwrap();
    let lock = mutex(&session, "a", patient());
    lock.acquire().await.unwrap().release().await.unwrap();
    say(&one, &["REPLICAOF", "127.0.0.1", &two.addr().port().to_string()]).await;
    switch.turn_to(&two);
    let turned = Watch::start();
    lock.acquire_within(SOON).await.unwrap().release().await.unwrap();
    assert!(turned.awake() < 2 * SECOND, "{:?}", turned.awake());
    assert_eq!(held.lost().await, LostReason::Expired, "the new master has never heard of it");
    assert!(turned.awake() < 1500 * MS + MACHINE, "{:?}", turned.awake());
    // Waiters, too, are pushed to again: an inbox on the old master would cost each a check.
    let pushed = async || {
        let before = session.statistics().pushed_grants;
        let guard = lock.acquire().await.unwrap();
        let next = waiter(&two, &lock, "a", 1).await;
        guard.release().await.unwrap();
        next.await.unwrap().0.release().await.unwrap();
        session.statistics().pushed_grants > before
    };
    eventually(SOON, "grants are pushed again", pushed).await;
}

/// I1 over a failover: messages travel from a master to its replicas, and no replica counts as a
/// receiver. A waiter whose inbox is still at the old master must not run on a grant that the new
/// master has given up.
#[tokio::test]
async fn b105_a_grant_that_only_a_replica_delivers_is_not_run() {
    let (one, two) = (Server::start(), Server::start());
    let switch = Switch::to(&one);
    let (behind, direct) = (session(&switch.url()).await, session(&two.url()).await);
    let held = mutex(&session(&one.url()).await, "a", patient()).acquire().await.unwrap();
    let waits = mutex(&behind, "a", patient());
    let mut waits = tokio::spawn(async move { waits.acquire().await.unwrap() });
    queued(&one, "a", 1).await;
    let follow = |server: &Server| {
        ["REPLICAOF".to_owned(), "127.0.0.1".to_owned(), server.addr().port().to_string()]
    };
    say(&two, &follow(&one).each_ref().map(String::as_str)).await;
    queued(&two, "a", 1).await;
    say(&two, &["REPLICAOF", "NO", "ONE"]).await;
    say(&one, &follow(&two).each_ref().map(String::as_str)).await;
    let mut replica = one.connection().await;
    let linked = async || {
        let info: String =
            redis::cmd("INFO").arg("replication").query_async(&mut replica).await.unwrap();
        info.contains("master_link_status:up")
    };
    eventually(SOON, "the old master follows the new one", linked).await;
    let lock = mutex(&direct, "a", patient());
    assert!(lock.force_release().await.unwrap().is_some());
    let guard = lock.try_acquire().await.unwrap().expect("free: nobody listens at the new master");
    switch.turn_to(&two);
    // Longer than any message or check is under way.
    assert!(tokio::time::timeout(1500 * MS, &mut waits).await.is_err(), "two hold");
    assert!(guard.is_held());
    guard.release().await.unwrap();
    let next = tokio::time::timeout(SOON, waits).await.unwrap().unwrap();
    next.release().await.unwrap();
    drop(held);
}

#[tokio::test]
async fn b108_an_evicted_hold_is_told_by_the_next_renewal() {
    let server = Server::builder()
        .arg("--maxmemory", "4mb")
        .arg("--maxmemory-policy", "volatile-lru")
        .start();
    let session = session(&server.url()).await;
    let lock = mutex(&session, "a", patient().lease(3 * SECOND));
    let guard = lock.acquire().await.unwrap();
    let mut connection = server.connection().await;
    // Keys without an end, until nothing with an end is left to evict.
    let (mut filled, filling) = (0, "x".repeat(10_000));
    while connection.set::<_, _, ()>(format!("other {filled}"), &filling).await.is_ok() {
        filled += 1;
    }
    let evicted = Watch::start();
    assert!(!connection.exists::<_, bool>(&*keys("a").holds).await.unwrap(), "the control");
    let reason = tokio::time::timeout(SOON, guard.lost()).await.unwrap();
    assert_eq!(reason, LostReason::Expired);
    // A renewal is due every second.
    assert!(evicted.awake() < SECOND + MACHINE, "{:?}", evicted.awake());
}

/// What one line of MONITOR says: who sent it, and its words.
fn words(line: &str) -> (bool, Vec<&str>) {
    let from_script = line.contains(" lua] ");
    let text = line.split_once("] ").map_or("", |(_, text)| text);
    (from_script, text.split('"').skip(1).step_by(2).collect())
}

/// The keys that a command inside a script names.
fn named<'a>(words: &[&'a str]) -> Vec<&'a str> {
    match words[0].to_uppercase().as_str() {
        "TIME" | "PUBLISH" | "PUBSUB" => Vec::new(),
        "EXISTS" | "DEL" => words[1..].to_vec(),
        _ => vec![words[1]],
    }
}

/// Takes every way through the scripts that touches another key.
async fn every_way(server: &Server, lock: &Mutex, bounded: &Mutex, brief: &Mutex) {
    // A hold that runs out is followed by a check.
    drop(brief.acquire().await.expect("a hold").detach());
    lock.acquire().await.expect("a hold").release().await.expect("still held");
    let guard = lock.acquire().await.expect("a hold");
    let first = waiter(server, lock, "a", 1).await;
    let full = bounded.acquire_within(SECOND).await;
    assert!(matches!(full, Err(AcquireError::Saturated { .. })), "{full:?}");
    let mut leaves = Box::pin(lock.acquire());
    assert!(tokio::time::timeout(1200 * MS, &mut leaves).await.is_err(), "and is checked");
    drop(leaves);
    queued(server, "a", 1).await;
    guard.extend(40 * SECOND).await.expect("an extension");
    let inner = lock.by(guard.owner()).acquire().await.expect("re-entry");
    inner.release().await.expect("still held");
    drop(lock.queue().await.expect("an answer"));
    drop(lock.holder().await.expect("an answer"));
    let adopted = lock.adopt(&guard.detach()).await.expect("an adoption");
    adopted.release().await.expect("still held");
    let (second, _) = first.await.expect("no panic");
    let third = waiter(server, lock, "a", 1).await;
    assert!(lock.force_release().await.expect("an answer").is_some());
    drop(second);
    third.await.expect("no panic").0.release().await.expect("still held");
}

/// I17, seen by the server: no script touches a key that was not declared, and none declares one
/// that it never touches.
#[tokio::test]
async fn b115_scripts_touch_the_keys_that_are_declared_and_no_others() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let lock = mutex(&session, "a", patient().hold_at_least(5 * MS));
    for script in leasehold_lua::mutex::scripts() {
        say(&server, &["SCRIPT", "LOAD", script.source()]).await;
    }
    let monitor = Monitor::of(&server);
    let bounded = mutex(&session, "a", patient().max_waiters(1));
    every_way(&server, &lock, &bounded, &mutex(&session, "a", patient().fixed(300 * MS))).await;
    let lines = monitor.heard(&server).await;
    let verbs: BTreeMap<_, _> = leasehold_lua::mutex::scripts()
        .map(|script| script.name().rsplit('/').next().unwrap_or_default())
        .map(|verb| (hash_of(verb), verb))
        .into();
    let (mut current, mut unused) = (None, BTreeMap::new());
    for (from_script, words) in lines.iter().map(|line| words(line)) {
        if !from_script {
            let name = words.first().map_or(String::new(), |word| word.to_uppercase());
            let Some(verb) =
                words.get(1).and_then(|hash| verbs.get(*hash)).filter(|_| name == "EVALSHA")
            else {
                current = None;
                continue;
            };
            let declared: Vec<_> = words[3..3 + words[2].parse::<usize>().unwrap()].to_vec();
            unused.entry(*verb).or_insert_with(|| (0..declared.len()).collect::<BTreeSet<_>>());
            current = Some((*verb, declared));
        } else if let Some((verb, declared)) = &current {
            for key in named(&words) {
                let at = declared.iter().position(|declared| *declared == key);
                let at = at.unwrap_or_else(|| panic!("{verb} touches {key}: {words:?}"));
                unused.get_mut(verb).unwrap().remove(&at);
            }
        }
    }
    let seen: Vec<_> = unused.keys().copied().collect();
    assert_eq!(seen.len(), 8, "every script ran: {seen:?}");
    unused.retain(|_, keys| !keys.is_empty());
    assert!(unused.is_empty(), "declared and never touched: {unused:?}");
}

/// No lease survives a failover that lost it: it is told, and the token of the next hold is larger.
#[tokio::test]
async fn b117_a_hold_that_a_failover_lost_is_told_and_fenced() {
    let (one, two) = (Server::start(), Server::start());
    let switch = Switch::to(&one);
    let session_of_first = session(&switch.url()).await;
    let lock = mutex(&session_of_first, "a", patient().lease(1500 * MS));
    lock.acquire().await.unwrap().release().await.unwrap();
    // A replica that has followed until now, and not further.
    say(&two, &["REPLICAOF", "127.0.0.1", &one.addr().port().to_string()]).await;
    let mut replica = two.connection().await;
    let token = keys("a").token;
    let follows = async || replica.exists::<_, bool>(&*token).await.unwrap();
    eventually(SOON, "it follows", follows).await;
    say(&two, &["REPLICAOF", "NO", "ONE"]).await;
    let first = lock.acquire().await.unwrap();
    switch.turn_to(&two);
    one.kill();
    let failed = Watch::start();
    let second = mutex(&session(&switch.url()).await, "a", patient()).acquire().await.unwrap();
    let reason = first.lost().await;
    assert_eq!(reason, LostReason::NotOwner);
    // A renewal is due every half second; a broken one is tried again within a quarter.
    assert!(failed.awake() < 750 * MS + MACHINE, "{:?}", failed.awake());
    assert!(second.is_held() && second.fencing_token() > first.fencing_token());
}

/// Order, expiry and tokens are the server's: two clients whose clocks are ten minutes apart.
#[tokio::test]
async fn b87_the_clocks_of_the_clients_do_not_matter() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let (ahead, behind) = (
        Worker::with_wall_clock(WORKER, folder.path(), "ahead", 300),
        Worker::with_wall_clock(WORKER, folder.path(), "behind", -300),
    );
    let mut connection = server.connection().await;
    let mut tokens = Vec::new();
    let mut token_of = |answer: String| {
        let number = answer.strip_prefix("held ").unwrap_or_else(|| panic!("{answer}"));
        tokens.push(number.parse::<u64>().unwrap());
    };
    let mut fast = Worker::start(&ahead, &server.url(), "a", SECOND).await;
    let mut slow = Worker::start(&behind, &server.url(), "a", SECOND).await;
    for _ in 0..5 {
        token_of(fast.ask("acquire").await);
        let (entry, now) =
            (&entries(&mut connection, "a").await[0], server_ms(&mut connection).await);
        assert!(entry.deadline_ms <= now + 1000, "{entry:?} at {now}");
        slow.say("acquire");
        queued(&server, "a", 1).await;
        assert_eq!(fast.ask("release").await, "released");
        token_of(slow.hear().await);
        assert_eq!(slow.ask("is_held").await, "true");
        assert_eq!(slow.ask("release").await, "released");
    }
    // And the expiry of the one is noticed by the other, after the lease and not five minutes.
    token_of(fast.ask("acquire").await);
    fast.kill();
    let begin = Watch::start();
    token_of(slow.ask("acquire").await);
    assert!(begin.awake() < SECOND + MACHINE, "{:?}", begin.awake());
    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
}
