//! What the session's handles and its thread share.

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_lua::Terms;
use tokio::sync::{Notify, mpsc, oneshot};

use super::Statistics;
use super::registry::Registry;
use super::replicas::Turns;
use super::topics::{Left, Topics};
use super::watchdog::Watchdog;
use crate::backend::{Backend, Commands, Failure, Lane, Place, Timeouts};
use crate::clock::{Drift, Sample};
use crate::engine::Plan;
use crate::error::{BackendErrorKind, ConfigError, ShutdownError};
use crate::event::Events;
use crate::options::whole_ms;

/// Options of a session, checked.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// What the user calls its server.
    pub(crate) name: Option<String>,
    pub(crate) prefix: Vec<u8>,
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
    pub(crate) drift: Drift,
    pub(crate) check_every: Duration,
    pub(crate) waiter_deadline: Duration,
    pub(crate) grant_lease: Duration,
    pub(crate) fence_memory: Duration,
    pub(crate) held_long_after: Option<Duration>,
}

impl Settings {
    fn timeouts(&self) -> Timeouts {
        Timeouts { connect: self.connect_timeout, response: self.response_timeout }
    }
}

/// Who this session is to others.
#[derive(Debug)]
pub(crate) struct Identity {
    /// The channel of its inbox.
    pub(crate) inbox: Vec<u8>,
    /// A random number that may be printed.
    pub(crate) trace: u64,
    pub(crate) host: String,
}

/// What handles and thread share. The thread holds it too, so nothing in it may keep the thread alive.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) identity: Identity,
    pub(crate) settings: Settings,
    pub(crate) backend: Backend,
    /// Acquires and releases, in the callers' context.
    pub(crate) commands: Lane,
    /// Renewals and checks, on the thread.
    pub(crate) own: Lane,
    pub(crate) registry: Registry,
    pub(crate) watchdog: Watchdog,
    pub(crate) topics: Topics,
    /// Holds that have to be at replicas before anybody gets them.
    pub(crate) turns: Turns,
    pub(crate) events: Events,
    /// Wakes the thread when something is due earlier than it knew.
    pub(crate) poke: Notify,
    pub(crate) heard: Heard,
    /// Told by [`answered_with`](Self::answered_with).
    pub(crate) demoted: Notify,
    /// Tells whoever pauses before another attempt that it may work now.
    pub(crate) came_back: Notify,
    pub(crate) counters: Counters,
    highest_token: AtomicU64,
    /// The newest reading of each node's clock.
    samples: Mutex<HashMap<Place, Sample>>,
}

/// Where inboxes are to be, and whether they are up.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    /// All are.
    all: AtomicBool,
    places: Mutex<HashMap<Place, bool>>,
}

impl Heard {
    /// Answers whether all were up before, and whether they are now.
    pub(super) fn change(&self, change: impl FnOnce(&mut HashMap<Place, bool>)) -> (bool, bool) {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut places);
        let now = places.values().all(|up| *up);
        (self.all.swap(now, Ordering::Relaxed), now)
    }

    fn is_up(&self, place: &Place) -> bool {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        places.get(place).copied().unwrap_or(false)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) checks: AtomicU64,
    pub(crate) renewals: AtomicU64,
    pub(crate) pushed_grants: AtomicU64,
    pub(crate) looks: AtomicU64,
}

/// Why an acquisition is ended by the thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A guard was dropped, or its release was: what comes of it is told as an event.
    Dropped,
    /// As `Dropped`, after a release that may have run and was not answered: "not held" says nothing any more (I7).
    Unanswered,
    /// Its loss was told already: nothing to tell.
    Lost,
    /// It never became a guard: nothing to tell, and no shortest hold to keep.
    Unheld,
    /// The release was answered, but the script wants to be called again.
    Unsettled,
}

/// What the thread runs for somebody.
pub(crate) struct Errand(pub(crate) Pin<Box<dyn Future<Output = ()> + Send>>);

impl fmt::Debug for Errand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Errand")
    }
}

/// What the thread is asked to do.
#[derive(Debug)]
pub(crate) enum Order {
    /// End this acquisition on the server.
    End { plan: Arc<Plan>, late: bool, origin: Origin },
    /// Take this entry away from those that are told of a topic.
    Leave(Left),
    /// Run this beside everything else, until it ends or the thread does. It keeps no handle to the session, or only for
    /// moments: it must not keep the thread alive.
    Run(Errand),
    /// End everything, then the thread.
    Shutdown { within: Duration, done: oneshot::Sender<Result<(), ShutdownError>> },
}

/// A handle to the thread. The thread ends when the last one is gone.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    shared: Arc<Shared>,
    orders: mpsc::UnboundedSender<Order>,
}

impl Shared {
    pub(crate) fn new(
        settings: Settings,
        identity: Identity,
        backend: Backend,
        commands: Option<Commands>,
        events: Events,
    ) -> Self {
        let timeouts = settings.timeouts();
        Self {
            commands: backend.lane(commands, timeouts),
            own: backend.lane(None, timeouts),
            identity,
            settings,
            backend,
            registry: Registry::default(),
            watchdog: Watchdog::default(),
            topics: Topics::default(),
            turns: Turns::default(),
            events,
            poke: Notify::new(),
            heard: Heard::default(),
            demoted: Notify::new(),
            came_back: Notify::new(),
            counters: Counters::default(),
            highest_token: AtomicU64::new(0),
            samples: Mutex::default(),
        }
    }

    pub(crate) fn timeouts(&self) -> Timeouts {
        self.settings.timeouts()
    }

    /// Whether pushes arrive from where this key lives.
    pub(crate) fn hears_of(&self, key: &[u8]) -> bool {
        self.heard.all.load(Ordering::Relaxed) || self.heard.is_up(&self.backend.place_of(key))
    }

    pub(crate) fn terms(&self) -> Terms {
        Terms {
            wait_ms: whole_ms(self.settings.waiter_deadline),
            check_ms: whole_ms(self.settings.check_every),
            grant_ms: whole_ms(self.settings.grant_lease),
            fence_ms: whole_ms(self.settings.fence_memory),
            floor: self.highest_token.load(Ordering::Relaxed),
        }
    }

    /// A reply from the node of this key read its clock.
    pub(crate) fn sampled(&self, key: &[u8], sample: Sample) {
        if !self.backend.settled_since(sample.sent) {
            return; // It may be the clock of the node that had the key before.
        }
        let mut samples = self.samples();
        let newest = samples.entry(self.backend.place_of(key)).or_insert(sample);
        if sample.sent > newest.sent {
            *newest = sample;
        }
    }

    /// The newest reading of the clock of this key's node. It is the node's and not the name's: a push for the first
    /// waiter of a name may overtake the reply that says it waits.
    pub(crate) fn sample(&self, key: &[u8]) -> Option<Sample> {
        self.samples().get(&self.backend.place_of(key)).copied()
    }

    /// No reading is worth anything: the next connection may lead to another node.
    pub(crate) fn forget_samples(&self) {
        self.samples().clear();
    }

    fn samples(&self) -> MutexGuard<'_, HashMap<Place, Sample>> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A replica where the master was means a new inbox too.
    pub(crate) fn answered_with(&self, failure: &Failure) {
        if failure.error.kind() == BackendErrorKind::ReadOnly {
            self.demoted.notify_one();
        }
    }

    /// I5: the next token that this session causes is larger than any that it has seen.
    pub(crate) fn saw_token(&self, token: u64) {
        self.highest_token.fetch_max(token, Ordering::Relaxed);
    }
}

impl Link {
    pub(crate) fn new(shared: Arc<Shared>, orders: mpsc::UnboundedSender<Order>) -> Self {
        Self { shared, orders }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.shared.identity
    }

    pub(crate) fn commands(&self) -> &Lane {
        &self.shared.commands
    }

    pub(crate) fn terms(&self) -> Terms {
        self.shared.terms()
    }

    /// Hands an end to the thread. After a shutdown there is no thread, and nothing left to end.
    pub(crate) fn end(&self, plan: Arc<Plan>, late: bool, origin: Origin) {
        drop(self.orders.send(Order::End { plan, late, origin }));
    }

    /// Hands the end of an entry to the thread. After a shutdown there is nothing left to end.
    pub(crate) fn leave(&self, left: Left) {
        drop(self.orders.send(Order::Leave(left)));
    }

    /// Has the thread run this. After a shutdown nothing is run.
    pub(crate) fn run(&self, errand: impl Future<Output = ()> + Send + 'static) {
        drop(self.orders.send(Order::Run(Errand(Box::pin(errand)))));
    }

    /// The client library panics outside tokio; say it instead.
    pub(crate) fn check_runtime() -> Result<(), ConfigError> {
        tokio::runtime::Handle::try_current().map(drop).map_err(|_| ConfigError::NoRuntime)
    }

    pub(crate) async fn shutdown(&self, within: Duration) -> Result<(), ShutdownError> {
        let (done, ended) = oneshot::channel();
        drop(self.orders.send(Order::Shutdown { within, done }));
        // No answer: the thread had ended already.
        ended.await.unwrap_or(Ok(()))
    }

    pub(crate) fn statistics(&self) -> Statistics {
        let counters = &self.shared.counters;
        Statistics {
            watched: self.shared.watchdog.len(),
            tracked: self.shared.registry.len(),
            checks: counters.checks.load(Ordering::Relaxed),
            renewals: counters.renewals.load(Ordering::Relaxed),
            pushed_grants: counters.pushed_grants.load(Ordering::Relaxed),
            listening: self.shared.topics.len(),
            looks: counters.looks.load(Ordering::Relaxed),
        }
    }
}
