//! Thousands of lost replies, over everything that a hold is asked: no double count, no wrong
//! verdict, no ghost. `mutex_replies.rs` has the cases one by one; here they meet.

use std::time::Duration;

use leasehold_mutex::{Guard, LostReason, Mutex, Options, Owner, ReleaseError, Session};
use leasehold_tests::scene::{SOON, entries, impatient, keys_left, mutex};
use leasehold_tests::{FaultProxy, Pick, Server, eventually, rounds};
use redis::aio::MultiplexedConnection;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// What became of the holds of one run.
#[derive(Debug, Default)]
struct Tally {
    held: u32,
    released: u32,
    unknown: u32,
    unsent: u32,
    given_up: u32,
}

impl Tally {
    /// Nobody else is there and no lease ends: a hold that is told as lost is a wrong verdict (I7).
    fn note(&mut self, verdict: Result<(), ReleaseError>) {
        match verdict {
            Ok(()) => self.released += 1,
            Err(ReleaseError::Unknown { .. }) => self.unknown += 1,
            Err(ReleaseError::Backend { .. }) => self.unsent += 1,
            Err(other) => panic!("nobody took it away: {other}"),
        }
    }
}

/// A link that loses replies, a session behind it, and a look past it.
struct Scene {
    server: Server,
    proxy: FaultProxy,
    session: Session,
    past: MultiplexedConnection,
}

impl Scene {
    async fn new(response: Duration) -> Self {
        let server = Server::start();
        let proxy = FaultProxy::to(&server);
        let (session, _told) = impatient(proxy.url(), response).await;
        let past = server.connection().await;
        Self { server, proxy, session, past }
    }

    /// The entries of this name on the server are those of these guards: no copy counted (I6).
    async fn holds_exactly(&mut self, name: &str, guards: usize) {
        let found = entries(&mut self.past, name).await.len();
        assert_eq!(found, guards, "entries of {name}");
    }

    /// One hold with a nested one, each extended, under a name of its own.
    async fn round(&mut self, number: u32, wait: Duration, tally: &mut Tally) {
        let name = format!("round-{number}");
        let lock = mutex(&self.session, &name, Options::default());
        let Some(outer) = self.acquire(&lock, None, wait, tally).await else { return };
        self.holds_exactly(&name, 1).await;
        let inner = self.acquire(&lock, Some(outer.owner()), wait, tally).await;
        if let Some(inner) = inner {
            assert_eq!(inner.fencing_token(), outer.fencing_token());
            self.holds_exactly(&name, 2).await;
            // May be unknown; never lost.
            if let Err(error) = inner.extend(40 * SECOND).await {
                assert!(inner.is_held(), "{error}");
            }
            tally.note(inner.release().await);
        }
        assert!(outer.is_held());
        tally.note(outer.release().await);
    }

    async fn acquire(
        &self,
        lock: &Mutex,
        owner: Option<&Owner>,
        wait: Duration,
        tally: &mut Tally,
    ) -> Option<Guard> {
        let taken = match owner {
            Some(owner) => lock.by(owner).acquire_within(wait).await,
            None => lock.acquire_within(wait).await,
        };
        match taken {
            Ok(guard) => {
                tally.held += 1;
                Some(guard)
            }
            // The link gave no answer for the whole wait; what it left is undone.
            Err(_) => {
                tally.given_up += 1;
                None
            }
        }
    }

    /// What was unknown or given up is ended by the thread: nothing stays, though every lease is 30 s.
    async fn ends_clean(&self) {
        let clean = async || {
            keys_left(&self.server).await.is_empty() && self.session.statistics().tracked == 0
        };
        eventually(2 * SOON, "nothing is left", clean).await;
        assert_eq!(self.session.statistics().watched, 0);
    }
}

#[tokio::test]
async fn links_that_break_behind_requests_count_nothing_twice() {
    let mut scene = Scene::new(SECOND).await;
    scene.proxy.cut_after_request(Pick::at_random(4, 20_000).containing("EVALSHA"));
    scene.proxy.cut_mid_reply(Pick::at_random(4, 20_001).containing("EVALSHA"));
    let (full, mut tally) = (rounds(20_000), Tally::default());
    for number in 0..full {
        scene.round(number, 5 * SECOND, &mut tally).await;
    }
    let broken = scene.proxy.connections();
    println!("{full} rounds, {broken} links: {tally:?}");
    assert!(broken > u64::from(full) / 4, "the control: links did break");
    assert!(tally.unknown > 0, "the control: an answer of a release was lost");
    assert_eq!(tally.held, tally.released + tally.unknown + tally.unsent);
    scene.proxy.cut_after_request(Pick::none());
    scene.proxy.cut_mid_reply(Pick::none());
    scene.ends_clean().await;
}

#[tokio::test]
async fn replies_that_are_discarded_count_nothing_twice() {
    let mut scene = Scene::new(50 * MS).await;
    scene.proxy.drop_replies(Pick::at_random(10, 200).containing("EVALSHA"));
    let (full, mut tally) = (rounds(200), Tally::default());
    for number in 0..full {
        scene.round(number, 2 * SECOND, &mut tally).await;
    }
    let dropped = scene.proxy.replies_dropped();
    println!("{full} rounds, {dropped} replies discarded: {tally:?}");
    assert!(dropped > u64::from(full) / 10, "the control: replies were discarded");
    scene.proxy.drop_replies(Pick::none());
    scene.ends_clean().await;
}

/// Renewals lose every other reply for many leases: the hold lasts, and is released as held.
#[tokio::test]
async fn renewals_whose_replies_are_lost_keep_the_hold() {
    let scene = Scene::new(SECOND).await;
    let lock = mutex(&scene.session, "renewed", Options::default().lease(6 * SECOND));
    let guard = lock.acquire().await.unwrap();
    let renewals = leasehold_tests::scene::hash_of("renew");
    scene.proxy.cut_after_request(Pick::every(2).containing(&renewals));
    let lost = tokio::time::timeout(Duration::from_secs(14), guard.lost()).await;
    assert!(lost.is_err(), "{:?}", lost.unwrap_or(LostReason::Expired));
    assert!(scene.proxy.connections() > 4, "the control: links did break");
    guard.release().await.unwrap();
    scene.ends_clean().await;
}
