//! Users with few rights: the rule of `leasehold_tests::acl` is enough for a semaphore, each right of it is needed, and a
//! missing one is told by kind and leaves no permit taken. `acl.rs` has the rest.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use leasehold_semaphore::{
    AcquireError, AdoptError, BackendError, BackendErrorKind, ExtendError, LimitError, MergeError,
    Options, Permit, ReleaseError, Semaphore, Session, SplitError,
};
use leasehold_tests::permits::{semaphore, used};
use leasehold_tests::scene::SOON;
use leasehold_tests::{Server, acl, eventually};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

async fn session_of(server: &Server, user: &str, prefix: &str) -> Session {
    let builder = Session::builder(&acl::url(server, user)).expect("a URL");
    let builder = builder.prefix(prefix).check_every(300 * MS).waiter_deadline(SECOND);
    builder.connect().await.expect("a session")
}

/// What the trial of a verb came to: the kind of its refusal, or nothing.
#[derive(Debug, Default, PartialEq)]
struct Refusals(BTreeMap<&'static str, BackendErrorKind>);

impl Refusals {
    fn note<T>(&mut self, verb: &'static str, outcome: Result<T, BackendErrorKind>) -> Option<T> {
        outcome.map_err(|kind| self.0.entry(verb).or_insert(kind)).ok()
    }
}

fn of_look(error: BackendError) -> BackendErrorKind {
    error.kind()
}

fn of_acquire(error: AcquireError) -> BackendErrorKind {
    if let AcquireError::Backend(cause) = error { cause.kind() } else { panic!("{error:?}") }
}

/// Permits of another call that is refused end with their lease meanwhile.
fn of_release(error: ReleaseError) -> BackendErrorKind {
    match error {
        ReleaseError::Unknown { source, .. } | ReleaseError::Backend { source, .. } => {
            source.kind()
        }
        ReleaseError::Lost(_) | _ => panic!("{error:?}"),
    }
}

fn of_extend(error: ExtendError) -> BackendErrorKind {
    match error {
        ExtendError::Unknown { source, .. } | ExtendError::Backend { source, .. } => source.kind(),
        ExtendError::Lost(_) | ExtendError::Config(_) | _ => panic!("{error:?}"),
    }
}

fn of_limit(error: LimitError) -> BackendErrorKind {
    if let LimitError::Backend(cause) = error { cause.kind() } else { panic!("{error:?}") }
}

fn of_split(error: SplitError) -> BackendErrorKind {
    match error {
        SplitError::Unknown { source, .. } | SplitError::Backend { source, .. } => source.kind(),
        SplitError::TooMuch { .. }
        | SplitError::Foreign
        | SplitError::Lost(_)
        | SplitError::Config(_)
        | _ => panic!("{error:?}"),
    }
}

fn of_merge(error: MergeError) -> BackendErrorKind {
    match error {
        MergeError::Unknown { source, .. } | MergeError::Backend { source, .. } => source.kind(),
        MergeError::Foreign { .. } | MergeError::Lost { .. } | _ => panic!("{error:?}"),
    }
}

fn of_adopt(error: AdoptError) -> BackendErrorKind {
    if let AdoptError::Backend(cause) = error { cause.kind() } else { panic!("{error:?}") }
}

/// Every way through the scripts, each verb by itself: what is refused does not hide the next one.
async fn try_everything(session: &Session) -> Refusals {
    let mut refusals = Refusals::default();
    let options = Options::default().lease(2 * SECOND).max_wait(SECOND);
    let wide = semaphore(session, "a", 6, options.clone());
    // The first one sets the limit, the second one meets the usual case.
    let first = refusals.note("acquire", wide.many(2).acquire().await.map_err(of_acquire));
    let second = refusals.note("acquire", wide.many(3).acquire().await.map_err(of_acquire));
    refusals.note("set limit", wide.set_limit(6).await.map_err(of_limit));
    refusals.note("look", wide.holders().await.map_err(of_look));
    refusals.note("queue", wide.queue().await.map_err(of_look));
    if let (Some(first), Some(second)) = (first, second) {
        parts(&wide, first, second, &mut refusals).await;
    }
    let narrow = semaphore(session, "b", 1, options.clone().max_waiters(1));
    refusals.note("wait", waits(&narrow).await);
    refusals.note("hand over", hands_over(&semaphore(session, "c", 1, options.clone())).await);
    let brief = semaphore(session, "d", 1, options.hold_at_least(20 * MS));
    if let Some(permit) = refusals.note("acquire", brief.acquire().await.map_err(of_acquire)) {
        refusals.note("release", permit.release().await.map_err(of_release));
    }
    refusals
}

/// What takes permits that are held: two of one semaphore.
async fn parts(semaphore: &Semaphore, first: Permit, second: Permit, refusals: &mut Refusals) {
    refusals.note("extend", first.extend(3 * SECOND).await.map_err(of_extend));
    refusals.note("try", semaphore.try_acquire().await.map_err(of_acquire));
    let mut second = second;
    if let Some(part) =
        refusals.note("split", semaphore.split(&mut second, 1).await.map_err(of_split))
    {
        refusals.note("release", part.release().await.map_err(of_release));
    }
    let merged = semaphore.merge(first, second).await.map_err(of_merge);
    let Some(merged) = refusals.note("merge", merged) else { return };
    let adopted = semaphore.adopt(&merged.detach()).await.map_err(of_adopt);
    let Some(adopted) = refusals.note("adopt", adopted) else { return };
    let owner = [adopted.owner().clone()];
    let by_id = semaphore.release_by(&owner).await.map_err(of_release);
    let Some(_report) = refusals.note("release by id", by_id) else { return };
    drop(adopted);
    let Ok(permit) = semaphore.acquire().await else { return };
    let all = semaphore.release_all(vec![permit]).await.map_err(of_release);
    let Some(_report) = refusals.note("release all", all) else { return };
    let Ok(_forced) = semaphore.acquire().await else { return };
    // A sweep needs other rights than a look at what is live.
    let found = refusals.note("look", semaphore.holders().await.map_err(of_look));
    for found in found.into_iter().flatten() {
        refusals.note("force", semaphore.force_release(&found.holder).await.map_err(of_look));
    }
}

/// One is granted when the other releases.
async fn hands_over(semaphore: &Semaphore) -> Result<(), BackendErrorKind> {
    let permit = semaphore.acquire().await.map_err(of_acquire)?;
    let releases = async {
        tokio::time::sleep(50 * MS).await; // the other one queues
        permit.release().await
    };
    let (next, released) = tokio::join!(semaphore.acquire(), releases);
    released.map_err(of_release)?;
    next.map(drop).map_err(of_acquire)
}

/// A holder and two waiters for one place: one waits and gives up, one finds the queue full.
async fn waits(semaphore: &Semaphore) -> Result<(), BackendErrorKind> {
    let _held = semaphore.acquire().await.map_err(of_acquire)?;
    let wait = || semaphore.acquire_within(300 * MS);
    let (one, two) = tokio::join!(wait(), wait());
    for outcome in [one, two] {
        match outcome {
            Err(AcquireError::Backend(cause)) => return Err(cause.kind()),
            Err(AcquireError::TimedOut { .. } | AcquireError::Saturated { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    Ok(())
}

#[tokio::test]
async fn b111_everything_works_with_one_prefix_and_the_commands_of_the_rule() {
    let server = Server::start();
    acl::semaphore_user(&server, "limited", "app:").await;
    let session = session_of(&server, "limited", "app:").await;
    assert_eq!(try_everything(&session).await, Refusals::default());
    assert!(session.statistics().pushed_grants > 0, "a hand-over is pushed");
    session.shutdown(SOON).await.unwrap();
    let refused = acl::refused(&server, "limited").await;
    assert_eq!(refused, Vec::<String>::new());
    let outside = |key: &Vec<u8>| !key.starts_with(b"app:lh1:semaphore:");
    assert_eq!(server.keys().await.into_iter().filter(outside).count(), 0);
}

/// A user whose rule lacks this command; answers whether it could be spared.
async fn is_spared(server: &Server, command: &str) -> bool {
    let prefix = format!("{command}:");
    acl::semaphore_user(server, command, &prefix).await;
    let session = session_of(server, command, &prefix).await;
    acl::change(server, command, &format!("-{command}")).await;
    let refusals = try_everything(&session).await;
    for (verb, kind) in &refusals.0 {
        assert_eq!(*kind, BackendErrorKind::NoPermission, "{verb} without {command}");
    }
    // The lack of some is no refusal to the caller: it is a push that nobody gets.
    let spared = refusals.0.is_empty() && acl::refused(server, command).await.is_empty();
    acl::semaphore_user(server, command, &prefix).await;
    for (name, limit) in [("a", 6), ("b", 1), ("c", 1), ("d", 1)] {
        let semaphore = semaphore(&session, name, limit, Options::default());
        // A waiter that could not leave its queue does so with its deadline.
        let free = async || {
            let all = semaphore.many(limit).try_acquire().await.expect("an answer");
            match all {
                Some(all) => all.release().await.map(|()| true).expect("still held"),
                None => false,
            }
        };
        eventually(SOON, &format!("{name} is free, without {command} before"), free).await;
        used(&semaphore, 0).await;
    }
    spared
}

/// The rule has nothing to spare, and whatever is missing: every error is of the kind `NoPermission`, and when the right
/// is back all permits are, within the longest lease in use (3 s) or a waiter's deadline (1 s).
#[tokio::test]
async fn b112_each_right_is_needed_and_its_lack_is_told_and_leaves_no_permit_taken() {
    let server = Rc::new(Server::start());
    // Room in ACL LOG for what all trials together are refused.
    let mut room = redis::cmd("CONFIG");
    room.arg("SET").arg("acllog-max-len").arg(10_000);
    room.exec_async(&mut server.connection().await).await.unwrap();
    let queue = leasehold_lua::mutex::scripts();
    let queue = queue.iter().filter(|script| script.name() == "mutex/queue");
    for script in leasehold_lua::semaphore::scripts().iter().chain(queue) {
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(script.source());
        load.exec_async(&mut server.connection().await).await.unwrap();
    }
    let trials = tokio::task::LocalSet::new();
    let all: Vec<_> = acl::SEMAPHORE_COMMANDS
        .iter()
        .map(|command| {
            let server = server.clone();
            trials.spawn_local(async move { is_spared(&server, command).await.then_some(*command) })
        })
        .collect();
    trials.await;
    let mut spared = Vec::new();
    for trial in all {
        spared.extend(trial.await.unwrap());
    }
    // Scripts by their text are needed when the server has forgotten them, subscribing when a session opens: `acl.rs`.
    assert_eq!(spared, ["eval", "subscribe"], "these rights could be left out");
    eventually(SOON, "the sessions end", async || Rc::strong_count(&server) == 1).await;
}
