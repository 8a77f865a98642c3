//! The lines of CONFORMANCE.md that only semaphores have (71 to 95), and of the weaknesses that it lists (W30 to W32). What
//! permits share with everything that can be held: `conformance_semaphore.rs`.
//!
//! | line | difference | reason |
//! | --- | --- | --- |
//! | 71, 88, 89 | the first use sets the limit, another number in another process changes nothing and is told; it has no time to live of its own, but ends a minute after the last use | nobody has to set a semaphore up before it works |
//! | 76, 80 | a release creates no permits and never a semaphore: it is by permit or by id | W32: permits out of nothing |
//! | 79 | no drain: whoever wants all that is free asks for as many | all or none is one call |
//! | 86 | a lease is extended by its guard; by its id a permit is adopted or released, never extended | who extends has to hear of the loss |
//! | 88 | available is never below 0; what is used stays to be seen | nothing is revoked |
//! | 92 | a release of many frees those that are held and reports the others | B83 |

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold_semaphore::{AdoptError, ExtendError, LostReason, Options, Owner, Session};
use leasehold_tests::permits::{WORKERS_LIMIT, idle, keys, seen, semaphore, used, waiter, waiting};
use leasehold_tests::rig::awake;
use leasehold_tests::scene::{SOON, Told, server_ms, session, why};
use leasehold_tests::{Server, Worker, eventually, rounds};
use tokio::task::JoinSet;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// What a hand-over or an answer may take on two cores that do other work too.
const MACHINE: Duration = Duration::from_millis(500);

fn patient() -> Options {
    Options::default().max_wait(60 * SECOND)
}

/// What has ended leaves the keyspace in the server's own time.
async fn empty(server: &Server) {
    eventually(SOON, "nothing is left", async || server.dbsize().await == 0).await;
}

/// A second number leaves the limit as it is, and is told. It vanishes with the key, after a minute without any use.
#[tokio::test]
async fn c71_the_first_use_sets_the_limit() {
    let server = Server::builder().clock_shim().start();
    let told = Told::default();
    let builder = told.by(Session::builder(&server.url()).unwrap());
    let session = builder.connect().await.unwrap();
    let first = semaphore(&session, "a", 3, patient());
    first.acquire().await.unwrap().release().await.unwrap();
    let second = semaphore(&session, "a", 7, patient());
    second.acquire().await.unwrap().release().await.unwrap();
    assert_eq!((seen(&second).await, told.all().len()), ((3, 0, 0), 1));
    idle(&session).await;
    server.clock().forward(58 * SECOND);
    assert_eq!(first.limit().await.unwrap(), 3, "kept for a minute");
    server.clock().forward(20 * SECOND);
    empty(&server).await;
    second.acquire().await.unwrap().release().await.unwrap();
    assert_eq!(seen(&first).await, (7, 0, 0));
}

/// 5 permits, 3 taken: a wait for 4 ends when two single ones are back, and then 0 are left.
#[tokio::test]
async fn c73_a_wait_for_four_takes_two_releases() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let semaphore = semaphore(&session, "a", 5, patient());
    let (one, two, three) = (
        semaphore.acquire().await.unwrap(),
        semaphore.acquire().await.unwrap(),
        semaphore.acquire().await.unwrap(),
    );
    let waits = waiter(&semaphore, 4, 1).await;
    one.release().await.unwrap();
    assert_eq!(seen(&semaphore).await, (5, 2, 1), "one is not enough");
    two.release().await.unwrap();
    let four = waits.await.unwrap();
    assert_eq!((seen(&semaphore).await, semaphore.available().await.unwrap()), ((5, 5, 0), 0));
    four.release().await.unwrap();
    three.release().await.unwrap();
}

/// A timed wait for 4 succeeds when the second of two releases comes, about a second later.
#[tokio::test]
async fn c74_a_timed_wait_ends_with_the_second_release() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let semaphore = semaphore(&session, "a", 5, patient());
    let held = [
        semaphore.acquire().await.unwrap(),
        semaphore.acquire().await.unwrap(),
        semaphore.acquire().await.unwrap(),
    ];
    let begun = Instant::now();
    let releases = tokio::spawn(async move {
        for permit in held.into_iter().take(2) {
            tokio::time::sleep(SECOND / 2).await;
            permit.release().await.unwrap();
        }
    });
    let four = semaphore.many(4).acquire_within(10 * SECOND).await.unwrap();
    let took = begun.elapsed();
    assert!((900 * MS..1200 * MS + MACHINE).contains(&took), "{took:?}");
    releases.await.unwrap();
    four.release().await.unwrap();
}

/// Ours differ: no release creates a permit, neither of a semaphore in use nor of one that is not there.
#[tokio::test]
async fn c76_c80_a_release_creates_nothing() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let semaphore = semaphore(&session, "a", 2, patient());
    let report = semaphore.release_by(&[Owner::new(), Owner::new()]).await.unwrap();
    assert_eq!((report.released.len(), report.lost.len()), (0, 2));
    assert_eq!(server.dbsize().await, 0, "no creation");
    let both = semaphore.many(2).acquire().await.unwrap();
    assert!(!semaphore.release_by(&[Owner::new()]).await.unwrap().is_clean());
    assert_eq!(seen(&semaphore).await, (2, 2, 0));
    assert!(semaphore.try_acquire().await.unwrap().is_none());
    both.release().await.unwrap();
}

/// More permits wake a waiter for two only when two are free; a release in between is not enough.
#[tokio::test]
async fn c77_a_higher_limit_wakes_whom_it_fits() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let semaphore = semaphore(&session, "a", 3, patient());
    let (one, _two) =
        (semaphore.acquire().await.unwrap(), semaphore.many(2).acquire().await.unwrap());
    let waits = waiter(&semaphore, 2, 1).await;
    one.release().await.unwrap();
    assert_eq!(seen(&semaphore).await, (3, 2, 1), "one is free");
    semaphore.set_limit(4).await.unwrap();
    waits.await.unwrap().release().await.unwrap();
}

/// Ours differs: all that is free is asked for by its number, all or none.
#[tokio::test]
async fn c79_all_that_is_free_can_be_taken() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let semaphore = semaphore(&session, "a", 10, patient());
    let three = semaphore.many(3).acquire().await.unwrap();
    let free = semaphore.available().await.unwrap();
    assert_eq!(free, 7);
    let rest = semaphore.many(free).try_acquire().await.unwrap().expect("they are free");
    assert_eq!(semaphore.available().await.unwrap(), 0);
    assert!(semaphore.try_acquire().await.unwrap().is_none());
    let missing = leasehold_tests::permits::semaphore(&session, "b", 10, patient());
    assert_eq!(
        (seen(&missing).await, server.dbsize().await),
        ((10, 0, 0), 2),
        "looking creates nothing"
    );
    rest.release().await.unwrap();
    three.release().await.unwrap();
}

/// One permit as a mutex: the unprotected counter of 30 clients is exact. (15 tasks and 16 clients: the suite.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c82_thirty_clients_count_exactly() {
    let server = Server::start();
    let (counter, mut tasks, loops) = (Arc::new(AtomicU32::new(0)), JoinSet::new(), rounds(100));
    for _ in 0..30 {
        let session = session(&server.url()).await;
        let (semaphore, counter) = (semaphore(&session, "a", 1, patient()), Arc::clone(&counter));
        tasks.spawn(async move {
            for _ in 0..loops {
                let permit = semaphore.acquire().await.expect("a hold");
                let seen = counter.load(Ordering::Relaxed);
                tokio::time::sleep(MS).await;
                counter.store(seen + 1, Ordering::Relaxed);
                permit.release().await.expect("still held");
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert_eq!(counter.load(Ordering::Relaxed), 30 * loops);
}

/// 32 hexadecimal characters; nothing where nothing is free.
#[tokio::test]
async fn c83_a_permit_has_an_id_of_32_characters() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let semaphore = semaphore(&session, "a", 2, patient());
    let (one, two) = (semaphore.acquire().await.unwrap(), semaphore.acquire().await.unwrap());
    for permit in [&one, &two] {
        let id = permit.owner().as_str();
        assert!(id.len() == 32 && id.chars().all(|c| c.is_ascii_hexdigit()), "{id}");
    }
    assert_ne!(one.owner(), two.owner());
    assert!(semaphore.try_acquire().await.unwrap().is_none());
}

/// Expired permits count as free, whoever asks: 2 available, 0 used.
#[tokio::test]
async fn c85_expired_permits_are_free() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let semaphore = semaphore(&session, "a", 2, patient().fixed(SECOND));
    let _both = [semaphore.acquire().await.unwrap(), semaphore.acquire().await.unwrap()];
    assert_eq!(seen(&semaphore).await, (2, 2, 0));
    tokio::time::sleep(1100 * MS).await;
    assert_eq!((seen(&semaphore).await, semaphore.available().await.unwrap()), ((2, 0, 0), 2));
    assert!(semaphore.holders().await.unwrap().is_empty());
}

/// 1 s extended to 3 s: held at 2.8 s, free at 3.3 s; after that nothing is extended, and an unknown id is nobody's.
#[tokio::test]
async fn c86_a_lease_is_extended_while_it_is_held() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let semaphore = semaphore(&session, "a", 1, patient().fixed(SECOND));
    let permit = semaphore.acquire().await.unwrap();
    let begun = server_ms(&mut server.connection().await).await;
    permit.extend(3 * SECOND).await.unwrap();
    let at = async |ms: u64| {
        let now = server_ms(&mut server.connection().await).await;
        tokio::time::sleep(Duration::from_millis((begun + ms).saturating_sub(now))).await;
    };
    at(2800).await;
    assert_eq!(seen(&semaphore).await, (1, 1, 0));
    at(3300).await;
    assert_eq!(seen(&semaphore).await, (1, 0, 0));
    let error = permit.extend(3 * SECOND).await.unwrap_err();
    assert!(matches!(error, ExtendError::Lost(ref lost) if lost.reason == LostReason::Expired));
    assert_eq!(seen(&semaphore).await, (1, 0, 0));
    assert!(matches!(semaphore.adopt(&Owner::new()).await, Err(AdoptError::Lost(_))));
    assert_eq!(why(permit.release().await), LostReason::Expired);
}

/// Up and down; below what is taken nothing is revoked, and no fewer than 0 are available.
#[tokio::test]
async fn c88_the_limit_moves_up_and_down() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let semaphore = semaphore(&session, "a", 10, patient());
    let three = semaphore.many(3).acquire().await.unwrap();
    for (limit, available) in [(15, 12), (5, 2), (3, 0), (2, 0), (1, 0), (10, 7)] {
        semaphore.set_limit(limit).await.unwrap();
        assert_eq!(seen(&semaphore).await, (limit, 3, 0));
        assert_eq!(semaphore.available().await.unwrap(), available, "of {limit}");
        assert!(three.is_held());
    }
    three.release().await.unwrap();
}

/// The second use sets nothing; one that was never used has what would be set.
#[tokio::test]
async fn c89_a_second_use_sets_nothing() {
    let server = Server::start();
    let session = session(&server.url()).await;
    assert_eq!(seen(&semaphore(&session, "a", 4, patient())).await, (4, 0, 0));
    assert_eq!(server.dbsize().await, 0);
    let first = semaphore(&session, "a", 5, patient());
    let permit = first.acquire().await.unwrap();
    let second = semaphore(&session, "a", 6, patient());
    assert!(second.many(6).try_acquire().await.is_err(), "more than the 5 that are set");
    assert_eq!(seen(&second).await, (5, 1, 0));
    permit.release().await.unwrap();
}

/// Take 6 of 10, release 4 and then 2; a third release of the same is an error.
#[tokio::test]
async fn c91_what_was_released_is_not_released_again() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let semaphore = semaphore(&session, "a", 10, patient());
    let mut permits = Vec::new();
    for _ in 0..6 {
        permits.push(semaphore.acquire().await.unwrap());
    }
    let owners: Vec<_> = permits.iter().map(|permit| permit.owner().clone()).collect();
    assert_eq!(semaphore.available().await.unwrap(), 4);
    assert!(semaphore.release_by(&owners[..4]).await.unwrap().is_clean());
    assert_eq!(semaphore.available().await.unwrap(), 8);
    assert!(semaphore.release_all(permits.split_off(4)).await.unwrap().is_clean());
    assert_eq!(semaphore.available().await.unwrap(), 10);
    let report = semaphore.release_by(&owners[..4]).await.unwrap();
    assert_eq!((report.released.len(), report.lost.len()), (0, 4));
    let report = semaphore.release_all(permits).await.unwrap();
    assert_eq!((report.released.len(), report.lost.len()), (0, 4));
    assert_eq!(seen(&semaphore).await, (10, 0, 0));
}

/// Ours differs: an unknown, an expired and a returned one do not keep the others.
#[tokio::test]
async fn c92_a_release_of_many_is_not_held_up_by_one() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let semaphore = semaphore(&session, "a", 5, patient());
    let (live, returned) = (semaphore.acquire().await.unwrap(), semaphore.acquire().await.unwrap());
    let brief = leasehold_tests::permits::semaphore(&session, "a", 5, patient().fixed(50 * MS));
    let expired = brief.acquire().await.unwrap();
    let owners =
        [Owner::new(), expired.owner().clone(), returned.owner().clone(), live.owner().clone()];
    returned.release().await.unwrap();
    used(&semaphore, 1).await;
    let report = semaphore.release_by(&owners).await.unwrap();
    assert_eq!((report.released, report.lost.len()), (vec![owners[3].clone()], 3));
    assert_eq!(seen(&semaphore).await, (5, 0, 0));
}

/// Two want 2 of 2, or 1 and 2, within 2 s, and hold for half a second: both succeed.
#[tokio::test]
async fn c94_two_that_do_not_fit_together_are_both_served() {
    let server = Server::start();
    let session = session(&server.url()).await;
    for (one, two) in [(2, 2), (1, 2)] {
        let mut tasks = JoinSet::new();
        for weight in [one, two] {
            let many = semaphore(&session, "a", 2, patient()).many(weight);
            tasks.spawn(async move {
                let permit = many.acquire_within(2 * SECOND).await.expect("in time");
                tokio::time::sleep(SECOND / 2).await;
                permit.release().await.expect("still held");
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
    }
}

/// A minute after the last use nothing is left in the keyspace; after `set_limit` only the limit, for 30 days.
#[tokio::test]
async fn c95_a_quiet_semaphore_leaves_nothing() {
    let server = Server::builder().clock_shim().start();
    let session = session(&server.url()).await;
    let day = 24 * 3600 * SECOND;
    for (limit_is_set, least, most) in
        [(false, 58 * SECOND, 76 * SECOND), (true, 29 * day, 30 * day + 76 * SECOND)]
    {
        let semaphore = semaphore(&session, "a", 5, patient().fixed(5 * SECOND));
        let mut permit = semaphore.many(3).acquire().await.unwrap();
        let part = semaphore.split(&mut permit, 1).await.unwrap();
        let waits = waiter(&semaphore, 4, 1).await;
        if limit_is_set {
            semaphore.set_limit(6).await.unwrap();
        }
        permit.release().await.unwrap();
        part.release().await.unwrap();
        waits.await.unwrap().release().await.unwrap();
        idle(&session).await;
        server.clock().forward(least);
        assert_eq!(server.keys().await, [keys("a").holds.to_vec()], "the limit");
        server.clock().forward(most - least);
        empty(&server).await;
    }
}

/// W30: permits are renewed like everything else, so those of a crashed client are not gone for ever.
#[tokio::test]
async fn w30_a_crashed_client_takes_no_permit_along() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let semaphore = semaphore(&session, "a", WORKERS_LIMIT, patient());
    for _ in 0..3 {
        let program = env!("CARGO_BIN_EXE_permit_worker");
        let mut worker = Worker::start(program, &server.url(), "a", 600 * MS).await;
        assert_eq!(worker.ask("take 3").await, "held 3");
        worker.kill();
    }
    let begun = awake();
    semaphore.many(3).acquire().await.unwrap().release().await.unwrap();
    assert!(awake() - begun < 600 * MS + MACHINE, "{:?}", awake() - begun);
}

/// W32: an upper bound and a queue. Light requests that never stop do not starve a heavy one, and what is free at once
/// never exceeds the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w32_a_heavy_request_is_not_starved_by_light_ones() {
    let server = Server::start();
    let (light, heavy) = (session(&server.url()).await, session(&server.url()).await);
    let goes_on = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let (mut tasks, turns) = (JoinSet::new(), Arc::new(AtomicU32::new(0)));
    for _ in 0..20 {
        let semaphore = semaphore(&light, "a", 10, patient());
        let (goes_on, turns) = (Arc::clone(&goes_on), Arc::clone(&turns));
        tasks.spawn(async move {
            while goes_on.load(Ordering::Relaxed) {
                let permit = semaphore.acquire().await.expect("a hold");
                tokio::time::sleep(5 * MS).await;
                permit.release().await.expect("still held");
                turns.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let semaphore = semaphore(&heavy, "a", 10, patient());
    eventually(SOON, "they are under way", async || turns.load(Ordering::Relaxed) > 20).await;
    for _ in 0..5 {
        let begun = awake();
        let all = semaphore.many(10).acquire().await.unwrap();
        let took = awake() - begun;
        assert!(took < MACHINE, "all ten after {took:?}");
        assert_eq!(semaphore.used().await.unwrap(), 10);
        let before = turns.load(Ordering::Relaxed);
        all.release().await.unwrap();
        eventually(SOON, "the light ones go on", async || {
            turns.load(Ordering::Relaxed) > before + 5
        })
        .await;
    }
    goes_on.store(false, Ordering::Relaxed);
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    waiting(&semaphore, 0).await;
    assert_eq!(seen(&semaphore).await, (10, 0, 0));
}
