//! The servers of a quorum lock, and how they are asked.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use leasehold_lua::{Reply, multi};
use uuid::Uuid;

use super::standing::Standing;
use super::{Quorum, majority_lasts};
use crate::backend::Place;
use crate::clock::{Moment, now};
use crate::engine::{Spec, View};
use crate::error::{AcquireError, BackendError, BackendErrorKind, ConfigError};
use crate::guard::{Any, Guard};
use crate::name::Name;
use crate::options::Options;
use crate::session::{Link, Session};

/// The same lock at each of several servers. Cheap to clone.
#[derive(Clone)]
pub struct Nodes(Arc<Inner>);

struct Inner {
    nodes: Vec<Node>,
    per_node: Duration,
    lease: Duration,
    renewed: bool,
}

struct Node {
    view: View<Any>,
    /// It was seen to be a server of its own.
    distinct: AtomicBool,
    /// It has just left a question unanswered: until then nobody waits for it once all is decided.
    unheard_until: AtomicU64,
    /// So many questions in a row.
    unanswered: AtomicU32,
}

/// For so long.
const UNHEARD: Duration = Duration::from_secs(1);

impl Nodes {
    /// The lock of this name at the servers of these sessions. No I/O.
    ///
    /// # Errors
    /// [`ConfigError`]: an even number of sessions or fewer than three, one of them twice, a name or an option out of its
    /// bounds, or `per_node` over a tenth of the lease.
    pub fn new(
        sessions: &[Session],
        name: Name,
        options: Options,
        per_node: Duration,
    ) -> Result<Self, ConfigError> {
        let count = sessions.len();
        if count < 3 || count.is_multiple_of(2) {
            return Err(ConfigError::Servers { count });
        }
        for (first, session) in sessions.iter().enumerate() {
            if let Some(after) = sessions[first + 1..].iter().position(|it| it.is_same(session)) {
                return Err(ConfigError::SameServer { first, second: first + 1 + after });
            }
        }
        let (lease, renewed) = (options.lease, options.renewed);
        let node = |session: &Session| {
            let spec = Spec::new(&multi::QUORUM, session, name.clone(), options.clone())?;
            Ok(Node {
                view: View::new(session, Arc::new(spec)),
                distinct: AtomicBool::new(false),
                unheard_until: AtomicU64::new(0),
                unanswered: AtomicU32::new(0),
            })
        };
        let nodes = sessions.iter().map(node).collect::<Result<Vec<_>, ConfigError>>()?;
        if per_node > lease / 10 || per_node < Duration::from_millis(1) {
            return Err(ConfigError::NodeTimeout { timeout: per_node, lease });
        }
        Ok(Self(Arc::new(Inner { nodes, per_node, lease, renewed })))
    }

    /// The lock's name.
    pub fn name(&self) -> &Name {
        self.0.nodes[0].view.spec().name()
    }

    /// How many servers.
    pub fn count(&self) -> usize {
        self.0.nodes.len()
    }

    /// So many are more than half.
    pub fn majority(&self) -> usize {
        self.count() / 2 + 1
    }

    pub(super) fn per_node(&self) -> Duration {
        self.0.per_node
    }

    pub(super) fn lease(&self) -> Duration {
        self.0.lease
    }

    pub(super) fn renewed(&self) -> bool {
        self.0.renewed
    }

    pub(super) fn links(&self) -> impl Iterator<Item = &Link> {
        self.0.nodes.iter().map(|node| node.view.session().link())
    }

    /// Asks all servers at once, each for as long as was said. `None`: a majority answered, and too few of it were free.
    /// Whatever was granted in vain is given back, and what may still be granted is cancelled.
    ///
    /// # Errors
    /// * [`Config`](AcquireError::Config): two sessions lead to one server, or there is no tokio runtime here.
    /// * [`ValidityTooShort`](AcquireError::ValidityTooShort): a majority granted it, but less than a tenth of the lease
    ///   was left by then.
    /// * [`Closed`](AcquireError::Closed): a session was shut down, and the others are no majority.
    /// * [`Backend`](AcquireError::Backend): less than a majority answered; what one of the others met.
    ///
    /// # Cancel safety
    /// Dropping the future gives back whatever was granted.
    pub async fn ask(&self) -> Result<Option<Quorum>, AcquireError> {
        Link::check_runtime()?;
        let mut votes = Votes::of(self);
        for (at, failed) in self.tell_apart().await? {
            votes.count(at, Err(failed.into()));
        }
        self.poll(&mut votes).await;
        votes.verdict()
    }

    /// All at once: one after the other, the time that some take is taken off what is left of the others' leases, and two
    /// clients that begin at two ends meet in the middle, each with a half.
    async fn poll(&self, votes: &mut Votes<'_>) {
        let (uuid, started) = (Uuid::new_v4(), now());
        let asked = |at: &usize| self.0.nodes[*at].distinct.load(Ordering::Relaxed);
        let numbers: Vec<_> = (0..self.count()).filter(asked).collect();
        let mut asking: FuturesUnordered<_> =
            numbers.iter().map(|at| async move { (*at, self.ask_one(*at, uuid).await) }).collect();
        let mut open = numbers.clone();
        let mut until = Moment::NEVER; // Each has a time of its own.
        while let Ok(Some((at, answer))) = tokio::time::timeout(until.left(), asking.next()).await {
            open.retain(|other| *other != at);
            votes.count(at, answer);
            // Who has just been silent is worth waiting for only as long again, once nothing depends on it.
            let silent = |at: &usize| self.0.nodes[*at].is_unheard();
            if until == Moment::NEVER && votes.decided(open.len()) && open.iter().all(silent) {
                let again = now().since(started).max(Duration::from_millis(1));
                until = now().plus(again);
            }
        }
    }

    async fn ask_one(&self, at: usize, uuid: Uuid) -> Result<Option<Guard<Any>>, AcquireError> {
        let node = &self.0.nodes[at];
        let answer = node.view.ask_as(uuid, self.0.per_node).await;
        match &answer {
            Err(AcquireError::Backend(error)) if error.kind() == BackendErrorKind::Unreachable => {
                node.did_not_answer();
            }
            Ok(_) | Err(_) => node.answered(),
        }
        answer
    }

    /// Asks one server for a hold that it had, or never gave. It may take longer: nobody waits for it, and the majority
    /// stands without it.
    pub(super) async fn ask_again(&self, at: usize) -> Option<Guard<Any>> {
        let (node, within) = (&self.0.nodes[at], self.0.lease / 10);
        if !node.distinct.load(Ordering::Relaxed) {
            let served = tokio::time::timeout(within, self.inboxes_at(at)).await.ok()?.ok()?;
            if served != [at] {
                return None;
            }
            node.distinct.store(true, Ordering::Relaxed);
        }
        node.view.ask_as(Uuid::new_v4(), within).await.ok().flatten()
    }

    /// Each server is asked whose inboxes it serves, until it has answered once: one that serves two of ours is one server
    /// behind two addresses or databases. This needs no right that the scripts do not need. Answers who did not answer;
    /// a connection may have to be made first, so it takes up to four times as long as a question.
    async fn tell_apart(&self) -> Result<Vec<(usize, BackendError)>, ConfigError> {
        let unknown = |at: &usize| !self.0.nodes[*at].distinct.load(Ordering::Relaxed);
        let numbers: Vec<_> = (0..self.count()).filter(unknown).collect();
        let asking = numbers.iter().map(|at| async move {
            let node = &self.0.nodes[*at];
            if node.is_unheard() {
                return Err(BackendError::timed_out());
            }
            let served = tokio::time::timeout(self.0.per_node * 4, self.inboxes_at(*at)).await;
            let served = served.unwrap_or_else(|_| Err(BackendError::timed_out()));
            if served.as_ref().is_err_and(|failed| failed.kind() == BackendErrorKind::Unreachable) {
                node.did_not_answer();
            }
            served
        });
        let mut silent = Vec::new();
        for (at, served) in numbers.iter().zip(join_all(asking).await) {
            match served {
                Ok(served) => {
                    if let Some(second) = served.iter().copied().find(|other| other != at) {
                        let (first, second) = (*at.min(&second), *at.max(&second));
                        return Err(ConfigError::SameServer { first, second });
                    }
                    // Without its own inbox it has said nothing: that is being opened again.
                    self.0.nodes[*at].distinct.store(!served.is_empty(), Ordering::Relaxed);
                    if served.is_empty() {
                        silent.push((*at, BackendError::timed_out()));
                    }
                }
                Err(failed) => silent.push((*at, failed)),
            }
        }
        Ok(silent)
    }

    /// Whose inboxes this server serves, by number.
    async fn inboxes_at(&self, at: usize) -> Result<Vec<usize>, BackendError> {
        let inboxes: Vec<&[u8]> = self.links().map(|link| &link.identity().inbox[..]).collect();
        let words: Vec<&[u8]> =
            [&b"PUBSUB"[..], b"NUMSUB"].into_iter().chain(inboxes.iter().copied()).collect();
        let node = &self.0.nodes[at];
        let commands = node.view.session().link().commands();
        let reply = commands.command(&node.place(), &words).await;
        let reply = reply.map_err(|failure| failure.error)?;
        let Reply::List(values) = reply else { return Ok(vec![]) };
        let listeners = values.chunks(2).map(|pair| !matches!(pair, [_, Reply::Int(0)]));
        Ok(listeners.enumerate().filter_map(|(at, some)| some.then_some(at)).collect())
    }
}

impl Node {
    fn is_unheard(&self) -> bool {
        !Moment::from_nanos(self.unheard_until.load(Ordering::Relaxed)).passed()
    }

    fn answered(&self) {
        self.unheard_until.store(0, Ordering::Relaxed);
        self.unanswered.store(0, Ordering::Relaxed);
    }

    /// So short a silence says nothing of the connection, but two in a row may: it is made anew.
    fn did_not_answer(&self) {
        self.unheard_until.store(now().plus(UNHEARD).as_nanos(), Ordering::Relaxed);
        if self.unanswered.fetch_add(1, Ordering::Relaxed) % 2 == 1 {
            self.view.session().link().commands().reopen(&self.place());
        }
    }

    /// The server that has the key, should it be one of a cluster.
    fn place(&self) -> Place {
        self.view.session().link().shared().backend.place_of(self.view.spec().slot_key())
    }
}

/// What the servers have said. Dropped, it gives back what they have granted.
struct Votes<'a> {
    nodes: &'a Nodes,
    guards: Vec<Option<Guard<Any>>>,
    busy: usize,
    failed: Vec<AcquireError>,
}

impl<'a> Votes<'a> {
    fn of(nodes: &'a Nodes) -> Self {
        let guards = (0..nodes.count()).map(|_| None).collect();
        Self { nodes, guards, busy: 0, failed: Vec::new() }
    }

    fn count(&mut self, at: usize, answer: Result<Option<Guard<Any>>, AcquireError>) {
        match answer {
            Ok(Some(guard)) => self.guards[at] = Some(guard),
            Ok(None) => self.busy += 1,
            Err(error) => self.failed.push(error),
        }
    }

    fn granted(&self) -> usize {
        self.guards.iter().flatten().count()
    }

    /// Whether those that have not answered could still change the outcome.
    fn decided(&self, open: usize) -> bool {
        let (granted, majority) = (self.granted(), self.nodes.majority());
        granted >= majority || granted + open < majority
    }

    fn verdict(mut self) -> Result<Option<Quorum>, AcquireError> {
        let (granted, majority) = (self.granted(), self.nodes.majority());
        if granted < majority && granted + self.busy >= majority {
            return Ok(None);
        }
        if granted < majority {
            return Err(self.worst());
        }
        let deadlines = self.guards.iter().flatten().map(|guard| guard.state().deadline());
        let remaining = majority_lasts(deadlines.collect(), majority).left();
        if remaining <= self.nodes.lease() / 10 {
            return Err(AcquireError::ValidityTooShort { remaining });
        }
        let guards = std::mem::take(&mut self.guards);
        Ok(Some(Quorum::new(Standing::begin(self.nodes.clone(), guards))))
    }

    /// What does not pass by itself is told before what may.
    fn worst(&mut self) -> AcquireError {
        let rank = |error: &AcquireError| match error {
            AcquireError::Backend(error) if error.kind() != BackendErrorKind::Unreachable => 0,
            AcquireError::Closed => 1,
            AcquireError::TimedOut { .. }
            | AcquireError::Saturated { .. }
            | AcquireError::NeverFits
            | AcquireError::LimitDiffers { .. }
            | AcquireError::TooManyEntries
            | AcquireError::ValidityTooShort { .. }
            | AcquireError::NotReplicated { .. }
            | AcquireError::Cancelled
            | AcquireError::Config(_)
            | AcquireError::Backend(_) => 2,
        };
        self.failed.sort_by_key(rank);
        let silence = || BackendError::timed_out().into();
        self.failed.drain(..).next().unwrap_or_else(silence)
    }
}

impl Drop for Votes<'_> {
    fn drop(&mut self) {
        self.guards.drain(..).flatten().for_each(Guard::never_held);
    }
}

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nodes").field("name", self.name()).field("count", &self.count()).finish()
    }
}
