//! Rows of the table of behaviours about the server under a read-write lock: its rights, lost keys, clocks, tokens, and what
//! is left in the end.

use std::collections::BTreeMap;
use std::error::Error;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_rwlock::{
    AcquireError, BackendError, BackendErrorKind, DowngradeError, LostReason, Options, RwLock,
    Session, UpgradeError,
};
use leasehold_tests::rig::Watch;
use leasehold_tests::rwlock::{hash_of, keys, lock, queued, waiter};
use leasehold_tests::scene::{SOON, keys_left, say, session};
use leasehold_tests::{FaultProxy, Pick, Server, Worker, acl, eventually, rounds};
use redis::AsyncCommands;
use tokio::task::JoinSet;

const WORKER: &str = env!("CARGO_BIN_EXE_rwlock_worker");
const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// For two cores that do other work too.
const MACHINE: Duration = Duration::from_millis(600);

fn plain() -> Options {
    Options::default()
}

/// Two clients whose clocks are ten minutes apart: leases end after their length, readers are let in and writers wait.
#[tokio::test]
async fn b87_the_clocks_of_the_clients_do_not_matter() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let program = |name, shift_s| Worker::with_wall_clock(WORKER, folder.path(), name, shift_s);
    let mut fast = Worker::start(program("ahead", 300), &server.url(), "a", 2 * SECOND).await;
    let mut slow = Worker::start(program("behind", -300), &server.url(), "a", 2 * SECOND).await;
    let observer = lock(&session(&server.url()).await, "a", plain().max_wait(SOON));
    for (first, second) in [(0, 1), (1, 0)] {
        let workers = &mut [&mut fast, &mut slow];
        assert_eq!(workers[first].ask("write").await, "held");
        workers[second].say("read");
        queued(&observer, 1).await;
        assert!(observer.read().try_acquire().await.unwrap().is_none());
        assert!(observer.holders().await.unwrap().remaining <= 2 * SECOND);
        assert_eq!(workers[first].ask("release").await, "released");
        assert_eq!(workers[second].hear().await, "held");
        assert!(observer.write().try_acquire().await.unwrap().is_none());
        assert_eq!(workers[second].ask("release").await, "released");
    }
    // The lease of the one ends for the others after its length, and not five minutes.
    assert_eq!(fast.ask("read").await, "held");
    fast.kill();
    let killed = Watch::start();
    slow.say("write");
    assert_eq!(slow.hear().await, "held");
    assert!(killed.awake() < 2 * SECOND + MACHINE, "{:?}", killed.awake());
}

/// How the lock is used when one of its keys is lost.
#[derive(Clone, Copy, Debug)]
enum Use {
    Idle,
    Read,
    Written,
    Queued,
}

/// Deletes one key; then both sides can be taken within the lease (1 s) and the check (1 s).
async fn loses_a_key(server: &Server, session: &Session, which: usize, used: Use) {
    let name = format!("{which} {used:?}");
    let (lock, keys) = (lock(session, &name, plain().lease(SECOND).max_wait(SOON)), keys(&name));
    let all = [&keys.holds, &keys.queue, &keys.timeouts, &keys.token, &keys.gone, &keys.notes];
    let earlier = lock.write().acquire().await.expect("a hold");
    let token = earlier.fencing_token();
    let mut waiting = JoinSet::new();
    let held = match used {
        Use::Idle => earlier.release().await.map(|()| None).expect("still held"),
        Use::Read => Some(lock.downgrade(earlier).await.expect("a reader").into_any()),
        Use::Written => Some(earlier.into_any()),
        Use::Queued => {
            let (reads, writes) = (lock.read(), lock.write());
            waiting.spawn(async move { reads.acquire().await.map(|guard| guard.into_any()) });
            queued(&lock, 1).await;
            waiting.spawn(async move { writes.acquire().await.map(|guard| guard.into_any()) });
            queued(&lock, 2).await;
            Some(earlier.into_any())
        }
    };
    let _: u64 = server.connection().await.del(&**all[which]).await.expect("DEL");
    drop(held);
    while let Some(granted) = waiting.join_next().await {
        let guard = granted.expect("no panic inside").expect("a waiter is served");
        drop(guard.release().await);
    }
    let (bound, begin) = (2 * SECOND, Watch::start());
    let writing = lock.write().acquire_within(bound + SECOND).await;
    let writing = writing.unwrap_or_else(|error| panic!("{name}: {error:?}"));
    assert!(begin.awake() < bound + MACHINE, "{name}: {:?}", begin.awake());
    // I5 even then: tokens follow the server's clock.
    assert!(writing.fencing_token() > token, "{name}");
    assert!(lock.read().try_acquire().await.expect("an answer").is_none(), "{name}");
    writing.release().await.expect("still held");
    let reading = lock.read().try_acquire().await.expect("an answer").expect("it is free");
    reading.release().await.expect("still held");
}

#[tokio::test]
async fn b90_a_lock_recovers_from_the_loss_of_any_of_its_keys() {
    let server = Rc::new(Server::start());
    let session = session(&server.url()).await;
    let trials = tokio::task::LocalSet::new();
    let mut all = Vec::new();
    for which in 0..6 {
        for used in [Use::Idle, Use::Read, Use::Written, Use::Queued] {
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
    assert_eq!(keys_left(&server).await, [""; 0]);
}

/// I5. Tokens of writers, by turns taken, upgraded to, expired and deleted, with acquires that are sent again; each taken
/// down while it is surely held, so in the order of the grants. Readers see the last one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b142_the_tokens_of_writers_rise_in_the_order_of_the_grants() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let tokens = Arc::new(Mutex::new(Vec::new()));
    let mut clients = JoinSet::new();
    proxy.cut_after_request(Pick::every(31).containing(hash_of("acquire")));
    for _ in 0..4 {
        let session = session(proxy.url()).await;
        let (tokens, turns) = (tokens.clone(), rounds(1000) / 4 + 20);
        let (brief, lock) = (
            lock(&session, "a", plain().fixed(300 * MS).max_wait(60 * SECOND)),
            lock(&session, "a", plain().max_wait(60 * SECOND)),
        );
        let mut connection = server.connection().await;
        clients.spawn(async move {
            for turn in 0..turns {
                let writing = match turn % 16 {
                    0 => brief.write().acquire().await.expect("a hold"),
                    1..=4 => {
                        match lock.try_upgrade(lock.read().acquire().await.expect("a hold")).await {
                            Ok(writing) => writing,
                            Err(UpgradeError::Refused(reading)) => {
                                drop(reading.release().await);
                                lock.write().acquire().await.expect("a hold")
                            }
                            Err(error) => panic!("{error:?}"),
                        }
                    }
                    _ => lock.write().acquire().await.expect("a hold"),
                };
                let token = writing.fencing_token();
                tokens.lock().expect("no panic inside").push(token);
                match turn % 16 {
                    0 => drop(writing.lost().await),
                    7 => drop(connection.del::<_, u64>(&*keys("a").holds).await),
                    8 => {
                        let reading = lock.downgrade(writing).await.expect("a reader");
                        assert_eq!(lock.last_token(&reading), Some(token));
                    }
                    _ => drop(writing.release().await),
                }
            }
        });
    }
    while let Some(done) = clients.join_next().await {
        done.unwrap();
    }
    let tokens = tokens.lock().unwrap();
    assert_eq!(tokens.len(), 4 * (rounds(1000) / 4 + 20) as usize);
    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "I5: {tokens:?}");
    assert!(proxy.connections() > 12, "acquires were sent again: {}", proxy.connections());
}

/// Many names, half of them abandoned, some with a waiter: when their time is over nothing is left at all.
#[tokio::test]
async fn b143_abandoned_locks_leave_nothing() {
    let server = Server::builder().clock_shim().start();
    let builder = Session::builder(&server.url()).unwrap().fence_memory(SECOND);
    let session = builder.connect().await.unwrap();
    for number in 0..rounds(5000) {
        let lock = lock(&session, &format!("b143-{number}"), plain().fixed(2 * SECOND));
        let writing = lock.write().acquire().await.unwrap();
        match number % 5 {
            0 => writing.release().await.unwrap(),
            1 => lock.downgrade(writing).await.unwrap().release().await.unwrap(),
            2 => std::mem::forget(lock.downgrade(writing).await.unwrap()),
            3 => {
                drop(tokio::time::timeout(MS, lock.read().acquire()).await);
                std::mem::forget(writing);
            }
            _ => std::mem::forget(writing),
        }
    }
    assert!(server.dbsize().await > 100, "the control: there was something");
    // What was cancelled under way is remembered for a minute.
    server.clock().forward(61 * SECOND);
    eventually(SOON, "all is gone", async || server.dbsize().await == 0).await;
}

async fn limited(server: &Server, user: &str) -> Session {
    let builder = Session::builder(&acl::url(server, user)).expect("a URL");
    let builder = builder.prefix(format!("{user}:")).check_every(300 * MS).waiter_deadline(SECOND);
    builder.connect().await.expect("a session")
}

/// What each verb came to: the kind of its refusal, or nothing.
type Refusals = BTreeMap<&'static str, BackendErrorKind>;

/// Notes the refusal, if it is one: another error of the server is told as it is, an end of a wait is none.
fn note<T, E: Error + 'static>(
    refusals: &mut Refusals,
    verb: &'static str,
    outcome: Result<T, E>,
) -> Option<T> {
    let error = match outcome {
        Ok(value) => return Some(value),
        Err(error) => error,
    };
    let mut cause: Option<&(dyn Error + 'static)> = Some(&error);
    while let Some(found) = cause {
        if let Some(backend) = found.downcast_ref::<BackendError>() {
            refusals.entry(verb).or_insert(backend.kind());
            return None;
        }
        cause = found.source();
    }
    let expected = (&error as &dyn Error).downcast_ref::<AcquireError>();
    let ended =
        matches!(expected, Some(AcquireError::TimedOut { .. } | AcquireError::Saturated { .. }));
    assert!(ended, "{verb}: {error:?}");
    None
}

/// Every way through the scripts, each verb by itself: what is refused does not hide the next one.
async fn try_everything(session: &Session) -> Refusals {
    let mut all = Refusals::new();
    let options = plain().lease(SECOND).max_wait(SECOND);
    enters_and_changes_sides(&lock(session, "a", options.clone()), &mut all).await;
    holds_are_ended(&lock(session, "b", options.clone()), &mut all).await;
    let few = lock(session, "c", options.clone().max_waiters(1));
    if let Some(writing) = note(&mut all, "write", few.write().acquire().await) {
        let wait = 300 * MS;
        let (reads, writes) = (few.read(), few.write());
        let (one, two) = tokio::join!(reads.acquire_within(wait), writes.acquire_within(wait));
        note(&mut all, "wait", one);
        note(&mut all, "wait", two);
        let releases = async {
            tokio::time::sleep(50 * MS).await; // the other one queues
            writing.release().await
        };
        let (next, released) = tokio::join!(reads.acquire(), releases);
        note(&mut all, "release", released);
        note(&mut all, "hand over", next);
    }
    let brief = lock(session, "d", options.hold_at_least(20 * MS));
    if let Some(reading) = note(&mut all, "read", brief.read().acquire().await) {
        note(&mut all, "release", reading.release().await);
    }
    all
}

/// A change of sides that was refused in the middle may have ended the old hold: which of the two there is nobody knows,
/// so both are given up.
fn in_part(all: &mut Refusals, verb: &'static str, reason: LostReason) {
    assert_eq!(reason, LostReason::Unreachable, "{verb}");
    all.entry(verb).or_insert(BackendErrorKind::Unreachable);
}

async fn enters_and_changes_sides(lock: &RwLock, all: &mut Refusals) {
    if let Some(writing) = note(all, "write", lock.write().acquire().await) {
        note(all, "extend", writing.extend(2 * SECOND).await);
        note(all, "try", lock.read().try_acquire().await);
        let inner = note(all, "re-entry", lock.read().by(writing.owner()).acquire().await);
        if let Some(inner) = inner {
            note(all, "release", inner.release().await);
        }
        match lock.downgrade(writing).await {
            Ok(reading) => {
                let beside = note(all, "read", lock.read().acquire().await);
                if let Some(beside) = beside {
                    note(all, "release", beside.release().await);
                }
                match lock.try_upgrade(reading).await {
                    Ok(writing) => drop(note(all, "release", writing.release().await)),
                    Err(UpgradeError::Refused(_)) => {}
                    Err(UpgradeError::Lost(lost)) => in_part(all, "upgrade", lost.reason),
                    Err(error) => drop(note::<(), _>(all, "upgrade", Err(error))),
                }
            }
            Err(DowngradeError::Lost(lost)) => in_part(all, "downgrade", lost.reason),
            Err(error) => drop(note::<(), _>(all, "downgrade", Err(error))),
        }
    }
}

async fn holds_are_ended(lock: &RwLock, all: &mut Refusals) {
    note(all, "queue", lock.queue().await);
    note(all, "holders", lock.holders().await);
    if let Some(reading) = note(all, "read", lock.read().acquire().await) {
        let adopted = note(all, "adopt", lock.adopt_read(&reading.detach()).await);
        note(all, "force", lock.force_release_readers().await);
        drop(adopted);
    }
}

#[tokio::test]
async fn b111_everything_works_with_one_prefix_and_the_commands_of_the_rule() {
    let server = Server::start();
    acl::rwlock_user(&server, "app", "app:").await;
    let session = limited(&server, "app").await;
    assert_eq!(try_everything(&session).await, Refusals::new());
    let lock = lock(&session, "e", plain());
    let writing = lock.write().acquire().await.unwrap();
    let readers = [waiter(&lock, lock.read(), 1).await, waiter(&lock, lock.read(), 2).await];
    writing.release().await.unwrap();
    for reader in readers {
        reader.await.unwrap().0.release().await.unwrap();
    }
    assert!(session.statistics().pushed_grants >= 1, "by a push");
    session.shutdown(SOON).await.unwrap();
    let refused = acl::refused(&server, "app").await;
    assert_eq!(refused, Vec::<String>::new());
    let outside = |key: &Vec<u8>| !key.starts_with(b"app:lh1:rwlock:");
    assert_eq!(server.keys().await.into_iter().filter(outside).count(), 0);
}

/// A user whose rule lacks this command; answers whether it could be spared.
async fn is_spared(server: &Server, command: &str) -> bool {
    let prefix = format!("{command}:");
    acl::rwlock_user(server, command, &prefix).await;
    let session = limited(server, command).await;
    acl::change(server, command, &format!("-{command}")).await;
    let refusals = try_everything(&session).await;
    for (verb, kind) in &refusals {
        let in_part = verb.ends_with("grade") && *kind == BackendErrorKind::Unreachable;
        assert!(in_part || *kind == BackendErrorKind::NoPermission, "{verb} without {command}");
    }
    // The lack of some is no refusal to the caller: it is a push that nobody gets.
    let spared = refusals.is_empty() && acl::refused(server, command).await.is_empty();
    acl::rwlock_user(server, command, &prefix).await;
    for name in ["a", "b", "c", "d"] {
        // The longest lease in use is 2 s, a waiter's deadline 1 s.
        let taken = lock(&session, name, plain()).write().acquire_within(SOON).await;
        let guard = taken.unwrap_or_else(|error| panic!("{name} without {command}: {error:?}"));
        guard.release().await.expect("still held");
    }
    spared
}

/// The rule has nothing to spare, and whatever is missing: every error is of the kind `NoPermission` (or a change of
/// sides is given up), and when the right is
/// back all names can be taken, so no hold was left without an end.
#[tokio::test]
async fn b112_each_right_is_needed_and_its_lack_is_told_and_leaves_no_lock() {
    let server = Rc::new(Server::start());
    say(&server, &["CONFIG", "SET", "acllog-max-len", "10000"]).await;
    for script in leasehold_lua::rwlock::scripts() {
        say(&server, &["SCRIPT", "LOAD", script.source()]).await;
    }
    let trials = tokio::task::LocalSet::new();
    let all: Vec<_> = acl::RWLOCK_COMMANDS
        .iter()
        .map(|command| {
            let server = server.clone();
            trials.spawn_local(async move { is_spared(&server, command).await.then_some(*command) })
        })
        .collect();
    trials.await;
    let mut spared = Vec::new();
    for trial in all {
        spared.extend(trial.await.unwrap());
    }
    // Scripts by their text are needed when the server has forgotten them, subscribing when a session opens.
    assert_eq!(spared, ["eval", "subscribe"], "these rights could be left out");
}
