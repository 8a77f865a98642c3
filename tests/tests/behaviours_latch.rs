//! Rows of the table of behaviours, for the latch. One test a row, named after it; rows about lost replies, keys and
//! processes are in `latch_faults.rs`, those about time in `timed_latch.rs`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use leasehold_latch::{BackendErrorKind, Latch, LatchError, LatchOptions, Session};
use leasehold_tests::fake::Switch;
use leasehold_tests::latch::{
    hash_of, keys, keys_left, lasting, latch, listening, waiter, waiting,
};
use leasehold_tests::rig::{Watch, connections, kill_connections, span};
use leasehold_tests::scene::{SOON, inboxes, say, session};
use leasehold_tests::{FaultProxy, Pick, Server, acl, eventually, rounds};
use redis::AsyncCommands;
use tokio::task::JoinSet;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// For two cores that build something meanwhile.
const MACHINE: Duration = Duration::from_millis(600);

fn hour() -> LatchOptions {
    LatchOptions::default()
}

fn kind_of(error: &LatchError) -> BackendErrorKind {
    let (LatchError::Backend { source, .. } | LatchError::Unknown { source, .. }) = error else {
        panic!("{error:?}")
    };
    source.kind()
}

/// Whoever waits is told that the latch is gone, and not that it is open.
#[tokio::test]
async fn b16_a_deleted_latch_is_told_to_its_waiters() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let latch = latch(&session, "a", hour());
    latch.arm(1).await.unwrap();
    let waits = waiter(&latch);
    waiting(&server, "a", &session, 1).await;
    let deleted = Instant::now();
    let _: u64 = server.connection().await.del(&*keys("a").latch).await.unwrap();
    let (outcome, at) = waits.await.unwrap();
    assert!(matches!(outcome, Err(LatchError::Expired { .. })), "{outcome:?}");
    assert!(at - deleted < SECOND + MACHINE, "{:?}", at - deleted);
}

/// A shutdown takes this session's entries away at all latches, within its bound.
#[tokio::test]
async fn b42_a_shutdown_leaves_no_entry() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let names: Vec<_> = (0..20).map(|number| format!("b42-{number}")).collect();
    let mut waits = Vec::new();
    for name in &names {
        let (first, second) = (latch(&one, name, hour()), latch(&two, name, hour()));
        second.arm(1).await.unwrap();
        waits.push((waiter(&first), waiter(&second), second));
    }
    for name in &names {
        listening(&server, name, 2).await;
    }
    one.shutdown(2 * SECOND).await.unwrap();
    let mut connection = server.connection().await;
    for name in &names {
        let left: u64 = connection.zcard(&*keys(name).waiters).await.unwrap();
        assert_eq!(left, 1, "I20: {name}");
    }
    for (gone, stays, latch) in waits {
        assert!(matches!(gone.await.unwrap().0, Err(LatchError::Closed)));
        latch.count_down().await.unwrap();
        stays.await.unwrap().0.unwrap();
    }
}

/// One channel a session, whatever waits and however it leaves.
#[tokio::test]
async fn b47_no_channel_and_no_entry_outlives_a_wait() {
    let server = Server::start();
    let session = lasting(&server.url()).await;
    let mut tasks = JoinSet::new();
    for number in 0..rounds(300) {
        let latch = latch(&session, &format!("b47-{number}"), hour());
        tasks.spawn(async move {
            latch.arm(1).await.unwrap();
            let waits: Vec<_> = (0..3).map(|_| waiter(&latch)).collect();
            assert!(matches!(
                latch.wait_within(20 * MS).await,
                Err(LatchError::TimedOut { .. } | LatchError::Backend { .. })
            ));
            match number % 3 {
                0 => drop(latch.count_down().await.unwrap()),
                1 => drop(latch.reset().await.unwrap()),
                _ => waits.iter().for_each(tokio::task::JoinHandle::abort),
            }
            for waits in waits {
                match (number % 3, waits.await) {
                    (0, Ok((Ok(()), _))) | (2, Err(_)) => {}
                    (1, Ok((Err(LatchError::Reset { .. } | LatchError::NotArmed { .. }), _))) => {}
                    other => panic!("{other:?}"),
                }
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    assert_eq!(inboxes(&server).await, 1);
    let entries = async || server.keys().await.iter().any(|key| key.ends_with(b":waiters"));
    eventually(SOON, "no entry is left", async || !entries().await).await;
    assert_eq!(session.statistics().listening, 0);
}

/// Any number of names costs three connections.
#[tokio::test]
async fn b49_waiting_at_two_thousand_latches_takes_three_connections() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let names = rounds(2000);
    let mut tasks = JoinSet::new();
    for number in 0..names {
        let latch = latch(&session, &format!("b49-{number}"), hour().max_wait(SOON * 3));
        latch.arm(1).await.unwrap();
        tasks.spawn(async move { latch.wait().await });
    }
    let all = usize::try_from(names).unwrap();
    let entered = async || {
        let keys = server.keys().await;
        keys.iter().filter(|key| key.ends_with(b":waiters")).count() == all
    };
    eventually(SOON * 2, "all listen", entered).await;
    // `connection` of the helper that asks is left out; the others' are closed by then or not.
    let few = async || connections(&server).await <= 3;
    eventually(SOON, "three connections", few).await;
    let opener = leasehold_tests::scene::session(&server.url()).await;
    for number in 0..names {
        latch(&opener, &format!("b49-{number}"), hour()).count_down().await.unwrap();
    }
    while let Some(opened) = tasks.join_next().await {
        opened.unwrap().unwrap();
    }
}

/// Scripts vanish all the time.
#[tokio::test]
async fn b103_flushed_scripts_cost_no_error() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let end = Instant::now() + span(10 * SECOND, 2 * SECOND);
    let mut tasks = JoinSet::new();
    for number in 0..10 {
        let latch = latch(&session, &format!("b103-{number}"), hour());
        tasks.spawn(async move {
            while Instant::now() < end {
                assert!(latch.arm(2).await.unwrap());
                let waits = waiter(&latch);
                latch.count_down().await.unwrap();
                latch.count_down_as("x").await.unwrap();
                waits.await.unwrap().0.unwrap();
                assert!(latch.reset().await.unwrap());
            }
        });
    }
    while !tasks.is_empty() {
        say(&server, &["SCRIPT", "FLUSH"]).await;
        let pause = tokio::time::timeout(20 * MS, tasks.join_next()).await;
        if let Ok(Some(ended)) = pause {
            ended.unwrap();
        }
    }
}

/// A master that was demoted: the latch goes on at the new one, and whoever waited is told.
#[tokio::test]
async fn b105_a_client_of_a_demoted_master_finds_the_new_one() {
    let (one, two) = (Server::start(), Server::start());
    let switch = Switch::to(&one);
    let session = session(&switch.url()).await;
    let latch = latch(&session, "a", hour());
    latch.arm(1).await.unwrap();
    let waits = waiter(&latch);
    waiting(&one, "a", &session, 1).await;
    let turned = Instant::now();
    say(&one, &["REPLICAOF", "127.0.0.1", &two.addr().port().to_string()]).await;
    switch.turn_to(&two);
    let (outcome, at) = waits.await.unwrap();
    assert!(matches!(outcome, Err(LatchError::Expired { .. })), "{outcome:?}");
    assert!(at - turned < 2 * SECOND + MACHINE, "{:?}", at - turned);
    assert!(latch.arm(1).await.unwrap());
    let pushed = async || {
        let waits = waiter(&latch);
        listening(&two, "a", 1).await;
        let looks = session.statistics().looks;
        latch.count_down().await.unwrap();
        waits.await.unwrap().0.unwrap();
        latch.reset().await.unwrap();
        latch.arm(1).await.unwrap();
        session.statistics().looks == looks
    };
    eventually(SOON, "openings are pushed again", pushed).await;
}

/// Errors that pass are waited out, and what had run is not done again.
#[tokio::test]
async fn b107_errors_that_pass_are_no_errors() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let session = session(proxy.url()).await;
    let latch = latch(&session, "a", hour());
    let words = ["-LOADING later", "-BUSY later", "-TRYAGAIN later", "-CLUSTERDOWN later"];
    for words in words.into_iter().chain(["-MASTERDOWN later"]) {
        let twice = |verb: &str| {
            proxy.replace_replies(Pick::next(2).containing(hash_of(verb)), words);
        };
        twice("arm");
        assert!(latch.arm(3).await.unwrap(), "{words}");
        twice("count_down");
        assert_eq!(latch.count_down().await.unwrap(), 2, "{words}");
        twice("look");
        assert_eq!(latch.count().await.unwrap(), 2, "{words}");
        twice("wait");
        let waits = waiter(&latch);
        listening(&server, "a", 1).await;
        latch.count_down().await.unwrap();
        latch.count_down().await.unwrap();
        waits.await.unwrap().0.unwrap();
        assert!(latch.reset().await.unwrap(), "{words}");
    }
}

async fn limited(server: &Server, user: &str) -> Session {
    let builder = Session::builder(&acl::url(server, user)).expect("a URL");
    builder.prefix(format!("{user}:")).check_every(300 * MS).connect().await.expect("a session")
}

/// What each verb came to: the kind of its refusal, or nothing.
async fn try_everything(session: &Session) -> BTreeMap<&'static str, BackendErrorKind> {
    let mut refusals = BTreeMap::new();
    let mut note = |verb, outcome: Result<(), LatchError>| match outcome {
        Ok(()) | Err(LatchError::NotArmed { .. } | LatchError::TimedOut { .. }) => {}
        Err(error) => drop(refusals.entry(verb).or_insert(kind_of(&error))),
    };
    let latch = Latch::new(session, "a", hour()).expect("legal options");
    note("arm", latch.arm(2).await.map(drop));
    note("count", latch.count().await.map(drop));
    note("wait", latch.wait_within(200 * MS).await);
    note("count_down", latch.count_down().await.map(drop));
    note("count_down_as", latch.count_down_as("x").await.map(drop));
    note("open", latch.wait_within(200 * MS).await);
    note("reset", latch.reset().await.map(drop));
    let told = Latch::new(session, "b", hour()).expect("legal options");
    note("arm", told.arm(1).await.map(drop));
    let counts = async {
        tokio::time::sleep(50 * MS).await; // the other one listens
        told.count_down().await
    };
    let (open, counted) = tokio::join!(told.wait_within(SECOND), counts);
    note("told", open);
    note("count_down", counted.map(drop));
    refusals
}

#[tokio::test]
async fn b111_everything_works_with_one_prefix_and_the_commands_of_the_rule() {
    let server = Server::start();
    acl::latch_user(&server, "app", "app:").await;
    let session = limited(&server, "app").await;
    assert_eq!(try_everything(&session).await, BTreeMap::new());
    let latch = Latch::new(&session, "c", hour()).unwrap();
    latch.arm(1).await.unwrap();
    let waits = waiter(&latch);
    let entered = async || server.keys().await.iter().any(|key| key.ends_with(b":waiters"));
    eventually(SOON, "it listens", entered).await;
    let looks = session.statistics().looks;
    latch.count_down().await.unwrap();
    waits.await.unwrap().0.unwrap();
    assert!(session.statistics().looks <= looks + 1, "by the push");
    latch.reset().await.unwrap();
    session.shutdown(SOON).await.unwrap();
    let refused = acl::refused(&server, "app").await;
    assert_eq!(refused, Vec::<String>::new());
    let outside = |key: &Vec<u8>| !key.starts_with(b"app:lh1:latch:");
    assert_eq!(server.keys().await.into_iter().filter(outside).count(), 0);
}

/// Without the right to publish the count still counts, and the look serves those who wait.
#[tokio::test]
async fn b111_without_the_channel_the_look_serves_those_who_wait() {
    let server = Server::start();
    for rule in ["resetchannels", "-publish"] {
        acl::latch_user(&server, "app", "app:").await;
        let session = limited(&server, "app").await;
        let latch = Latch::new(&session, rule, hour()).unwrap();
        latch.arm(1).await.unwrap();
        let waits = waiter(&latch);
        let entered = async || server.keys().await.iter().any(|key| key.ends_with(b":waiters"));
        eventually(SOON, "it listens", entered).await;
        acl::change(&server, "app", rule).await;
        let counted = Instant::now();
        assert_eq!(latch.count_down().await.unwrap(), 0);
        let (outcome, at) = waits.await.unwrap();
        outcome.unwrap();
        assert!(at - counted < SECOND + MACHINE, "{rule}: {:?}", at - counted);
    }
}

/// The rule has nothing to spare; whatever is missing is told as such and leaves no key without an end.
#[tokio::test]
async fn b112_each_right_is_needed_and_its_lack_is_told() {
    let server = Server::start();
    say(&server, &["CONFIG", "SET", "acllog-max-len", "10000"]).await;
    for script in leasehold_lua::latch::scripts() {
        say(&server, &["SCRIPT", "LOAD", script.source()]).await;
    }
    let mut spared = Vec::new();
    for command in acl::LATCH_COMMANDS {
        acl::latch_user(&server, command, &format!("{command}:")).await;
        let session = limited(&server, command).await;
        acl::change(&server, command, &format!("-{command}")).await;
        let refusals = try_everything(&session).await;
        for (verb, kind) in &refusals {
            assert_eq!(*kind, BackendErrorKind::NoPermission, "{verb} without {command}");
        }
        if refusals.is_empty() && acl::refused(&server, command).await.is_empty() {
            spared.push(*command);
        }
        let mut connection = server.connection().await;
        for key in server.keys().await {
            let ttl: i64 = connection.pttl(&key).await.unwrap();
            assert_ne!(ttl, -1, "I17: {} without {command}", key.escape_ascii());
        }
        acl::latch_user(&server, command, &format!("{command}:")).await;
        let latch = Latch::new(&session, "a", hour()).unwrap();
        latch.reset().await.unwrap();
        assert!(latch.arm(1).await.unwrap(), "{command}");
        assert_eq!(latch.count_down().await.unwrap(), 0, "{command}");
    }
    // Scripts by their text are needed when the server has forgotten them, subscribing when a session opens.
    assert_eq!(spared, ["eval", "subscribe"], "these rights could be left out");
}

#[tokio::test]
async fn b113_without_the_right_to_run_scripts_the_first_call_says_so() {
    let server = Server::start();
    acl::latch_user(&server, "app", "app:").await;
    acl::change(&server, "app", "-@scripting").await;
    let session = limited(&server, "app").await;
    let latch = Latch::new(&session, "a", hour()).unwrap();
    let begin = Watch::start();
    for outcome in [latch.wait_within(SOON).await, latch.arm(1).await.map(drop)] {
        let error = outcome.unwrap_err();
        assert_eq!(kind_of(&error), BackendErrorKind::NoPermission);
        let LatchError::Backend { source, .. } = error else { panic!("{error:?}") };
        assert!(source.to_string().contains("evalsha"), "it names the right: {source}");
    }
    // 200 ms each on a quiet machine.
    assert!(begin.awake() < 400 * MS + MACHINE, "{:?}", begin.awake());
}

/// TTL 0 is refused before anything is sent (the bounds themselves: `latch.rs`).
#[tokio::test]
async fn b119_a_latch_of_no_time_is_refused() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let made = Latch::new(&session, "a", hour().expires_after(Duration::ZERO)).unwrap_err();
    assert!(made.to_string().contains("expires_after"), "{made}");
    assert_eq!(server.dbsize().await, 0);
}

/// What is not ours is told as such and left alone, whichever key it stands at, also as a hash of other fields.
#[tokio::test]
async fn b124_foreign_data_is_told_and_left_alone() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let mut connection = server.connection().await;
    let latch = latch(&session, "a", hour());
    let keys = keys("a");
    let all = [&keys.latch, &keys.ids];
    for key in all {
        let () = connection.set(&**key, "x").await.unwrap();
        let begin = Watch::start();
        assert_eq!(kind_of(&latch.arm(1).await.unwrap_err()), BackendErrorKind::WrongType);
        if *key == keys.latch {
            for outcome in [
                latch.wait_within(5 * SECOND).await,
                latch.count_down().await.map(drop),
                latch.count().await.map(drop),
                latch.reset().await.map(drop),
            ] {
                assert_eq!(kind_of(&outcome.unwrap_err()), BackendErrorKind::WrongType);
            }
        }
        assert!(begin.awake() < 200 * MS + MACHINE, "{:?}", begin.awake());
        assert_eq!(connection.get::<_, String>(&**key).await.unwrap(), "x");
        let _: u64 = connection.del(&**key).await.unwrap();
    }
    let _: u64 = connection.hset(&*keys.latch, "other", "x").await.unwrap();
    assert_eq!(kind_of(&latch.arm(1).await.unwrap_err()), BackendErrorKind::WrongType);
    let fields: BTreeMap<String, String> = connection.hgetall(&*keys.latch).await.unwrap();
    assert_eq!(fields, BTreeMap::from([("other".to_owned(), "x".to_owned())]));
    let _: u64 = connection.del(&*keys.latch).await.unwrap();
    // Where only the telling is in the way, counting is not.
    latch.arm(1).await.unwrap();
    let () = connection.set(&*keys.waiters, "x").await.unwrap();
    let refused = latch.wait_within(5 * SECOND).await.unwrap_err();
    assert_eq!(kind_of(&refused), BackendErrorKind::WrongType);
    assert_eq!(latch.count_down().await.unwrap(), 0);
    assert_eq!(connection.get::<_, String>(&*keys.waiters).await.unwrap(), "x");
}

/// Not armed, not open in time, unreachable and forbidden are told apart.
#[tokio::test]
async fn b130_the_ends_of_a_wait_are_told_apart() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let latch = latch(&session, "a", hour());
    let wait = async || latch.wait_within(300 * MS).await.unwrap_err();
    assert!(matches!(wait().await, LatchError::NotArmed { .. }));
    latch.arm(1).await.unwrap();
    assert!(matches!(wait().await, LatchError::TimedOut { .. }));
    say(&server, &["ACL", "SETUSER", "default", "-evalsha"]).await;
    assert_eq!(kind_of(&wait().await), BackendErrorKind::NoPermission);
    say(&server, &["ACL", "SETUSER", "default", "+evalsha"]).await;
    server.kill();
    assert_eq!(kind_of(&wait().await), BackendErrorKind::Unreachable);
}

/// No call outlasts its bound while Redis is down or silent.
#[tokio::test]
async fn b136_a_wait_ends_in_time_while_redis_is_away() {
    let server = Server::start();
    let builder = Session::builder(&server.url()).unwrap();
    let session = builder.response_timeout(500 * MS).connect().await.unwrap();
    let latch = latch(&session, "a", hour());
    latch.arm(9).await.unwrap();
    let within_bounds = async |state: &str| {
        let begin = Watch::start();
        let error = latch.wait_within(500 * MS).await.unwrap_err();
        assert_eq!(kind_of(&error), BackendErrorKind::Unreachable, "{state}: {error:?}");
        let waited = begin.elapsed();
        assert!((500 * MS..800 * MS + MACHINE).contains(&waited), "{state}: {waited:?}");
        let begin = Watch::start();
        let error = latch.count_down().await.unwrap_err();
        assert_eq!(kind_of(&error), BackendErrorKind::Unreachable, "{state}: {error:?}");
        assert!(begin.awake() < 800 * MS + MACHINE, "{state}: {:?}", begin.awake());
    };
    server.freeze();
    within_bounds("silent").await;
    server.thaw();
    eventually(SOON, "it is back", async || latch.count().await.is_ok()).await;
    server.kill();
    within_bounds("refused").await;
}

/// Many names, half of them abandoned with a waiter: when their time is over nothing is left.
#[tokio::test]
async fn b143_abandoned_latches_leave_nothing() {
    let server = Server::builder().clock_shim().start();
    let session = session(&server.url()).await;
    for number in 0..rounds(5000) {
        let latch = latch(&session, &format!("b143-{number}"), hour().expires_after(2 * SECOND));
        latch.arm(2).await.unwrap();
        latch.count_down_as("x").await.unwrap();
        match number % 4 {
            0 => drop(latch.count_down().await.unwrap()),
            1 => drop(latch.reset().await.unwrap()),
            2 => drop(tokio::time::timeout(MS, latch.wait()).await),
            _ => {}
        }
    }
    assert!(server.dbsize().await > 100, "the control: there was something");
    session.shutdown(SOON).await.unwrap();
    assert_eq!(keys_left(&server).await, [""; 0]);
    // Copies of calls are known for a minute.
    server.clock().forward(61 * SECOND);
    eventually(SOON, "all is gone", async || server.dbsize().await == 0).await;
}

/// Connections that the server closes while they are idle.
#[tokio::test]
async fn b154_idle_cuts_are_not_noticed() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let latch = latch(&session, "a", hour());
    for count in 1..=10 {
        latch.arm(count).await.unwrap();
        let waits = waiter(&latch);
        listening(&server, "a", 1).await;
        assert!(kill_connections(&server, "normal").await >= 1);
        for left in (0..count).rev() {
            assert_eq!(latch.count_down().await.unwrap(), u64::from(left));
        }
        waits.await.unwrap().0.unwrap();
        latch.reset().await.unwrap();
    }
}
