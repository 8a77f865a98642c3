//! A topic: something that tasks of many processes wait for together, and that all of them are told of at once.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_lua::{Call, DecodeError, Reply, Terms};
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::clock::{Moment, now, sleep_until};
use crate::delivery::deliver;
use crate::error::{BackendError, ConfigError};
use crate::name::Name;
use crate::session::{Knows, Link, Session};

/// What a primitive says of its topic. The tasks of a session that wait for topics of equal keys share one entry at the
/// server, one look a second, and one push.
///
/// A topic goes through *rounds*, numbered upward: each goes on until it is over, and how it ended stays true.
pub trait Topic: fmt::Debug + Send + Sync + 'static {
    /// The key that stands for the topic.
    fn key(&self) -> &Arc<[u8]>;

    /// Looks, and in the same call enters the listener while the present round goes on (so that nothing is missed
    /// between the two) or takes it away. Repeated, it is the listener's sign of life.
    fn look(&self, listener: Listener<'_>, terms: Terms) -> Call;

    /// Takes the listener away.
    fn leave(&self, listener: Listener<'_>) -> Call;

    /// Reads the reply of a look.
    ///
    /// # Errors
    /// [`DecodeError`] on anything else.
    fn read(&self, reply: &Reply) -> Result<Look, DecodeError>;
}

/// The entry of a session among those that are told: a push begins with the uuid.
#[derive(Clone, Copy)]
pub struct Listener<'a> {
    /// Names the entry.
    pub uuid: &'a str,
    /// The channel of the session's inbox.
    pub inbox: &'a [u8],
}

/// I19: neither reaches a log.
impl fmt::Debug for Listener<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").finish_non_exhaustive()
    }
}

/// How a round is, by a look or a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct News {
    /// Which round.
    pub round: u64,
    /// [`GOES_ON`], or how it ended: the primitive's own numbers.
    pub state: u64,
}

/// The state of a round that is not over.
pub const GOES_ON: u64 = 0;

/// What a look saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// How it is. The listener is entered if it goes on.
    pub news: News,
    /// When to look again.
    pub check_ms: u64,
}

/// How waiting ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Over {
    /// The round that it waited for; `None`: the first look found none that goes on.
    pub waited_for: Option<u64>,
    /// What ended it: that round is over, or another one is there in its place.
    pub news: News,
}

/// Why waiting ended without news.
#[derive(Debug)]
#[non_exhaustive]
pub enum WaitError {
    /// The wait is over, and the round goes on.
    TimedOut {
        /// How long it waited.
        waited: Duration,
    },
    /// The session was shut down.
    Closed,
    /// There is no tokio runtime here.
    Config(ConfigError),
    /// Redis was out of reach for the whole wait, or refused.
    Backend(BackendError),
}

/// A call that was not answered.
#[derive(Debug)]
#[non_exhaustive]
pub enum AskError {
    /// The session was shut down; nothing was sent.
    Closed,
    /// There is no tokio runtime here; nothing was sent.
    Config(ConfigError),
    /// It failed.
    Failed {
        /// The last thing that went wrong.
        error: BackendError,
        /// A copy of the call may have run, or may still run.
        doubtful: bool,
    },
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    /// What the script answered.
    pub reply: Reply,
    /// An earlier copy of the call got no answer and may have run.
    pub doubtful: bool,
}

/// Checks the bounds of a name, before anything is made of it.
///
/// # Errors
/// [`ConfigError::Name`] if name or group are out of them.
pub fn check_name(name: &Name) -> Result<(), ConfigError> {
    name.check()
}

/// A topic and the session that asks and waits for it.
#[derive(Debug, Clone)]
pub struct Line {
    session: Session,
    topic: Arc<dyn Topic>,
}

impl Line {
    /// A line to a topic.
    pub fn new(session: &Session, topic: Arc<dyn Topic>) -> Self {
        Self { session: session.clone(), topic }
    }

    /// Sends a call until it is answered, refused, or the session's response timeout is over. Every copy is the same
    /// call: its script has to answer a resend as it answered the first.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn ask(&self, call: &Call) -> Result<Answer, AskError> {
        Link::check_runtime().map_err(AskError::Config)?;
        let link = self.session.link();
        if link.shared().topics.is_closed() {
            return Err(AskError::Closed);
        }
        let until = now().plus(link.settings().response_timeout);
        match deliver(link, call, until, || ()).await {
            Ok(answer) => Ok(Answer { reply: answer.reply, doubtful: answer.doubtful }),
            Err(failed) => Err(AskError::Failed { error: failed.error, doubtful: failed.doubtful }),
        }
    }

    /// Waits until the round that the first look finds is over; `None` is without end. A push ends it without a round
    /// trip; a look at most a second apart finds what a lost one would have told (I11).
    ///
    /// # Errors
    /// See [`WaitError`].
    ///
    /// # Cancel safety
    /// Dropping the future leaves: with the last one of the session the entry at the server is taken away, by the
    /// session's thread, or ends by its deadline.
    pub async fn wait(&self, within: Option<Duration>) -> Result<Over, WaitError> {
        Link::check_runtime().map_err(WaitError::Config)?;
        let started = now();
        let until = within.map_or(Moment::NEVER, |within| started.plus(within));
        let mut waiter = Waiter::enter(self.session.link(), &self.topic)?;
        tokio::select! {
            biased;
            told = &mut waiter.told => outcome(told),
            () = wait_until(until) => waiter.give_up(now().since(started)).await,
        }
    }
}

async fn wait_until(until: Moment) {
    if until == Moment::NEVER { std::future::pending().await } else { sleep_until(until).await }
}

fn outcome(
    told: Result<Result<Over, WaitError>, oneshot::error::RecvError>,
) -> Result<Over, WaitError> {
    // Nobody is there to tell: the session's thread has ended.
    told.unwrap_or(Err(WaitError::Closed))
}

/// A task that waits. Dropped, it is forgotten.
struct Waiter<'a> {
    link: &'a Link,
    key: Arc<[u8]>,
    entry: Uuid,
    number: u64,
    told: oneshot::Receiver<Result<Over, WaitError>>,
}

impl<'a> Waiter<'a> {
    fn enter(link: &'a Link, topic: &Arc<dyn Topic>) -> Result<Self, WaitError> {
        let (tell, told) = oneshot::channel();
        let entered = link.shared().topics.enter(topic, tell).ok_or(WaitError::Closed)?;
        if entered.wake {
            link.shared().poke.notify_one();
        }
        let key = topic.key().clone();
        Ok(Self { link, key, entry: entered.entry, number: entered.number, told })
    }

    /// The time is over.
    async fn give_up(&mut self, waited: Duration) -> Result<Over, WaitError> {
        match self.link.shared().topics.knows(&self.key, self.entry, self.number) {
            Some(Knows::Round) => Err(WaitError::TimedOut { waited }),
            Some(Knows::Nothing(failure)) => {
                Err(WaitError::Backend(failure.unwrap_or_else(BackendError::timed_out)))
            }
            // Told in this very moment.
            None => outcome((&mut self.told).await),
        }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if let Some(left) = self.link.shared().topics.leave(&self.key, self.entry, self.number) {
            self.link.leave(left);
        }
    }
}
