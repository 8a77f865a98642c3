//! Rows W of the table of behaviours, as far as they do not need a quiet machine (for the others see
//! `timed_watchdog.rs`): the life of the watchdog's entries.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold_mutex::{Event, Mutex, Options, Session};
use leasehold_tests::rig::{Monitor, dropped_after, kill_connections, span};
use leasehold_tests::scene::{SOON, Told, hash_of, keys, keys_left, mutex, session};
use leasehold_tests::{FaultProxy, Server, eventually, rounds};
use tokio::task::JoinSet;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn lost(event: &Event) -> bool {
    matches!(event, Event::Lost { .. } | Event::ReleaseLost { .. })
}

/// Nothing is looked after, nothing is left on the server, nobody renews for two seconds.
async fn rests(server: &Server, session: &Session) {
    let quiet = async || session.statistics().tracked == 0 && keys_left(server).await.is_empty();
    eventually(SOON, "everything has ended", quiet).await;
    assert_eq!(session.statistics().watched, 0);
    let monitor = Monitor::of(server);
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!(monitor.count(server, &hash_of("renew")).await, 0, "a renewal of nothing");
}

/// I3: with a lease of 3 s (a machine that stands still for a moment loses none) a forgotten entry
/// would renew within those two seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b01_a_released_handle_is_never_armed_again() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let lock = mutex(&session, "a", Options::default().lease(3 * SECOND).max_wait(SOON));
    let (mut held, mut dropped) = (0, 0);
    for round in 0..rounds(2000) {
        if round % 2 == 0 {
            let guard = lock.acquire().await.unwrap();
            tokio::time::sleep(MS * (round % 11) / 2).await;
            guard.release().await.unwrap();
            held += 1;
        } else if let Some(taken) = dropped_after(round % 37, lock.acquire()).await {
            drop(taken.unwrap());
            held += 1;
        } else {
            dropped += 1;
        }
    }
    assert!(held > 0 && dropped > 0, "{held} held, {dropped} dropped on their way");
    rests(&server, &session).await;
}

/// The negative control of the row above: what is held is renewed, and the monitor hears it.
#[tokio::test]
async fn b01_the_monitor_hears_renewals() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let lock = mutex(&session, "a", Options::default().lease(900 * MS));
    let _guard = lock.acquire().await.unwrap();
    let monitor = Monitor::of(&server);
    let renewed = async || monitor.count(&server, &hash_of("renew")).await > 1;
    eventually(SOON, "it is renewed", renewed).await;
}

/// Twenty holds are renewed in one call: three whose keys are spoilt do not take the others along,
/// wherever they stand in it.
#[tokio::test]
async fn b04_one_spoilt_hold_harms_no_other() {
    let server = Server::start();
    let told = Told::default();
    let builder = told.by(Session::builder(&server.url()).unwrap());
    let session = builder.connect().await.unwrap();
    let mut guards = Vec::new();
    for number in 0..20 {
        let options = Options::default().lease(3 * SECOND);
        guards.push(mutex(&session, &format!("a{number}"), options).acquire().await.unwrap());
    }
    let mut connection = server.connection().await;
    let spoilt = [0, 7, 19];
    for number in spoilt {
        let keys = keys(&format!("a{number}"));
        let set = if number == 7 { keys.gone } else { keys.holds };
        redis::cmd("SET").arg(&*set).arg("x").exec_async(&mut connection).await.unwrap();
    }
    let renewals = session.statistics().renewals;
    let several = async || session.statistics().renewals >= renewals + 5;
    eventually(SOON, "they are renewed", several).await;
    for (number, guard) in guards.iter().enumerate() {
        // A foreign key beside the hold is no reason to lose it.
        assert_eq!(guard.is_held(), number != 0 && number != 19, "a{number}");
    }
    assert_eq!(told.count(|event| matches!(event, Event::Lost { .. })), 2, "{:?}", told.all());
}

/// Links that die under the renewals, again and again, and a listener that panics at each failure.
/// Renewals are due every 2 s, the links live for half a second.
#[tokio::test]
async fn b05_the_watchdog_survives_dying_connections_and_panics() {
    let server = Server::start();
    let losses = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&losses);
    let builder = Session::builder(&server.url()).unwrap().on_event(move |event| {
        counted.fetch_add(u32::from(lost(event)), Ordering::Relaxed);
        assert!(!matches!(event, Event::RenewalFailed { .. }), "a panic that the test wants");
    });
    let session = builder.connect().await.unwrap();
    let lock = mutex(&session, "a", Options::default().lease(6 * SECOND));
    let guard = lock.acquire().await.unwrap();
    let mut renewals = session.statistics().renewals;
    for _ in 0..span(10 * SECOND, 3 * SECOND).as_millis() / 500 {
        tokio::time::sleep(500 * MS).await;
        assert!(kill_connections(&server, "normal").await > 0);
        kill_connections(&server, "pubsub").await;
        assert!(guard.is_held());
    }
    for _ in 0..2 {
        let grow = async || session.statistics().renewals > renewals;
        eventually(SOON, "renewals go on", grow).await;
        renewals = session.statistics().renewals;
    }
    assert!(guard.is_held() && guard.remaining() > 2 * SECOND, "{:?} left", guard.remaining());
    guard.release().await.unwrap();
    assert_eq!(losses.load(Ordering::Relaxed), 0);
}

/// Renewals travel 40 ms to the server, releases (on a connection of their own) none: those that
/// were under way find nothing. Answers how many did.
async fn overtaken_renewals(server: &Server, rounds: u32, told: &Told) -> usize {
    let proxy = FaultProxy::to(server);
    let builder = Session::builder(proxy.url()).expect("a URL").commands(server.connection().await);
    let session = told.by(builder).connect().await.expect("a session");
    proxy.delay(40 * MS);
    let monitor = Monitor::of(server);
    let mut tasks = JoinSet::new();
    for task in 0..32 {
        let lock = mutex(&session, &format!("a{task}"), Options::default().lease(3 * SECOND));
        tasks.spawn(async move {
            for round in 0..rounds {
                let guard = lock.acquire().await.expect("a hold");
                // The first renewal is due after 0.95 to 1 s: it has been sent and has not arrived.
                tokio::time::sleep(960 * MS + MS * ((round * 32 + task) % 60)).await;
                guard.release().await.expect("still held");
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("no panic inside");
    }
    assert_eq!(session.statistics().watched, 0);
    let sent = session.statistics().renewals;
    // What was under way arrives, and nothing is sent any more.
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!(session.statistics().renewals, sent);
    let heard = monitor.heard(server).await;
    overtaken(&heard)
}

/// Renewals after a release of the same acquisition, whose id is `uuid|lease|share|inbox`.
fn overtaken(heard: &[String]) -> usize {
    let (renew, release) = (hash_of("renew"), hash_of("release"));
    let ids = |line: &str| {
        let words = line.split('"').map(str::to_owned);
        words.filter(|word| word.contains("|3000|")).collect::<Vec<_>>()
    };
    let mut released = std::collections::HashSet::new();
    let mut overtaken = 0;
    for line in heard {
        if line.contains(&release) {
            released.extend(ids(line));
        } else if line.contains(&renew) {
            overtaken += ids(line).iter().filter(|id| released.contains(*id)).count();
        }
    }
    overtaken
}

#[tokio::test]
async fn b07_a_renewal_that_meets_a_release_is_no_loss() {
    let server = Server::start();
    let told = Told::default();
    let overtaken = overtaken_renewals(&server, rounds(30), &told).await;
    assert!(overtaken >= 10, "only {overtaken} renewals met a release: this proves nothing");
    assert_eq!(told.count(lost), 0, "{:?}", told.all());
}

/// The row's own load: short holds, many of them handed over, none reported lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b07_many_short_holds_signal_no_loss() {
    let server = Server::start();
    let told = Told::default();
    let session =
        told.by(Session::builder(&server.url()).unwrap()).connect().await.expect("a session");
    let session = Arc::new(session);
    let mut tasks = JoinSet::new();
    for task in 0..32u32 {
        // Four tasks a name: of every four holds three are handed over.
        let options = Options::default().lease(3 * SECOND).max_wait(60 * SECOND);
        let lock = mutex(&session, &format!("a{}", task % 8), options);
        tasks.spawn(short_holds(lock, task));
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert!(session.statistics().pushed_grants > 0);
    assert_eq!(told.count(lost), 0, "{:?}", told.all());
    rests(&server, &session).await;
}

async fn short_holds(lock: Mutex, task: u32) {
    for round in 0..rounds(20_000) / 32 {
        let guard = lock.acquire().await.expect("a hold");
        match (task + round) % 4 {
            0 => drop(guard),
            pause => {
                tokio::time::sleep(MS * (pause - 1)).await;
                // Extensions are renewals too; one that is given up is still under way at the release.
                drop(dropped_after(round % 3, guard.extend(3 * SECOND)).await);
                guard.release().await.expect("still held");
            }
        }
    }
}
