//! Permits over links that lose replies, with futures that are dropped, keys that are not ours, and servers that refuse: what
//! a permit says that it holds is never more than what the server keeps for it, and nothing stays behind.

use std::time::Duration;

use leasehold_semaphore::{
    AcquireError, BackendErrorKind, LostReason, MergeError, Options, Permit, ReleaseError,
    Semaphore, Session, SplitError,
};
use leasehold_tests::permits::{hash_of, idle, keys, seen, semaphore, used, waiter};
use leasehold_tests::rig::{dropped_after, moment};
use leasehold_tests::scene::{SOON, Told, impatient, lost, say, session};
use leasehold_tests::{FaultProxy, Pick, Server, eventually, rounds};
use redis::AsyncCommands;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

async fn take(semaphore: &Semaphore, weight: u32) -> Permit {
    semaphore.many(weight).acquire().await.expect("they are free")
}

/// Every script of the semaphore has run once, so that a fault meets its call and not its being unknown.
async fn warm(server: &Server) {
    let session = session(&server.url()).await;
    let semaphore = semaphore(&session, "warm", 4, Options::default());
    let mut permit = take(&semaphore, 3).await;
    let part = semaphore.split(&mut permit, 1).await.expect("still held");
    let merged = semaphore.merge(permit, part).await.expect("both held");
    semaphore.set_limit(5).await.expect("an answer");
    let adopted = semaphore.adopt(&merged.detach()).await.expect("still held");
    let all = semaphore.release_all(vec![adopted]).await.expect("an answer");
    assert!(all.is_clean());
    take(&semaphore, 1).await.release().await.expect("still held");
    drop(semaphore.holders().await);
}

/// What the server has for each holder.
async fn weights(semaphore: &Semaphore) -> Vec<u32> {
    let holders = semaphore.holders().await.expect("an answer");
    let mut weights: Vec<_> = holders.iter().map(|holder| holder.weight).collect();
    weights.sort_unstable();
    weights
}

/// A link behind which a session works, and a look past it.
struct Scene {
    _server: Server,
    proxy: FaultProxy,
    session: Session,
    told: Told,
    semaphore: Semaphore,
    past: Semaphore,
}

impl Scene {
    async fn new(response: Duration) -> Self {
        let server = Server::start();
        warm(&server).await;
        let proxy = FaultProxy::to(&server);
        let (behind, told) = impatient(proxy.url(), response).await;
        let past = session(&server.url()).await;
        let limit = |session| semaphore(session, "a", 6, Options::default());
        Self {
            semaphore: limit(&behind),
            past: limit(&past),
            session: behind,
            told,
            proxy,
            _server: server,
        }
    }

    /// The next call of this script runs, and the link breaks behind it.
    fn cut(&self, verb: &str) {
        self.proxy.cut_after_request(Pick::next(1).containing(hash_of(verb)));
    }

    /// Nothing that is asked from now on is answered, until a new link is made; the calls of this script run.
    fn lose_reply(&self, verb: &str) {
        self.proxy.drop_replies(Pick::next(1).containing(hash_of(verb)));
    }

    /// Nothing is held, renewed or waited for, and nobody was told of a loss.
    async fn rests(&self) {
        idle(&self.session).await;
        assert_eq!(seen(&self.past).await.1, 0, "nothing is held");
        assert_eq!(self.told.count(lost), 0, "{:?}", self.told.all());
    }
}

#[tokio::test]
async fn a_call_whose_reply_is_lost_counts_once() {
    let scene = Scene::new(2 * SECOND).await;
    let (semaphore, past) = (&scene.semaphore, &scene.past);
    scene.cut("acquire");
    let mut permit = take(semaphore, 3).await;
    assert_eq!(seen(past).await.1, 3);
    scene.cut("split");
    let part = semaphore.split(&mut permit, 1).await.unwrap();
    assert_eq!((permit.weight(), part.weight(), weights(past).await), (2, 1, vec![1, 2]));
    scene.cut("merge");
    let merged = semaphore.merge(permit, part).await.unwrap();
    assert_eq!((merged.weight(), weights(past).await), (3, vec![3]));
    let owner = merged.detach();
    scene.cut("adopt");
    let adopted = semaphore.adopt(&owner).await.unwrap();
    assert_eq!((adopted.weight(), weights(past).await), (3, vec![3]));
    scene.cut("set_limit");
    semaphore.set_limit(5).await.unwrap();
    assert_eq!(seen(past).await, (5, 3, 0));
    let found = semaphore.holders().await.unwrap();
    scene.cut("force_release");
    assert!(semaphore.force_release(&found[0].holder).await.unwrap());
    eventually(SOON, "it is told", async || !adopted.is_held()).await;
    assert!(matches!(adopted.release().await, Err(ReleaseError::Lost(_))));
    // What may still arrive of it is cancelled by the session, by the same script.
    idle(&scene.session).await;
    scene.cut("release");
    // I7: the copy that is answered finds nothing, and nobody knows who ended it.
    let released = take(semaphore, 2).await.release().await;
    assert!(matches!(released, Err(ReleaseError::Unknown { .. })), "{released:?}");
    assert_eq!(seen(past).await.1, 0);
    idle(&scene.session).await;
}

#[tokio::test]
async fn a_release_of_many_whose_reply_is_lost_frees_each_once() {
    let scene = Scene::new(2 * SECOND).await;
    let (semaphore, past) = (&scene.semaphore, &scene.past);
    let (one, two) = (take(semaphore, 1).await, take(semaphore, 2).await);
    let other = take(past, 2).await;
    scene.cut("release_many");
    let report = semaphore.release_all(vec![one, two]).await.unwrap();
    assert_eq!((report.released.len(), report.lost.len(), report.unknown.len()), (0, 0, 2));
    assert_eq!(seen(past).await.1, 2);
    scene.cut("release_many");
    let report = semaphore.release_by(std::slice::from_ref(other.owner())).await.unwrap();
    assert_eq!((report.lost.len(), report.unknown.len()), (0, 1), "{report:?}");
    scene.rests().await;
    assert!(other.release().await.is_err(), "it was released by its id");
}

/// A link that has swallowed something stays silent until the session gives it up.
async fn released_or_unknown(permit: Permit) {
    let verdict = permit.release().await;
    assert!(matches!(verdict, Ok(()) | Err(ReleaseError::Unknown { .. })), "{verdict:?}");
}

/// The part is released by the session; the permit says what is surely left of it.
#[tokio::test]
async fn a_split_that_is_not_answered_takes_nothing_that_is_still_said_to_be_held() {
    for arrives in [true, false] {
        let scene = Scene::new(400 * MS).await;
        let mut permit = take(&scene.semaphore, 3).await;
        if arrives {
            scene.lose_reply("split");
        } else {
            scene.proxy.black_hole_ways(true, true);
        }
        let error = scene.semaphore.split(&mut permit, 1).await.unwrap_err();
        scene.proxy.black_hole_ways(false, false);
        assert!(matches!(error, SplitError::Unknown { .. }), "{error:?}");
        assert_eq!(permit.weight(), 2, "no more than what is surely held");
        let tracked = async || scene.session.statistics().tracked == 1;
        eventually(SOON, "the part is ended", tracked).await;
        let left = if arrives { 2 } else { 3 };
        used(&scene.past, left).await;
        assert!(permit.is_held());
        released_or_unknown(permit).await;
        scene.rests().await;
    }
}

#[tokio::test]
async fn a_merge_that_is_not_answered_leaves_one_permit_surely_held() {
    for arrives in [true, false] {
        let scene = Scene::new(400 * MS).await;
        let (one, two) = (take(&scene.semaphore, 1).await, take(&scene.semaphore, 2).await);
        let owner = one.owner().clone();
        if arrives {
            scene.lose_reply("merge");
        } else {
            scene.proxy.black_hole_ways(true, true);
        }
        let error = scene.semaphore.merge(one, two).await.unwrap_err();
        scene.proxy.black_hole_ways(false, false);
        let MergeError::Unknown { kept, .. } = error else { panic!("{error}") };
        assert_eq!((kept.weight(), kept.owner()), (1, &owner));
        let tracked = async || scene.session.statistics().tracked == 1;
        eventually(SOON, "the other one is ended", tracked).await;
        // Merged, both count for the kept one until it is released.
        used(&scene.past, if arrives { 3 } else { 1 }).await;
        assert!(kept.is_held());
        released_or_unknown(kept).await;
        scene.rests().await;
    }
}

/// Its futures are dropped at every moment: I9.
#[tokio::test]
async fn a_split_dropped_at_any_moment_leaves_a_permit_that_says_no_more_than_it_holds() {
    let server = Server::start();
    warm(&server).await;
    let session = session(&server.url()).await;
    let semaphore = semaphore(&session, "a", 3, Options::default());
    let (mut given_up, mut split) = (0, 0);
    for round in 0..rounds(1_000) {
        let mut permit = take(&semaphore, 3).await;
        match dropped_after(moment(round), semaphore.split(&mut permit, 1)).await {
            Some(part) => {
                drop(part.unwrap());
                split += 1;
            }
            None => given_up += 1,
        }
        let part_ended = async || session.statistics().tracked == 1;
        eventually(SOON, "the part is ended", part_ended).await;
        let kept = seen(&semaphore).await.1;
        assert!(permit.weight() <= kept, "it says {}, the server has {kept}", permit.weight());
        assert!((2..=3).contains(&permit.weight()));
        permit.release().await.unwrap();
        assert_eq!(seen(&semaphore).await.1, 0, "round {round}");
    }
    println!("{given_up} given up, {split} split");
    assert!(given_up > 0 && split > 0);
    idle(&session).await;
}

#[tokio::test]
async fn a_merge_dropped_at_any_moment_releases_both() {
    let server = Server::start();
    warm(&server).await;
    let session = session(&server.url()).await;
    let semaphore = semaphore(&session, "a", 3, Options::default());
    let (mut given_up, mut merged) = (0, 0);
    for round in 0..rounds(1_000) {
        let (one, two) = (take(&semaphore, 1).await, take(&semaphore, 2).await);
        match dropped_after(moment(round), semaphore.merge(one, two)).await {
            Some(permit) => {
                assert_eq!(permit.unwrap().weight(), 3);
                merged += 1;
            }
            None => given_up += 1,
        }
        idle(&session).await;
        assert_eq!(seen(&semaphore).await.1, 0, "round {round}");
    }
    println!("{given_up} given up, {merged} merged");
    assert!(given_up > 0 && merged > 0);
}

/// The link breaks behind every tenth command or so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b33_counts_stay_exact_over_a_link_that_breaks() {
    let scene = Scene::new(5 * SECOND).await;
    scene.proxy.cut_after_request(Pick::at_random(10, 33));
    let (mut released, mut unknown) = (0, 0);
    for round in 0..rounds(2_500) {
        let (whole, part) = (2 + round % 4, 1 + round % 2);
        let mut permit = take(&scene.semaphore, whole).await;
        let verdict = match round % 3 {
            0 => permit.release().await,
            1 => {
                // Over a link that breaks a call is answered in the end.
                let other = scene.semaphore.split(&mut permit, part.min(whole - 1)).await.unwrap();
                assert_eq!(permit.weight() + other.weight(), whole);
                assert_eq!(seen(&scene.past).await.1, whole);
                let merged = scene.semaphore.merge(other, permit).await.unwrap();
                assert_eq!(merged.weight(), whole);
                merged.release().await
            }
            _ => {
                let adopted = scene.semaphore.adopt(&permit.detach()).await.unwrap();
                assert_eq!((adopted.weight(), seen(&scene.past).await.1), (whole, whole));
                adopted.release().await
            }
        };
        match verdict {
            Ok(()) => released += 1,
            Err(ReleaseError::Unknown { .. }) => unknown += 1,
            Err(error) => panic!("round {round}: {error}"),
        }
        used(&scene.past, 0).await;
    }
    println!("{released} released, {unknown} unknown");
    assert!(released > 0 && unknown > 0);
    scene.rests().await;
}

#[tokio::test]
async fn what_is_refused_changes_nothing() {
    let server = Server::start();
    warm(&server).await;
    let (session, _told) = impatient(&server.url(), 500 * MS).await;
    let semaphore = semaphore(&session, "a", 6, Options::default());
    let (mut one, two) = (take(&semaphore, 3).await, take(&semaphore, 2).await);
    say(&server, &["REPLICAOF", "127.0.0.1", "1"]).await;
    let error = semaphore.split(&mut one, 1).await.unwrap_err();
    let SplitError::Backend { source, .. } = error else { panic!("{error:?}") };
    assert_eq!((source.kind(), one.weight()), (BackendErrorKind::ReadOnly, 3));
    let error = semaphore.merge(one, two).await.unwrap_err();
    let MergeError::Backend { kept, other, source } = error else { panic!("{error}") };
    assert_eq!(source.kind(), BackendErrorKind::ReadOnly);
    assert!(kept.is_held() && other.is_held());
    assert_eq!((kept.weight(), other.weight()), (3, 2));
    say(&server, &["REPLICAOF", "NO", "ONE"]).await;
    let merged = semaphore.merge(kept, other).await.unwrap();
    assert_eq!((merged.weight(), seen(&semaphore).await.1), (5, 5));
    merged.release().await.unwrap();
    idle(&session).await;
}

/// An error in the middle of a script says nothing about what was done before it.
#[tokio::test]
async fn a_key_that_is_not_ours_leaves_no_more_said_than_held() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let semaphore = semaphore(&session, "a", 6, Options::default());
    let (mut one, two) = (take(&semaphore, 3).await, take(&semaphore, 2).await);
    let mut past = server.connection().await;
    let _: () = past.set(&*keys("a").gone, "somebody else's").await.unwrap();
    let error = semaphore.split(&mut one, 1).await.unwrap_err();
    let SplitError::Unknown { source, .. } = error else { panic!("{error:?}") };
    assert_eq!((source.kind(), one.weight()), (BackendErrorKind::WrongType, 2));
    let error = semaphore.merge(one, two).await.unwrap_err();
    let MergeError::Unknown { kept, source } = error else { panic!("{error}") };
    assert_eq!((source.kind(), kept.weight()), (BackendErrorKind::WrongType, 2));
    let _: () = past.del(&*keys("a").gone).await.unwrap();
    assert!(kept.is_held() && kept.weight() <= seen(&semaphore).await.1);
    kept.release().await.unwrap();
}

/// Each call found the permits ended and gave them back, then was refused by the notes: the sum went down with each call,
/// and more was granted than the limit.
#[tokio::test]
async fn notes_that_are_not_ours_give_nothing_back_twice() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let brief = semaphore(&session, "a", 3, Options::default().fixed(100 * MS));
    let held = take(&brief, 2).await;
    let lasting = semaphore(&session, "a", 3, Options::default().max_wait(SECOND));
    let other = take(&lasting, 1).await;
    let mut past = server.connection().await;
    let notes = &*keys("a").notes;
    let _: () = redis::cmd("RENAME").arg(notes).arg("kept").query_async(&mut past).await.unwrap();
    let _: () = past.set(notes, "somebody else's").await.unwrap();
    eventually(SOON, "it has ended", async || !held.is_held()).await;
    tokio::time::sleep(20 * MS).await; // the server's deadline is a little later than the permit's
    for _ in 0..5 {
        let refused = lasting.try_acquire().await.unwrap_err();
        let AcquireError::Backend(error) = refused else { panic!("{refused:?}") };
        assert_eq!(error.kind(), BackendErrorKind::WrongType);
    }
    let _: () = redis::cmd("RENAME").arg("kept").arg(notes).query_async(&mut past).await.unwrap();
    assert_eq!(seen(&lasting).await, (3, 1, 0));
    assert!(lasting.many(3).try_acquire().await.unwrap().is_none(), "I14");
    let two = take(&lasting, 2).await;
    assert!(lasting.try_acquire().await.unwrap().is_none(), "I14");
    two.release().await.unwrap();
    other.release().await.unwrap();
}

/// Trap 6: what is held goes on, and comes back, on a server that takes nothing new.
#[tokio::test]
async fn a_server_out_of_memory_renews_and_releases() {
    let server = Server::start();
    warm(&server).await;
    let told = Told::default();
    let builder = told.by(Session::builder(&server.url()).unwrap());
    let session = builder.connect().await.unwrap();
    let options = Options::default().lease(SECOND).max_wait(SECOND);
    let semaphore = semaphore(&session, "a", 4, options);
    let (mut one, two) = (take(&semaphore, 2).await, take(&semaphore, 1).await);
    say(&server, &["CONFIG", "SET", "maxmemory", "1"]).await;
    let refused = semaphore.try_acquire().await.unwrap_err();
    let AcquireError::Backend(error) = refused else { panic!("{refused:?}") };
    assert_eq!(error.kind(), BackendErrorKind::OutOfMemory);
    let renewals = session.statistics().renewals;
    let renewed = async || session.statistics().renewals > renewals + 6;
    eventually(SOON, "they are renewed beyond their lease", renewed).await;
    let part = semaphore.split(&mut one, 1).await.unwrap();
    let merged = semaphore.merge(part, two).await.unwrap();
    semaphore.set_limit(3).await.unwrap();
    assert_eq!(seen(&semaphore).await, (3, 3, 0));
    let report = semaphore.release_all(vec![one]).await.unwrap();
    assert!(report.is_clean());
    merged.release().await.unwrap();
    assert_eq!((seen(&semaphore).await.1, told.count(lost)), (0, 0), "{:?}", told.all());
}

/// Trap 19: a replica that does not know of a hold says nothing about it.
#[tokio::test]
async fn a_replica_never_says_that_a_permit_is_not_held() {
    let server = Server::start();
    warm(&server).await;
    let (session, told) = impatient(&server.url(), 500 * MS).await;
    let semaphore = semaphore(&session, "a", 6, Options::default());
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(take(&semaphore, 1).await);
    }
    server.flushall().await;
    say(&server, &["REPLICAOF", "127.0.0.1", "1"]).await;
    let read_only = |verdict| {
        let Err(ReleaseError::Backend { source, .. }) = verdict else { panic!("{verdict:?}") };
        assert_eq!(source.kind(), BackendErrorKind::ReadOnly);
    };
    read_only(held.pop().unwrap().release().await);
    read_only(semaphore.release_all(held).await.map(drop));
    assert_eq!(told.count(lost), 0, "{:?}", told.all());
}

/// The renewal of what becomes a part of another permit is no loss of it: I3.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_that_meet_a_split_or_a_merge_are_no_loss() {
    let server = Server::start();
    let told = Told::default();
    let builder = told.by(Session::builder(&server.url()).unwrap());
    let session = builder.connect().await.unwrap();
    // Renewed a third of the lease after it was taken, and every 100 ms from then on.
    let semaphore = semaphore(&session, "a", 8, Options::default().lease(300 * MS));
    let mut permit = take(&semaphore, 8).await;
    let before = session.statistics().renewals;
    let mut changes = 0;
    while session.statistics().renewals < before + 30 {
        let part = semaphore.split(&mut permit, 3).await.unwrap();
        tokio::time::sleep(MS * (changes % 5)).await;
        permit = semaphore.merge(part, permit).await.unwrap();
        changes += 1;
    }
    println!("{changes} splits and merges beside 30 renewals");
    assert_eq!(permit.weight(), 8);
    permit.release().await.unwrap();
    assert_eq!(told.count(|_| true), 0, "{:?}", told.all());
}

/// What is merged ends no earlier than its parts, and is renewed.
#[tokio::test]
async fn a_merged_permit_and_a_part_live_on() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let semaphore = semaphore(&session, "a", 4, Options::default().lease(600 * MS));
    let mut one = take(&semaphore, 2).await;
    let part = semaphore.split(&mut one, 1).await.unwrap();
    let two = take(&semaphore, 2).await;
    let merged = semaphore.merge(two, one).await.unwrap();
    let next = waiter(&semaphore, 4, 1).await;
    tokio::time::sleep(3 * SECOND).await;
    assert!(merged.is_held() && part.is_held());
    assert_eq!(seen(&semaphore).await, (4, 4, 1));
    merged.release().await.unwrap();
    part.release().await.unwrap();
    next.await.unwrap().release().await.unwrap();
}

/// Force, expiry and the session's end are told of split and merged permits as of any other.
#[tokio::test]
async fn parts_are_lost_one_by_one() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let semaphore = semaphore(&session, "a", 6, Options::default());
    let mut whole = take(&semaphore, 6).await;
    let (part, more) = (
        semaphore.split(&mut whole, 2).await.unwrap(),
        semaphore.split(&mut whole, 1).await.unwrap(),
    );
    let holders = semaphore.holders().await.unwrap();
    let found = holders.iter().find(|found| found.holder.trace == part.trace()).unwrap();
    assert!(semaphore.force_release(&found.holder).await.unwrap());
    let reason = tokio::time::timeout(SOON, part.lost()).await.unwrap();
    assert_eq!(reason, LostReason::ForceReleased);
    assert!(whole.is_held() && more.is_held());
    let Err(MergeError::Lost { lost, left: Some(left) }) = semaphore.merge(more, part).await else {
        panic!("merged with what was ended")
    };
    assert_eq!((lost.reason, left.weight()), (LostReason::ForceReleased, 1));
    assert_eq!(seen(&semaphore).await, (6, 4, 0));
    session.shutdown(SOON).await.unwrap();
    assert_eq!(whole.lost().await, LostReason::Shutdown);
    assert!(matches!(semaphore.split(&mut whole, 1).await, Err(SplitError::Lost(_))));
}
