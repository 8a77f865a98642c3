//! What a server may answer instead of an answer: how it is told, how long it is tried again, and how
//! often. The fake server refuses without running anything.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold_mutex::{
    AcquireError, BackendErrorKind, Event, ExtendError, LostReason, Mutex, Options, ReleaseError,
    Session,
};
use leasehold_tests::eventually;
use leasehold_tests::fake::{Asked, FakeServer, queued};
use leasehold_tests::rig::Watch;
use leasehold_tests::scene::{SOON, Told, mutex, session};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// For two cores that build something meanwhile.
const MACHINE: Duration = Duration::from_millis(500);
/// The bound of the issue: so many requests of one caller within a second.
const MOST_A_SECOND: usize = 10;

/// What passes: the server loads, fails over, moves slots, runs somebody's long script.
const PASSING: [&str; 8] = [
    "LOADING Redis is loading the dataset in memory",
    "BUSY Redis is busy running a script",
    "TRYAGAIN Multiple keys request during rehashing of slot",
    "CLUSTERDOWN The cluster is down",
    "MASTERDOWN Link with MASTER is down",
    "MOVED 1 127.0.0.1:1",
    "ASK 1 127.0.0.1:1",
    "NOREPLICAS Not enough good replicas to write.",
];

/// What does not pass by waiting.
const LASTING: [(&str, BackendErrorKind); 8] = [
    ("OOM command not allowed when used memory > 'maxmemory'.", BackendErrorKind::OutOfMemory),
    ("NOPERM this user has no permissions", BackendErrorKind::NoPermission),
    ("NOAUTH Authentication required.", BackendErrorKind::Auth),
    ("WRONGTYPE Operation against a key", BackendErrorKind::WrongType),
    ("CROSSSLOT Keys in request don't hash to the same slot", BackendErrorKind::CrossSlot),
    ("ERR unknown command 'EVALSHA'", BackendErrorKind::Unsupported),
    ("ERR value is not an integer or out of range", BackendErrorKind::Server),
    ("MISCONF Redis is configured to save RDB snapshots", BackendErrorKind::Server),
];

/// A server that refuses the first calls of this script, and then does its work.
fn refusing(verb: &'static str, error: &str, times: usize) -> FakeServer {
    let (refused, line) = (AtomicUsize::new(0), format!("-{error}"));
    FakeServer::start(move |asked| {
        let refuse = asked.verb == verb && refused.fetch_add(1, Ordering::Relaxed) < times;
        refuse.then(|| line.clone())
    })
}

fn kind_of(error: &AcquireError) -> BackendErrorKind {
    if let AcquireError::Backend(cause) = error { cause.kind() } else { panic!("{error:?}") }
}

async fn lock_on(server: &FakeServer) -> (Session, Mutex) {
    let session = session(&server.url()).await;
    let lock = mutex(&session, "a", Options::default());
    (session, lock)
}

#[tokio::test]
async fn b107_what_passes_is_tried_again_and_succeeds_once() {
    for error in PASSING {
        for verb in ["acquire", "release", "renew"] {
            let server = refusing(verb, error, 2);
            let (session, lock) = lock_on(&server).await;
            let guard = lock.acquire().await.unwrap_or_else(|why| panic!("{error}: {why:?}"));
            guard.extend(SECOND).await.unwrap_or_else(|why| panic!("{error}: {why:?}"));
            guard.release().await.unwrap_or_else(|why| panic!("{error}: {why:?}"));
            assert_eq!(server.asked(verb).len(), 3, "{verb} after two of {error}");
            assert_eq!(session.statistics().tracked, 0);
        }
    }
}

#[tokio::test]
async fn what_passes_is_told_as_the_servers_answer_when_it_lasts_longer_than_the_wait() {
    for error in PASSING {
        let server = refusing("acquire", error, usize::MAX);
        let (session, lock) = lock_on(&server).await;
        let begin = Watch::start();
        let told = lock.acquire_within(300 * MS).await.unwrap_err();
        assert_eq!(kind_of(&told), BackendErrorKind::Server, "{error}");
        let (took, awake) = (begin.elapsed(), begin.awake());
        assert!(took >= 300 * MS && awake < 300 * MS + MACHINE, "{error}: {took:?}");
        assert_eq!(session.statistics().tracked, 0, "it surely did not run: nothing to end");
    }
}

/// The end of the wait says nothing of the server, and the copy that it cuts short may have run.
#[tokio::test]
async fn a_copy_that_the_wait_cuts_short_is_told_as_what_was_answered_before() {
    let asked = AtomicUsize::new(0);
    let server = FakeServer::start(move |call| {
        if call.verb != "acquire" {
            return None;
        }
        if asked.fetch_add(1, Ordering::Relaxed) > 0 {
            std::thread::sleep(MACHINE);
        }
        Some("-LOADING Redis is loading the dataset in memory".to_owned())
    });
    let (session, lock) = lock_on(&server).await;
    let told = lock.acquire_within(300 * MS).await.unwrap_err();
    assert_eq!(kind_of(&told), BackendErrorKind::Server);
    eventually(SOON, "it is ended", async || session.statistics().tracked == 0).await;
    assert_eq!([server.asked("acquire").len(), server.asked("release").len()], [2, 1]);
    // Nothing was answered before: then the silence is told.
    let server = FakeServer::start(|call| {
        (call.verb == "acquire").then(|| std::thread::sleep(MACHINE)).and(None)
    });
    let (_session, lock) = lock_on(&server).await;
    let told = lock.acquire_within(300 * MS).await.unwrap_err();
    assert_eq!(kind_of(&told), BackendErrorKind::Unreachable);
}

#[tokio::test]
async fn no_caller_asks_more_than_ten_times_a_second() {
    let trials = PASSING.map(|error| {
        tokio::spawn(async move {
            let server = refusing("acquire", error, usize::MAX);
            let (_session, lock) = lock_on(&server).await;
            lock.acquire_within(2500 * MS).await.unwrap_err();
            (error, server.most_within("acquire", SECOND), server.asked("acquire").len())
        })
    });
    for trial in trials {
        let (error, most, all) = trial.await.unwrap();
        assert!((3..=MOST_A_SECOND).contains(&most) && all >= 5, "{error}: {most} of {all}");
    }
}

#[tokio::test]
async fn what_does_not_pass_is_told_at_once() {
    for (error, kind) in LASTING {
        let server = refusing("acquire", error, usize::MAX);
        let (session, lock) = lock_on(&server).await;
        let begin = Watch::start();
        assert_eq!(kind_of(&lock.acquire_within(5 * SECOND).await.unwrap_err()), kind, "{error}");
        assert_eq!(kind_of(&lock.try_acquire().await.unwrap_err()), kind, "{error}");
        assert!(begin.awake() < MACHINE, "{error}: {:?}", begin.awake());
        assert_eq!(server.asked("acquire").len(), 2, "{error}: not tried again");
        assert_eq!(session.statistics().tracked, 0);
    }
}

#[tokio::test]
async fn a_forgotten_script_is_sent_in_full_once_a_call() {
    let server = FakeServer::start(|asked: &Asked| {
        asked.by_digest.then(|| "-NOSCRIPT No matching script. Please use EVAL.".to_owned())
    });
    let (_session, lock) = lock_on(&server).await;
    lock.acquire().await.unwrap().release().await.unwrap();
    for verb in ["acquire", "release"] {
        let by_digest: Vec<_> = server.asked(verb).iter().map(|asked| asked.by_digest).collect();
        assert_eq!(by_digest, [true, false], "{verb}");
    }
    // A server that forgets even the text it was just given is no reason to go round.
    let server = FakeServer::start(|_| Some("-NOSCRIPT No matching script.".to_owned()));
    let (_session, lock) = lock_on(&server).await;
    assert_eq!(kind_of(&lock.acquire().await.unwrap_err()), BackendErrorKind::Server);
    assert_eq!(server.asked("acquire").len(), 2);
}

#[tokio::test]
async fn a_replica_is_asked_once_more_over_a_new_connection() {
    let error = "READONLY You can't write against a read only replica.";
    let server = refusing("acquire", error, 1);
    let (_session, lock) = lock_on(&server).await;
    lock.acquire().await.unwrap().release().await.unwrap();
    let server = refusing("acquire", error, usize::MAX);
    let (_session, lock) = lock_on(&server).await;
    let begin = Watch::start();
    let told = lock.acquire_within(5 * SECOND).await.unwrap_err();
    assert_eq!(kind_of(&told), BackendErrorKind::ReadOnly);
    assert_eq!(server.asked("acquire").len(), 2);
    assert!(begin.awake() < MACHINE, "{:?}", begin.awake());
}

/// What a script met in its midst may have done half its work: the thread ends it.
#[tokio::test]
async fn an_error_from_within_a_script_leaves_nothing_unended() {
    let error = "ERR user_script:9: something odd script: abc, on @user_script:9.";
    let server = refusing("acquire", error, usize::MAX);
    let (session, lock) = lock_on(&server).await;
    assert_eq!(kind_of(&lock.acquire().await.unwrap_err()), BackendErrorKind::Server);
    eventually(SOON, "it is ended", async || session.statistics().tracked == 0).await;
    assert_eq!(server.asked("release").len(), 1);
}

/// The checks of waiters are one caller too. Their first pauses are shorter (10 ms, doubling), so that
/// a waiter does not sleep through a short trouble: the bound holds from the second second on, and the
/// first has at most a dozen.
#[tokio::test]
async fn waiters_checks_back_off_too() {
    let server = FakeServer::start(|asked: &Asked| match asked.verb.as_str() {
        "acquire" => Some(queued()),
        "check" => Some("-LOADING later".to_owned()),
        _ => None,
    });
    let (_session, lock) = lock_on(&server).await;
    let waits = (0..20).map(|_| {
        let lock = lock.clone();
        tokio::spawn(async move { lock.acquire_within(4 * SECOND).await })
    });
    for waiting in waits.collect::<Vec<_>>() {
        assert!(matches!(waiting.await.unwrap(), Err(AcquireError::TimedOut { .. })));
    }
    let checks = server.asked("check");
    assert!(checks.len() > 5, "they are checked: {}", checks.len());
    assert!(server.most_within("check", SECOND) <= 12, "{}", server.most_within("check", SECOND));
    let later = checks.iter().filter(|check| check.at - checks[0].at >= SECOND).count();
    assert!(later <= 2 * MOST_A_SECOND + 2, "{later} checks in about two seconds");
}

/// Renewals go on until the deadline, and then it is told why.
#[tokio::test]
async fn renewals_back_off_and_the_hold_ends_as_unreachable() {
    let server = refusing("renew", "BUSY Redis is busy running a script", usize::MAX);
    let told = Told::default();
    let builder = told.by(Session::builder(&server.url()).unwrap());
    let session = builder.connect().await.unwrap();
    let lock = mutex(&session, "a", Options::default().lease(3 * SECOND));
    let guard = lock.acquire().await.unwrap();
    let begin = Watch::start();
    assert_eq!(guard.lost().await, LostReason::Unreachable);
    assert!(begin.awake() <= 3 * SECOND + MACHINE, "{:?}", begin.awake());
    assert!(server.asked("renew").len() >= 4, "{}", server.asked("renew").len());
    assert!(server.most_within("renew", SECOND) <= MOST_A_SECOND);
    assert_eq!(told.count(|event| matches!(event, Event::Lost { .. })), 1, "{:?}", told.all());
}

#[tokio::test]
async fn extending_backs_off_and_takes_nothing_away() {
    let server = refusing("renew", "BUSY Redis is busy running a script", usize::MAX);
    let (_session, lock) = lock_on(&server).await;
    let guard = lock.acquire().await.unwrap();
    assert!(matches!(guard.extend(SECOND).await, Err(ExtendError::Backend { .. })));
    assert!((4..=2 * MOST_A_SECOND).contains(&server.asked("renew").len()));
    assert!(server.most_within("renew", SECOND) <= MOST_A_SECOND);
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_release_that_is_refused_says_that_it_did_not_run() {
    for (error, kind) in LASTING {
        let server = refusing("release", error, usize::MAX);
        let (_session, lock) = lock_on(&server).await;
        let guard = lock.acquire().await.unwrap();
        let told = guard.release().await.unwrap_err();
        let ReleaseError::Backend { source, .. } = &told else { panic!("{error}: {told:?}") };
        assert_eq!(source.kind(), kind, "{error}");
    }
}

/// Answers of another layout are told as such; nothing panics, nothing is taken for a hold.
#[tokio::test]
async fn an_answer_of_another_layout_is_unsupported() {
    let layouts = [
        "+OK",
        ":1",
        "*0",
        "_",
        "*1\r\n:1",
        "*4\r\n:1\r\n$1\r\nx\r\n:1\r\n$1\r\n1",
        "*2\r\n:99\r\n:0",
    ];
    for layout in layouts {
        let server = FakeServer::start(move |asked: &Asked| {
            (asked.verb == "acquire").then(|| layout.to_owned())
        });
        let (session, lock) = lock_on(&server).await;
        let told = lock.acquire_within(SECOND).await.unwrap_err();
        assert_eq!(kind_of(&told), BackendErrorKind::Unsupported, "{layout:?}");
        eventually(SOON, "it is ended", async || session.statistics().tracked == 0).await;
        assert_eq!(server.asked("release").len(), 1, "it may hold: {layout:?}");
    }
    let server =
        FakeServer::start(|asked: &Asked| (asked.verb == "release").then(|| "+OK".to_owned()));
    let (_session, lock) = lock_on(&server).await;
    let told = lock.acquire().await.unwrap().release().await.unwrap_err();
    assert!(matches!(told, ReleaseError::Unknown { .. }), "{told:?}");
}

/// The negative control of this suite: without a written answer everything works.
#[tokio::test]
async fn the_fake_server_lets_a_mutex_work() {
    let server = FakeServer::start(|_| None);
    let (session, lock) = lock_on(&server).await;
    let guard = lock.acquire().await.unwrap();
    guard.extend(SECOND).await.unwrap();
    let lost = guard.lost();
    guard.release().await.unwrap();
    session.shutdown(SECOND).await.unwrap();
    let ended = tokio::time::timeout(100 * MS, lost).await;
    assert!(ended.is_err() || ended == Ok(LostReason::Shutdown));
}
