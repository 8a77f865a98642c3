//! A lock at several servers: what it does while its assumptions hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold_multi_lock::{
    AcquireError, BackendErrorKind, ConfigError, MultiGuard, MultiLock, NodeRelease, QuorumGuard,
    QuorumLock, QuorumOptions,
};
use leasehold_mutex::{Options, Session};
use leasehold_tests::rig::{MOMENTS, awake, dropped_after, moment};
use leasehold_tests::scene::{SOON, hash_of, mutex, session};
use leasehold_tests::{FaultProxy, Pick, eventually, rounds};

#[path = "quorum_lock/farm.rs"]
mod farm;

use farm::{Farm, key, lock, patient};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// No test meets its end.
const LONG: Duration = Duration::from_secs(30);

#[tokio::test]
async fn it_is_held_at_every_server_and_released_at_every_server() {
    let farm = Farm::start(5);
    let (one, two) = (farm.sessions().await, farm.sessions().await);
    let (mine, theirs) = (lock(&one, patient(LONG)), lock(&two, patient(LONG)));
    let guard = mine.acquire().await.unwrap();
    assert_eq!((guard.nodes_held(), farm.holds("a").await), (5, 5));
    assert!(guard.is_held() && guard.remaining() > 25 * SECOND && guard.remaining() < LONG);
    assert!(theirs.try_acquire().await.unwrap().is_none());
    let first = guard.fencing_token();
    let released = guard.release().await.unwrap();
    assert_eq!((released.released(), released.nodes().len()), (5, 5));
    farm.ends_clean(&one).await;
    let guard = theirs.try_acquire().await.unwrap().expect("it is free");
    assert!(guard.fencing_token() > first);
    drop(guard);
    farm.ends_clean(&two).await;
}

/// Into a task, a struct, another thread.
#[test]
fn lock_and_guard_go_anywhere() {
    fn goes_anywhere<T: Send + Sync + 'static>() {}
    goes_anywhere::<QuorumLock>();
    goes_anywhere::<QuorumGuard>();
    goes_anywhere::<MultiLock>();
    goes_anywhere::<MultiGuard>();
}

#[tokio::test]
async fn what_is_wrong_with_the_servers_is_told() {
    let farm = Farm::start(3);
    let sessions = farm.sessions().await;
    let made = |sessions: &[Session], options| QuorumLock::new(sessions, "a", options).err();
    let plain = QuorumOptions::default;
    for count in [0, 1, 2] {
        let refused = made(&sessions[..count], plain());
        assert!(matches!(refused, Some(ConfigError::Servers { count: it }) if it == count));
    }
    let even: Vec<_> = sessions.iter().chain(&sessions[..1]).cloned().collect();
    assert!(matches!(made(&even, plain()), Some(ConfigError::Servers { count: 4 })));
    let twice = [&sessions[..2], &sessions[..1]].concat();
    let refused = made(&twice, plain());
    assert!(
        matches!(refused, Some(ConfigError::SameServer { first: 0, second: 2 })),
        "{refused:?}"
    );
    let refused = made(&sessions, plain().lease(499 * MS));
    assert!(matches!(refused, Some(ConfigError::NodeTimeout { .. })), "{refused:?}");
    assert!(matches!(
        made(&sessions, plain().lease(Duration::ZERO)),
        Some(ConfigError::Lease { .. })
    ));
    assert!(made(&sessions, plain().lease(500 * MS)).is_none());
}

/// By another address, another database, another session: one server is one server.
#[tokio::test]
async fn two_sessions_at_one_server_are_found_out_by_the_first_acquire() {
    let farm = Farm::start(3);
    let sessions = farm.sessions().await;
    let (proxies, behind) = farm.proxies().await;
    let database = session(&format!("{}1", farm.servers[1].url())).await;
    for (again, at) in [(&behind[0], 0), (&database, 1)] {
        let given = [again.clone(), sessions[at].clone(), sessions[2].clone()];
        let lock = lock(&given, patient(LONG));
        for _ in 0..2 {
            let refused = lock.acquire().await;
            let told = matches!(
                refused,
                Err(AcquireError::Config(ConfigError::SameServer { first: 0, second: 1 }))
            );
            assert!(told, "{refused:?}");
        }
        assert_eq!(farm.holds("a").await, 0, "and nothing is taken");
    }
    drop(proxies);
    lock(&sessions, patient(LONG)).acquire().await.expect("the control").release().await.unwrap();
}

/// CONFORMANCE 109, B99: what was held at two of three is released there, and the third is named.
#[tokio::test]
async fn b99_c109_one_server_down_still_works_and_is_named_by_the_release() {
    let farm = Farm::start(3);
    let sessions = farm.sessions().await;
    let lock = lock(&sessions, patient(LONG));
    let guard = lock.acquire().await.unwrap();
    farm.servers[1].kill();
    let released = guard.release().await.expect("a majority has confirmed it");
    assert_eq!(released.released(), 2);
    assert!(matches!(released.nodes()[1], NodeRelease::Unknown(_)), "{released:?}");
    for at in [0, 2] {
        assert!(!farm.servers[at].keys().await.contains(&key("a").into_bytes()));
    }
    // And it is taken, held and released without it.
    let guard = lock.acquire().await.expect("two of three are enough");
    assert_eq!(guard.nodes_held(), 2);
    let released = guard.release().await.unwrap();
    assert!(matches!(released.nodes()[1], NodeRelease::NotHeld), "{released:?}");
}

/// CONFORMANCE 110: leases in several units, 10 tasks, 5 rounds, nothing counted twice or lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c110_ten_tasks_count_exactly() {
    let farm = Farm::start(3);
    for lease in [2_000 * MS, 10 * SECOND, 60 * SECOND] {
        let counter = Arc::new((AtomicU32::new(0), AtomicU32::new(0)));
        let mut tasks = Vec::new();
        for _ in 0..10 {
            let sessions = farm.sessions().await;
            let (counter, options) = (counter.clone(), patient(lease).retries(1000));
            tasks.push(tokio::spawn(async move {
                let lock = lock(&sessions, options);
                for _ in 0..5 {
                    let guard = lock.acquire_within(60 * SECOND).await.expect("served");
                    assert_eq!(counter.1.fetch_add(1, Ordering::SeqCst), 0, "alone");
                    let count = counter.0.load(Ordering::SeqCst);
                    tokio::time::sleep(MS).await;
                    counter.0.store(count + 1, Ordering::SeqCst);
                    counter.1.fetch_sub(1, Ordering::SeqCst);
                    guard.release().await.expect("held");
                }
            }));
        }
        for task in tasks {
            task.await.expect("no panic inside");
        }
        assert_eq!(counter.0.load(Ordering::SeqCst), 50);
    }
}

/// B100.
#[tokio::test]
async fn b100_a_frozen_server_slows_nothing_down() {
    let farm = Farm::start(3);
    let sessions = farm.sessions().await;
    let lock = lock(&sessions, QuorumOptions::default());
    lock.acquire().await.unwrap().release().await.unwrap();
    farm.servers[0].freeze();
    let (mut acquires, mut releases) = (Vec::new(), Vec::new());
    for _ in 0..40 {
        let begin = awake();
        let guard = lock.acquire().await.expect("two of three answer");
        acquires.push(awake() - begin);
        let begin = awake();
        guard.release().await.expect("held");
        releases.push(awake() - begin);
    }
    farm.servers[0].thaw();
    for (what, times) in [("acquire", &mut acquires), ("release", &mut releases)] {
        times.sort();
        println!("{what} with one of three frozen: p50 {:?}, p95 {:?}", times[20], times[37]);
        assert!(times[37] < 120 * MS, "{what}: {times:?}");
    }
    farm.ends_clean(&sessions).await;
}

/// Whoever has just been silent is asked, but not waited for, as long as the others decide.
#[tokio::test]
async fn a_silent_server_is_waited_for_once() {
    let farm = Farm::start(3);
    let sessions = farm.sessions().await;
    let lock = lock(&sessions, QuorumOptions::default().node_timeout(2 * SECOND));
    lock.acquire().await.unwrap().release().await.unwrap();
    farm.servers[0].freeze();
    let mut took = Vec::new();
    for _ in 0..2 {
        let begin = awake();
        let guard = lock.acquire().await.expect("two of three");
        took.push(awake() - begin);
        guard.release().await.expect("held");
    }
    farm.servers[0].thaw();
    assert!(took[0] > SECOND && took[1] < SECOND, "{took:?}");
    farm.ends_clean(&sessions).await;
}

/// Held at all three, and then one stops: the release goes on without it.
#[tokio::test]
async fn a_release_does_not_wait_for_a_frozen_server() {
    let farm = Farm::start(3);
    let sessions = farm.sessions().await;
    let lock = lock(&sessions, QuorumOptions::default().node_timeout(200 * MS));
    let guard = lock.acquire().await.unwrap();
    farm.servers[2].freeze();
    let begin = awake();
    let released = guard.release().await.expect("a majority confirms it");
    assert!(awake() - begin < SECOND, "{:?}", awake() - begin);
    assert_eq!(released.released(), 2);
    assert!(matches!(released.nodes()[2], NodeRelease::Unknown(_)), "{released:?}");
    farm.servers[2].thaw();
    farm.ends_clean(&sessions).await;
}

/// The time of all is that of the slowest, not the sum.
#[tokio::test]
async fn all_servers_are_asked_at_once() {
    let farm = Farm::start(5);
    let (proxies, sessions) = farm.proxies().await;
    let lock = lock(&sessions, patient(LONG));
    lock.acquire().await.unwrap().release().await.unwrap();
    proxies.iter().for_each(|proxy| proxy.delay(100 * MS));
    let (begin, began) = (Instant::now(), awake());
    let guard = lock.acquire().await.unwrap();
    let (acquired, at_most) = (begin.elapsed(), awake() - began);
    assert_eq!(guard.nodes_held(), 5);
    guard.release().await.unwrap();
    let both = awake() - began;
    println!("5 servers 200 ms away: acquire {acquired:?}, both {both:?}");
    assert!(acquired >= 200 * MS && at_most < 600 * MS, "{acquired:?}");
    assert!(both < 1200 * MS, "{both:?}");
}

/// Client commands: one a server for each of acquire and release, and nothing beside.
#[tokio::test]
async fn it_costs_two_commands_a_server() {
    let farm = Farm::start(5);
    let sessions = farm.sessions().await;
    let lock = lock(&sessions, patient(LONG));
    lock.acquire().await.unwrap().release().await.unwrap();
    for server in &farm.servers {
        server.reset_stats().await;
    }
    for _ in 0..20 {
        lock.acquire().await.unwrap().release().await.unwrap();
    }
    for server in &farm.servers {
        let calls = server.command_calls().await;
        assert_eq!(calls.of(&["evalsha", "eval", "pubsub|numsub", "publish"]), 40, "{calls:?}");
    }
}

/// A minority partition: two of five cannot take it, it is told in time, and nothing stays at those two.
#[tokio::test]
async fn a_minority_cannot_take_it_and_the_node_timeout_bounds_the_wait() {
    let farm = Farm::start(5);
    let (proxies, sessions) = farm.proxies().await;
    let lock = lock(&sessions, QuorumOptions::default().node_timeout(300 * MS).retries(0));
    lock.acquire().await.unwrap().release().await.unwrap();
    proxies[..3].iter().for_each(|proxy| proxy.black_hole(true));
    for _ in 0..3 {
        let begin = awake();
        let refused = lock.try_acquire().await;
        let took = awake() - begin;
        match refused {
            Err(AcquireError::Backend(error)) => {
                assert_eq!(error.kind(), BackendErrorKind::Unreachable);
            }
            other => panic!("{other:?}"),
        }
        assert!(took < 800 * MS, "{took:?}");
    }
    let free = async || farm.holds("a").await == 0;
    eventually(SOON, "given back at the two", free).await;
    // Whoever reaches the other three is not hindered.
    let theirs = farm.sessions().await;
    let guard = self::lock(&theirs, patient(LONG)).acquire().await.unwrap();
    guard.release().await.unwrap();
    proxies.iter().for_each(|proxy| {
        proxy.black_hole(false);
        proxy.cut(); // what lost something stays silent
    });
    let healed = async || match lock.try_acquire().await {
        Ok(Some(guard)) => guard.release().await.is_ok(),
        Ok(None) | Err(_) => false,
    };
    eventually(SOON, "it works again", healed).await;
    farm.ends_clean(&sessions).await;
}

/// The same, without anybody who closes the connections that have gone silent: they are made anew, although the session
/// itself learns nothing from calls that it waits for so briefly.
#[tokio::test]
async fn a_connection_that_has_gone_silent_is_made_anew() {
    let farm = Farm::start(3);
    let (proxies, sessions) = farm.proxies().await;
    let lock = lock(&sessions, QuorumOptions::default().node_timeout(80 * MS).retries(0));
    let works = async || match lock.try_acquire().await {
        Ok(Some(guard)) => guard.release().await.is_ok(),
        Ok(None) | Err(_) => false,
    };
    eventually(SOON, "it works", works).await;
    proxies[..2].iter().for_each(|proxy| proxy.black_hole(true));
    assert!(lock.try_acquire().await.is_err());
    proxies[..2].iter().for_each(|proxy| proxy.black_hole(false));
    eventually(SOON, "it works again", works).await;
}

/// What was granted but not heard of is released too: a late copy, and a hold whose answer was lost.
#[tokio::test]
async fn servers_that_did_not_answer_are_released_too() {
    let farm = Farm::start(3);
    let (proxies, sessions) = farm.proxies().await;
    let lock = lock(&sessions, QuorumOptions::default().node_timeout(200 * MS).retries(0));
    lock.acquire().await.unwrap().release().await.unwrap();
    let acquires = || Pick::next(1).containing(hash_of("acquire"));
    proxies[..2].iter().for_each(|proxy| proxy.drop_replies(acquires()));
    assert!(matches!(lock.try_acquire().await, Err(AcquireError::Backend(_))));
    assert_eq!(proxies[0].replies_dropped() + proxies[1].replies_dropped(), 2, "the control");
    farm.ends_clean(&sessions).await;
}

/// What the clocks' margin leaves of the lease has to be worth something.
#[tokio::test]
async fn a_grant_without_validity_is_given_back() {
    let farm = Farm::start(3);
    let mut sessions = Vec::new();
    for server in &farm.servers {
        // Half of the lease and 13 s are margin: 2 s of 30 are left, and 3 are asked for.
        let builder = Session::builder(&server.url()).unwrap().clock_drift(500_000, 13 * SECOND);
        sessions.push(builder.connect().await.unwrap());
    }
    let refused = lock(&sessions, patient(LONG).retries(0)).acquire().await;
    let short = matches!(
        refused,
        Err(AcquireError::ValidityTooShort { remaining }) if remaining > SECOND && remaining <= 2 * SECOND
    );
    assert!(short, "{refused:?}");
    farm.ends_clean(&sessions).await;
}

/// I9, dropped at every step of its life.
#[tokio::test]
async fn a_dropped_acquire_leaves_nothing() {
    let farm = Farm::start(3);
    let sessions = farm.sessions().await;
    let lock = lock(&sessions, patient(LONG));
    lock.acquire().await.unwrap().release().await.unwrap();
    let mut guards = 0;
    for polls in (0..60).chain((0..MOMENTS).map(moment)) {
        match dropped_after(polls, lock.acquire()).await {
            Some(guard) => {
                guards += 1;
                drop(guard.expect("it was free"));
            }
            None => tokio::task::yield_now().await,
        }
        farm.ends_clean(&sessions).await;
    }
    println!("{guards} of 97 became guards");
    assert!(guards > 0 && guards < 97, "{guards}");
}

/// The control of the count: where each takes it at one server of its own, they meet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_at_one_server_each_excludes_nobody() {
    let farm = Farm::start(3);
    let inside = Arc::new(AtomicU32::new(0));
    let mut tasks = Vec::new();
    for session in farm.sessions().await {
        let inside = inside.clone();
        tasks.push(tokio::spawn(async move {
            let (lock, mut met) = (mutex(&session, "a", Options::default()), 0);
            for _ in 0..50 {
                let guard = lock.acquire().await.expect("nobody else asks here");
                met += u32::from(inside.fetch_add(1, Ordering::SeqCst) > 0);
                tokio::time::sleep(MS).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.release().await.expect("held");
            }
            met
        }));
    }
    let mut met = 0;
    for task in tasks {
        met += task.await.expect("no panic inside");
    }
    assert!(met > 0);
}

/// Replies lost, links cut and servers frozen at random under three rivals: never two inside, nothing stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_faults_break_no_promise() {
    let farm = Farm::start(3);
    let inside = Arc::new(AtomicU32::new(0));
    let (turns, mut tasks) = (rounds(600), Vec::new());
    for rival in 0..3_u64 {
        let (proxies, sessions) = farm.proxies().await;
        for (proxy, seed) in proxies.iter().zip(rival * 3..) {
            proxy.drop_replies(Pick::at_random(2, seed).containing(hash_of("acquire")));
            proxy.cut_after_request(Pick::at_random(2, 100 + seed).containing("EVALSHA"));
        }
        let inside = inside.clone();
        tasks.push(tokio::spawn(async move {
            // A lease that nobody's pauses outlast, so that whatever is lost would block the others.
            let options = patient(LONG).node_timeout(300 * MS).retries(10_000);
            let (lock, mut unsure) = (lock(&sessions, options), 0);
            for _ in 0..turns {
                let guard = lock.acquire_within(120 * SECOND).await.expect("served in the end");
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "alone");
                tokio::task::yield_now().await;
                assert!(guard.is_held());
                inside.fetch_sub(1, Ordering::SeqCst);
                unsure += u32::from(guard.release().await.is_err());
            }
            (proxies, sessions, unsure)
        }));
    }
    for at in (0..3).cycle() {
        if tasks.iter().all(tokio::task::JoinHandle::is_finished) {
            break;
        }
        farm.servers[at].freeze();
        tokio::time::sleep(20 * MS).await;
        farm.servers[at].thaw();
        tokio::time::sleep(80 * MS).await;
    }
    let mut all_lost = 0;
    for task in tasks {
        let (proxies, sessions, unsure) = task.await.expect("no panic inside");
        let lost: u64 = proxies.iter().map(FaultProxy::replies_dropped).sum();
        println!("{turns} turns: {lost} replies lost, {unsure} releases unsure");
        all_lost += lost;
        for proxy in &proxies {
            proxy.drop_replies(Pick::none());
            proxy.cut_after_request(Pick::none());
        }
        farm.ends_clean(&sessions).await;
    }
    assert!(all_lost > 0, "the control");
}
