//! The session's thread: the one place that spawns. Inbox and watchdog live here, whatever becomes of the runtimes of
//! the user.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use leasehold_lua::wire::Push;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::end::Origin;
use super::link::{Link, Order, Shared};
use super::registry::{Outcome, Registry};
use super::renewal::Confirmed;
use super::{check, end, inbox_keeper, renewal};
use crate::clock::{Moment, Sample, now, sleep_until};
use crate::error::{AcquireError, ConfigError, LostReason, ShutdownError};
use crate::hold::Hold;

/// A pushed grant is handed out without asking only while the server's clock was read so lately.
const FRESH_SAMPLE: Duration = Duration::from_secs(10);

/// Starts the thread; `ready` hears when inbox and watchdog connection are up, or why not.
pub(super) fn start(
    shared: Arc<Shared>,
    orders: mpsc::UnboundedReceiver<Order>,
    weak: mpsc::WeakUnboundedSender<Order>,
    ready: oneshot::Sender<Result<(), ConfigError>>,
) -> std::io::Result<()> {
    let run = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        // Without a runtime the sender is dropped, and whoever waits for it is told so.
        if let Ok(runtime) = runtime {
            runtime.block_on(Thread::run(shared, orders, weak, ready));
        }
    };
    std::thread::Builder::new().name("leasehold".to_owned()).spawn(run).map(drop)
}

/// Who waits for a shutdown.
type Done = oneshot::Sender<Result<(), ShutdownError>>;

struct Thread {
    granter: Granter,
    /// Renewals, checks, confirmations.
    tasks: JoinSet<()>,
    /// Ends; each says whether it was answered.
    ends: JoinSet<bool>,
    confirm: mpsc::UnboundedReceiver<(Uuid, u64)>,
}

impl Thread {
    async fn run(
        shared: Arc<Shared>,
        mut orders: mpsc::UnboundedReceiver<Order>,
        weak: mpsc::WeakUnboundedSender<Order>,
        ready: oneshot::Sender<Result<(), ConfigError>>,
    ) {
        let (confirm_sender, confirm) = mpsc::unbounded_channel();
        let granter = Granter { shared, orders: weak, confirm: confirm_sender };
        let mut thread =
            Self { granter: granter.clone(), tasks: JoinSet::new(), ends: JoinSet::new(), confirm };
        let mut keeper = JoinSet::new();
        keeper.spawn(inbox_keeper::keep(granter, ready));
        let last = thread.serve(&mut orders).await;
        if let Some((within, done)) = last {
            thread.shut_down(&mut orders, within, done).await;
        } else {
            thread.finish().await;
        }
        // The inbox closes last: unsubscribing first would lose grants that are under way.
        keeper.shutdown().await;
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.granter.shared
    }

    /// Until every handle is gone, or a shutdown is ordered.
    async fn serve(
        &mut self,
        orders: &mut mpsc::UnboundedReceiver<Order>,
    ) -> Option<(Duration, Done)> {
        let shared = self.shared().clone();
        loop {
            let next = shared.watchdog.next().min(shared.registry.next_check());
            tokio::select! {
                order = orders.recv() => match order {
                    None => return None,
                    Some(Order::Shutdown { within, done }) => return Some((within, done)),
                    Some(Order::End { plan, late, origin }) => self.spawn_end(plan, late, origin),
                },
                Some((uuid, token)) = self.confirm.recv() => {
                    self.tasks.spawn(confirm(self.granter.clone(), uuid, token));
                }
                () = shared.poke.notified() => {}
                () = sleep_until(next) => self.tick(),
                Some(_) = self.tasks.join_next() => {}
                Some(_) = self.ends.join_next() => {}
            }
        }
    }

    fn spawn_end(&mut self, plan: Arc<crate::engine::Plan>, late: bool, origin: Origin) {
        self.ends.spawn(end::end(self.shared().clone(), plan, late, origin));
    }

    fn tick(&mut self) {
        let shared = self.shared().clone();
        let (renewals, over, events) = shared.watchdog.tick();
        for state in over {
            // Looking is enough: the deadline has passed, and the look says why.
            state.lost();
        }
        for event in events {
            shared.events.emit(&event);
        }
        for batch in renewal::batches(&shared, renewals) {
            self.tasks.spawn(renewal::renew(shared.clone(), batch));
        }
        for due in shared.registry.due_checks() {
            self.tasks.spawn(check::check(self.granter.clone(), due));
        }
    }

    /// Every handle is gone: what they left behind is still ended.
    async fn finish(&mut self) {
        while self.tasks.join_next().await.is_some() {}
        while self.ends.join_next().await.is_some() {}
    }

    async fn shut_down(
        &mut self,
        orders: &mut mpsc::UnboundedReceiver<Order>,
        within: Duration,
        done: Done,
    ) {
        let shared = self.shared().clone();
        let remaining = shared.registry.close();
        for (plan, late, tell) in remaining.waiting {
            drop(tell.send(Outcome::Refused(AcquireError::Closed)));
            self.spawn_end(plan, late, Origin::Unheld);
        }
        for (state, late) in remaining.held {
            shared.watchdog.disarm(state.plan.uuid()); // I3
            state.lose(LostReason::Shutdown);
            self.spawn_end(state.plan.clone(), late, Origin::Lost);
        }
        // I20: whatever is being ended counts, guards that were dropped before the shutdown as well.
        let mut unanswered = self.ends.len();
        let mut waiting = vec![done];
        let all = async {
            loop {
                unanswered += self.take_orders(orders, &mut waiting);
                tokio::select! {
                    Some(ended) = self.ends.join_next() => unanswered -= usize::from(ended.unwrap_or(false)),
                    Some(_) = self.tasks.join_next() => {}
                    else => break,
                }
            }
        };
        // Over time: what is left ends with its lease.
        drop(tokio::time::timeout(within, all).await);
        unanswered += self.take_orders(orders, &mut waiting);
        let result = if unanswered == 0 { Ok(()) } else { Err(ShutdownError { unanswered }) };
        for done in waiting {
            drop(done.send(result.clone()));
        }
    }

    /// During a shutdown: starts the ends that were ordered meanwhile and answers how many; who orders a shutdown too
    /// gets the answer of the first.
    fn take_orders(
        &mut self,
        orders: &mut mpsc::UnboundedReceiver<Order>,
        waiting: &mut Vec<Done>,
    ) -> usize {
        let mut started = 0;
        while let Ok(order) = orders.try_recv() {
            match order {
                Order::End { plan, late, origin } => {
                    self.spawn_end(plan, late, origin);
                    started += 1;
                }
                Order::Shutdown { done, .. } => waiting.push(done),
            }
        }
        started
    }
}

/// Makes holds of waiters.
#[derive(Debug, Clone)]
pub(super) struct Granter {
    shared: Arc<Shared>,
    /// Weak: the thread must not keep itself alive.
    orders: mpsc::WeakUnboundedSender<Order>,
    /// Grants to confirm before they are handed out, with their tokens.
    confirm: mpsc::UnboundedSender<(Uuid, u64)>,
}

impl Granter {
    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn registry(&self) -> &Registry {
        &self.shared.registry
    }

    /// A push arrived. Runs in the inbox's driver: no waiting here.
    pub(super) fn receive(&self, push: Push) {
        match push {
            Push::Granted { uuid, token, lease_ms, at_us } => {
                if let Ok(uuid) = Uuid::parse_str(&uuid) {
                    self.pushed(uuid, token, Duration::from_millis(lease_ms), at_us);
                }
            }
            Push::Forced { uuid } => self.ended(&uuid, LostReason::ForceReleased),
            Push::Adopted { uuid } => self.ended(&uuid, LostReason::NotOwner),
            Push::Proof { .. } => {}
        }
    }

    /// Somebody else ended a hold.
    fn ended(&self, uuid: &str, reason: LostReason) {
        let held = Uuid::parse_str(uuid).ok().and_then(|uuid| self.registry().held(uuid));
        if let Some(state) = held {
            self.shared.watchdog.disarm(state.plan.uuid());
            state.lose(reason);
        }
    }

    /// A waiting id runs on receipt, without a further round trip, if the local deadline is known well and far enough
    /// away; else the grant is confirmed first. An id that is not waiting drops the push: it is held by its reply
    /// already, or its end is under way and ends this too.
    fn pushed(&self, uuid: Uuid, token: u64, lease: Duration, at_us: u64) {
        let received = now();
        let Some(plan) = self.registry().candidate(uuid) else { return };
        self.shared.counters.pushed_grants.fetch_add(1, Ordering::Relaxed);
        let fresh = |sample: &Sample| received.since(sample.sent) <= FRESH_SAMPLE;
        let deadline = self.shared.sample(plan.spec.slot_key()).filter(fresh).map(|sample| {
            self.shared.settings.drift.deadline_of_push(sample, at_us, lease, received)
        });
        match deadline {
            Some(deadline) if plan.options().renewed && deadline.since(received) >= lease / 3 => {
                self.grant(uuid, token, deadline);
            }
            Some(_) | None => self.confirm_first(uuid, token),
        }
    }

    /// A grant that is not handed out before the server has confirmed (and, if it is short, lengthened) it.
    pub(super) fn confirm_first(&self, uuid: Uuid, token: u64) {
        self.confirm.send((uuid, token)).ok(); // The thread has ended: so has everything.
    }

    /// Has the thread end an acquisition that never became a hold.
    pub(super) fn end(&self, plan: Arc<crate::engine::Plan>, late: bool) {
        if let Some(orders) = self.orders.upgrade() {
            Link::new(self.shared.clone(), orders).end(plan, late, Origin::Unheld);
        }
    }

    /// A waiting id becomes a hold: armed first, then handed out.
    pub(super) fn grant(&self, uuid: Uuid, token: u64, deadline: Moment) {
        self.shared.saw_token(token);
        let Some(won) = self.registry().win(uuid, token, deadline, &self.shared.events) else {
            return;
        };
        let Some(orders) = self.orders.upgrade() else { return };
        let link = Link::new(self.shared.clone(), orders);
        // The others of this process on the name look when this hold ends, should nobody renew it.
        let key = won.state.plan.spec.slot_key().clone();
        if self.registry().check_at(&key, won.state.deadline()) {
            self.shared.poke.notify_one();
        }
        let hold = arm(link, won.state);
        // Nobody receives: the hold comes back, is dropped here, and thereby released.
        drop(won.tell.send(Outcome::Granted(hold)));
    }
}

/// Puts a hold under the watchdog. The first renewal is due a third of the lease, or of what a short grant has left,
/// from now.
pub(crate) fn arm(link: Link, state: Arc<crate::hold::HoldState>) -> Hold {
    let shared = link.shared();
    let lease = state.plan.options().lease;
    let first = (lease / 3).min(state.deadline().left() / 3);
    if shared.watchdog.arm(&state, first, shared.settings.held_long_after) {
        shared.poke.notify_one();
    }
    Hold::new(link, state)
}

async fn confirm(granter: Granter, uuid: Uuid, token: u64) {
    let Some(plan) = granter.registry().candidate(uuid) else { return };
    let shared = granter.shared();
    match renewal::confirm(shared, &plan).await {
        Confirmed::Until(deadline) if !deadline.passed() => granter.grant(uuid, token, deadline),
        Confirmed::Until(_) | Confirmed::Over => {
            // Granted and run out while this process slept: it has had its turn, so to the tail.
            granter.registry().place(uuid, 0);
            granter.registry().check_now(uuid);
            shared.poke.notify_one();
        }
        Confirmed::Unknown => {
            granter.registry().check_now(uuid);
            shared.poke.notify_one();
        }
    }
}
