//! For what shuts everybody else out.

use std::pin::pin;
use std::time::{Duration, Instant};

use leasehold_runtime::AcquireError;
use tokio::task::JoinHandle;

use super::rig::{NAME, free, queued, release, take};
use super::{Holdable, Lease, MACHINE, MS, ROUNDING, Rig, SECOND, Site, scaled};
use crate::eventually;
use crate::scene::SOON;

type Waiter<H> = JoinHandle<(<H as Holdable>::Hold, Instant)>;

/// A task that waits long, and says when it was granted.
fn waiter<H: Holdable>(object: &H) -> Waiter<H> {
    let object = object.clone();
    tokio::spawn(async move {
        let hold = object.acquire_within(6 * SOON).await.expect("it is granted");
        (hold, Instant::now())
    })
}

async fn granted<H: Holdable>(waiter: Waiter<H>) -> (H::Hold, Instant) {
    waiter.await.expect("no panic inside")
}

/// Lease 2 s, a second task blocks: it gets the lock when the lease ends, without any release. (The
/// line allows 20 ms on a quiet machine.)
pub async fn c8_a_waiter_follows_a_lease_that_ends<H: Holdable, S: Site>(rig: &Rig<H, S>) {
    let lease = scaled(2 * SECOND);
    let (fixed, second) = (rig.open(Lease::Fixed(lease)).await, rig.open(Lease::LONG).await);
    let began = Instant::now();
    let silent = take(&fixed).await;
    let (next, at) = granted::<H>(waiter(&second)).await;
    let after = at - began;
    println!("granted {after:?} after the take, lease {lease:?}");
    assert!(after + ROUNDING >= lease, "granted before the lease ended: {after:?}");
    assert!(after <= lease + MACHINE, "granted late: {after:?}");
    release(next).await;
    drop(silent);
}

/// A wait that is interrupted, and kept, keeps its place and is granted later.
pub async fn c13_a_wait_that_is_interrupted_and_kept_goes_on<H: Holdable, S: Site>(
    rig: &Rig<H, S>,
) {
    let (one, two) = (rig.open(Lease::LONG).await, rig.open(Lease::LONG).await);
    let hold = take(&one).await;
    let mut waiting = pin!(two.acquire_within(SOON));
    let mut places = Vec::new();
    for _ in 0..5 {
        let interrupted = tokio::time::timeout(100 * MS, &mut waiting).await;
        assert!(interrupted.is_err(), "it waits");
        places.push(one.waiting().await);
    }
    assert!(places.iter().all(|place| place.len() == 1 && *place == places[0]), "{places:?}");
    release(hold).await;
    release(waiting.await.expect("it still gets the lock")).await;
}

/// Waiters of two names in one client, which has one subscription: both are woken. (100 ms there; here
/// a second, and by messages, so that the machine may be slow.)
pub async fn c23_waiters_of_two_names_are_both_woken<H: Holdable, S: Site>(rig: &Rig<H, S>) {
    let (holder, waiters) = (rig.client().await, rig.client().await);
    let (mut holds, mut tasks) = (Vec::new(), Vec::new());
    for name in ["a", "b"] {
        let [held, wanted] = [&holder, &waiters].map(|client| H::open(client, name, Lease::LONG));
        holds.push(take(&held).await);
        let waited = wanted.clone();
        tasks.push(tokio::spawn(async move { waited.acquire_within(5 * SECOND).await }));
        queued(&wanted, 1).await;
    }
    for hold in holds {
        release(hold).await;
    }
    let released = Instant::now();
    for task in tasks {
        release(task.await.expect("no panic inside").expect("all get it")).await;
    }
    assert!(released.elapsed() < MACHINE, "woken late: {:?}", released.elapsed());
    assert_eq!(waiters.session().statistics().pushed_grants, 2, "both by a message");
}

/// Tries without waiting never queue; who waits gets the lock only when the lease ended (0.5 s).
pub async fn c41_tries_never_queue<H: Holdable, S: Site>(rig: &Rig<H, S>) {
    let lease = 500 * MS;
    let (first, second) = (rig.open(Lease::Fixed(lease)).await, rig.open(Lease::LONG).await);
    let third = rig.open(Lease::LONG).await;
    let began = Instant::now();
    let silent = take(&first).await;
    let mut tries = 0;
    while began.elapsed() < lease / 2 {
        let tried = second.try_acquire().await.expect("no error");
        assert!(tried.is_none() || began.elapsed() >= lease, "a try takes what is held");
        tries += 1;
    }
    let length = second.waiting().await.len();
    assert!(began.elapsed() >= lease || length == 0, "{length} of {tries} tries queue");
    let (hold, at) = granted::<H>(waiter(&third)).await;
    assert!(at - began + ROUNDING >= lease, "granted after {:?}", at - began);
    assert!(at - began <= lease + MACHINE, "granted after {:?}", at - began);
    release(hold).await;
    drop(silent);
}

/// A wait of 200 ms against a hold of 1 s ends without it, and leaves no ghost in the queue: a try
/// with no wait gets it once it is free.
pub async fn c43_a_wait_that_ended_leaves_no_ghost<H: Holdable, S: Site>(rig: &Rig<H, S>) {
    let (first, second) = (rig.open(Lease::Fixed(SECOND)).await, rig.open(Lease::LONG).await);
    let silent = take(&first).await;
    let began = Instant::now();
    let waited = second.acquire_within(200 * MS).await.map(|_| "held");
    assert!(matches!(waited, Err(AcquireError::TimedOut { .. })), "{waited:?}");
    assert!(began.elapsed() >= 200 * MS, "gave up after {:?}", began.elapsed());
    assert_eq!(second.waiting().await, [""; 0], "it left the queue");
    free(&first, SECOND + MACHINE).await;
    for wait in [None, Some(Duration::ZERO)] {
        let hold = match wait {
            None => second.try_acquire().await.expect("no error").expect("it is free"),
            Some(wait) => second.acquire_within(wait).await.expect("it is free"),
        };
        release(hold).await;
    }
    drop(silent);
}

/// Writes are paused, so the calls of waiters time out: no error to a waiter whose wait goes on, plain
/// `TimedOut` to one whose wait ends meanwhile, and nothing of either in the queue afterwards.
pub async fn c44_a_pause_of_writes_is_no_error_to_a_waiter<H: Holdable, S: Site>(rig: &Rig<H, S>) {
    let pause = scaled(12 * SECOND);
    // Not renewed during the pause, nor in need of it.
    let first = rig.open(Lease::Renewed(pause * 10)).await;
    let client = rig.client_with(|builder| builder.response_timeout(SECOND / 2)).await;
    let second = H::open(&client, NAME, Lease::LONG);
    let hold = take(&first).await;
    let impatient = second.clone();
    let impatient = tokio::spawn(async move {
        let outcome = impatient.acquire_within(pause / 2).await;
        outcome.map(|_| "held")
    });
    let patient = waiter(&second);
    queued(&second, 2).await;
    rig.site.run(&["CLIENT", "PAUSE", "60000", "WRITE"]).await;
    let began = Instant::now();
    let outcome = impatient.await.expect("no panic inside");
    assert!(matches!(outcome, Err(AcquireError::TimedOut { .. })), "{outcome:?}");
    assert!(began.elapsed() < pause, "it waited for the answer of a paused server");
    tokio::time::sleep(pause.saturating_sub(began.elapsed())).await;
    assert!(!patient.is_finished(), "the patient one still waits");
    rig.site.run(&["CLIENT", "UNPAUSE"]).await;
    queued(&first, 1).await;
    release(hold).await;
    release(granted::<H>(patient).await.0).await;
    assert_eq!(first.waiting().await, [""; 0]);
    client.is_idle().await;
}

/// A second task still waits after 300 ms, and gets it after the release.
pub async fn c47_a_second_task_waits_and_gets_it_after_release<H: Holdable, S: Site>(
    rig: &Rig<H, S>,
) {
    let object = rig.open(Lease::LONG).await;
    waits_and_gets_it(&object, &object).await;
}

/// The same through a second handle of the same client.
pub async fn c49_a_second_handle_waits_and_gets_it_after_release<H: Holdable, S: Site>(
    rig: &Rig<H, S>,
) {
    let client = rig.client().await;
    let [one, two] = [(), ()].map(|()| H::open(&client, NAME, Lease::LONG));
    waits_and_gets_it(&one, &two).await;
}

async fn waits_and_gets_it<H: Holdable>(one: &H, two: &H) {
    let hold = take(one).await;
    let waiter = waiter(two);
    tokio::time::sleep(300 * MS).await;
    assert!(!waiter.is_finished(), "a second one holds too");
    queued(one, 1).await;
    release(hold).await;
    release(granted::<H>(waiter).await.0).await;
}

/// Waits while held (1 s), gets it within 200 ms of the release (+ 300 ms for the machine); with a limit
/// it gets it, or not and in time; tries say busy or take.
pub async fn c112_a_wait_is_granted_by_release_or_ends_in_time<H: Holdable, S: Site>(
    rig: &Rig<H, S>,
) {
    let (one, two) = (rig.open(Lease::LONG).await, rig.open(Lease::LONG).await);
    let hold = take(&one).await;
    assert!(two.try_acquire().await.expect("no error").is_none(), "busy");
    let began = Instant::now();
    let limited = two.acquire_within(200 * MS).await.map(|_| "held");
    assert!(matches!(limited, Err(AcquireError::TimedOut { .. })), "{limited:?}");
    let took = began.elapsed();
    assert!((200 * MS..200 * MS + MACHINE).contains(&took), "a limit of 200 ms took {took:?}");
    let waiter = waiter(&two);
    tokio::time::sleep(scaled(SECOND)).await;
    assert!(!waiter.is_finished(), "it waits while held");
    queued(&one, 1).await;
    let released = Instant::now();
    release(hold).await;
    let (next, at) = granted::<H>(waiter).await;
    println!("granted {:?} after the release", at - released);
    assert!(at - released < MACHINE, "{:?}", at - released);
    release(next).await;
    let tried = one.try_acquire().await.expect("no error");
    release(tried.expect("a try takes what is free")).await;
}

/// While the inbox is down the waiters of a client ask at 10 ms, doubling to 200 ms, each pause shorter
/// by up to a quarter; and with it up again at their regular pace. (There: 10, 30, 90, then 100 ms.)
pub async fn c113_checks_back_off_to_200_ms_while_the_inbox_is_down<H: Holdable, S: Site>(
    rig: &Rig<H, S>,
) {
    let (one, client) = (rig.open(Lease::LONG).await, rig.client().await);
    let hold = take(&one).await;
    let waiter = waiter(&H::open(&client, NAME, Lease::LONG));
    queued(&one, 1).await;
    let checks = || client.session().statistics().checks;
    rig.site.run(&["ACL", "SETUSER", "default", "-subscribe"]).await;
    rig.site.run(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    eventually(SOON, "the inboxes are down", async || rig.site.channels().await == 0).await;
    let (before, began) = (checks(), Instant::now());
    tokio::time::sleep(2 * SECOND).await;
    let (asked, within) = (checks() - before, began.elapsed());
    println!("{asked} checks within {within:?} without an inbox");
    // 7 on the way to 200 ms, then one each 150 ms at the most.
    let most = u64::try_from(within.as_millis() / 150).expect("a short time") + 7;
    assert!(asked <= most, "{asked} checks in {within:?}: no back-off");
    // 10 if each pause is 200 ms; half of it on a machine that does not get to it.
    assert!(asked >= 5, "{asked} checks in {within:?}: a waiter sleeps");
    rig.site.run(&["ACL", "SETUSER", "default", "+subscribe"]).await;
    eventually(SOON, "the inboxes are back", async || rig.site.channels().await == 2).await;
    release(hold).await;
    release(granted::<H>(waiter).await.0).await;
}
