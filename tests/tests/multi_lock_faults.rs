//! Several locks as one where replies are lost, links break, and futures are dropped at any moment: all are held or none
//! is (I16), and what nobody holds does not stay (I9).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold_lua::multi;
use leasehold_multi_lock::engine::Holdable;
use leasehold_multi_lock::{MultiLock, Session};
use leasehold_mutex::{Mutex, Options};
use leasehold_rwlock::RwLock;
use leasehold_semaphore::Semaphore;
use leasehold_tests::rig::{MOMENTS, dropped_after, moment};
use leasehold_tests::scene::{
    SOON, entries, hash_of, impatient, keys_left, mutex, queued, session,
};
use leasehold_tests::{FaultProxy, Pick, Server, eventually, rounds};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// What `EVALSHA` names the script that takes several by.
fn hash() -> String {
    let hash = |source: &str| redis::Script::new(source).get_hash().to_owned();
    multi::scripts()[0].hash(hash).to_owned()
}

fn named(session: &Session, name: &str) -> Mutex {
    mutex(session, name, Options::default())
}

fn a_and_b(session: &Session) -> MultiLock {
    MultiLock::of(&named(session, "a")).and(&named(session, "b"))
}

async fn ends_clean(server: &Server, sessions: &[&Session]) {
    let clean = async || {
        let idle = |session: &&Session| {
            let statistics = session.statistics();
            statistics.tracked == 0 && statistics.watched == 0
        };
        keys_left(server).await.is_empty() && sessions.iter().all(idle)
    };
    eventually(SOON, "nothing is left", clean).await;
}

/// Whatever happens to the first copy, the second is answered as the first was, for every member.
#[tokio::test]
async fn a_take_whose_reply_is_lost_is_answered_as_the_first() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let (session, _told) = impatient(proxy.url(), 300 * MS).await;
    let lock = a_and_b(&session);
    lock.acquire().await.unwrap().release().await.unwrap();
    let fault = || Pick::next(1).containing(hash());
    let faults: [fn(&FaultProxy, Pick); 3] =
        [FaultProxy::drop_replies, FaultProxy::cut_after_request, FaultProxy::cut_mid_reply];
    for (at, fail) in faults.into_iter().enumerate() {
        fail(&proxy, fault());
        let taken = if at % 2 == 0 {
            lock.acquire_within(SOON).await.expect("held")
        } else {
            lock.try_acquire().await.expect("an answer").expect("held")
        };
        let mut connection = server.connection().await;
        for (name, token) in taken.tokens() {
            let name = String::from_utf8(name.as_bytes().to_vec()).expect("text");
            assert_eq!(entries(&mut connection, &name).await.len(), 1, "held once");
            let key = format!("lh1:mutex:{{{name}}}:token");
            let last: u64 = redis::cmd("GET").arg(key).query_async(&mut connection).await.unwrap();
            assert_eq!(last, token.get(), "the first copy's token, and no second one");
        }
        taken.release().await.expect("released");
        ends_clean(&server, &[&session]).await;
    }
}

/// I9: dropped while its only copy is under way, and that arrives after the cancels.
#[tokio::test]
async fn a_take_that_arrives_after_its_cancels_takes_nothing() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let session = session(proxy.url()).await;
    let lock = a_and_b(&session);
    lock.acquire().await.unwrap().release().await.unwrap();
    for _ in 0..20 {
        proxy.delay(5 * MS);
        let taking = lock.acquire();
        assert!(tokio::time::timeout(3 * MS, taking).await.is_err(), "it is under way");
        proxy.delay(Duration::ZERO);
        ends_clean(&server, &[&session]).await;
    }
}

/// The one call that takes all, dropped at every step of its life.
#[tokio::test]
async fn a_dropped_take_leaves_nothing() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let locks = RwLock::new(&session, "r", Options::default()).unwrap();
    let permits = Semaphore::new(&session, "s", 3, Options::default()).unwrap();
    let all = a_and_b(&session).and(&locks.read()).and(&permits.many(2));
    all.acquire().await.unwrap().release().await.unwrap();
    let mut guards = 0;
    for polls in (0..80).chain((0..MOMENTS).map(moment)) {
        match dropped_after(polls, all.acquire()).await {
            Some(guard) => {
                guards += 1;
                drop(guard.expect("it was free"));
            }
            None => tokio::task::yield_now().await,
        }
        let clean = async || {
            let statistics = session.statistics();
            let used = permits.usage().await.unwrap().used;
            let only_the_limit = keys_left(&server).await == ["lh1:semaphore:{s}"];
            statistics.tracked == 0 && used == 0 && only_the_limit
        };
        eventually(SOON, "nothing is left", clean).await;
    }
    println!("{guards} of 117 became guards");
    assert!(guards > 0 && guards < 117, "{guards}");
}

/// One by one, with one that is held: dropped before, in and after its queue.
#[tokio::test]
async fn a_dropped_wait_leaves_nothing() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let lock = a_and_b(&one);
    lock.acquire().await.unwrap().release().await.unwrap();
    let rival = named(&two, "b");
    let free = named(&two, "a");
    for polls in (0..80).chain((80..800).step_by(40)) {
        let held = rival.acquire().await.unwrap();
        assert!(dropped_after(polls, lock.acquire_within(60 * SECOND)).await.is_none());
        let left =
            async || free.queue().await.unwrap().length == 0 && !free.is_locked().await.unwrap();
        eventually(SOON, "the first is free", left).await;
        queued(&server, "b", 0).await;
        held.release().await.unwrap();
        ends_clean(&server, &[&one, &two]).await;
    }
}

/// The same across the moment of the hand-over: whoever is granted and gone gives it back.
#[tokio::test]
async fn a_wait_dropped_while_it_is_granted_leaves_nothing() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let (lock, rival) = (a_and_b(&one), named(&two, "b"));
    for after in 0..40_u32 {
        let held = rival.acquire().await.unwrap();
        let waiting = tokio::spawn({
            let lock = lock.clone();
            async move { lock.acquire_within(60 * SECOND).await }
        });
        queued(&server, "b", 1).await;
        let released = tokio::spawn(held.release());
        for _ in 0..after * 3 {
            tokio::task::yield_now().await;
        }
        waiting.abort();
        released.await.unwrap().unwrap();
        drop(waiting.await); // a guard that it still got is dropped here
        ends_clean(&server, &[&one, &two]).await;
    }
}

/// A release whose reply is lost frees that member all the same, and says of the others what is so.
#[tokio::test]
async fn a_release_of_which_a_reply_is_lost_frees_all() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let (session, _told) = impatient(proxy.url(), 300 * MS).await;
    let lock = a_and_b(&session).and(&named(&session, "c"));
    lock.acquire().await.unwrap().release().await.unwrap();
    let guard = lock.acquire().await.unwrap();
    proxy.cut_after_request(Pick::next(1).containing(hash_of("release")));
    // Cut behind one of them: it ran, and nobody heard.
    let told = guard.release().await;
    if let Err(error) = &told {
        assert!(error.failed().count() >= 1 && error.members.len() == 3, "{error}");
    }
    ends_clean(&server, &[&session]).await;
    // The control: without a fault all are told released.
    lock.acquire().await.unwrap().release().await.unwrap();
}

/// Replies lost and links cut at random, two rivals in opposite orders: never two holders, never a part, nothing stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_faults_break_no_promise() {
    let server = Server::start();
    let inside = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
    let begin = Instant::now();
    let (turns, mut tasks) = (rounds(600), Vec::new());
    for (seed, order) in [["a", "b"], ["b", "a"]].into_iter().enumerate() {
        let proxy = FaultProxy::to(&server);
        let (session, _told) = impatient(proxy.url(), 100 * MS).await;
        proxy.drop_replies(Pick::at_random(4, seed as u64).containing(hash()));
        proxy.cut_after_request(Pick::at_random(6, 10 + seed as u64).containing("EVALSHA"));
        let lock = MultiLock::all(order.map(|name| named(&session, name).member()));
        let inside = Arc::clone(&inside);
        tasks.push(tokio::spawn(async move {
            let mut unsure = 0;
            for _ in 0..turns {
                let guard = lock.acquire_within(60 * SECOND).await.expect("served in the end");
                for one in inside.iter() {
                    assert_eq!(one.fetch_add(1, Ordering::SeqCst), 0, "alone");
                }
                tokio::task::yield_now().await;
                for one in inside.iter() {
                    one.fetch_sub(1, Ordering::SeqCst);
                }
                unsure += u32::from(guard.release().await.is_err());
            }
            (proxy, session, unsure)
        }));
    }
    for task in tasks {
        let (proxy, session, unsure) = task.await.expect("no panic inside");
        let lost = proxy.replies_dropped();
        println!(
            "{turns} turns in {:?}: {lost} replies lost, {unsure} releases unsure",
            begin.elapsed()
        );
        assert!(lost > 0 && unsure > 0, "the control");
        proxy.drop_replies(Pick::none());
        proxy.cut_after_request(Pick::none());
        ends_clean(&server, &[&session]).await;
    }
}
