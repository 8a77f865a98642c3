//! Users with few rights: the rule of `leasehold_tests::acl` is enough, each right of it is needed,
//! and a missing one is told by kind and leaves nothing half done.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use leasehold_mutex::{
    AcquireError, AdoptError, BackendErrorKind, ConfigError, ExtendError, LostReason, Mutex,
    Options, ReleaseError, Session,
};
use leasehold_tests::rig::{Watch, kill_connections, waiter};
use leasehold_tests::scene::{SOON, mutex, session};
use leasehold_tests::{Server, acl, eventually};
use redis::AsyncCommands;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

async fn limited(server: &Server) -> Session {
    session_of(server, "limited", "app:").await
}

async fn session_of(server: &Server, user: &str, prefix: &str) -> Session {
    let builder = Session::builder(&acl::url(server, user)).expect("a URL");
    let builder = builder.prefix(prefix).check_every(300 * MS).waiter_deadline(SECOND);
    builder.connect().await.expect("a session")
}

/// What the trial of a verb came to: the kind of its refusal, or nothing.
type Refusals = BTreeMap<&'static str, BackendErrorKind>;

fn of_acquire(error: AcquireError) -> BackendErrorKind {
    if let AcquireError::Backend(cause) = error { cause.kind() } else { panic!("{error:?}") }
}

fn of_release(error: ReleaseError) -> BackendErrorKind {
    match error {
        ReleaseError::Unknown { source, .. } | ReleaseError::Backend { source, .. } => {
            source.kind()
        }
        ReleaseError::Lost(_) | _ => panic!("{error:?}"),
    }
}

fn of_extend(error: ExtendError) -> BackendErrorKind {
    match error {
        ExtendError::Unknown { source, .. } | ExtendError::Backend { source, .. } => source.kind(),
        ExtendError::Lost(_) | ExtendError::Config(_) | _ => panic!("{error:?}"),
    }
}

/// Every way through the scripts, each verb by itself: what is refused does not hide the next one.
async fn try_everything(session: &Session) -> Refusals {
    let mut refusals = Refusals::new();
    let mut note = |verb, refused: Option<BackendErrorKind>| {
        if let Some(kind) = refused {
            refusals.entry(verb).or_insert(kind);
        }
    };
    let options = Options::default().lease(SECOND).max_wait(SECOND);
    let lock = mutex(session, "a", options.clone());
    match lock.acquire().await {
        Ok(guard) => {
            note("extend", guard.extend(2 * SECOND).await.err().map(of_extend));
            note("try", lock.try_acquire().await.err().map(of_acquire));
            // Re-entry, past an entry that has run out, and one entry released before the other.
            let brief = mutex(session, "a", options.clone().fixed(20 * MS))
                .by(guard.owner())
                .acquire()
                .await;
            let brief = match brief {
                Ok(inner) => Some(inner),
                // It had its turn: the machine was slower than so short a lease.
                Err(AcquireError::ValidityTooShort { .. }) => None,
                Err(error) => {
                    note("re-entry", Some(of_acquire(error)));
                    None
                }
            };
            tokio::time::sleep(30 * MS).await;
            match lock.by(guard.owner()).acquire().await {
                Ok(inner) => note("release", inner.release().await.err().map(of_release)),
                Err(error) => note("re-entry", Some(of_acquire(error))),
            }
            drop(brief);
            note("queue", lock.queue().await.err().map(|error| error.kind()));
            note("inspect", lock.is_locked().await.err().map(|error| error.kind()));
            note("wait", waits(&mutex(session, "a", options.clone().max_waiters(1))).await);
            match lock.adopt(&guard.detach()).await {
                Ok(_adopted) => {
                    note("force", lock.force_release().await.err().map(|error| error.kind()));
                }
                Err(AdoptError::Backend(cause)) => note("adopt", Some(cause.kind())),
                Err(error) => panic!("{error:?}"),
            }
        }
        Err(error) => note("acquire", Some(of_acquire(error))),
    }
    note("hand over", hands_over(&mutex(session, "c", options.clone())).await);
    let brief = mutex(session, "b", options.hold_at_least(20 * MS));
    match brief.acquire().await {
        Ok(guard) => note("release", guard.release().await.err().map(of_release)),
        Err(error) => note("acquire", Some(of_acquire(error))),
    }
    refusals
}

/// One is granted when the other releases.
async fn hands_over(lock: &Mutex) -> Option<BackendErrorKind> {
    let guard = match lock.acquire().await {
        Ok(guard) => guard,
        Err(error) => return Some(of_acquire(error)),
    };
    let releases = async {
        tokio::time::sleep(50 * MS).await; // the other one queues
        guard.release().await
    };
    let (next, released) = tokio::join!(lock.acquire(), releases);
    let refused = released.err().map(of_release);
    refused.or_else(|| next.err().map(of_acquire))
}

/// Two waiters for one place: one waits past a check and gives up, one finds the queue full.
async fn waits(lock: &Mutex) -> Option<BackendErrorKind> {
    let (one, two) = tokio::join!(lock.acquire_within(600 * MS), lock.acquire_within(600 * MS));
    [one, two].into_iter().find_map(|outcome| match outcome {
        Err(AcquireError::Backend(cause)) => Some(cause.kind()),
        Err(AcquireError::TimedOut { .. } | AcquireError::Saturated { .. }) => None,
        other => panic!("{other:?}"),
    })
}

/// Keys of this prefix that stay longer than a quiet lock leaves any; those without an end too.
async fn left(server: &Server, prefix: &str) -> Vec<String> {
    let mut connection = server.connection().await;
    let mut left = Vec::new();
    for key in server.keys().await.iter().filter(|key| key.starts_with(prefix.as_bytes())) {
        let ttl: i64 = connection.pttl(key).await.expect("PTTL");
        if ttl == -1 || !(key.ends_with(b":token") || key.ends_with(b":gone")) {
            left.push(key.escape_ascii().to_string());
        }
    }
    left
}

#[tokio::test]
async fn b111_everything_works_with_one_prefix_and_the_commands_of_the_rule() {
    let server = Server::start();
    acl::user(&server, "limited", "app:").await;
    let session = limited(&server).await;
    assert_eq!(try_everything(&session).await, Refusals::new());
    // Hand-over by a push, and a waiter's checks; a check that is under way may overtake the push.
    let lock = mutex(&session, "d", Options::default().max_wait(SOON));
    let both = async || {
        let guard = lock.acquire().await.unwrap();
        let before = session.statistics().checks;
        let waits = tokio::spawn({
            let lock = lock.clone();
            async move { lock.acquire().await.unwrap().release().await.unwrap() }
        });
        eventually(SOON, "a check", async || session.statistics().checks > before).await;
        guard.release().await.unwrap();
        waits.await.unwrap();
        session.statistics().pushed_grants > 0
    };
    eventually(SOON, "a push", both).await;
    session.shutdown(SOON).await.unwrap();
    let refused = acl::refused(&server, "limited").await;
    assert_eq!(refused, Vec::<String>::new());
    let outside = |key: &Vec<u8>| !key.starts_with(b"app:lh1:mutex:");
    assert_eq!(server.keys().await.into_iter().filter(outside).count(), 0);
}

/// Another prefix is out of reach: the control of the rule's keys and channels.
#[tokio::test]
async fn b111_keys_and_channels_outside_the_prefix_are_refused() {
    let server = Server::start();
    acl::user(&server, "limited", "app:").await;
    let url = acl::url(&server, "limited");
    let stranger = Session::builder(&url).unwrap().prefix("other:").connect().await.unwrap_err();
    let ConfigError::Inbox(cause) = &stranger else { panic!("{stranger:?}") };
    assert_eq!(cause.kind(), BackendErrorKind::NoPermission);
    acl::change(&server, "limited", "allchannels").await;
    let stranger = Session::builder(&url).unwrap().prefix("other:").connect().await.unwrap();
    let lock = mutex(&stranger, "a", Options::default());
    assert_eq!(of_acquire(lock.acquire().await.unwrap_err()), BackendErrorKind::NoPermission);
    assert_eq!(server.dbsize().await, 0);
}

/// A user whose rule lacks this command; answers whether it could be spared.
async fn is_spared(server: &Server, command: &str) -> bool {
    let prefix = format!("{command}:");
    acl::user(server, command, &prefix).await;
    let session = session_of(server, command, &prefix).await;
    acl::change(server, command, &format!("-{command}")).await;
    let refusals = try_everything(&session).await;
    for (verb, kind) in &refusals {
        assert_eq!(*kind, BackendErrorKind::NoPermission, "{verb} without {command}");
    }
    // The lack of some is no refusal to the caller: it is a push that nobody gets.
    let spared = refusals.is_empty() && acl::refused(server, command).await.is_empty();
    acl::user(server, command, &prefix).await;
    // Where a script may not set an end, what stands beside the hold may stay; never the hold.
    let helpers = if command.starts_with('p') { &[":timeout", ":queue", ":gone"][..] } else { &[] };
    let helper = |key: &String| helpers.iter().any(|suffix| key.ends_with(suffix));
    let ended = async || left(server, &prefix).await.iter().all(helper);
    eventually(SOON, &format!("all ends, without {command}"), ended).await;
    for name in ["a", "b", "c"] {
        let guard =
            mutex(&session, name, Options::default()).try_acquire().await.expect("an answer");
        guard.expect("free, as its holds have ended").release().await.expect("still held");
    }
    spared
}

/// The rule has nothing to spare, and whatever is missing: every error is of the kind `NoPermission`,
/// and when the right is back the names are free within the longest lease in use (2 s) or a waiter's
/// deadline (1 s), and what the machine needs.
#[tokio::test]
async fn b112_each_right_is_needed_and_its_lack_is_told_and_leaves_no_lock() {
    let server = Rc::new(Server::start());
    // Room in ACL LOG for what all trials together are refused.
    let mut room = redis::cmd("CONFIG");
    room.arg("SET").arg("acllog-max-len").arg(10_000);
    room.exec_async(&mut server.connection().await).await.unwrap();
    for script in leasehold_lua::mutex::scripts() {
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(script.source());
        load.exec_async(&mut server.connection().await).await.unwrap();
    }
    let trials = tokio::task::LocalSet::new();
    let all: Vec<_> = acl::MUTEX_COMMANDS
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
    // Scripts by their text are needed when the server has forgotten them, subscribing when a session
    // opens: tests of their own.
    assert_eq!(spared, ["eval", "subscribe"], "these rights could be left out");
}

#[tokio::test]
async fn a_session_does_not_open_without_the_rights_of_its_inbox() {
    let server = Server::start();
    for right in ["subscribe", "publish"] {
        acl::user(&server, "limited", "app:").await;
        acl::change(&server, "limited", &format!("-{right}")).await;
        let builder = Session::builder(&acl::url(&server, "limited")).unwrap();
        let begin = Watch::start();
        let refused = builder.prefix("app:").connect().await.unwrap_err();
        let ConfigError::Inbox(cause) = &refused else { panic!("{refused:?}") };
        assert_eq!(cause.kind(), BackendErrorKind::NoPermission, "{right}");
        assert!(begin.awake() < SECOND, "{:?}", begin.awake());
    }
    let nobody = format!("redis://nobody:wrong@{}/", server.addr());
    let refused = Session::connect(&nobody).await.unwrap_err();
    let ConfigError::Connect(cause) = &refused else { panic!("{refused:?}") };
    assert_eq!(cause.kind(), BackendErrorKind::Auth);
    assert!(!format!("{refused:?} {refused}").contains("wrong"), "I19: {refused:?}");
}

#[tokio::test]
async fn b113_without_the_right_to_run_scripts_the_first_call_says_so() {
    let server = Server::start();
    acl::user(&server, "limited", "app:").await;
    acl::change(&server, "limited", "-@scripting").await;
    let session = limited(&server).await;
    let lock = mutex(&session, "a", Options::default());
    let begin = Watch::start();
    let AcquireError::Backend(error) = lock.acquire_within(10 * SECOND).await.unwrap_err() else {
        panic!("not told as such");
    };
    // 200 ms on a quiet machine.
    assert!(begin.awake() < 700 * MS, "{:?}", begin.awake());
    assert_eq!(error.kind(), BackendErrorKind::NoPermission);
    assert!(error.to_string().contains("evalsha"), "it names the right: {error}");
    // The sibling: scripts by digest only, and the server has forgotten them.
    acl::change(&server, "limited", "+evalsha").await;
    let error = lock.acquire_within(10 * SECOND).await.unwrap_err();
    let AcquireError::Backend(error) = error else { panic!("{error:?}") };
    assert!(error.to_string().contains("eval"), "it names the right: {error}");
}

/// The half of B111 that comes later: the right to publish goes while one holds and one waits.
#[tokio::test]
async fn b111_without_the_channel_a_release_still_releases_and_the_check_serves_the_waiter() {
    let server = Server::start();
    acl::user(&server, "limited", "app:").await;
    let (one, two) = (limited(&server).await, limited(&server).await);
    for rule in ["resetchannels", "-publish"] {
        acl::user(&server, "limited", "app:").await;
        let (first, second) = (
            mutex(&one, "a", Options::default()),
            mutex(&two, "a", Options::default().max_wait(SOON)),
        );
        let guard = first.acquire().await.unwrap();
        let checks = two.statistics().checks;
        let waits = tokio::spawn(async move { (second.acquire().await.unwrap(), Instant::now()) });
        eventually(SOON, "it waits", async || first.queue().await.unwrap().length == 1).await;
        // Taking the channels away closes the inboxes, so give them time to say so.
        acl::change(&server, "limited", rule).await;
        let released = Instant::now();
        guard.release().await.unwrap();
        let (next, at) = waits.await.unwrap();
        // The fall-back bound (1 s) and what the machine needs.
        assert!(at - released < 1500 * MS, "{rule}: {:?}", at - released);
        assert!(two.statistics().checks > checks);
        next.release().await.unwrap();
        // Restored, it is pushed again.
        acl::user(&server, "limited", "app:").await;
        let first = mutex(&one, "a", Options::default());
        let second = mutex(&two, "a", Options::default().max_wait(SOON));
        let pushed = async || {
            let guard = first.acquire().await.unwrap();
            let before = two.statistics().pushed_grants;
            let next = tokio::spawn({
                let second = second.clone();
                async move { second.acquire().await.unwrap().release().await.unwrap() }
            });
            eventually(SOON, "it waits", async || first.queue().await.unwrap().length == 1).await;
            guard.release().await.unwrap();
            next.await.unwrap();
            two.statistics().pushed_grants > before
        };
        eventually(SOON, "the inbox is back", pushed).await;
    }
}

/// Rights go while the session holds: the hold ends at its deadline, told; the rest is refused.
#[tokio::test]
async fn rights_that_go_under_a_hold_end_it_at_its_deadline() {
    let server = Server::start();
    acl::user(&server, "limited", "app:").await;
    let session = limited(&server).await;
    let lock = mutex(&session, "a", Options::default().lease(900 * MS));
    let guard = lock.acquire().await.unwrap();
    acl::change(&server, "limited", "-@all").await;
    assert_eq!(of_extend(guard.extend(SECOND).await.unwrap_err()), BackendErrorKind::NoPermission);
    let begin = Watch::start();
    assert_eq!(guard.lost().await, LostReason::Unreachable);
    assert!(begin.awake() < 900 * MS + 500 * MS, "{:?}", begin.awake());
    assert!(matches!(guard.release().await, Err(ReleaseError::Lost(_))));
    acl::user(&server, "limited", "app:").await;
    lock.acquire().await.unwrap().release().await.unwrap();
}

/// A deleted user has no connection any more, and none is given: told as a matter of the password.
#[tokio::test]
async fn a_user_deleted_under_a_hold_is_told_as_such() {
    let server = Server::start();
    acl::user(&server, "limited", "app:").await;
    let session = limited(&server).await;
    let lock = mutex(&session, "a", Options::default().lease(900 * MS));
    let guard = lock.acquire().await.unwrap();
    let mut delete = redis::cmd("ACL");
    delete.arg("DELUSER").arg("limited");
    delete.exec_async(&mut server.connection().await).await.unwrap();
    let begin = Watch::start();
    assert_eq!(of_acquire(lock.acquire_within(SOON).await.unwrap_err()), BackendErrorKind::Auth);
    assert!(begin.awake() < SECOND, "{:?}", begin.awake());
    assert_eq!(guard.lost().await, LostReason::Unreachable);
    acl::user(&server, "limited", "app:").await;
    let again = lock.acquire().await.unwrap();
    again.release().await.unwrap();
}

/// A password that was changed is noticed at the next connection.
#[tokio::test]
async fn a_changed_password_is_told_when_the_connection_is_made_anew() {
    let server = Server::start();
    acl::user(&server, "limited", "app:").await;
    let session = limited(&server).await;
    let lock = mutex(&session, "a", Options::default());
    acl::change(&server, "limited", "resetpass").await;
    lock.acquire().await.unwrap().release().await.unwrap();
    assert!(kill_connections(&server, "normal").await >= 2);
    assert_eq!(of_acquire(lock.acquire_within(SOON).await.unwrap_err()), BackendErrorKind::Auth);
}

/// The password of `requirepass` is another way to the same: without it nothing opens.
#[tokio::test]
async fn a_server_with_a_password_refuses_a_session_without_it() {
    let server = Server::builder().password("secret").start();
    let refused = Session::connect(&format!("redis://{}/", server.addr())).await.unwrap_err();
    let ConfigError::Connect(cause) = &refused else { panic!("{refused:?}") };
    assert_eq!(cause.kind(), BackendErrorKind::Auth);
    let session = session(&server.url()).await;
    let lock = mutex(&session, "a", Options::default().max_wait(SOON));
    let guard = lock.acquire().await.unwrap();
    let next = waiter(&server, &lock, "a", 1).await;
    guard.release().await.unwrap();
    next.await.unwrap().0.release().await.unwrap();
}
