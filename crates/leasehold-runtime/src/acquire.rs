//! The way of one acquire: enter the registry, send, and either hold or wait.

use std::sync::Arc;
use std::time::Duration;

use leasehold_lua::Mode;
use leasehold_lua::reply::{AcquireReply, ReleaseReply};
use tokio::sync::oneshot;

use crate::clock::{Moment, Sample, now, sleep_until};
use crate::delivery::{Delivered, Undelivered, deliver};
use crate::engine::Plan;
use crate::error::{AcquireError, BackendErrorKind};
use crate::hold::Hold;
use crate::holder::Holder;
use crate::session::{Link, Origin, Outcome, replicated};

/// How long an acquire waits.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Patience {
    /// Not at all; busy is `None`.
    Try,
    /// As `Try`, and no longer than so for the answer.
    Ask(Duration),
    /// At most so long; less than [`SHORTEST_WAIT`] is one full try.
    Within(Duration),
    /// Until it is granted.
    Forever,
}

/// Timers count whole milliseconds. In a shorter time no server could answer, and a free lock would be told as one that
/// is out of reach.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// Takes, waits, or gives up; whatever way it ends, nothing of it stays on the server beyond a hold that is returned.
pub(crate) async fn acquire(
    link: &Link,
    plan: Arc<Plan>,
    patience: Patience,
) -> Result<Option<Hold>, Untaken> {
    let taken = take(link, plan, patience).await.map_err(|error| Untaken { error, gone: false })?;
    if let Some(hold) = &taken {
        // Not at enough replicas: dropped, and thereby given back, before anybody held it.
        Box::pin(replicated(hold)).await.map_err(Untaken::granted)?;
    }
    Ok(taken)
}

/// Why there is no hold.
#[derive(Debug)]
pub(crate) struct Untaken {
    pub(crate) error: AcquireError,
    /// It was granted, and gone before enough replicas had it, perhaps with its server. What was not granted is no matter of
    /// another attempt: that would end in the same way, at once.
    gone: bool,
}

impl Untaken {
    fn granted(error: AcquireError) -> Self {
        let unreachable = matches!(
            &error,
            AcquireError::Backend(error) if error.kind() == BackendErrorKind::Unreachable
        );
        let gone = unreachable || matches!(error, AcquireError::ValidityTooShort { .. });
        Self { error, gone }
    }

    /// The error as the caller sees it, who asked then, perhaps with several attempts.
    pub(crate) fn since(self, asked: Moment) -> AcquireError {
        let mut error = self.error;
        if let AcquireError::TimedOut { waited, .. } = &mut error {
            *waited = now().since(asked);
        }
        error
    }

    /// What is left of a patience for another attempt: whoever waits longer than a failover takes is not told of it.
    pub(crate) fn patience_left(&self, patience: Patience, since: Moment) -> Option<Patience> {
        match patience {
            Patience::Within(wait) if self.gone => {
                let left = since.plus(wait).left();
                (left >= SHORTEST_WAIT).then_some(Patience::Within(left))
            }
            Patience::Forever if self.gone => Some(Patience::Forever),
            Patience::Try | Patience::Ask(_) | Patience::Within(_) | Patience::Forever => None,
        }
    }
}

async fn take(
    link: &Link,
    plan: Arc<Plan>,
    patience: Patience,
) -> Result<Option<Hold>, AcquireError> {
    Link::check_runtime()?;
    let started = now();
    if link.settings().drift.deadline_of_reply(started, plan.options().lease) <= started {
        // The clock margin is longer than the lease: no grant could ever be of use.
        return Err(AcquireError::ValidityTooShort { remaining: Duration::ZERO });
    }
    let waits = match patience {
        Patience::Try | Patience::Ask(_) => false,
        Patience::Within(wait) => wait >= SHORTEST_WAIT,
        Patience::Forever => true,
    };
    let until = match patience {
        Patience::Within(wait) if waits => started.plus(wait),
        Patience::Forever => Moment::NEVER,
        Patience::Ask(answer) => started.plus(answer),
        Patience::Try | Patience::Within(_) => started.plus(link.settings().response_timeout),
    };
    let mut attempt = Attempt::enter(link, plan, started)?;
    let mode = if waits {
        Mode::Wait { max_waiters: attempt.plan.options().max_waiters }
    } else {
        Mode::Try
    };
    match attempt.ask(mode, until).await? {
        Asked::Holds(hold) => Ok(Some(hold)),
        Asked::Busy if matches!(patience, Patience::Try | Patience::Ask(_)) => Ok(None),
        Asked::Busy => Err(attempt.timed_out(None)),
        Asked::Waits => attempt.wait(until).await.map(Some),
    }
}

/// An acquisition that is not a hold yet. Dropped before it is one, it is ended by the session's thread.
struct Attempt<'a> {
    link: &'a Link,
    plan: Arc<Plan>,
    told: oneshot::Receiver<Outcome>,
    started: Moment,
    /// How many stood before it when it was last told.
    position: Option<u64>,
    /// A copy of the acquire was answered, so the server may keep something of it.
    known: bool,
}

enum Asked {
    Holds(Hold),
    Waits,
    Busy,
}

impl<'a> Attempt<'a> {
    fn enter(link: &'a Link, plan: Arc<Plan>, started: Moment) -> Result<Self, AcquireError> {
        let (tell, told) = oneshot::channel();
        link.shared().registry.enter(plan.clone(), Some(tell))?;
        Ok(Self { link, plan, told, started, position: None, known: false })
    }

    /// Sends the acquire until it is answered. A grant that arrives first is as good as the answer.
    async fn ask(&mut self, mode: Mode, until: Moment) -> Result<Asked, AcquireError> {
        let call = self.plan.acquire(mode, self.link.terms());
        let (registry, uuid) = (&self.link.shared().registry, self.plan.uuid());
        loop {
            let sending = deliver(self.link, &call, until, || registry.doubt(uuid));
            let answer = tokio::select! {
                biased;
                told = &mut self.told => {
                    // The answer to the acquire is still to come, and nobody will hear it.
                    registry.doubt(uuid);
                    return outcome(told).map(Asked::Holds);
                }
                answer = sending => answer,
            };
            match self.read(answer).await? {
                Read::Asked(asked) => return Ok(asked),
                Read::Again => {}
            }
        }
    }

    async fn read(&mut self, answer: Result<Delivered, Undelivered>) -> Result<Read, AcquireError> {
        let answer = answer.map_err(|failed| self.unanswered(failed))?;
        let reply = AcquireReply::decode(&answer.reply)
            .map_err(|error| AcquireError::Backend(error.into()))?;
        let shared = self.link.shared();
        if let Some(server) = AcquireReply::differing_limit(&answer.reply) {
            self.plan.spec.limit_differs(server, &shared.events);
        }
        let registry = &shared.registry;
        let again = matches!(
            reply,
            AcquireReply::Queued { again: true, .. }
                | AcquireReply::Busy { again: true, .. }
                | AcquireReply::Saturated { again: true, .. }
        );
        if again {
            self.known = true;
            return Ok(Read::Again);
        }
        registry.answered(self.plan.uuid());
        match reply {
            AcquireReply::Taken { token, left_ms, now_us } => {
                self.sampled(answer.sent, now_us);
                let left = Duration::from_millis(left_ms);
                self.taken(answer.sent, token, left).await.map(Read::Asked)
            }
            AcquireReply::Queued { position, check_ms, ticket, now_us, .. } => {
                self.position = Some(position);
                self.sampled(answer.sent, now_us);
                if let Some(seat) = &self.plan.acquisition.seat {
                    seat.told(position, now_us, self.link.settings().waiter_deadline);
                }
                let check_at = self.first_check(check_ms);
                if registry.queued(self.plan.uuid(), ticket, check_at) {
                    self.link.shared().poke.notify_one();
                }
                Ok(Read::Asked(Asked::Waits))
            }
            AcquireReply::Busy { .. } => {
                self.nothing_left();
                Ok(Read::Asked(Asked::Busy))
            }
            AcquireReply::Saturated { retry_ms, .. } => {
                self.nothing_left();
                let name = self.plan.name().clone();
                Err(AcquireError::Saturated { name, retry_after: Duration::from_millis(retry_ms) })
            }
            AcquireReply::TooManyEntries => {
                self.nothing_left();
                Err(AcquireError::TooManyEntries)
            }
            AcquireReply::NeverFits => {
                self.nothing_left();
                Err(AcquireError::NeverFits)
            }
            AcquireReply::LimitDiffers { server } => {
                self.nothing_left();
                let ours = self.plan.spec.limit().unwrap_or_default();
                Err(AcquireError::LimitDiffers { ours, server })
            }
            AcquireReply::Cancelled => {
                self.nothing_left();
                // Whoever ended it here says why; if nobody did, it was an operator, and a copy of the acquire came back.
                match self.told.try_recv() {
                    Ok(told) => outcome(Ok(told)).map(|hold| Read::Asked(Asked::Holds(hold))),
                    Err(_) => Err(AcquireError::Cancelled),
                }
            }
        }
    }

    /// No later than its own lease: see the pauses of the check. Soon where no message would arrive: the check says so, and
    /// those who let go need to know.
    fn first_check(&self, check_ms: u64) -> Moment {
        let hears = self.link.shared().hears_of(self.plan.spec.slot_key());
        let longest = if hears { self.plan.acquisition.lease_ms } else { UNHEARD_MS };
        now().plus(Duration::from_millis(check_ms.min(longest)))
    }

    fn sampled(&self, sent: Moment, server_us: u64) {
        let key = self.plan.spec.slot_key();
        self.link.shared().sampled(key, Sample { sent, server_us });
    }

    /// The server has answered that it keeps nothing of this id; unless a copy is still under way.
    fn nothing_left(&self) {
        let registry = &self.link.shared().registry;
        match registry.ending_if_waiting(self.plan.uuid()) {
            Some(true) => self.link.end(self.plan.clone(), true, Origin::Unheld),
            Some(false) => registry.forget(self.plan.uuid()),
            None => {}
        }
    }

    fn unanswered(&self, failed: Undelivered) -> AcquireError {
        if !failed.doubtful && !self.known {
            // Surely nothing was done: there is nothing to end.
            self.link.shared().registry.forget(self.plan.uuid());
        }
        AcquireError::Backend(failed.error)
    }

    /// The reply says that it holds: armed first, then handed out.
    async fn taken(
        &mut self,
        sent: Moment,
        token: u64,
        left: Duration,
    ) -> Result<Asked, AcquireError> {
        let shared = self.link.shared();
        shared.saw_token(token);
        // Trap 28: a server clock that went back says more than was ever given.
        let left = left.min(self.plan.options().lease);
        let deadline = shared.settings.drift.deadline_of_reply(sent, left);
        if deadline.passed() {
            return Err(AcquireError::ValidityTooShort { remaining: deadline.left() });
        }
        match shared.registry.win(self.plan.uuid(), token, deadline, &shared.events) {
            Some(won) => Ok(Asked::Holds(crate::session::arm(self.link.clone(), won.state))),
            // Decided a moment ago, by a push or a shutdown; the telling may be under way still.
            None => outcome((&mut self.told).await).map(Asked::Holds),
        }
    }

    async fn wait(mut self, until: Moment) -> Result<Hold, AcquireError> {
        tokio::select! {
            biased;
            told = &mut self.told => return outcome(told),
            () = wait_until(until) => {}
        }
        let Some(late) = self.link.shared().registry.ending_if_waiting(self.plan.uuid()) else {
            // Granted in this very moment.
            return outcome((&mut self.told).await);
        };
        let left = self.leave(late).await;
        Err(self.timed_out(left))
    }

    /// Leaves the queue, and learns who holds. If Redis does not answer soon, the thread goes on with it.
    async fn leave(&mut self, late: bool) -> Option<ReleaseReply> {
        let mut leaving = Leaving { link: self.link, plan: &self.plan, late, answered: false };
        let until = now().plus(self.link.settings().response_timeout.min(LEAVING));
        let call = self.plan.cancel(late, self.link.terms());
        let answer = deliver(self.link, &call, until, || ()).await.ok()?;
        let reply = ReleaseReply::decode(&answer.reply).ok()?;
        leaving.answered = !reply.again();
        if leaving.answered {
            self.link.shared().registry.forget(self.plan.uuid());
        }
        Some(reply)
    }

    fn timed_out(&self, left: Option<ReleaseReply>) -> AcquireError {
        let waited = now().since(self.started);
        let mut error = AcquireError::TimedOut {
            name: self.plan.name().clone(),
            waited,
            position: self.position,
            holder: None,
            remaining: None,
            held_by_this_session: false,
        };
        if let (
            Some(ReleaseReply::Left { position: at, left_ms, since_ms, note, now_us, .. }),
            AcquireError::TimedOut { position, holder, remaining, held_by_this_session, .. },
        ) = (left, &mut error)
        {
            *position = Some(at);
            let lasts = Duration::from_millis(left_ms);
            *remaining = (left_ms > 0).then_some(lasts);
            if since_ms > 0 {
                let held_for = Duration::from_millis((now_us / 1000).saturating_sub(since_ms));
                let found = Holder::new(&note, held_for, lasts, 1);
                *held_by_this_session = found.session == self.link.identity().trace;
                *holder = Some(Box::new(found));
            }
        }
        error
    }
}

/// How soon one that queues is checked for while messages do not arrive: ten times a second, however many queue.
const UNHEARD_MS: u64 = 100;

/// How long a waiter whose time is over still waits to hear who holds.
const LEAVING: Duration = Duration::from_millis(250);

enum Read {
    Asked(Asked),
    Again,
}

fn outcome(told: Result<Outcome, oneshot::error::RecvError>) -> Result<Hold, AcquireError> {
    match told {
        Ok(Outcome::Granted(hold)) => Ok(hold),
        Ok(Outcome::Refused(error)) => Err(error),
        Err(_) => Err(AcquireError::Closed),
    }
}

async fn wait_until(until: Moment) {
    if until == Moment::NEVER { std::future::pending().await } else { sleep_until(until).await }
}

/// Leaving the queue, as long as nobody has answered: dropped, the thread goes on with it.
struct Leaving<'a> {
    link: &'a Link,
    plan: &'a Arc<Plan>,
    late: bool,
    answered: bool,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.link.end(self.plan.clone(), self.late, Origin::Unheld);
        }
    }
}

impl Drop for Attempt<'_> {
    /// I9: what still waits is ended. What was granted meanwhile lies in the channel and is released with it.
    fn drop(&mut self) {
        if let Some(late) = self.link.shared().registry.ending_if_waiting(self.plan.uuid()) {
            self.link.end(self.plan.clone(), late, Origin::Unheld);
        }
    }
}
