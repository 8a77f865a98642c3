//! What a hostile reader of the fair lock, the read-write lock, the semaphore and the latch tried: each test is a way to
//! make one of them say more than it holds, lose something without a word, or stall.

use std::time::Duration;

use leasehold_lua::{Acquisition, Call, Keys, Mode, ObjectName, Settings, Terms, rwlock};
use leasehold_runtime::{Any, Guard};
use leasehold_rwlock::{RwLock, UpgradeError};
use leasehold_semaphore::{AdoptError, Event, LostReason, MergeError, Options, Semaphore, Session};
use leasehold_tests::rig::{Watch, kill_connections};
use leasehold_tests::scene::{SOON, Told, inboxes, mutex, session};
use leasehold_tests::{FaultProxy, Server, eventually};

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

fn semaphore(session: &Session, options: Options) -> Semaphore {
    Semaphore::new(session, "a", 3, options).expect("legal options")
}

fn lock(session: &Session, name: &str) -> RwLock {
    RwLock::new(session, name, Options::default()).expect("legal options")
}

/// A session behind a proxy, and what it tells.
async fn far(proxy: &FaultProxy) -> (Session, Told) {
    let told = Told::default();
    let builder = Session::builder(proxy.url()).expect("a URL");
    (told.by(builder).connect().await.expect("a session"), told)
}

// I14: what another process adopted is not merged, and the permit that stays does not say that it has it. The mark that
// an adoption leaves is not that of an earlier copy of the merge.
#[tokio::test]
async fn permit_that_was_adopted_elsewhere_is_not_merged() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let ((one, _), two) = (far(&proxy).await, session(&server.url()).await);
    let (here, there) = (semaphore(&one, Options::default()), semaphore(&two, Options::default()));
    let (kept, other) = (here.acquire().await.unwrap(), here.acquire().await.unwrap());
    proxy.drop_pushes(true);
    let adopted = there.adopt(other.owner()).await.unwrap();
    let Err(MergeError::Lost { lost, left: Some(kept) }) = here.merge(kept, other).await else {
        panic!("merged, and held twice")
    };
    // By that answer: no push comes through.
    assert_eq!(lost.reason, LostReason::NotOwner);
    assert_eq!((kept.weight(), adopted.weight()), (1, 1));
    // The control: an owner that holds nothing any more is adopted by nobody.
    kept.release().await.unwrap();
    adopted.release().await.unwrap();
    let owner = there.acquire().await.unwrap().detach();
    assert!(there.release_by(std::slice::from_ref(&owner)).await.unwrap().is_clean());
    assert!(matches!(here.adopt(&owner).await, Err(AdoptError::Lost(_))));
}

// I1, I20: a shutdown ends what is lent to an upgrade too; the guard that comes back knows it.
#[tokio::test]
async fn guard_of_a_refused_upgrade_is_not_held_after_a_shutdown() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let ((one, _), two) = (far(&proxy).await, session(&server.url()).await);
    let (here, there) = (lock(&one, "a"), lock(&two, "a"));
    let reading = here.read().acquire().await.unwrap();
    let other = there.read().acquire().await.unwrap();
    // The scripts are known: one round trip each, a third of a second long.
    let Err(UpgradeError::Refused(reading)) = here.try_upgrade(reading).await else {
        panic!("others read")
    };
    proxy.delay(160 * MS);
    let (upgraded, ended) = tokio::join!(here.try_upgrade(reading), async {
        tokio::time::sleep(SECOND / 10).await;
        one.shutdown(SOON).await
    });
    ended.unwrap();
    match upgraded {
        Err(UpgradeError::Refused(reading)) => {
            assert!(!reading.is_held());
            assert_eq!(reading.lost().await, LostReason::Shutdown);
        }
        Err(UpgradeError::Lost(lost)) => assert_eq!(lost.reason, LostReason::Shutdown),
        other => panic!("{other:?}"),
    }
    other.release().await.unwrap();
    assert!(there.write().try_acquire().await.unwrap().is_some());
}

// Taken to another lock, a guard is refused: nothing is lost by a mistake that the call can see.
#[tokio::test]
async fn guard_of_another_lock_is_handed_back() {
    let server = Server::start();
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let (here, another, there) = (lock(&one, "a"), lock(&one, "b"), lock(&two, "a"));
    let reading = here.read().acquire().await.unwrap();
    let Err(UpgradeError::Foreign(reading)) = another.try_upgrade(reading).await else {
        panic!("it is of another lock")
    };
    let Err(UpgradeError::Foreign(reading)) = there.try_upgrade(reading).await else {
        panic!("it is of another session")
    };
    assert!(reading.is_held() && here.is_locked().await.unwrap());
    let Ok(writing) = here.try_upgrade(reading).await else { panic!("nobody else reads") };
    writing.release().await.unwrap();
}

// A cry of loss means a loss: a change of sides that nobody waited for is none.
#[tokio::test]
async fn dropped_downgrade_is_no_loss() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let (session, told) = far(&proxy).await;
    let lock = lock(&session, "a");
    for warm in [true, false] {
        let writing = lock.write().acquire().await.unwrap();
        if warm {
            let Ok(reading) = lock.downgrade(writing).await else { panic!("it holds") };
            reading.release().await.unwrap();
            continue;
        }
        proxy.delay(100 * MS);
        assert!(tokio::time::timeout(20 * MS, lock.downgrade(writing)).await.is_err());
    }
    eventually(SOON, "both are ended", async || session.statistics().tracked == 0).await;
    assert!(!lock.is_locked().await.unwrap());
    let losses = |event: &Event| matches!(event, Event::Lost { .. } | Event::ReleaseLost { .. });
    assert_eq!(told.count(losses), 0, "{:?}", told.all());
}

// Two permits that are one end together: the earlier of their longest holds is kept, and told in time.
#[tokio::test]
async fn longest_hold_of_a_merged_permit_is_told_in_time() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let (session, told) = far(&proxy).await;
    // Renewed after a third of this, which is far too late to notice.
    let long = semaphore(&session, Options::default().lease(60 * SECOND));
    let kept = long.acquire().await.unwrap();
    let short = Options::default().lease(SECOND).hold_at_most(2 * SECOND);
    let other = semaphore(&session, short).acquire().await.unwrap();
    let Ok(kept) = long.merge(kept, other).await else { panic!("both hold") };
    let limits = |event: &Event| matches!(event, Event::HoldLimit { .. });
    // Nobody looks at the guard: a look would find it by the clock.
    eventually(SOON, "it is told", async || told.count(limits) == 1).await;
    assert!(!kept.is_held());
}

// I6: what an heir replaced is over. A late copy of its acquire would join it as an entry that nobody has, and keep the
// lock closed for a lease after the heir's release.
#[tokio::test]
async fn late_copy_of_what_was_adopted_takes_nothing() {
    let server = Server::start();
    let keys = Keys::new(ObjectName { prefix: b"", kind: "rwlock", group: None, name: b"a" });
    let terms =
        Terms { wait_ms: 10_000, check_ms: 1_000, grant_ms: 2_000, fence_ms: 3_600_000, floor: 0 };
    let acquisition =
        |id: &'static [u8]| Acquisition { id, owner: "o", note: b"n", lease_ms: 30_000 };
    let (first, heir) = (acquisition(b"a|30000|w|x"), acquisition(b"b|30000|w|x"));
    let take = rwlock::VERBS.acquire(&keys, &Settings::default(), first, Mode::Try, terms);
    let adopt = rwlock::adopt(&keys, heir, terms);
    let release = |id| rwlock::VERBS.release(&keys, id, false, 0, terms);
    for (call, code) in [(&take, 1), (&adopt, 1), (&take, 4), (&release(heir.id), 1), (&take, 4)] {
        assert_eq!(code_of(&server, call).await, code, "{}", call.script.name());
    }
    let session = session(&server.url()).await;
    assert!(lock(&session, "a").write().try_acquire().await.unwrap().is_some());
}

/// The first value of a script's reply.
async fn code_of(server: &Server, call: &Call) -> i64 {
    let script = redis::Script::new(call.script.source());
    let mut invocation = script.prepare_invoke();
    for key in &call.keys {
        invocation.key(&**key);
    }
    for arg in &call.args {
        invocation.arg(&**arg);
    }
    let reply: Vec<redis::Value> =
        invocation.invoke_async(&mut server.connection().await).await.expect("a reply");
    redis::from_redis_value(reply[0].clone()).expect("a code")
}

/// Gives a call up when it has run and its answer is under way: `delay` each way.
async fn given_up<F: Future>(proxy: &FaultProxy, delay: Duration, call: F) {
    proxy.delay(delay);
    assert!(tokio::time::timeout(delay * 3 / 2, call).await.is_err());
    proxy.delay(Duration::ZERO);
}

// The shortest hold counts from the grant, whatever became of a change of sides or a split that nobody waited for.
#[tokio::test]
async fn dropped_exchange_or_split_keeps_the_shortest_hold() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let ((one, _), two) = (far(&proxy).await, session(&server.url()).await);
    for minute in [60 * SECOND, Duration::ZERO] {
        let slow = Options::default().hold_at_least(minute);
        let name = format!("{minute:?}");
        let here = RwLock::new(&one, name.as_str(), slow.clone()).unwrap();
        let writing = here.write().acquire().await.unwrap();
        let Ok(reading) = here.downgrade(writing).await else { panic!("it holds") };
        given_up(&proxy, 200 * MS, here.try_upgrade(reading)).await;
        let permits = semaphore(&one, slow);
        let mut permit = permits.many(3).acquire().await.unwrap();
        let part = permits.split(&mut permit, 1).await.unwrap();
        given_up(&proxy, 200 * MS, permits.split(&mut permit, 1)).await;
        let ended = async || one.statistics().tracked == 2;
        eventually(SOON, "only permit and part are left", ended).await;
        let there = semaphore(&two, Options::default());
        // The control: without a shortest hold all is free at once.
        let kept = !minute.is_zero();
        assert_eq!(there.used().await.unwrap(), if kept { 3 } else { 2 });
        let again = lock(&two, &name).write().try_acquire().await.unwrap();
        assert_eq!(again.is_none(), kept);
        for permit in [permit, part] {
            permit.release().await.unwrap();
        }
        for holder in there.holders().await.unwrap() {
            assert!(there.force_release(&holder.holder).await.unwrap());
        }
    }
}

// A shutdown meets a change of sides and a split under way: somebody held, and the shortest hold counts.
#[tokio::test]
async fn shutdown_during_exchange_or_split_keeps_the_shortest_hold() {
    let server = Server::start();
    let two = session(&server.url()).await;
    for minute in [60 * SECOND, Duration::ZERO] {
        let proxy = FaultProxy::to(&server);
        let (one, _) = far(&proxy).await;
        let slow = Options::default().hold_at_least(minute);
        let name = format!("{minute:?}");
        let here = RwLock::new(&one, name.as_str(), slow.clone()).unwrap();
        let writing = here.write().acquire().await.unwrap();
        let permits = semaphore(&one, slow);
        let mut permit = permits.many(3).acquire().await.unwrap();
        proxy.delay(200 * MS);
        let changing = tokio::spawn(async move { here.downgrade(writing).await.is_err() });
        let splitting = tokio::spawn(async move { permits.split(&mut permit, 1).await.is_err() });
        tokio::time::sleep(100 * MS).await;
        one.shutdown(SOON).await.unwrap();
        assert!(changing.await.unwrap() && splitting.await.unwrap(), "both were cut off");
        let there = semaphore(&two, Options::default());
        let kept = !minute.is_zero();
        assert_eq!(there.used().await.unwrap(), if kept { 3 } else { 0 });
        let again = lock(&two, &name).write().try_acquire().await.unwrap();
        assert_eq!(again.is_none(), kept);
        for holder in there.holders().await.unwrap() {
            assert!(there.force_release(&holder.holder).await.unwrap());
        }
    }
}

// I7: the thread goes on with a release that nobody waits for any more; its copy finds nothing where the first one has run,
// and that is no loss.
#[tokio::test]
async fn release_that_nobody_waited_for_is_no_loss() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let ((one, told), two) = (far(&proxy).await, session(&server.url()).await);
    let permits = semaphore(&one, Options::default());
    // The scripts are known: one round trip each.
    permits.acquire().await.unwrap().release().await.unwrap();
    assert!(permits.release_all(vec![permits.acquire().await.unwrap()]).await.unwrap().is_clean());
    let single = permits.acquire().await.unwrap();
    given_up(&proxy, 200 * MS, single.release()).await;
    let many = vec![permits.acquire().await.unwrap(), permits.acquire().await.unwrap()];
    given_up(&proxy, 200 * MS, permits.release_all(many)).await;
    eventually(SOON, "all are ended", async || one.statistics().tracked == 0).await;
    assert_eq!(permits.used().await.unwrap(), 0);
    let losses = |event: &Event| matches!(event, Event::Lost { .. } | Event::ReleaseLost { .. });
    assert_eq!(told.count(losses), 0, "{:?}", told.all());
    let unknown = |event: &Event| matches!(event, Event::ReleaseUnknown { .. });
    assert_eq!(told.count(unknown), 3, "{:?}", told.all());
    // The control: what an only copy finds ended was lost.
    let lost = permits.acquire().await.unwrap();
    proxy.drop_pushes(true);
    let holder = semaphore(&two, Options::default()).holders().await.unwrap().remove(0).holder;
    assert!(permits.force_release(&holder).await.unwrap());
    drop(lost);
    eventually(SOON, "it is told", async || told.count(losses) == 1).await;
}

// The lease stays, also where it was extended: a guard does not end on its own while the server keeps its hold.
#[tokio::test]
async fn extended_hold_lasts_as_long_on_the_other_side() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let options = Options::default().fixed(2 * SECOND);
    let lock = RwLock::new(&session, "a", options).unwrap();
    let writing = lock.write().acquire().await.unwrap();
    assert!(writing.remaining() <= 2 * SECOND);
    writing.extend(60 * SECOND).await.unwrap();
    let Ok(reading) = lock.downgrade(writing).await else { panic!("it holds") };
    assert!(reading.remaining() > 30 * SECOND, "{:?}", reading.remaining());
    let Ok(writing) = lock.try_upgrade(reading).await else { panic!("it is alone") };
    assert!(writing.remaining() > 30 * SECOND, "{:?}", writing.remaining());
    assert!(writing.remaining() <= lock.holders().await.unwrap().remaining, "I2");
    writing.release().await.unwrap();
}

// More has ended than one call clears away: that is nobody in the way of an upgrade.
#[tokio::test]
async fn sole_reader_is_upgraded_beside_hundreds_that_have_ended() {
    let server = Server::start();
    let session = session(&server.url()).await;
    let short = RwLock::new(&session, "a", Options::default().fixed(500 * MS)).unwrap();
    let reading = lock(&session, "a").read().acquire().await.unwrap();
    for _ in 0..600 {
        // Nobody releases them, as after a crash.
        drop(short.read().acquire().await.unwrap().detach());
    }
    let alive = async || short.holders().await.unwrap().readers.len() == 1;
    eventually(SOON, "all others have ended", alive).await;
    let Ok(writing) = short.try_upgrade(reading).await else { panic!("nobody else reads") };
    // The control: one that lives is in the way.
    let Ok(reading) = short.downgrade(writing).await else { panic!("it holds") };
    let other = short.read().acquire().await.unwrap();
    let Err(UpgradeError::Refused(reading)) = short.try_upgrade(reading).await else {
        panic!("somebody else reads")
    };
    other.release().await.unwrap();
    reading.release().await.unwrap();
}

// A hold that lasts long is told once, however often its upgrade is refused.
#[tokio::test]
async fn long_hold_is_told_once_whatever_is_refused() {
    let server = Server::start();
    let told = Told::default();
    let builder = Session::builder(&server.url()).unwrap().held_long_after(200 * MS);
    let (one, two) = (told.by(builder).connect().await.unwrap(), session(&server.url()).await);
    let (here, other) = (lock(&one, "a"), lock(&two, "a").read().acquire().await.unwrap());
    let mut reading = here.read().acquire().await.unwrap();
    let long = |event: &Event| matches!(event, Event::HeldLong { .. });
    eventually(SOON, "it is told", async || told.count(long) == 1).await;
    for _ in 0..5 {
        let Err(UpgradeError::Refused(back)) = here.try_upgrade(reading).await else {
            panic!("somebody else reads")
        };
        reading = back;
    }
    // What the thread had to tell it has told by its next renewal.
    let renewed = one.statistics().renewals;
    eventually(SOON, "it is renewed", async || one.statistics().renewals > renewed).await;
    assert_eq!(told.count(long), 1);
    other.release().await.unwrap();
    reading.release().await.unwrap();
}

// What changes again and again is renewed in time all the same: a third of the lease after the last renewal, not after
// the last change.
#[tokio::test]
async fn changes_do_not_put_the_renewal_off() {
    let server = Server::start();
    let lease = 3 * SECOND;
    let options = Options::default().lease(lease);
    let (one, two) = (session(&server.url()).await, session(&server.url()).await);
    let permits = semaphore(&one, options.clone());
    let parts = async {
        let (mut permit, mut least) = (permits.many(2).acquire().await.unwrap(), lease);
        while one.statistics().renewals < 2 {
            let part = permits.split(&mut permit, 1).await.unwrap();
            tokio::time::sleep(5 * MS).await; // as work would
            permit = permits.merge(part, permit).await.unwrap();
            least = least.min(permit.remaining());
        }
        least
    };
    let lock = RwLock::new(&two, "a", options).unwrap();
    let sides = async {
        let (mut writing, mut least) = (lock.write().acquire().await.unwrap(), lease);
        while two.statistics().renewals < 2 {
            let Ok(reading) = lock.downgrade(writing).await else { panic!("it holds") };
            tokio::time::sleep(5 * MS).await;
            let Ok(alone) = lock.try_upgrade(reading).await else { panic!("it is alone") };
            least = least.min(alone.remaining());
            writing = alone;
        }
        least
    };
    let (parts, sides) = tokio::join!(parts, sides);
    // Due with two thirds left.
    assert!(parts > lease / 3 && sides > lease / 3, "{parts:?}, {sides:?}");
}

/// One hold of all there is.
async fn whole(kind: &str, session: &Session) -> Guard<Any> {
    let hold = match kind {
        "mutex" => mutex(session, "m", Options::default()).acquire().await.map(Guard::into_any),
        "write" => lock(session, "w").write().acquire().await.map(Guard::into_any),
        _ => {
            let permits = semaphore(session, Options::default());
            permits.many(3).acquire().await.map(Guard::into_any)
        }
    };
    hold.expect("it is served")
}

// Whoever lets go finds nobody at an inbox that is down. Where nobody else waits, the next check finds it free; but beside
// others it never is.
#[tokio::test(flavor = "multi_thread")]
async fn session_without_an_inbox_is_served_beside_others_that_wait() {
    let server = Server::start();
    let proxy = FaultProxy::to(&server);
    let (near, (far, _)) = (session(&server.url()).await, far(&proxy).await);
    proxy.refuse(true);
    kill_connections(&server, "pubsub").await;
    eventually(SOON, "the other is back", async || inboxes(&server).await == 1).await;
    for kind in ["mutex", "write", "permits"] {
        let others = [near.clone(), near.clone(), near.clone()].map(|near| {
            tokio::spawn(async move {
                loop {
                    let guard = whole(kind, &near).await;
                    tokio::time::sleep(5 * MS).await;
                    guard.release().await.unwrap();
                }
            })
        });
        tokio::time::sleep(100 * MS).await;
        let begun = Watch::start();
        for _ in 0..3 {
            whole(kind, &far).await.release().await.unwrap();
        }
        println!("{kind}: three holds after {:?}", begun.awake());
        assert!(begun.awake() < 3 * SECOND, "{kind}: {:?}", begun.awake());
        for other in others {
            assert!(!other.is_finished(), "the control: the others go on");
            other.abort();
        }
    }
    assert_eq!(inboxes(&server).await, 1, "the control: it has not come back");
    assert_eq!(far.statistics().pushed_grants, 0, "the control: no message reached it");
}
