//! What other lock libraries got wrong with several locks as one: BEHAVIOURS.md, kind M, and what CONFORMANCE.md found
//! broken there (W22 a to f).

use std::time::Duration;

use leasehold_fair_lock::FairLock;
use leasehold_multi_lock::engine::Holdable;
use leasehold_multi_lock::{
    AcquireError, BackendErrorKind, Event, LostReason, MultiLock, Name, QuorumLock, QuorumOptions,
};
use leasehold_mutex::{Mutex, Options, ReleaseError, Session};
use leasehold_rwlock::RwLock;
use leasehold_semaphore::Semaphore;
use leasehold_tests::rig::{Watch, awake};
use leasehold_tests::scene::{SOON, Told, impatient, keys, keys_left, mutex, queued, say, session};
use leasehold_tests::{FaultProxy, Server, acl, eventually};
use redis::AsyncCommands;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn named(session: &Session, name: &str) -> Mutex {
    mutex(session, name, Options::default())
}

/// Nothing on the server but memories, and nothing in hand.
async fn ends_clean(server: &Server, session: &Session) {
    let clean = async || {
        let statistics = session.statistics();
        let left = keys_left(server).await;
        left.is_empty() && statistics.tracked == 0 && statistics.watched == 0
    };
    eventually(SOON, "nothing is left", clean).await;
}

/// {a,b}, {b,a} and {a,b,a}, 500 rounds each, a hold of 1 ms.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b95_opposite_orders_and_repeated_names_never_wait_in_a_circle() {
    let server = Server::start();
    let sessions =
        [session(&server.url()).await, session(&server.url()).await, session(&server.url()).await];
    let begin = Watch::start();
    let tasks: Vec<_> = ["ab", "ba", "aba"]
        .iter()
        .zip(&sessions)
        .map(|(order, session)| {
            let members: Vec<_> =
                order.chars().map(|name| named(session, &name.to_string())).collect();
            tokio::spawn(async move {
                let lock = MultiLock::all(&members);
                for _ in 0..500 {
                    let guard = lock.acquire_within(10 * SECOND).await.expect("no dead-lock");
                    assert_eq!(guard.names().count(), 2, "a name counts once");
                    tokio::time::sleep(MS).await;
                    guard.release().await.expect("held");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic inside");
    }
    println!("1500 rounds in {:?}", begin.elapsed());
    assert!(begin.awake() < 30 * SECOND, "{:?}", begin.awake());
    for session in &sessions {
        ends_clean(&server, session).await;
    }
}

/// No wait at all is one full try, and not a wait that is over before it began.
#[tokio::test]
async fn b97_no_wait_is_a_full_try() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let all = ["a", "b", "c"].map(|name| named(&session, name));
    for round in 0..200 {
        let lock = MultiLock::all(&all);
        let guard = match round % 3 {
            0 => lock.acquire_within(Duration::ZERO).await.expect("free"),
            1 => lock.acquire_within(Duration::from_nanos(1)).await.expect("free"),
            _ => lock.try_acquire().await.expect("an answer").expect("free"),
        };
        guard.release().await.expect("held");
    }
    // The control: one that is held is busy, at once.
    let held = all[1].acquire().await.unwrap();
    let refused = MultiLock::all(&all).acquire_within(Duration::ZERO).await;
    assert!(matches!(refused, Err(AcquireError::TimedOut { .. })), "{refused:?}");
    held.release().await.unwrap();
    ends_clean(&server, &session).await;
}

/// The same where members are of two servers: one full try each.
#[tokio::test]
async fn b97_no_wait_is_a_full_try_on_several_servers() {
    let (one, two) = (Server::start(), Server::start());
    let [left, right] = two_sessions(&one, &two).await;
    let (a, b) = (named(&left, "a"), named(&right, "b"));
    for _ in 0..50 {
        let guard = MultiLock::of(&b).and(&a).acquire_within(Duration::ZERO).await.expect("free");
        guard.release().await.expect("held");
    }
}

async fn two_sessions(one: &Server, two: &Server) -> [Session; 2] {
    let open = async |server: &Server, name: &str| {
        let builder = Session::builder(&server.url()).expect("a URL");
        builder.named(name).response_timeout(SECOND / 2).connect().await.expect("a session")
    };
    [open(one, "left").await, open(two, "right").await]
}

/// Cluster rules on one node: keys of two slots in one script are refused, at once, and nothing is held.
#[tokio::test]
async fn b102_members_in_different_slots_are_refused_at_once_and_leave_nothing() {
    let server = Server::builder().arg("--cluster-enabled", "yes").start();
    say(&server, &["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).await;
    let session = session(&server.url()).await;
    let up = async || named(&session, "warm").try_acquire().await.is_ok();
    eventually(SOON, "the cluster is up", up).await;
    let (a, b) = (named(&session, "a"), named(&session, "b"));
    let begin = awake();
    let refused = MultiLock::of(&a).and(&b).acquire().await;
    assert!(awake() - begin < 100 * MS, "{:?}", awake() - begin);
    match refused {
        Err(AcquireError::Backend(error)) => assert_eq!(error.kind(), BackendErrorKind::CrossSlot),
        other => panic!("{other:?}"),
    }
    ends_clean(&server, &session).await;
    // In a group they share a slot.
    let [a, b] = ["a", "b"].map(|name| {
        Mutex::new(&session, Name::in_group("g", name), Options::default()).expect("a mutex")
    });
    let guard = MultiLock::of(&a).and(&b).acquire().await.expect("one slot");
    guard.release().await.unwrap();
    ends_clean(&server, &session).await;
}

/// W22 a: what is tried again and again has the lease that was asked for.
#[tokio::test]
async fn w22a_a_wait_does_not_change_the_lease() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let lock = |name| mutex(&session, name, Options::default().fixed(30 * SECOND));
    let (a, b) = (lock("a"), lock("b"));
    let held = b.acquire().await.unwrap();
    let both = MultiLock::of(&a).and(&b);
    for _ in 0..5 {
        assert!(both.try_acquire().await.unwrap().is_none());
        assert!(both.acquire_within(20 * MS).await.is_err());
    }
    held.release().await.unwrap();
    let guard = both.acquire().await.unwrap();
    assert!(guard.remaining() <= 30 * SECOND);
    for name in ["a", "b"] {
        let left: i64 = server.connection().await.pttl(&*keys(name).holds).await.unwrap();
        assert!((1..=30_000).contains(&left), "{left}");
    }
    guard.release().await.unwrap();
}

/// W22 b: whatever ends an acquire undoes it, and is told as what it is.
#[tokio::test]
async fn w22b_an_error_of_a_later_member_gives_the_earlier_ones_back() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let (a, b) = (named(&session, "a"), mutex(&session, "b", Options::default().max_waiters(0)));
    let held = b.acquire().await.unwrap();
    let refused = MultiLock::of(&a).and(&b).acquire().await;
    assert!(
        matches!(&refused, Err(AcquireError::Saturated { name, .. }) if *name == Name::new("b"))
    );
    eventually(SOON, "a is free", async || !a.is_locked().await.unwrap()).await;
    held.release().await.unwrap();
    let () = server.connection().await.set("lh1:mutex:{b}", "not ours").await.unwrap();
    let refused = MultiLock::of(&a).and(&b).acquire().await;
    match refused {
        Err(AcquireError::Backend(error)) => assert_eq!(error.kind(), BackendErrorKind::WrongType),
        other => panic!("{other:?}"),
    }
    say(&server, &["DEL", "lh1:mutex:{b}"]).await;
    ends_clean(&server, &session).await;
}

/// W22 c: one that cannot be released keeps none of the others.
#[tokio::test]
async fn w22c_a_release_frees_every_member_whatever_one_of_them_says() {
    let (one, two) = (Server::start(), Server::start());
    let [left, right] = two_sessions(&one, &two).await;
    let locks = [named(&left, "a"), named(&left, "b"), named(&right, "c")];
    let guard = MultiLock::all(&locks).acquire().await.unwrap();
    two.kill();
    let error = guard.release().await.unwrap_err();
    let told: Vec<_> = error.members.iter().map(|(name, it)| (name.clone(), it.is_ok())).collect();
    let expected = [("a", true), ("b", true), ("c", false)];
    assert_eq!(told, expected.map(|(name, released)| (Name::new(name), released)));
    let failed: Vec<_> = error.failed().map(|(_, error)| error).collect();
    // Never sent or never answered: both are true of a server that was killed.
    assert!(
        matches!(failed[..], [ReleaseError::Backend { .. } | ReleaseError::Unknown { .. }]),
        "{error}"
    );
    ends_clean(&one, &left).await;
    assert!(right.statistics().watched == 0, "and it is not renewed");
    two.restart();
    ends_clean(&two, &right).await;
}

/// W22 d: what ran out while another was waited for is neither held nor prolonged.
#[tokio::test]
async fn w22d_a_member_that_ran_out_meanwhile_is_not_taken_from_its_next_holder() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let (a, b) = (mutex(&one, "a", Options::default().fixed(2 * SECOND)), named(&one, "b"));
    let held = named(&two, "b").acquire().await.unwrap();
    let both = MultiLock::of(&a).and(&b);
    let begin = Watch::start();
    let waiting = tokio::spawn(async move { both.acquire_within(20 * SECOND).await });
    queued(&server, "b", 1).await;
    let next = named(&two, "a").acquire().await.unwrap();
    let refused = waiting.await.unwrap();
    assert!(matches!(refused, Err(AcquireError::ValidityTooShort { .. })), "{refused:?}");
    assert!(begin.awake() < 10 * SECOND, "it does not wait for the other");
    assert!(next.is_held());
    next.release().await.expect("nobody touched it");
    held.release().await.unwrap();
    ends_clean(&server, &one).await;
    ends_clean(&server, &two).await;
}

/// W22 f: one call takes all that share a server, so nobody ever sees a part.
#[tokio::test]
async fn w22f_members_of_one_server_are_taken_at_one_moment() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let all = ["a", "b", "c", "d"].map(|name| named(&one, name));
    let watch = tokio::spawn(async move {
        let both = ["a", "d"].map(|name| named(&two, name));
        let mut seen = 0;
        for _ in 0..300 {
            let mut connection = server.connection().await;
            let found: u64 =
                connection.exists(&[&*keys("a").holds, &*keys("d").holds]).await.unwrap();
            // A release frees one after the other: a part may be seen then, but not by a taker.
            seen += found;
            if let Some(guard) = MultiLock::all(&both).try_acquire().await.unwrap() {
                guard.release().await.unwrap();
            }
        }
        (server, seen)
    });
    let (mut taken, mut tries) = (0, 0);
    while !watch.is_finished() {
        tries += 1;
        if let Some(guard) = MultiLock::all(&all).try_acquire().await.unwrap() {
            taken += 1;
            assert_eq!(guard.tokens().count(), 4);
            guard.release().await.unwrap();
        }
    }
    let (server, seen) = watch.await.unwrap();
    println!("{taken} of {tries} tries took all four; {seen} holds seen from outside");
    assert!(taken > 0 && seen > 0);
    ends_clean(&server, &one).await;
}

/// A shortest hold is for those who held: a wait that came to nothing does not close a member for it.
#[tokio::test]
async fn a_wait_that_fails_starts_no_cool_down() {
    let server = Server::start();
    let told = Told::default();
    let builder = told.by(Session::builder(&server.url()).unwrap());
    let (one, two) = (builder.connect().await.unwrap(), session(&server.url()).await);
    let a = mutex(&one, "a", Options::default().hold_at_least(60 * SECOND));
    let b = named(&one, "b");
    let held = named(&two, "b").acquire().await.unwrap();
    let both = MultiLock::of(&a).and(&b);
    assert!(both.acquire_within(50 * MS).await.is_err());
    eventually(SOON, "a is free", async || !a.is_locked().await.unwrap()).await;
    let both = tokio::spawn(async move { both.acquire_within(20 * SECOND).await });
    queued(&server, "b", 1).await;
    both.abort();
    assert!(both.await.unwrap_err().is_cancelled());
    eventually(SOON, "a is free", async || !a.is_locked().await.unwrap()).await;
    let quiet = |event: &Event| !matches!(event, Event::InboxUp | Event::InboxDown);
    assert_eq!(told.count(quiet), 0, "nobody lost or released anything: {:?}", told.all());
    held.release().await.unwrap();
    // The control: one that was held closes it.
    MultiLock::of(&a).and(&b).acquire().await.unwrap().release().await.unwrap();
    assert!(a.is_locked().await.unwrap());
}

/// The wait is the whole patience for a server that does not answer, not one response timeout.
#[tokio::test]
async fn an_outage_shorter_than_the_wait_is_outlasted() {
    let server = Server::start();
    let (session, _told) = impatient(&server.url(), 200 * MS).await;
    let both = MultiLock::of(&named(&session, "a")).and(&named(&session, "b"));
    server.freeze();
    let waiting = tokio::spawn({
        let both = both.clone();
        async move { both.acquire_within(20 * SECOND).await }
    });
    tokio::time::sleep(800 * MS).await; // four response timeouts: the subject
    assert!(!waiting.is_finished());
    server.thaw();
    let guard = waiting.await.unwrap().expect("it answers again");
    guard.release().await.unwrap();
    ends_clean(&server, &session).await;
}

/// I20: whoever waits for an answer that does not come hears of the shutdown at once.
#[tokio::test]
async fn a_shutdown_ends_a_take_that_nobody_answers() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let session = session(proxy.url()).await;
    let both = MultiLock::of(&named(&session, "a")).and(&named(&session, "b"));
    both.acquire().await.unwrap().release().await.unwrap(); // the scripts are known
    proxy.black_hole_ways(false, true);
    let waiting = tokio::spawn(async move { both.acquire_within(60 * SECOND).await });
    let mut connection = server.connection().await;
    let taken = async || connection.clone().exists::<_, bool>(&*keys("b").holds).await.unwrap();
    eventually(SOON, "the server has taken them", taken).await;
    let begin = Watch::start();
    // Nothing answers: the shutdown itself runs out of time.
    assert!(session.shutdown(200 * MS).await.is_err());
    let refused = waiting.await.unwrap();
    assert!(matches!(refused, Err(AcquireError::Closed)), "{refused:?}");
    assert!(begin.awake() < 5 * SECOND);
    let freed = async || !connection.exists::<_, bool>(&*keys("b").holds).await.unwrap();
    eventually(SOON, "they are released all the same", freed).await;
}

/// Members of two sessions: the end of the one whose member is held ends the wait for the other.
#[tokio::test]
async fn a_shutdown_of_one_session_ends_the_wait_on_the_other() {
    let (one, two) = (Server::start(), Server::start());
    let [left, right] = two_sessions(&one, &two).await;
    let held = named(&right, "b").acquire().await.unwrap();
    let both = MultiLock::of(&named(&left, "a")).and(&named(&right, "b"));
    let waiting = tokio::spawn(async move { both.acquire_within(60 * SECOND).await });
    queued(&two, "b", 1).await;
    left.shutdown(SOON).await.unwrap();
    let refused = waiting.await.unwrap();
    assert!(matches!(refused, Err(AcquireError::Closed)), "{refused:?}");
    queued(&two, "b", 0).await;
    held.release().await.unwrap();
    ends_clean(&one, &left).await;
    ends_clean(&two, &right).await;
}

/// A shutdown while all are held: the guard says so, and nothing stays.
#[tokio::test]
async fn a_shutdown_releases_all_members() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let fair = FairLock::new(&session, "f", Options::default()).unwrap();
    let permits = Semaphore::new(&session, "s", 3, Options::default()).unwrap();
    let lock = MultiLock::of(&named(&session, "a")).and(&fair).and(&permits.many(2));
    let guard = lock.acquire().await.unwrap();
    session.shutdown(SOON).await.unwrap();
    assert!(!guard.is_held());
    assert_eq!(guard.lost().await.reason, LostReason::Shutdown);
    assert!(matches!(lock.acquire().await, Err(AcquireError::Closed)));
    let left = keys_left(&server).await;
    assert_eq!(left.len(), 1, "the limit, for a minute: {left:?}");
}

/// I17: once the tokens are forgotten (an hour; here half a second), a quiet server is empty.
#[tokio::test]
async fn a_quiet_server_is_empty_in_the_end() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let mut sessions = Vec::new();
    for server in &servers {
        let builder = Session::builder(&server.url()).unwrap().fence_memory(SECOND / 2);
        sessions.push(builder.connect().await.unwrap());
    }
    let fair = FairLock::new(&sessions[0], "f", Options::default()).unwrap();
    let shared = RwLock::new(&sessions[0], "r", Options::default()).unwrap();
    let many = MultiLock::of(&named(&sessions[0], "a")).and(&fair).and(&shared.write());
    let options = QuorumOptions::default().node_timeout(3 * SECOND);
    let quorum = QuorumLock::new(&sessions, "a", options).unwrap();
    let (here, everywhere) = (many.acquire().await.unwrap(), quorum.acquire().await.unwrap());
    assert!(servers[0].dbsize().await >= 4, "the control");
    here.release().await.unwrap();
    everywhere.release().await.unwrap();
    for server in &servers {
        eventually(SOON, "it is empty", async || server.dbsize().await == 0).await;
    }
}

/// The README's rule of a mutex is enough for several of them, and for one at several servers.
#[tokio::test]
async fn the_rights_of_a_mutex_are_enough() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let mut sessions = Vec::new();
    for server in &servers {
        acl::user(server, "app", "").await;
        sessions.push(session(&acl::url(server, "app")).await);
    }
    let (a, b) = (named(&sessions[0], "a"), named(&sessions[0], "b"));
    let guard = MultiLock::of(&a).and(&b).acquire().await.expect("rights enough");
    guard.release().await.unwrap();
    let options = QuorumOptions::default().node_timeout(3 * SECOND);
    let lock = QuorumLock::new(&sessions, "a", options).unwrap();
    let guard = lock.acquire().await.expect("rights enough");
    assert_eq!(guard.nodes_held(), 3);
    guard.release().await.unwrap();
    for server in &servers {
        assert_eq!(acl::refused(server, "app").await, Vec::<String>::new());
    }
    // The control: without this right the servers cannot be told apart, and it is said why.
    for server in &servers[..2] {
        acl::change(server, "app", "-pubsub|numsub").await;
    }
    let lock = QuorumLock::new(&sessions, "b", QuorumOptions::default()).unwrap();
    match lock.acquire().await {
        Err(AcquireError::Backend(error)) => {
            assert_eq!(error.kind(), BackendErrorKind::NoPermission);
        }
        other => panic!("{other:?}"),
    }
}

/// What is wrong with a member is told before anything is sent.
#[tokio::test]
async fn no_permits_or_too_many_are_refused() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let permits = Semaphore::new(&session, "s", 5, Options::default()).unwrap();
    server.reset_stats().await;
    let refused = MultiLock::of(&permits.many(0)).try_acquire().await;
    assert!(matches!(refused, Err(AcquireError::Config(_))), "{refused:?}");
    let most = permits.many(999_999_999);
    let refused = MultiLock::of(&most).and(&most).acquire().await;
    assert!(matches!(refused, Err(AcquireError::Config(_))), "{refused:?}");
    assert_eq!(server.command_calls().await.of(&["eval", "evalsha"]), 0);
    let refused = MultiLock::of(&most.member()).acquire().await;
    assert!(matches!(refused, Err(AcquireError::NeverFits)), "{refused:?}");
    // Permits of one semaphore that are named twice add up.
    let two = permits.many(2);
    let guard = MultiLock::of(&two).and(&permits).and(&two).acquire().await.unwrap();
    assert_eq!(permits.usage().await.unwrap().used, 5);
    guard.release().await.unwrap();
}
