//! What an operator may do to a server under running locks, each with its stated effect: clock steps,
//! FLUSHALL, a restart without persistence, killed connections, CLIENT PAUSE, a full memory. (SCRIPT
//! FLUSH is B103, lost keys B90, rights `acl.rs`.)

use std::time::Duration;

use leasehold_mutex::{AcquireError, BackendErrorKind, Event, LostReason, Mutex, Options, Session};
use leasehold_tests::rig::{Watch, waiter};
use leasehold_tests::scene::{SOON, impatient, keys, mutex, queued, say, session};
use leasehold_tests::{Server, eventually};
use redis::AsyncCommands;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// For two cores that build something meanwhile.
const MACHINE: Duration = Duration::from_millis(600);

fn patient() -> Options {
    Options::default().max_wait(Duration::from_secs(30))
}

/// Forward over the lease: the hold is lost, told by the next renewal (0.3 s), and handed on.
#[tokio::test]
async fn a_clock_set_forward_ends_holds_and_says_so() {
    let server = Server::builder().clock_shim().start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let guard = mutex(&one, "a", patient().lease(900 * MS)).acquire().await.unwrap();
    let next = waiter(&server, &mutex(&two, "a", patient()), "a", 1).await;
    server.clock().forward(60 * SECOND);
    let begin = Watch::start();
    let reason = tokio::time::timeout(SOON, guard.lost()).await.unwrap();
    assert!(matches!(reason, LostReason::Expired | LostReason::NotOwner), "{reason:?}");
    assert!(begin.awake() < 300 * MS + MACHINE, "{:?}", begin.awake());
    let (next, _) = next.await.unwrap();
    assert!(next.fencing_token() > guard.fencing_token());
    next.release().await.unwrap();
}

/// Back: nothing is lost, nobody holds twice, tokens still grow (I5), and a hold that nobody renews
/// lasts longer by the step.
#[tokio::test]
async fn a_clock_set_back_ends_nothing_and_tokens_still_grow() {
    let server = Server::builder().clock_shim().start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let (first, second) =
        (mutex(&one, "a", patient().lease(900 * MS)), mutex(&two, "a", patient()));
    let guard = first.acquire().await.unwrap();
    let next = waiter(&server, &second, "a", 1).await;
    server.clock().back(3600 * SECOND);
    let renewals = one.statistics().renewals;
    eventually(SOON, "it is renewed", async || one.statistics().renewals > renewals + 2).await;
    assert!(guard.is_held() && !next.is_finished());
    guard.release().await.unwrap();
    let (next, _) = tokio::time::timeout(SOON, next).await.unwrap().unwrap();
    next.release().await.unwrap();
    let mut last = 0;
    for _ in 0..5 {
        let guard = first.acquire().await.unwrap();
        assert!(guard.fencing_token().get() > last);
        last = guard.fencing_token().get();
        guard.release().await.unwrap();
    }
    drop(first.acquire().await.unwrap().detach());
    server.clock().back(2 * SECOND);
    let begin = Watch::start();
    second.acquire().await.unwrap().release().await.unwrap();
    let (took, awake) = (begin.elapsed(), begin.awake());
    assert!(took > 2 * SECOND && awake < 3 * SECOND + MACHINE, "{took:?}");
}

/// What is lost is told, waiters stand in the queue again, and tokens grow though theirs is gone.
async fn everything_is_lost(server: &Server, lose: impl AsyncFnOnce()) {
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let guard = mutex(&one, "a", patient().lease(900 * MS))
        .acquire()
        .await
        .expect("in time, and still held");
    let lock = mutex(&two, "a", patient());
    let mut waiting = Vec::new();
    for standing in 1..=3 {
        waiting.push(waiter(server, &lock, "a", standing).await);
    }
    lose().await;
    let begin = Watch::start();
    let reason = tokio::time::timeout(SOON, guard.lost()).await.expect("in time, and still held");
    assert!(matches!(reason, LostReason::Expired | LostReason::NotOwner), "{reason:?}");
    assert!(begin.awake() < 900 * MS + MACHINE, "{:?}", begin.awake());
    let mut last = guard.fencing_token();
    for next in waiting {
        let (next, _) = tokio::time::timeout(SOON, next)
            .await
            .expect("in time, and still held")
            .expect("in time, and still held");
        assert!(next.fencing_token() > last, "in their order, with growing tokens");
        last = next.fencing_token();
        next.release().await.expect("in time, and still held");
    }
    // The check (1 s), and what reconnecting takes.
    assert!(begin.awake() < 2 * SECOND + 2 * MACHINE, "{:?}", begin.awake());
}

#[tokio::test]
async fn flushall_loses_every_hold_and_no_waiter() {
    let server = Server::start();
    everything_is_lost(&server, async || server.flushall().await).await;
}

#[tokio::test]
async fn a_restart_without_persistence_loses_every_hold_and_no_waiter() {
    let server = Server::start();
    everything_is_lost(&server, async || server.restart()).await;
}

async fn hands_over(server: &Server, one: &Mutex, two: &Mutex) {
    let guard = one.acquire().await.expect("a hold");
    let next = waiter(server, two, "a", 1).await;
    guard.release().await.expect("still held");
    next.await.expect("no panic").0.release().await.expect("still held");
}

/// Each connection of a session in its turn: of commands, of the watchdog, of messages.
#[tokio::test]
async fn no_killed_connection_costs_a_hold_or_an_error() {
    let server = Server::start();
    let (session, told) = impatient(&server.url(), 2 * SECOND).await;
    let held = mutex(&session, "held", patient().lease(900 * MS)).acquire().await.unwrap();
    let lock = mutex(&session, "a", patient());
    let mut kinds = Vec::new();
    for _ in 0..3 {
        for which in 0..3 {
            let mut connection = server.connection().await;
            let all = async || connection_ids(&server).await.len() == 3;
            eventually(SOON, "three connections", all).await;
            let (id, kind) = connection_ids(&server).await.swap_remove(which);
            let () = redis::cmd("CLIENT")
                .arg(&["KILL", "ID", &id])
                .query_async::<u64>(&mut connection)
                .await
                .map(drop)
                .unwrap();
            kinds.push(kind);
            hands_over(&server, &lock, &lock).await;
            let renewals = session.statistics().renewals;
            eventually(SOON, "a renewal", async || session.statistics().renewals > renewals + 1)
                .await;
        }
    }
    assert_eq!(
        kinds.iter().filter(|pubsub| **pubsub).count(),
        3,
        "each kind in its turn: {kinds:?}"
    );
    assert!(held.is_held());
    held.release().await.unwrap();
    let bad = |event: &Event| {
        matches!(
            event,
            Event::Lost { .. } | Event::ReleaseLost { .. } | Event::ReleaseUnknown { .. }
        )
    };
    assert_eq!(told.count(bad), 0, "{:?}", told.all());
}

/// The ids of the session's connections, oldest first, those of messages last, and whether they are.
async fn connection_ids(server: &Server) -> Vec<(String, bool)> {
    let mut own = server.connection().await;
    let list: String =
        redis::cmd("CLIENT").arg("LIST").query_async(&mut own).await.expect("a list");
    let field = |line: &str, name: &str| {
        line.split(' ')
            .find_map(|part| part.strip_prefix(name).map(str::to_owned))
            .unwrap_or_default()
    };
    let others = list.lines().filter(|line| {
        matches!(field(line, "cmd=").as_str(), "evalsha" | "eval" | "subscribe" | "publish")
    });
    let mut ids: Vec<_> =
        others.map(|line| (field(line, "id="), field(line, "sub=") == "1")).collect();
    ids.sort_by_key(|(id, pubsub)| (*pubsub, id.parse::<u64>().unwrap_or(0)));
    ids
}

/// A pause shorter than the lease costs only time; one that is longer ends the hold by its local clock
/// before the server does (I2).
#[tokio::test]
async fn client_pause_delays_and_ends_only_what_it_outlasts() {
    for how in ["WRITE", "ALL"] {
        let server = Server::start();
        let session = session(&server.url()).await;
        let long = mutex(&session, "long", patient().lease(6 * SECOND)).acquire().await.unwrap();
        let short = mutex(&session, "short", patient().lease(600 * MS)).acquire().await.unwrap();
        say(&server, &["CLIENT", "PAUSE", "1500", how]).await;
        let begin = Watch::start();
        let lock = mutex(&session, "a", patient());
        let acquires = tokio::spawn(async move { lock.acquire().await });
        assert_eq!(short.lost().await, LostReason::Unreachable);
        assert!(begin.awake() <= 600 * MS + MACHINE, "{:?}", begin.awake());
        let guard = acquires.await.unwrap().unwrap();
        assert!(begin.elapsed() > SECOND, "the control: {how} held it up");
        assert!(long.is_held() && guard.is_held());
        guard.release().await.unwrap();
        long.release().await.unwrap();
        drop(short);
        eventually(SOON, "the lost one is cleared away", async || {
            session.statistics().tracked == 0
        })
        .await;
    }
}

fn refusal(error: &AcquireError) -> BackendErrorKind {
    if let AcquireError::Backend(cause) = error { cause.kind() } else { panic!("{error:?}") }
}

/// At maxmemory nothing new is taken, and it says so at once; a waiter is told by its next check. What
/// is held is renewed, extended, released and handed over.
#[tokio::test]
async fn a_full_memory_refuses_newcomers_and_keeps_what_is_held() {
    let server = Server::builder().arg("--maxmemory-policy", "noeviction").start();
    // Below what is in use already: full, and not by a hair.
    let full = ["CONFIG", "SET", "maxmemory", "100kb"];
    let session: Session = session(&server.url()).await;
    let lock = mutex(&session, "a", patient().lease(900 * MS));
    let waits = || {
        let lock = lock.clone();
        tokio::spawn(async move { lock.acquire().await })
    };
    let guard = lock.acquire().await.unwrap();
    let waiting = waits();
    queued(&server, "a", 1).await;
    say(&server, &full).await;
    let begin = Watch::start();
    let refused = mutex(&session, "b", patient()).acquire().await.unwrap_err();
    assert_eq!(refusal(&refused), BackendErrorKind::OutOfMemory);
    assert!(begin.awake() < MACHINE, "{:?}", begin.awake());
    let mut connection = server.connection().await;
    assert!(!connection.exists::<_, bool>(&*keys("b").holds).await.unwrap(), "nothing half done");
    let told = waiting.await.unwrap().unwrap_err();
    assert_eq!(refusal(&told), BackendErrorKind::OutOfMemory);
    assert!(begin.awake() < SECOND + MACHINE, "{:?}", begin.awake());
    eventually(SOON, "and leaves", async || lock.queue().await.unwrap().length == 0).await;
    let renewals = session.statistics().renewals;
    eventually(SOON, "it is renewed", async || session.statistics().renewals > renewals + 3).await;
    assert!(guard.is_held() && guard.remaining() > 300 * MS, "{:?}", guard.remaining());
    guard.extend(2 * SECOND).await.unwrap();
    guard.release().await.unwrap();
    // A hand-over needs memory too; it follows a release, which is never refused.
    say(&server, &["CONFIG", "SET", "maxmemory", "0"]).await;
    let guard = lock.acquire().await.unwrap();
    let waiting = waits();
    queued(&server, "a", 1).await;
    say(&server, &full).await;
    guard.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}
