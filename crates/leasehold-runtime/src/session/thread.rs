//! The session's thread: the one place that spawns. Inbox and watchdog live here, whatever becomes of the runtimes of
//! the user.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::grant::{Granter, confirm};
use super::link::{Order, Origin, Shared};
use super::registry::Outcome;
use super::topics::Left;
use super::{check, end, inbox_keeper, look, renewal};
use crate::clock::sleep_until;
use crate::error::{AcquireError, ConfigError, LostReason, ShutdownError};

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
    /// What runs for others: it ends with the thread, and nobody waits for it.
    errands: JoinSet<()>,
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
        let granter = Granter::new(shared, weak, confirm_sender);
        let mut thread = Self {
            granter: granter.clone(),
            tasks: JoinSet::new(),
            ends: JoinSet::new(),
            errands: JoinSet::new(),
            confirm,
        };
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
        self.granter.shared()
    }

    /// Until every handle is gone, or a shutdown is ordered.
    async fn serve(
        &mut self,
        orders: &mut mpsc::UnboundedReceiver<Order>,
    ) -> Option<(Duration, Done)> {
        let shared = self.shared().clone();
        loop {
            let due = shared.registry.next_check().min(shared.topics.next_look());
            let next = shared.watchdog.next().min(due);
            tokio::select! {
                order = orders.recv() => match order {
                    None => return None,
                    Some(Order::Shutdown { within, done }) => return Some((within, done)),
                    Some(Order::End { plan, late, origin }) => self.spawn_end(plan, late, origin),
                    Some(Order::Leave(left)) => self.spawn_leave(left),
                    Some(Order::Run(errand)) => drop(self.errands.spawn(errand.0)),
                },
                Some((uuid, token)) = self.confirm.recv() => {
                    self.tasks.spawn(confirm(self.granter.clone(), uuid, token));
                }
                () = shared.poke.notified() => {}
                () = sleep_until(next) => self.tick(),
                Some(_) = self.tasks.join_next() => {}
                Some(_) = self.ends.join_next() => {}
                Some(_) = self.errands.join_next() => {}
            }
        }
    }

    fn spawn_end(&mut self, plan: Arc<crate::engine::Plan>, late: bool, origin: Origin) {
        self.ends.spawn(end::end(self.shared().clone(), plan, late, origin));
    }

    fn spawn_leave(&mut self, left: Left) {
        self.ends.spawn(look::leave(self.shared().clone(), left));
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
        for due in shared.topics.due_looks() {
            self.tasks.spawn(look::look(self.granter.clone(), due));
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
        // First, so that none of them takes anything any more.
        self.errands.shutdown().await;
        let remaining = shared.registry.close();
        for (plan, late, tell) in remaining.waiting {
            drop(tell.send(Outcome::Refused(AcquireError::Closed)));
            self.spawn_end(plan, late, Origin::Unheld);
        }
        for (plan, late) in remaining.from_holds {
            self.spawn_end(plan, late, Origin::Lost);
        }
        for (state, late) in remaining.held {
            shared.watchdog.disarm(state.plan.uuid()); // I3
            state.lose(LostReason::Shutdown);
            self.spawn_end(state.plan.clone(), late, Origin::Lost);
        }
        for left in shared.topics.close() {
            self.spawn_leave(left);
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
                Order::Leave(left) => {
                    self.spawn_leave(left);
                    started += 1;
                }
                Order::Run(_) => {}
                Order::Shutdown { done, .. } => waiting.push(done),
            }
        }
        started
    }
}
