//! Rows L (a loss unseen, a stale owner) and A (an ambiguous reply, a blind repeat) of the table of
//! behaviours, for the mutex.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leasehold_mutex::{
    AcquireError, Event, ExtendError, Guard, LostReason, Mutex, Options, Owner, ReleaseError,
};
use leasehold_tests::rig::{Monitor, waiter};
use leasehold_tests::scene::{SOON, entries, hash_of, impatient, keys, keys_left, mutex, session};
use leasehold_tests::{FaultProxy, Pick, Server, Worker, eventually, rounds};
use redis::AsyncCommands;

const CROWD: &str = env!("CARGO_BIN_EXE_crowd_worker");
const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn lost(event: &Event) -> bool {
    matches!(event, Event::Lost { .. })
}

fn why(released: Result<(), ReleaseError>) -> LostReason {
    match released {
        Err(ReleaseError::Lost(lost)) => lost.reason,
        other => panic!("not a loss: {other:?}"),
    }
}

async fn exists(server: &Server, name: &str) -> bool {
    server.connection().await.exists(&*keys(name).holds).await.expect("EXISTS")
}

/// I4: an extension that comes too late finds nothing and makes nothing, whether the guard knows (its
/// own clock) or not (the server's clock was set forward).
#[tokio::test]
async fn b13_a_late_extension_takes_nothing_back() {
    for by_clock in [false, true] {
        let server = Server::builder().clock_shim().start();
        let (session, told) = impatient(&server.url(), 2 * SECOND).await;
        let options =
            if by_clock { Options::default() } else { Options::default().fixed(500 * MS) };
        let guard = mutex(&session, "a", options).acquire().await.unwrap();
        if by_clock {
            server.clock().forward(60 * SECOND);
        } else {
            tokio::time::sleep(800 * MS).await;
        }
        for _ in 0..2 {
            let error = guard.extend(10 * SECOND).await.unwrap_err();
            assert!(matches!(error, ExtendError::Lost(_)), "{error:?}");
        }
        assert_eq!(guard.lost().await, LostReason::Expired);
        assert!(!guard.is_held() && !exists(&server, "a").await);
        assert_eq!(told.count(lost), 1, "signalled once: {:?}", told.all());
    }
}

/// I2, seen from both sides: the first guard's last "held" is before the second one's grant, and
/// within one lease of the cut. Neither bound moves on a busy machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b15_a_holder_cut_off_gives_up_before_the_next_begins() {
    let server = Server::start();
    let near = session(&server.url()).await;
    let mut longest = Duration::ZERO;
    for round in 0..3 {
        let proxy = FaultProxy::to(&server);
        let far = session(proxy.url()).await;
        let options = Options::default().max_wait(SOON);
        let lock = mutex(&far, "a", options.clone().lease(900 * MS));
        let cut_off = lock.acquire().await.unwrap();
        let waiting = waiter(&server, &mutex(&near, "a", options), "a", 1).await;
        // Some rounds after a renewal, some before.
        tokio::time::sleep(200 * MS * round).await;
        let cut = Instant::now();
        proxy.black_hole(true);
        let watched = std::thread::spawn(move || {
            let mut last_held = cut;
            while cut_off.is_held() {
                last_held = Instant::now();
                std::thread::sleep(MS / 5);
            }
            (last_held, cut_off)
        });
        let (next, granted) = waiting.await.unwrap();
        let (last_held, cut_off) = watched.join().unwrap();
        println!("held for {:?} after the cut, next after {:?}", last_held - cut, granted - cut);
        assert!(last_held < granted, "two at once: {:?}", last_held - granted);
        assert!(last_held - cut < 900 * MS, "{:?}", last_held - cut);
        longest = longest.max(last_held - cut);
        assert!(!cut_off.is_held() && next.fencing_token() > cut_off.fencing_token());
        next.release().await.unwrap();
    }
    assert!(longest > 300 * MS, "the control, it held for a while: {longest:?}");
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Deleted,
    TakenOver,
    Forced,
    CutOff,
}

/// The loss is told with its reason, and the work under the guard ends. Renewals come every 1.5 s: on
/// a quiet machine it is told within 1.6 s (a cut only at the deadline); asserted is that nobody had
/// to wait for the deadline of 4.5 s.
#[tokio::test]
async fn b16_a_loss_is_told_with_its_reason_and_ends_the_work() {
    for (end, reason) in [
        (End::Deleted, LostReason::Expired),
        (End::TakenOver, LostReason::NotOwner),
        (End::Forced, LostReason::ForceReleased),
        (End::CutOff, LostReason::Unreachable),
    ] {
        let server = Server::start();
        let proxy = FaultProxy::to(&server);
        let (session, told) = impatient(proxy.url(), 2 * SECOND).await;
        let other = leasehold_tests::scene::session(&server.url()).await;
        let other = mutex(&other, "a", Options::default());
        let lease = if end == End::CutOff { 2 * SECOND } else { 4500 * MS };
        let lock = mutex(&session, "a", Options::default().lease(lease));
        let guard = lock.acquire().await.unwrap();
        let next = end_it(end, &server, &proxy, &other).await;
        let begin = Instant::now();
        let ended = guard.while_held(std::future::pending::<()>()).await.unwrap_err();
        println!("{end:?} was told after {:?}", begin.elapsed());
        assert_eq!((ended.reason, guard.lost().await), (reason, reason));
        assert!(begin.elapsed() < 4 * SECOND, "{end:?}: {:?}", begin.elapsed());
        assert!(!guard.is_held() && guard.remaining().is_zero());
        assert!(next.is_none_or(|next| next.is_held()));
        proxy.black_hole(false);
        assert_eq!(why(guard.release().await), reason);
        eventually(SOON, "it is told", async || told.count(lost) == 1).await;
    }
}

async fn end_it(end: End, server: &Server, proxy: &FaultProxy, other: &Mutex) -> Option<Guard> {
    if matches!(end, End::Deleted | End::TakenOver) {
        let deleted: u32 = server.connection().await.del(&*keys("a").holds).await.expect("DEL");
        assert_eq!(deleted, 1);
    }
    match end {
        End::Deleted => None,
        End::TakenOver => other.try_acquire().await.expect("an answer"),
        End::Forced => {
            assert!(other.force_release().await.expect("an answer").is_some());
            None
        }
        End::CutOff => {
            proxy.black_hole(true);
            None
        }
    }
}

/// Extending is never acquiring: neither a free lock nor another's is touched.
#[tokio::test]
async fn b18_extending_what_has_ended_is_an_error() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let (first, second) =
        (mutex(&one, "a", Options::default()), mutex(&two, "a", Options::default().fixed(SOON)));
    let mut connection = server.connection().await;
    for taken_over in [false, true] {
        let guard = first.acquire().await.unwrap();
        let _: u32 = connection.del(&*keys("a").holds).await.unwrap();
        let next = if taken_over { second.try_acquire().await.unwrap() } else { None };
        let before = entries(&mut connection, "a").await;
        let error = guard.extend(60 * SECOND).await.unwrap_err();
        let ExtendError::Lost(lost) = error else { panic!("{error:?}") };
        let reason = if taken_over { LostReason::NotOwner } else { LostReason::Expired };
        assert_eq!(lost.reason, reason);
        let after = entries(&mut connection, "a").await;
        assert_eq!(format!("{before:?}"), format!("{after:?}"));
        assert_eq!((exists(&server, "a").await, next.is_some()), (taken_over, taken_over));
        assert_eq!(why(guard.release().await), reason);
        if let Some(next) = next {
            next.release().await.unwrap();
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Late {
    /// Its own clock has told it: nothing reaches the server but what clears away.
    Knowing,
    /// The server's clock was set forward: the release itself arrives there late.
    Unknowing,
    UnknowingAndDropped,
}

/// I8: whatever a late holder does, the next hold stays as it is.
#[tokio::test]
async fn b20_a_late_release_leaves_the_next_hold_alone() {
    for late in [Late::Knowing, Late::Unknowing, Late::UnknowingAndDropped] {
        let server = Server::builder().clock_shim().start();
        let (one, told) = impatient(&server.url(), 2 * SECOND).await;
        let (two, three) = (session(&server.url()).await, session(&server.url()).await);
        let lease = if let Late::Knowing = late { 300 * MS } else { 30 * SECOND };
        let first = mutex(&one, "a", Options::default().fixed(lease)).acquire().await.unwrap();
        match late {
            Late::Knowing => assert_eq!(first.lost().await, LostReason::Expired),
            Late::Unknowing | Late::UnknowingAndDropped => server.clock().forward(60 * SECOND),
        }
        let second = mutex(&two, "a", Options::default().fixed(20 * SECOND).max_wait(SOON));
        let next = second.acquire().await.unwrap();
        let mut connection = server.connection().await;
        let before = format!("{:?}", entries(&mut connection, "a").await);
        match late {
            Late::Knowing => assert_eq!(why(first.release().await), LostReason::Expired),
            Late::Unknowing => assert_eq!(why(first.release().await), LostReason::NotOwner),
            Late::UnknowingAndDropped => drop(first),
        }
        eventually(SOON, "it is over", async || one.statistics().tracked == 0).await;
        assert_eq!(format!("{:?}", entries(&mut connection, "a").await), before, "{late:?}");
        let ttl: u64 = connection.pttl(&*keys("a").holds).await.unwrap();
        assert!((10_000..=20_000).contains(&ttl), "{ttl} ms of a lease of 20 s");
        let third = mutex(&three, "a", Options::default());
        assert!(third.try_acquire().await.unwrap().is_none());
        assert_eq!(told.count(|event| matches!(event, Event::ReleaseLost { .. })), 1, "{late:?}");
        next.release().await.unwrap();
    }
}

/// I17: a client killed at any moment leaves no key without an end, and in the end none at all.
/// Sixteen tasks on eight names: acquires, grants, extensions and releases are under way.
#[tokio::test]
async fn b22_a_killed_client_leaves_no_key_without_an_end() {
    let server = Server::start();
    let lease = 300 * MS;
    let mut seen = std::collections::BTreeSet::new();
    for round in 0..rounds(300) {
        let mut worker = Worker::start(CROWD, &server.url(), "a", lease).await;
        assert_eq!(worker.ask("churn").await, "churning");
        tokio::time::sleep(MS / 10 * (round * 37 % 200)).await;
        worker.kill();
        for (key, ttl) in times_to_live(&server).await {
            assert_ne!(ttl, -1, "{key} has no end");
            seen.insert(key.rsplit_once(':').expect("a key of ours").1.to_owned());
        }
    }
    println!("kinds of keys that were seen: {seen:?}");
    for kind in ["queue", "timeout", "token"] {
        assert!(seen.contains(kind), "{kind} was never there: {seen:?}");
    }
    // A lease of 1 s after an extension, waiters of 3 s.
    let ended = async || keys_left(&server).await.is_empty();
    eventually(5 * SECOND, "all of it ends", ended).await;
}

async fn times_to_live(server: &Server) -> Vec<(String, i64)> {
    let mut connection = server.connection().await;
    let mut found = Vec::new();
    for key in server.keys().await {
        let ttl = connection.pttl(&key).await.expect("PTTL");
        found.push((String::from_utf8(key).expect("plain names"), ttl));
    }
    found
}

/// What is asked about a lock is answered by the server, to whomever asks.
#[tokio::test]
async fn b24_everybody_sees_the_same_state() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let holding = mutex(&one, "a", Options::default().lease(10 * SECOND).label("holds"));
    let asking = [mutex(&one, "a", Options::default()), mutex(&two, "a", Options::default())];
    for other in &asking {
        assert!(!other.is_locked().await.unwrap());
        assert_eq!(other.remaining().await.unwrap(), None);
        assert!(other.holder().await.unwrap().is_none());
    }
    let guard = holding.acquire().await.unwrap();
    let waiting = waiter(&server, &holding, "a", 1).await;
    for other in &asking {
        assert!(other.is_locked().await.unwrap());
        let remaining = other.remaining().await.unwrap().unwrap();
        // Renewed at a third: never under two thirds, but for what the machine is late.
        assert!((4 * SECOND..=10 * SECOND).contains(&remaining), "{remaining:?}");
        let holder = other.holder().await.unwrap().unwrap();
        assert_eq!((&*holder.label, holder.entries), ("holds", 1));
        assert_eq!(holder.trace, guard.trace());
        assert_eq!(other.queue().await.unwrap().length, 1);
    }
    guard.release().await.unwrap();
    let (next, _) = waiting.await.unwrap();
    for other in &asking {
        assert_eq!(other.holder().await.unwrap().unwrap().trace, next.trace());
        assert_eq!(other.queue().await.unwrap().length, 0);
    }
    next.release().await.unwrap();
    for other in &asking {
        assert!(!other.is_locked().await.unwrap());
    }
}

/// I6: four copies of an acquire that nobody answered count once, and one release frees.
#[tokio::test]
async fn b25_copies_of_an_acquire_count_once() {
    let server = Server::start();
    let (session, told) = impatient(&server.url(), 500 * MS).await;
    let lock = mutex(&session, "a", Options::default());
    server.freeze();
    let acquiring = {
        let lock = lock.clone();
        tokio::spawn(async move { lock.acquire_within(SOON).await.unwrap() })
    };
    tokio::time::sleep(2 * SECOND).await;
    assert!(!acquiring.is_finished());
    let monitor_after_thaw = {
        server.thaw();
        Monitor::of(&server)
    };
    let guard = acquiring.await.unwrap();
    assert_eq!(entries(&mut server.connection().await, "a").await.len(), 1);
    assert_eq!(lock.holder().await.unwrap().unwrap().entries, 1);
    guard.release().await.unwrap();
    assert_eq!(keys_left(&server).await, [""; 0]);
    // Copies that arrive only now take nothing.
    tokio::time::sleep(SECOND).await;
    assert_eq!(keys_left(&server).await, [""; 0]);
    assert_eq!(monitor_after_thaw.count(&server, &hash_of("renew")).await, 0);
    assert_eq!(told.count(lost), 0);
}

/// The same where the answer is lost instead: an entry inside a hold, whose copies would be
/// entries too.
#[tokio::test]
async fn b25_copies_of_a_nested_acquire_count_once() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let (session, _told) = impatient(proxy.url(), 300 * MS).await;
    let lock = mutex(&session, "a", Options::default());
    let outer = lock.acquire().await.unwrap();
    proxy.drop_replies(Pick::next(1).containing(hash_of("acquire")));
    let inner = lock.by(outer.owner()).acquire_within(SOON).await.unwrap();
    assert_eq!(proxy.replies_dropped(), 1);
    let mut connection = server.connection().await;
    assert_eq!(entries(&mut connection, "a").await.len(), 2);
    inner.release().await.unwrap();
    assert_eq!(entries(&mut connection, "a").await.len(), 1);
    assert!(outer.is_held());
    outer.release().await.unwrap();
    assert_eq!(keys_left(&server).await, [""; 0]);
}

/// I9: one that gave up meanwhile leaves nothing, long before the lease of 30 s.
#[tokio::test]
async fn b25_an_acquire_that_gave_up_is_undone() {
    let server = Server::start();
    let (session, _told) = impatient(&server.url(), 500 * MS).await;
    let lock = mutex(&session, "a", Options::default());
    server.freeze();
    let error = lock.try_acquire().await.unwrap_err();
    assert!(matches!(error, AcquireError::Backend(_)), "{error:?}");
    server.thaw();
    let gone = async || session.statistics().tracked == 0 && keys_left(&server).await.is_empty();
    eventually(SOON, "it is undone", gone).await;
    lock.try_acquire().await.unwrap().unwrap().release().await.unwrap();
}

/// A leftover is nobody's re-entry, and nobody renews it. Here nothing arrives at all: the release is
/// swallowed, and so is what the thread sends after it.
#[tokio::test]
async fn b27_what_a_lost_release_leaves_only_runs_out() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let (session, told) = impatient(proxy.url(), 300 * MS).await;
    let lock = mutex(&session, "a", Options::default().lease(3 * SECOND));
    let guard = lock.acquire().await.unwrap();
    let token = guard.fencing_token();
    let left = entries(&mut server.connection().await, "a").await;
    proxy.black_hole(true);
    let monitor = Monitor::of(&server);
    let error = guard.release().await.unwrap_err();
    assert!(matches!(error, ReleaseError::Unknown { .. }), "{error:?}");
    let unknown = |event: &Event| matches!(event, Event::ReleaseUnknown { .. });
    assert_eq!((told.count(unknown), session.statistics().watched), (1, 0));
    // From elsewhere it looks like what it is: held until the lease ends.
    let elsewhere = leasehold_tests::scene::session(&server.url()).await;
    let other = mutex(&elsewhere, "a", Options::default().max_wait(SOON));
    assert!(other.try_acquire().await.unwrap().is_none());
    let next = other.acquire().await.unwrap();
    let since = entries(&mut server.connection().await, "a").await;
    assert_eq!((left.len(), since.len()), (1, 1));
    assert!(since[0].since_ms >= left[0].deadline_ms, "granted before the leftover had ended");
    assert!(next.fencing_token() > token);
    assert_eq!(monitor.count(&server, &left[0].id).await, 0, "no renewal, and nothing else of it");
    next.release().await.unwrap();
}

/// The same task of the same session: it waits like anybody else, and then holds once.
#[tokio::test]
async fn b27_the_same_task_waits_like_anybody_else() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let (session, _told) = impatient(proxy.url(), 300 * MS).await;
    let lock = mutex(&session, "a", Options::default().lease(3 * SECOND).max_wait(SOON));
    let guard = lock.acquire().await.unwrap();
    let token = guard.fencing_token();
    proxy.black_hole(true);
    assert!(matches!(guard.release().await, Err(ReleaseError::Unknown { .. })));
    let again = {
        let lock = lock.clone();
        tokio::spawn(async move { lock.acquire().await.unwrap() })
    };
    tokio::time::sleep(300 * MS).await;
    assert!(!again.is_finished());
    proxy.black_hole(false);
    let guard = again.await.unwrap();
    assert!(guard.fencing_token() > token, "a hold of its own, no re-entry");
    assert_eq!(lock.holder().await.unwrap().unwrap().entries, 1);
    guard.release().await.unwrap();
    let free = async || keys_left(&server).await.is_empty();
    eventually(SOON, "one release frees it", free).await;
}

/// Only the answer of the release is lost: the verdict is no guess, and the lock is free at once.
#[tokio::test]
async fn b27_a_release_without_its_answer_is_unknown_and_done() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let (session, _told) = impatient(proxy.url(), 300 * MS).await;
    let lock = mutex(&session, "a", Options::default());
    // The server knows the script then: else it is the answer "unknown script" that gets lost.
    lock.acquire().await.unwrap().release().await.unwrap();
    let guard = lock.acquire().await.unwrap();
    proxy.drop_replies(Pick::next(1).containing(hash_of("release")));
    let error = guard.release().await.unwrap_err();
    assert!(matches!(error, ReleaseError::Unknown { .. }), "{error:?}");
    assert_eq!(keys_left(&server).await, [""; 0]);
    lock.try_acquire().await.unwrap().unwrap().release().await.unwrap();
}

/// No renewal without a delivered guard: with a lease shorter than the pause, so that even its end
/// was given up meanwhile, and with one that is longer.
#[tokio::test]
async fn b28_an_acquire_that_ran_late_is_never_renewed() {
    for lease in [900 * MS, 30 * SECOND] {
        let server = Server::start();
        let (session, _told) = impatient(&server.url(), 500 * MS).await;
        let lock = mutex(&session, "a", Options::default().lease(lease));
        let monitor = Monitor::of(&server);
        let mut connection = server.connection().await;
        let mut pause = redis::cmd("CLIENT");
        pause.arg("PAUSE").arg(3000).arg("WRITE").exec_async(&mut connection).await.unwrap();
        let paused = Instant::now();
        let error = lock.try_acquire().await.unwrap_err();
        assert!(matches!(error, AcquireError::Backend(_)), "{error:?}");
        assert!(paused.elapsed() < 3 * SECOND);
        assert_eq!(session.statistics().watched, 0);
        tokio::time::sleep((3 * SECOND).saturating_sub(paused.elapsed())).await;
        // Sooner than a lease of 30 s: somebody ended it.
        let free = async || keys_left(&server).await.is_empty();
        eventually(SOON, "the late hold ends", free).await;
        eventually(SOON, "nothing is left", async || session.statistics().tracked == 0).await;
        tokio::time::sleep(SECOND).await;
        assert_eq!(keys_left(&server).await, [""; 0]);
        assert_eq!(monitor.count(&server, &hash_of("renew")).await, 0);
    }
}

/// I6 under a link that breaks behind each tenth call, after the server has run it: entries of one
/// owner on the server are as many as guards here, at every step.
#[tokio::test]
async fn b33_a_link_that_breaks_behind_calls_counts_nothing_twice() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let (session, told) = impatient(proxy.url(), 2 * SECOND).await;
    let owner = Owner::parse("one-owner").unwrap();
    let lock = mutex(&session, "a", Options::default());
    proxy.cut_after_request(Pick::every(10).containing("EVALSHA"));
    let (mut guards, mut unknown) = (Vec::new(), 0);
    let mut connection = server.connection().await;
    for step in 0..rounds(1000) {
        // Up and down between none and fifty, with steps back.
        let grows = step % 100 < 50 && step % 7 != 6;
        if grows || guards.is_empty() {
            guards.push(lock.by(&owner).acquire_within(SOON).await.unwrap());
        } else {
            match guards.swap_remove(step as usize % guards.len()).release().await {
                Ok(()) => {}
                Err(ReleaseError::Unknown { .. }) => unknown += 1,
                Err(error) => panic!("{error:?}"),
            }
        }
        assert_eq!(entries(&mut connection, "a").await.len(), guards.len(), "step {step}");
    }
    println!("{} links, {unknown} releases unknown", proxy.connections());
    assert!(proxy.connections() >= u64::from(rounds(1000) / 10), "the links did break");
    assert!(guards.iter().all(Guard::is_held));
    assert_eq!(told.count(lost), 0);
    proxy.cut_after_request(Pick::none());
    session.shutdown(SOON).await.unwrap();
    assert_eq!(keys_left(&server).await, [""; 0]);
}

/// The same for an adoption: its copies are one entry, with the token of the hold.
#[tokio::test]
async fn b33_an_adoption_behind_a_breaking_link_counts_once() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let (near, far) = (session(&server.url()).await, session(proxy.url()).await);
    let (first, second) =
        (mutex(&near, "a", Options::default()), mutex(&far, "a", Options::default()));
    for _ in 0..rounds(100) {
        let guard = first.acquire().await.unwrap();
        let nested = first.by(guard.owner()).acquire().await.unwrap();
        let (token, owner) = (guard.fencing_token(), guard.detach());
        proxy.cut_after_request(Pick::next(1).containing("EVALSHA"));
        let adopted = second.adopt(&owner).await.unwrap();
        assert_eq!(adopted.fencing_token(), token);
        assert_eq!(entries(&mut server.connection().await, "a").await.len(), 1);
        // Its predecessor's nested guard is told, and its release touches nothing.
        assert_eq!(why(nested.release().await), LostReason::NotOwner);
        assert!(adopted.is_held());
        adopted.release().await.unwrap();
        assert_eq!(keys_left(&server).await, [""; 0]);
    }
}

/// The same for waiters: nobody waits twice, nobody is forgotten, and nobody holds beside another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b33_waiters_behind_a_breaking_link_hold_one_at_a_time() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let session = session(proxy.url()).await;
    proxy.cut_after_request(Pick::every(10).containing("EVALSHA"));
    let (inside, mut tasks) = (Arc::new(AtomicBool::new(false)), tokio::task::JoinSet::new());
    for _ in 0..8 {
        let lock = mutex(&session, "a", Options::default().max_wait(60 * SECOND));
        let inside = Arc::clone(&inside);
        tasks.spawn(async move {
            for _ in 0..rounds(125) {
                let guard = lock.acquire().await.unwrap();
                assert!(!inside.swap(true, Ordering::SeqCst), "I1: two inside");
                tokio::task::yield_now().await;
                assert!(inside.swap(false, Ordering::SeqCst));
                drop(guard.release().await);
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let quiet = async || keys_left(&server).await.is_empty();
    eventually(SOON, "nobody is forgotten", quiet).await;
}
