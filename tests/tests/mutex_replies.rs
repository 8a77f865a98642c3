//! Lost replies: the command ran, and its sender does not know. Nothing counts twice, no verdict is
//! a guess, and nothing stays beyond its lease (I6, I7, I9).

use std::time::Duration;

use leasehold_mutex::{
    AcquireError, Event, ExtendError, Guard, LostReason, Mutex, Options, ReleaseError, Session,
};
use leasehold_tests::rig::Watch;
use leasehold_tests::scene::{
    SOON, Told, entries, hash_of, impatient, keys, keys_left, mutex, queued, session,
};
use leasehold_tests::{FaultProxy, Pick, Server, eventually};
use redis::AsyncCommands;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// How long a call of these sessions waits for its answer.
const RESPONSE: Duration = Duration::from_millis(300);

/// How a reply gets lost.
#[derive(Clone, Copy, Debug)]
enum Loss {
    /// The link breaks behind the request: the sender sees it at once.
    Cut,
    /// The reply is discarded, and the link stays open and silent: the sender sees nothing.
    Silence,
}

const LOSSES: [Loss; 2] = [Loss::Cut, Loss::Silence];

/// A session whose link loses what it is told to lose.
struct Scene {
    server: Server,
    proxy: FaultProxy,
    session: Session,
    told: Told,
    lock: Mutex,
}

impl Scene {
    /// Every script has run once: none of them is sent a second time because it was unknown.
    async fn new(options: Options) -> Self {
        let server = Server::start();
        let proxy = FaultProxy::to(&server);
        let (session, told) = impatient(proxy.url(), RESPONSE).await;
        let lock = mutex(&session, "a", options);
        let guard = lock.acquire().await.expect("a hold");
        guard.extend(30 * SECOND).await.expect("still held");
        guard.release().await.expect("still held");
        Self { server, proxy, session, told, lock }
    }

    /// Loses the reply of the next call of that script.
    fn lose(&self, verb: &str, loss: Loss) {
        let next = Pick::next(1).containing(hash_of(verb));
        match loss {
            Loss::Cut => self.proxy.cut_after_request(next),
            Loss::Silence => self.proxy.drop_replies(next),
        }
    }

    async fn entries(&self) -> usize {
        entries(&mut self.server.connection().await, "a").await.len()
    }

    /// Nothing of the session is left, on the server or in its own tables.
    async fn ends_clean(&self) {
        let clean = async || {
            keys_left(&self.server).await.is_empty() && self.session.statistics().tracked == 0
        };
        eventually(SOON, "nothing is left", clean).await;
        assert_eq!(self.session.statistics().watched, 0);
    }

    fn unknown_releases(&self) -> usize {
        self.told.count(|event| matches!(event, Event::ReleaseUnknown { .. }))
    }

    fn losses(&self) -> usize {
        self.told.count(|event| matches!(event, Event::Lost { .. } | Event::ReleaseLost { .. }))
    }
}

/// I6: the resent acquire finds itself, with the token that it got the first time.
#[tokio::test]
async fn an_acquire_whose_reply_is_lost_counts_once() {
    for loss in LOSSES {
        let scene = Scene::new(Options::default()).await;
        scene.lose("acquire", loss);
        let guard = scene.lock.acquire().await.unwrap();
        assert_eq!(scene.entries().await, 1, "{loss:?}");
        let token: u64 = scene.server.connection().await.get(&*keys("a").token).await.unwrap();
        assert_eq!(guard.fencing_token().get(), token, "{loss:?}: minted once");
        guard.release().await.unwrap();
        assert_eq!(scene.entries().await, 0, "{loss:?}: one release frees it");
        scene.ends_clean().await;
    }
}

/// B25: every copy arrives, late and together.
#[tokio::test]
async fn b25_an_acquire_sent_again_to_a_slow_server_counts_once() {
    let scene = Scene::new(Options::default()).await;
    scene.server.freeze();
    let thaw = async {
        tokio::time::sleep(RESPONSE * 4).await;
        scene.server.thaw();
    };
    let (guard, ()) = tokio::join!(scene.lock.acquire(), thaw);
    let guard = guard.unwrap();
    assert_eq!(scene.entries().await, 1);
    guard.release().await.unwrap();
    scene.ends_clean().await;
    // A copy that arrives after the release finds its mark, not a free lock.
    tokio::time::sleep(RESPONSE).await;
    assert_eq!(scene.entries().await, 0);
}

#[tokio::test]
async fn a_waiter_whose_reply_is_lost_queues_once() {
    for loss in LOSSES {
        let scene = Scene::new(Options::default()).await;
        let other = session(&scene.server.url()).await;
        let guard = mutex(&other, "a", Options::default()).acquire().await.unwrap();
        scene.lose("acquire", loss);
        let lock = scene.lock.clone();
        let waiter = tokio::spawn(async move { lock.acquire().await });
        queued(&scene.server, "a", 1).await;
        // Until the copy was answered: only then is there something to check.
        let checked = async || scene.session.statistics().checks > 0;
        eventually(SOON, "it is known to wait", checked).await;
        queued(&scene.server, "a", 1).await;
        guard.release().await.unwrap();
        let guard = waiter.await.unwrap().unwrap();
        assert_eq!(scene.entries().await, 1, "{loss:?}");
        guard.release().await.unwrap();
        scene.ends_clean().await;
    }
}

/// I7: "not held" after a copy without an answer says nothing.
#[tokio::test]
async fn a_release_whose_reply_is_lost_is_unknown() {
    for loss in LOSSES {
        let scene = Scene::new(Options::default()).await;
        let guard = scene.lock.acquire().await.unwrap();
        scene.lose("release", loss);
        let verdict = guard.release().await;
        assert!(matches!(verdict, Err(ReleaseError::Unknown { .. })), "{loss:?}: {verdict:?}");
        scene.ends_clean().await;
        assert_eq!((scene.unknown_releases(), scene.losses()), (1, 0), "{:?}", scene.told.all());
    }
}

/// The same, when the hold really had ended before: it is still not known which copy found what.
#[tokio::test]
async fn a_lost_reply_to_the_release_of_a_lost_hold_is_unknown_too() {
    let scene = Scene::new(Options::default()).await;
    let guard = scene.lock.acquire().await.unwrap();
    let _: u64 = scene.server.connection().await.del(&*keys("a").holds).await.unwrap();
    scene.lose("release", Loss::Cut);
    let verdict = guard.release().await;
    assert!(matches!(verdict, Err(ReleaseError::Unknown { .. })), "{verdict:?}");
    scene.ends_clean().await;
}

/// I7, the other side: the only copy that was sent says it, so it is told.
#[tokio::test]
async fn an_answered_release_of_a_lost_hold_says_lost() {
    let scene = Scene::new(Options::default()).await;
    let guard = scene.lock.acquire().await.unwrap();
    let _: u64 = scene.server.connection().await.del(&*keys("a").holds).await.unwrap();
    let verdict = guard.release().await;
    let Err(ReleaseError::Lost(lost)) = verdict else { panic!("{verdict:?}") };
    assert_eq!(lost.reason, LostReason::Expired);
    scene.ends_clean().await;
    assert_eq!((scene.unknown_releases(), scene.losses()), (0, 1), "{:?}", scene.told.all());
}

/// I7: Released if any copy says so, whatever became of the others: the link was dead before.
#[tokio::test]
async fn a_release_over_a_dead_link_is_sent_again_and_released() {
    let scene = Scene::new(Options::default()).await;
    let guard = scene.lock.acquire().await.unwrap();
    scene.proxy.cut();
    guard.release().await.unwrap();
    scene.ends_clean().await;
    assert_eq!((scene.unknown_releases(), scene.losses()), (0, 0), "{:?}", scene.told.all());
}

#[tokio::test]
async fn a_dropped_guard_whose_release_is_unanswered_is_told_unknown() {
    for loss in LOSSES {
        let scene = Scene::new(Options::default()).await;
        let guard = scene.lock.acquire().await.unwrap();
        scene.lose("release", loss);
        drop(guard);
        scene.ends_clean().await;
        eventually(SOON, "it is told", async || scene.unknown_releases() == 1).await;
        assert_eq!(scene.losses(), 0, "{:?}", scene.told.all());
    }
}

#[tokio::test]
async fn a_renewal_whose_reply_is_lost_costs_nothing() {
    for loss in LOSSES {
        let lease = 3 * SECOND;
        let scene = Scene::new(Options::default().lease(lease)).await;
        let guard = scene.lock.acquire().await.unwrap();
        scene.lose("renew", loss);
        let failed =
            async || scene.told.count(|event| matches!(event, Event::RenewalFailed { .. })) > 0;
        eventually(SOON, "the renewal fails", failed).await;
        tokio::time::sleep(lease * 3 / 2).await;
        assert!(guard.is_held() && guard.remaining() > lease / 3, "{loss:?}: {guard:?}");
        assert_eq!(scene.entries().await, 1);
        guard.release().await.unwrap();
        assert_eq!(scene.losses(), 0, "{loss:?}: {:?}", scene.told.all());
        scene.ends_clean().await;
    }
}

/// An extension without an answer moves no local deadline; what the server made of it ends with
/// the hold.
#[tokio::test]
async fn an_extension_whose_reply_is_lost_is_repeated_or_unknown() {
    for loss in LOSSES {
        let scene = Scene::new(Options::default().fixed(20 * SECOND)).await;
        let guard = scene.lock.acquire().await.unwrap();
        scene.lose("renew", loss);
        let verdict = guard.extend(60 * SECOND).await;
        let left = guard.remaining();
        match loss {
            Loss::Cut => {
                assert!(verdict.is_ok() && left > 50 * SECOND, "{verdict:?}, {left:?} left");
            }
            Loss::Silence => {
                assert!(matches!(verdict, Err(ExtendError::Unknown { .. })), "{verdict:?}");
                assert!(left < 20 * SECOND && guard.is_held(), "{left:?} left");
            }
        }
        let ttl: i64 = scene.server.connection().await.pttl(&*keys("a").holds).await.unwrap();
        assert!((50_000..=60_000).contains(&ttl), "{loss:?}: it ran, {ttl} ms left");
        assert_eq!(scene.entries().await, 1, "{loss:?}");
        let verdict = guard.release().await;
        // On the silent link the first copy of the release is not answered either.
        match loss {
            Loss::Cut => verdict.unwrap(),
            Loss::Silence => assert!(matches!(verdict, Err(ReleaseError::Unknown { .. }))),
        }
        scene.ends_clean().await;
    }
}

/// I9: what was taken without anybody knowing is given back, far before its lease of 30 s ends.
#[tokio::test]
async fn an_acquire_that_gives_up_without_an_answer_leaves_no_ghost() {
    let scene = Scene::new(Options::default()).await;
    scene.lose("acquire", Loss::Silence);
    let begin = Watch::start();
    let error = scene.lock.acquire_within(RESPONSE).await.unwrap_err();
    assert!(matches!(error, AcquireError::Backend(_)), "{error:?}");
    scene.ends_clean().await;
    assert!(begin.awake() < 5 * SECOND, "{:?}", begin.awake());
    // One silent call does not condemn a connection; another session has a link of its own.
    let other = session(&scene.server.url()).await;
    let guard = mutex(&other, "a", Options::default()).try_acquire().await.unwrap();
    guard.expect("free").release().await.unwrap();
}

/// I9, at its worst: nothing is answered at all. The ghost is not renewed and ends with its lease.
#[tokio::test]
async fn without_any_answer_a_ghost_ends_with_its_lease() {
    let lease = 2 * SECOND;
    let scene = Scene::new(Options::default().lease(lease)).await;
    // It runs and is not answered; and all that would undo it is swallowed.
    scene.proxy.drop_replies(Pick::all());
    let begin = Watch::start();
    let lock = scene.lock.clone();
    let acquire = tokio::spawn(async move { lock.acquire_within(RESPONSE).await });
    eventually(SOON, "it runs", async || scene.entries().await == 1).await;
    scene.proxy.black_hole(true);
    assert!(matches!(acquire.await.unwrap(), Err(AcquireError::Backend(_))));
    assert_eq!(scene.session.statistics().watched, 0, "B28: no renewal without a guard");
    eventually(SOON, "the ghost ends", async || scene.entries().await == 0).await;
    let taken = begin.elapsed();
    assert!((lease - 100 * MS..lease + SECOND).contains(&taken), "{taken:?} for a lease of 2 s");
    // Its end is tried longer than that: what waited instead could be granted as long as its deadline lasts.
    scene.proxy.drop_replies(Pick::none());
    scene.proxy.black_hole(false);
    scene.ends_clean().await;
}

/// B39: the acquire lies in the socket of a server that does not run, and its future is gone.
#[tokio::test]
async fn b39_a_cancelled_acquire_is_undone_when_the_server_goes_on() {
    let scene = Scene::new(Options::default().lease(60 * SECOND)).await;
    scene.server.freeze();
    let cancelled = tokio::time::timeout(100 * MS, scene.lock.acquire()).await;
    assert!(cancelled.is_err());
    tokio::time::sleep(RESPONSE * 2).await;
    scene.server.thaw();
    let thawed = Watch::start();
    scene.ends_clean().await;
    assert!(thawed.awake() < SECOND, "{:?}", thawed.awake());
    let guard: Guard = scene.lock.try_acquire().await.unwrap().expect("free");
    guard.release().await.unwrap();
}
