//! Each kind of event is provoked here, and what the feature `tracing` writes of it: the lock's name,
//! and never an id, an owner or a password (I19).

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex as Lock, OnceLock};
use std::time::Duration;

use leasehold_mutex::{Event, LostReason, Mutex, Options, ReleaseError, Session};
use leasehold_tests::rig::kill_connections;
use leasehold_tests::scene::{SOON, Told, entries, hash_of, keys, mutex};
use leasehold_tests::{FaultProxy, Pick, Server, eventually};
use redis::AsyncCommands;
use tracing::field::{Field, Visit};
use tracing::{Level, Metadata, Subscriber, span};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Every line that this test program's sessions write, with its level and its fields.
#[derive(Clone, Default)]
struct Lines(Arc<Lock<Vec<(Level, String)>>>);

impl Lines {
    /// Those of all tests; each test looks for the name of a lock of its own.
    fn all() -> Self {
        static LINES: OnceLock<Lines> = OnceLock::new();
        let install = || {
            let lines = Self::default();
            tracing::subscriber::set_global_default(lines.clone()).expect("the only subscriber");
            lines
        };
        LINES.get_or_init(install).clone()
    }

    fn with(&self, part: &str) -> Vec<(Level, String)> {
        let lines = self.0.lock().expect("no panic inside");
        lines.iter().filter(|(_, line)| line.contains(part)).cloned().collect()
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("leasehold")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().expect("no panic inside").push((*event.metadata().level(), line.0));
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, "{field}={value:?} ").expect("a string");
    }
}

/// A session through a proxy, what it tells and what it writes.
struct Scene {
    server: Server,
    proxy: FaultProxy,
    session: Session,
    told: Told,
    lines: Lines,
}

impl Scene {
    async fn new() -> Self {
        let lines = Lines::all();
        let server = Server::builder().password("the-password").start();
        let proxy = FaultProxy::to(&server);
        let told = Told::default();
        let builder = told.by(Session::builder(proxy.url()).expect("a URL"));
        let builder = builder.response_timeout(300 * MS).held_long_after(200 * MS);
        let session = builder.connect().await.expect("a session");
        Self { server, proxy, session, told, lines }
    }

    fn mutex(&self, name: &str, options: Options) -> Mutex {
        mutex(&self.session, name, options)
    }

    /// Waits until such an event is told, and a line of this level names the lock.
    async fn tells(&self, what: &str, like: impl Fn(&Event) -> bool, level: Level, words: &str) {
        eventually(SOON, what, async || self.told.count(&like) > 0).await;
        let event = self.told.all().into_iter().find(|event| like(event)).expect("it was told");
        let name = event.name().map(ToString::to_string).unwrap_or_default();
        let lines = self.lines.with(words);
        let found = lines.iter().any(|(at, line)| *at == level && line.contains(&name));
        assert!(found, "{what} of {name:?}: {lines:?}");
    }

    async fn delete(&self, name: &str) {
        let deleted: u64 =
            self.server.connection().await.del(&*keys(name).holds).await.expect("DEL");
        assert_eq!(deleted, 1);
    }
}

#[tokio::test]
async fn a_failed_renewal_and_a_long_hold_are_told() {
    let scene = Scene::new().await;
    let lock = scene.mutex("renewed", Options::default().lease(900 * MS));
    let guard = lock.acquire().await.unwrap();
    scene
        .tells(
            "long",
            |event| matches!(event, Event::HeldLong { held_for, .. } if *held_for >= 200 * MS),
            Level::WARN,
            "held long",
        )
        .await;
    scene.proxy.replace_replies(Pick::next(1).containing(hash_of("renew")), "-BUSY later");
    scene
        .tells(
            "failed",
            |event| matches!(event, Event::RenewalFailed { failures: 1, .. }),
            Level::WARN,
            "renewal failed",
        )
        .await;
    guard.release().await.unwrap();
}

/// A renewal that is slow on its way is given up and told as failed; late is one that the machine was
/// too slow to send. Here a callback holds the session's thread up, as none should.
#[tokio::test]
async fn a_renewal_that_the_machine_was_too_slow_for_is_told() {
    let lines = Lines::all();
    let server = Server::start();
    let (told, heard) = std::sync::mpsc::channel();
    let callback = move |event: &Event| {
        if matches!(event, Event::HeldLong { .. }) {
            std::thread::sleep(900 * MS);
        }
        told.send(event.clone()).ok();
    };
    let builder = Session::builder(&server.url()).unwrap().held_long_after(400 * MS);
    let session = builder.on_event(callback).connect().await.unwrap();
    // Due after 0.6 s, sent after 1.3 s: late by more than a third of the lease (0.6 s).
    let guard =
        mutex(&session, "late", Options::default().lease(1800 * MS)).acquire().await.unwrap();
    let late = tokio::task::spawn_blocking(move || {
        heard.iter().find(|event| matches!(event, Event::Late { .. }))
    });
    let late = tokio::time::timeout(SOON, late).await.unwrap().unwrap();
    assert!(matches!(late, Some(Event::Late { by, .. }) if by > 600 * MS), "{late:?}");
    assert!(
        lines
            .with("renewal late")
            .iter()
            .any(|(level, line)| *level == Level::WARN && line.contains("late"))
    );
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn each_loss_is_told_with_its_reason_and_its_end() {
    let scene = Scene::new().await;
    let lock = scene.mutex("lost", Options::default().lease(600 * MS));
    let guard = lock.acquire().await.unwrap();
    scene.delete("lost").await;
    scene
        .tells(
            "lost",
            |event| matches!(event, Event::Lost { reason: LostReason::Expired, .. }),
            Level::ERROR,
            "hold lost",
        )
        .await;
    drop(guard); // nobody awaits what a dropped guard finds
    scene
        .tells(
            "dropped",
            |event| matches!(event, Event::ReleaseLost { reason: LostReason::Expired, .. }),
            Level::ERROR,
            "release found the hold ended",
        )
        .await;
    let brief = Options::default().lease(100 * MS).hold_at_most(150 * MS);
    let guard = scene.mutex("limited", brief).acquire().await.unwrap();
    scene
        .tells(
            "limit",
            |event| matches!(event, Event::HoldLimit { .. }),
            Level::ERROR,
            "longest hold reached",
        )
        .await;
    scene
        .tells(
            "lost",
            |event| matches!(event, Event::Lost { reason: LostReason::HoldLimit, .. }),
            Level::ERROR,
            "hold lost",
        )
        .await;
    drop(guard);
    let lock = scene.mutex("forced", Options::default());
    let guard = lock.acquire().await.unwrap();
    lock.force_release().await.unwrap();
    scene
        .tells(
            "forced",
            |event| matches!(event, Event::Lost { reason: LostReason::ForceReleased, .. }),
            Level::ERROR,
            "hold lost",
        )
        .await;
    assert!(matches!(guard.release().await, Err(ReleaseError::Lost(_))));
}

#[tokio::test]
async fn a_release_that_nobody_answers_is_told() {
    let scene = Scene::new().await;
    let guard =
        scene.mutex("unknown", Options::default().lease(2 * SECOND)).acquire().await.unwrap();
    scene.server.freeze();
    assert!(matches!(guard.release().await, Err(ReleaseError::Unknown { .. })));
    scene
        .tells(
            "unknown",
            |event| matches!(event, Event::ReleaseUnknown { .. }),
            Level::WARN,
            "release unanswered",
        )
        .await;
    scene.server.thaw();
    // The same of a guard that was dropped, after its whole lease.
    let guard = scene.mutex("dropped", Options::default().lease(500 * MS)).acquire().await.unwrap();
    scene.server.freeze();
    drop(guard);
    let dropped = |event: &Event| matches!(event, Event::ReleaseUnknown { name } if name.as_bytes() == b"dropped");
    scene.tells("unknown", dropped, Level::WARN, "release unanswered").await;
    scene.server.thaw();
}

#[tokio::test]
async fn the_end_of_the_inbox_and_its_return_are_told() {
    let scene = Scene::new().await;
    assert_eq!(kill_connections(&scene.server, "pubsub").await, 1);
    scene.tells("down", |event| matches!(event, Event::InboxDown), Level::WARN, "inbox down").await;
    scene.tells("up", |event| matches!(event, Event::InboxUp), Level::WARN, "inbox up").await;
}

/// The negative control: an ordinary life tells nothing.
#[tokio::test]
async fn an_ordinary_life_tells_nothing() {
    let scene = Scene::new().await;
    let lock = scene.mutex("ordinary", Options::default());
    for _ in 0..20 {
        lock.acquire().await.unwrap().release().await.unwrap();
        drop(lock.acquire().await.unwrap());
    }
    scene.session.shutdown(SOON).await.unwrap();
    assert_eq!(scene.told.all(), []);
    assert_eq!(scene.lines.with("ordinary"), []);
}

/// A callback that panics ends nothing.
#[tokio::test]
async fn a_panic_in_the_callback_ends_neither_watchdog_nor_caller() {
    let server = Server::start();
    let builder = Session::builder(&server.url()).unwrap().held_long_after(20 * MS);
    let session = builder
        .on_event(|_| panic!("in the callback, as the test wants it"))
        .connect()
        .await
        .unwrap();
    let guard = mutex(&session, "a", Options::default().lease(300 * MS)).acquire().await.unwrap();
    let renewals = async || session.statistics().renewals >= 5;
    eventually(SOON, "renewals go on", renewals).await;
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

/// I19: after everything that can be told has been, no line, event or error holds what gives power
/// over a lock or a server.
#[tokio::test]
async fn nothing_that_is_written_holds_an_id_an_owner_or_a_password() {
    let scene = Scene::new().await;
    let lock = scene.mutex("secret", Options::default().lease(600 * MS).label("the label"));
    let guard = lock.acquire().await.unwrap();
    let mut connection = scene.server.connection().await;
    let mut secrets = vec!["the-password".to_owned(), guard.owner().as_str().to_owned()];
    secrets.extend(entries(&mut connection, "secret").await.into_iter().map(|entry| entry.id));
    let uuid = secrets[2].split('|').next().unwrap().to_owned();
    let inbox = secrets[2].rsplit(':').next().unwrap().to_owned();
    secrets.extend([uuid, inbox]);
    assert!(secrets.iter().all(|secret| secret.len() >= 12), "the control: {secrets:?}");
    let busy = lock.acquire_within(50 * MS).await.unwrap_err();
    let mut written = vec![format!("{busy} {busy:?} {guard:?} {:?} {lock:?}", scene.session)];
    scene.proxy.replace_replies(Pick::next(1).containing(hash_of("renew")), "-BUSY later");
    scene
        .tells(
            "failed",
            |event| matches!(event, Event::RenewalFailed { .. }),
            Level::WARN,
            "renewal failed",
        )
        .await;
    scene.delete("secret").await;
    scene
        .tells("lost", |event| matches!(event, Event::Lost { .. }), Level::ERROR, "hold lost")
        .await;
    let lost = guard.release().await.unwrap_err();
    written.push(format!("{lost} {lost:?}"));
    scene.server.kill();
    let down = lock.acquire_within(50 * MS).await.unwrap_err();
    written.push(format!("{down} {down:?}"));
    written.push(format!("{:?}", scene.told.all()));
    written.extend(scene.lines.with("").into_iter().map(|(_, line)| line));
    for text in &written {
        assert!(!secrets.iter().any(|secret| text.contains(secret.as_str())), "{text}");
    }
}
