//! Several locks as one, on real servers.

use std::time::Duration;

use leasehold_fair_lock::FairLock;
use leasehold_multi_lock::engine::Holdable;
use leasehold_multi_lock::{AcquireError, ConfigError, Event, MultiGuard, MultiLock};
use leasehold_mutex::{LostReason, Mutex, Name, Options, Owner, ReleaseError, Session};
use leasehold_rwlock::RwLock;
use leasehold_semaphore::Semaphore;
use leasehold_tests::rig::Watch;
use leasehold_tests::scene::{SOON, Told, entries, keys_left, mutex, queued, say, session};
use leasehold_tests::{Server, Worker, eventually};

const SECOND: Duration = Duration::from_secs(1);

fn named(session: &Session, name: &str) -> Mutex {
    mutex(session, name, Options::default())
}

async fn taken(lock: &MultiLock) -> MultiGuard {
    lock.try_acquire().await.expect("an answer").expect("free")
}

#[tokio::test]
async fn all_that_are_free_are_taken_by_one_call() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let (a, b, c) = (named(&session, "a"), named(&session, "b"), named(&session, "c"));
    taken(&MultiLock::of(&a)).await.release().await.unwrap(); // the scripts are known
    server.reset_stats().await;
    let guard = taken(&MultiLock::of(&c).and(&a).and(&b)).await;
    assert_eq!(server.command_calls().await.of(&["evalsha", "eval"]), 1);
    let names: Vec<_> = guard.names().cloned().collect();
    assert_eq!(names, ["a", "b", "c"].map(Name::new), "in the global order");
    assert_eq!(guard.tokens().count(), 3);
    assert!(guard.is_held() && guard.remaining() > 20 * SECOND);
    for lock in [&a, &b, &c] {
        assert!(lock.try_acquire().await.unwrap().is_none());
    }
    guard.release().await.unwrap();
    assert!(keys_left(&server).await.is_empty(), "{:?}", keys_left(&server).await);
    assert_eq!(session.statistics().tracked, 0);
}

#[tokio::test]
async fn one_that_is_held_leaves_the_others_free() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let (a, b) = (named(&session, "a"), named(&session, "b"));
    let held = b.acquire().await.unwrap();
    assert!(MultiLock::of(&a).and(&b).try_acquire().await.unwrap().is_none());
    let free = a.try_acquire().await.unwrap().expect("nothing was taken");
    free.release().await.unwrap();
    held.release().await.unwrap();
}

#[tokio::test]
async fn a_busy_member_is_waited_for() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let (a, b) = (named(&session, "a"), named(&session, "b"));
    let held = b.acquire().await.unwrap();
    let both = MultiLock::of(&a).and(&b);
    let waiting = tokio::spawn(async move { both.acquire_within(5 * SECOND).await });
    eventually(SOON, "it waits", async || b.queue().await.unwrap().length == 1).await;
    assert!(a.is_locked().await.unwrap(), "it holds the first meanwhile");
    held.release().await.unwrap();
    let guard = waiting.await.unwrap().unwrap();
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_wait_that_is_over_leaves_nothing_and_names_the_member() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let (a, b) = (named(&session, "a"), named(&session, "b"));
    let held = b.acquire().await.unwrap();
    let began = Watch::start();
    let refused = MultiLock::of(&a).and(&b).acquire_within(SECOND / 2).await;
    assert!(began.awake() < 5 * SECOND, "{:?}", began.awake());
    match refused {
        Err(AcquireError::TimedOut { name, waited, .. }) => {
            assert_eq!(name, Name::new("b"));
            assert!(waited >= SECOND / 2);
        }
        other => panic!("{other:?}"),
    }
    eventually(SOON, "the first is free again", async || !a.is_locked().await.unwrap()).await;
    held.release().await.unwrap();
}

#[tokio::test]
async fn opposite_orders_never_wait_in_a_circle() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let run = |session: Session, turned: bool| async move {
        let (a, b) = (named(&session, "a"), named(&session, "b"));
        let both = if turned { MultiLock::of(&b).and(&a) } else { MultiLock::of(&a).and(&b) };
        for _ in 0..50 {
            let guard = both.acquire_within(5 * SECOND).await.expect("no dead-lock");
            assert!(guard.is_held());
            guard.release().await.expect("held");
        }
    };
    let (left, right) =
        tokio::join!(tokio::spawn(run(one.clone(), false)), tokio::spawn(run(two.clone(), true)));
    left.unwrap();
    right.unwrap();
}

#[tokio::test]
async fn the_loss_of_one_is_the_loss_of_all_and_frees_the_others() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let options = Options::default().lease(9 * SECOND);
    let (a, b) = (mutex(&session, "a", options.clone()), mutex(&session, "b", options));
    let guard = taken(&MultiLock::of(&a).and(&b)).await;
    say(&server, &["DEL", "lh1:mutex:{b}"]).await;
    let lost = tokio::time::timeout(9 * SECOND, guard.lost()).await.expect("told");
    assert_eq!((lost.name, lost.reason), (Name::new("b"), LostReason::Expired));
    assert!(!guard.is_held() && guard.remaining().is_zero());
    eventually(SOON, "the other is free", async || !a.is_locked().await.unwrap()).await;
    let error = guard.release().await.unwrap_err();
    let failed: Vec<_> = error.failed().collect();
    assert!(matches!(failed[..], [(_, ReleaseError::Lost(_))]), "{error}");
}

#[tokio::test]
async fn a_member_named_twice_counts_once() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let (a, again) = (named(&session, "a"), named(&session, "a"));
    let guard = taken(&MultiLock::of(&a).and(&again)).await;
    assert_eq!(guard.names().count(), 1);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn what_is_wrong_with_the_members_is_told_by_the_verb() {
    let (one, two) = (Server::start(), Server::start());
    let (left, right) = (session(&one.url()).await, session(&two.url()).await);
    let none: [Mutex; 0] = [];
    let refused = MultiLock::all(none).try_acquire().await;
    assert!(matches!(refused, Err(AcquireError::Config(ConfigError::Members { count: 0 }))));
    let (a, b) = (named(&left, "a"), named(&right, "b"));
    let refused = MultiLock::of(&a).and(&b).acquire().await;
    let expected = matches!(
        refused,
        Err(AcquireError::Config(ConfigError::SessionNames { sessions: 2, names: 0 }))
    );
    assert!(expected, "{refused:?}");
    assert!(!a.is_locked().await.unwrap());
}

#[tokio::test]
async fn members_on_two_servers_are_held_together() {
    let (one, two) = (Server::start(), Server::start());
    let named_session = async |server: &Server, name: &str| {
        Session::builder(&server.url()).unwrap().named(name).connect().await.unwrap()
    };
    let (left, right) = (named_session(&one, "left").await, named_session(&two, "right").await);
    let (a, b) = (named(&left, "a"), named(&right, "a"));
    let guard = taken(&MultiLock::of(&b).and(&a)).await;
    assert!(a.is_locked().await.unwrap() && b.is_locked().await.unwrap());
    let third = named(&right, "c").member();
    assert!(MultiLock::all([a.member(), third]).try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    assert!(!a.is_locked().await.unwrap() && !b.is_locked().await.unwrap());
}

/// Of three servers, with sessions that have their names.
async fn three_servers() -> (Vec<Server>, Vec<Session>) {
    let (mut servers, mut sessions) = (Vec::new(), Vec::new());
    for name in ["first", "second", "third"] {
        let server = Server::start();
        let builder = Session::builder(&server.url()).expect("a URL").named(name);
        sessions.push(builder.connect().await.expect("a session"));
        servers.push(server);
    }
    (servers, sessions)
}

/// Everything that can be held, together: by one call if it is free, else each in its own queue.
#[tokio::test]
async fn members_of_every_kind_are_held_together() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let all = |session: &Session| {
        let fair = FairLock::new(session, "f", Options::default()).expect("a lock");
        let shared = RwLock::new(session, "r", Options::default()).expect("a lock");
        let permits = Semaphore::new(session, "s", 3, Options::default()).expect("a semaphore");
        let lock = MultiLock::of(&permits.many(2))
            .and(&shared.write())
            .and(&fair)
            .and(&named(session, "m"));
        (lock, fair, shared, permits)
    };
    let ((mine, ..), (theirs, fair, shared, permits)) = (all(&one), all(&two));
    let guard = taken(&mine).await;
    assert_eq!(guard.names().count(), 4);
    let tokens: Vec<_> = guard.tokens().map(|(name, _)| name.clone()).collect();
    assert_eq!(tokens, ["f", "m", "r"].map(Name::new), "permits have none");
    assert!(guard.fencing_token(&Name::new("m")).is_some());
    assert!(guard.fencing_token(&Name::new("s")).is_none());
    assert!(theirs.try_acquire().await.unwrap().is_none());
    // In order of their keys: fair, mutex, rwlock, semaphore.
    let waiting = tokio::spawn(async move { theirs.acquire_within(6 * SOON).await });
    eventually(SOON, "it waits for the first", async || fair.queue().await.unwrap().length == 1)
        .await;
    assert_eq!(permits.waiting().await.unwrap(), 0, "never in two queues");
    guard.release().await.unwrap();
    let guard = waiting.await.unwrap().unwrap();
    assert!(shared.read().try_acquire().await.unwrap().is_none());
    assert_eq!(permits.usage().await.unwrap().used, 2);
    guard.release().await.unwrap();
    assert!(shared.read().try_acquire().await.unwrap().is_some());
}

/// Readers do not hinder each other, and a writer of the same name is named once.
#[tokio::test]
async fn writing_wins_over_reading_where_both_are_named() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let shared = RwLock::new(&session, "r", Options::default()).unwrap();
    let (first, second) =
        (taken(&MultiLock::of(&shared.read())).await, MultiLock::of(&shared.read()));
    let second = taken(&second).await;
    let both = MultiLock::of(&shared.read()).and(&shared.write());
    assert!(both.try_acquire().await.unwrap().is_none());
    first.release().await.unwrap();
    second.release().await.unwrap();
    let guard = taken(&both).await;
    assert_eq!((guard.names().count(), guard.tokens().count()), (1, 1));
    assert!(shared.read().try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
}

/// A limit that differs is told as an event, or refused where that was asked for.
#[tokio::test]
async fn a_differing_limit_is_told_or_refused() {
    let server = Server::start();
    let told = Told::default();
    let builder = told.by(Session::builder(&server.url()).unwrap());
    let session = builder.connect().await.unwrap();
    let of = |limit| Semaphore::new(&session, "s", limit, Options::default()).unwrap();
    taken(&MultiLock::of(&of(3)).and(&named(&session, "a"))).await.release().await.unwrap();
    let differs = |event: &Event| matches!(event, Event::LimitDiffers { ours: 5, server: 3, .. });
    taken(&MultiLock::of(&of(5)).and(&named(&session, "a"))).await.release().await.unwrap();
    assert_eq!(told.count(differs), 1, "{:?}", told.all());
    let strict = of(5).strict_limit();
    let refused = MultiLock::of(&strict).and(&named(&session, "a")).acquire().await;
    assert!(
        matches!(refused, Err(AcquireError::LimitDiffers { ours: 5, server: 3 })),
        "{refused:?}"
    );
    assert!(!named(&session, "a").is_locked().await.unwrap());
}

/// CONFORMANCE 103.
#[tokio::test]
async fn c103_three_locks_are_held_for_the_whole_and_free_after_the_release() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let lock = |name| mutex(&session, name, Options::default().lease(6 * SECOND));
    let all = ["a", "b", "c"].map(lock);
    let guard = taken(&MultiLock::all(&all)).await;
    let held = guard
        .while_held(async {
            for _ in 0..35 {
                tokio::time::sleep(SECOND / 5).await;
                for lock in &all {
                    assert!(lock.is_locked().await.unwrap());
                }
            }
        })
        .await;
    assert!(held.is_ok() && guard.is_held());
    guard.release().await.unwrap();
    for lock in &all {
        assert!(!lock.is_locked().await.unwrap());
    }
}

/// CONFORMANCE 104.
#[tokio::test]
async fn c104_of_ten_tasks_that_do_not_wait_exactly_one_wins() {
    let server = Server::start();
    let begin = Watch::start();
    let mut tasks = Vec::new();
    for _ in 0..10 {
        let session = session(&server.url()).await;
        let all = ["a", "b", "c"].map(|name| named(&session, name));
        tasks.push(tokio::spawn(async move {
            MultiLock::all(&all).acquire_within(Duration::ZERO).await
        }));
    }
    let mut guards = Vec::new();
    for task in tasks {
        guards.extend(task.await.unwrap().ok());
    }
    assert_eq!(guards.len(), 1);
    println!("ten tasks in {:?}", begin.elapsed());
}

/// CONFORMANCE 106.
#[tokio::test]
async fn c106_parts_on_three_servers_are_busy_while_held_and_free_after() {
    let (servers, sessions) = three_servers().await;
    let others: Vec<_> = {
        let mut others = Vec::new();
        for server in &servers {
            others.push(session(&server.url()).await);
        }
        others
    };
    let locks: Vec<_> = sessions.iter().map(|session| named(session, "part")).collect();
    let guard = MultiLock::all(locks.iter().rev()).acquire().await.unwrap();
    for _ in 0..2 {
        for other in &others {
            assert!(named(other, "part").try_acquire().await.unwrap().is_none());
        }
        assert!(MultiLock::all(&locks).try_acquire().await.unwrap().is_none());
    }
    guard.release().await.unwrap();
    for (server, other) in servers.iter().zip(&others) {
        let free = named(other, "part").try_acquire().await.unwrap().expect("free");
        free.release().await.unwrap();
        assert!(keys_left(server).await.is_empty());
    }
}

/// CONFORMANCE 107: members of a group, entered again, held by a stranger when the lease is over, ended by force.
#[tokio::test]
async fn c107_a_group_is_entered_again_and_follows_its_leases() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let of = |session: &Session, options: &Options| {
        ["a", "b"].map(|name| {
            Mutex::new(session, Name::in_group("g", name), options.clone()).expect("a mutex")
        })
    };
    let short = Options::default().fixed(2 * SECOND);
    let (mine, theirs) = (of(&one, &short), of(&two, &Options::default()));
    let owner = Owner::default();
    let views = mine.clone().map(|lock| lock.by(&owner));
    let counts = async || {
        let mut counts = Vec::new();
        for lock in &mine {
            counts.push(lock.holder().await.unwrap().map_or(0, |holder| holder.entries));
        }
        counts
    };
    let first = taken(&MultiLock::all(&views)).await;
    assert_eq!(counts().await, [1, 1]);
    let second = taken(&MultiLock::all(&views)).await;
    assert_eq!(counts().await, [2, 2]);
    let tokens = |guard: &MultiGuard| guard.tokens().map(|(_, token)| token).collect::<Vec<_>>();
    assert_eq!(tokens(&first), tokens(&second), "one hold, one token");
    second.release().await.unwrap();
    assert_eq!(counts().await, [1, 1]);
    assert!(MultiLock::all(&theirs).try_acquire().await.unwrap().is_none());
    let begin = Watch::start();
    let stranger = MultiLock::all(&theirs).acquire_within(20 * SECOND).await.unwrap();
    assert!(begin.elapsed() > SECOND && !first.is_held());
    assert!(mine[0].force_release().await.unwrap().is_some());
    eventually(SOON, "told", async || !stranger.is_held()).await;
    assert_eq!(stranger.lost().await.reason, LostReason::ForceReleased);
    eventually(SOON, "and the other is free", async || counts().await == [0, 0]).await;
    let left = async || keys_left(&server).await.is_empty();
    eventually(SOON, "nothing is left", left).await;
}

/// What each form costs in round trips, as the server counts the calls of the client.
#[tokio::test]
async fn round_trips_of_each_form() {
    let (servers, sessions) = three_servers().await;
    let calls = async || {
        let mut calls = 0;
        for server in &servers {
            calls += server.command_calls().await.of(&["evalsha", "eval"]);
        }
        calls
    };
    let here = ["a", "b", "c", "d", "e"].map(|name| named(&sessions[0], name));
    let there: Vec<_> = sessions.iter().map(|session| named(session, "a")).collect();
    let busy = MultiLock::all(&here[..3]);
    let held = here[1].acquire().await.unwrap(); // and all scripts are known
    assert!(busy.acquire_within(Duration::ZERO).await.is_err());
    held.release().await.unwrap();
    MultiLock::all(&there).acquire().await.unwrap().release().await.unwrap();
    for (what, lock, taking, giving) in [
        ("5 members, one server, free", MultiLock::all(&here), 1, 5),
        ("3 members, three servers, free", MultiLock::all(&there), 3, 3),
    ] {
        let before = calls().await;
        let guard = lock.acquire().await.unwrap();
        let took = calls().await - before;
        guard.release().await.unwrap();
        let gave = calls().await - before - took;
        println!("{what}: {took} to take, {gave} to release (all at once)");
        assert_eq!((took, gave), (taking, giving), "{what}");
    }
    let before = calls().await;
    let held = here[1].acquire().await.unwrap();
    assert!(busy.try_acquire().await.unwrap().is_none());
    let tried = calls().await - before - 1;
    let waiting = tokio::spawn({
        let busy = busy.clone();
        async move { busy.acquire().await.expect("handed over") }
    });
    queued(&servers[0], "b", 1).await;
    held.release().await.unwrap();
    let guard = waiting.await.unwrap();
    // Without the holder's own two, and the try. A check may come between, once a second.
    let took = calls().await - before - 2 - tried;
    println!("3 members, one held: {tried} to be told so, {took} to take with a hand-over");
    assert!(tried == 1 && (4..=6).contains(&took), "{tried}, {took}");
    guard.release().await.unwrap();
}

/// Four processes, two of them the other way round.
#[tokio::test]
async fn opposite_orders_of_many_processes_never_wait_in_a_circle() {
    let server = Server::start();
    let program = env!("CARGO_BIN_EXE_several_worker");
    let begin = Watch::start();
    let mut workers = Vec::new();
    for names in ["a,b,c", "c,b,a", "b,a,c", "c,a,b"] {
        workers.push(Worker::start(program, &server.url(), names, 10 * SECOND).await);
    }
    for worker in &mut workers {
        worker.say("rounds 100");
    }
    for worker in &mut workers {
        assert_eq!(worker.hear().await, "done");
    }
    println!("4 processes, 100 rounds each, in {:?}", begin.elapsed());
    assert!(begin.awake() < 30 * SECOND, "{:?}", begin.awake());
    // One that dies while it holds all is followed when its leases are over.
    let mut dying = Worker::start(program, &server.url(), "a,b,c", SECOND).await;
    assert!(dying.ask("acquire").await.starts_with("held "));
    dying.kill();
    assert_eq!(workers[1].ask("rounds 1").await, "done");
    let left = async || keys_left(&server).await.is_empty();
    eventually(SOON, "nothing is left", left).await;
}

/// One script for both: a member that nobody else has does not wait behind one that somebody has.
#[tokio::test]
async fn a_wait_holds_what_comes_first_in_the_order_and_nothing_after() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let all = ["a", "b", "c"].map(|name| named(&one, name));
    let held = named(&two, "b").acquire().await.unwrap();
    let lock = MultiLock::all(all.iter().rev());
    let waiting = tokio::spawn(async move { lock.acquire_within(6 * SOON).await });
    queued(&server, "b", 1).await;
    let mut connection = server.connection().await;
    assert_eq!(entries(&mut connection, "a").await.len(), 1);
    assert_eq!(entries(&mut connection, "c").await.len(), 0, "not before its turn");
    let other = named(&two, "c").acquire().await.unwrap();
    held.release().await.unwrap();
    queued(&server, "c", 1).await;
    assert_eq!(entries(&mut connection, "b").await.len(), 1);
    other.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

/// All members' validity is that of the least, and less than a tenth of a lease is none.
#[tokio::test]
async fn validity_is_the_least_of_the_members_and_has_a_floor() {
    let server = Server::start();
    let one = session(&server.url()).await;
    let short = mutex(&one, "a", Options::default().fixed(5 * SECOND));
    let guard = taken(&MultiLock::of(&short).and(&named(&one, "b"))).await;
    assert!(guard.remaining() <= 5 * SECOND);
    guard.release().await.unwrap();
    // Half of the lease and 900 ms are margin: 100 ms of 2 s are left, and 200 are asked for.
    let builder = Session::builder(&server.url()).unwrap();
    let careful = builder.clock_drift(500_000, SECOND * 9 / 10).connect().await.unwrap();
    let short = mutex(&careful, "a", Options::default().fixed(2 * SECOND));
    let refused = MultiLock::of(&short).and(&named(&careful, "b")).acquire().await;
    assert!(matches!(refused, Err(AcquireError::ValidityTooShort { .. })), "{refused:?}");
    let left = async || keys_left(&server).await.is_empty();
    eventually(SOON, "all are given back", left).await;
}
