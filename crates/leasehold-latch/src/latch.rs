//! The latch as its user sees it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_lua::latch::{
    self as scripts, ArmReply, CountReply, Counter, LookReply, ResetReply, State,
};
use leasehold_lua::{Call, DecodeError, Reply};
use leasehold_runtime::engine::{Answer, AskError, Line, Over, WaitError};
use leasehold_runtime::{BackendError, ConfigError, Name, Session};
use uuid::Uuid;

use crate::error::LatchError;
use crate::options::{LatchOptions, out_of_bounds};
use crate::topic::{End, LatchTopic, end_of};

/// Timers count whole milliseconds: in a shorter time no server could answer.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// A countdown latch on Redis: tasks of many processes wait until so many others have counted down.
///
/// Unlike a local latch it can be armed again, it can end before it is open, and every step can fail. It holds nothing:
/// there is no guard and no lease. Several `Latch` values of one name are the same latch. Cheap to clone.
///
/// A latch lives in *generations*: [`arm`](Self::arm) begins one with a count, and it is over when it is
/// [`reset`](Self::reset) or expires. An open latch counts as armed until then, so that whoever comes late finds it open;
/// for a further use reset it first, or take a name for each use (`import:2024-05`).
///
/// # Guarantees
/// * `wait` returns `Ok` only when as many as it was armed with have counted down in that generation. A latch that
///   expired, was deleted, evicted or lost with its server is an error, never "open".
/// * Every call counts once, however often it has to be sent, and in one generation only. With
///   [`count_down_as`](Self::count_down_as) every id counts once in a generation, however many calls name it: a job that
///   is retried does no harm.
/// * When it opens or is reset all waiters of all processes are told by one message a process, without a round trip.
///   Should that message be lost they find it by themselves, at most a second later (while the session's inbox is down
///   within 200 ms).
/// * The tasks of one session that wait at one latch ask Redis about once a second together, however many they are, and
///   once more together when tasks come in.
/// * A dropped wait leaves nothing behind.
///
/// # Not guaranteed
/// * That those who counted down are still alive, or that what they did lasts: the latch counts calls.
/// * A failover that loses the last writes can lose counts: then it does not open, and expires. It can lose a reset and
///   what was armed after it, too: then the generation before is back, open if it was. A name for each use avoids that.
/// * A call counts in the generation that is armed when it arrives. A worker that was begun before a reset and counts after
///   it counts in the next one: take a name for each use where that can happen.
/// * A copy of an arm that reaches Redis more than a minute late can arm it again, if it was reset or has ended meanwhile.
///
/// # Fairness
/// None is needed: all waiters go on at once.
///
/// # Keys
/// `<prefix>lh1:latch:{<name>}` (generation and count), the same with `:ids` (who has counted) and `:waiters` (which
/// processes wait). All end by themselves: `expires_after` after the last count, or a minute after a reset; `:ids` at the
/// earliest a minute after the last count; `:waiters` with the last sign of life of those in it (10 s).
///
/// # Examples
/// An import in shards, whose workers may be retried:
/// ```no_run
/// # async fn import(_shard: &str) {}
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold_latch::{Latch, LatchError, LatchOptions, Session};
/// use std::time::Duration;
///
/// let session = Session::connect("redis://127.0.0.1/").await?;
/// let shards = ["a-f", "g-m", "n-z"];
/// let latch = Latch::new(&session, "import:2024-05", LatchOptions::default())?;
/// latch.arm(3).await?;
///
/// // A worker, which takes its shards from a queue that may deliver one twice:
/// for shard in shards {
///     import(shard).await;
///     latch.count_down_as(shard).await?;
/// }
///
/// // Elsewhere:
/// match latch.wait_within(Duration::from_secs(600)).await {
///     Ok(()) => println!("all shards are imported"),
///     Err(LatchError::TimedOut { .. }) => println!("{} shards are missing", latch.count().await?),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Latch {
    topic: Arc<LatchTopic>,
    line: Line,
    options: LatchOptions,
    /// The generation that the next count is meant for; 0 is not known.
    generation: Arc<AtomicU64>,
}

impl Latch {
    /// The latch of this name. No round trip.
    ///
    /// # Errors
    /// [`ConfigError`] with the first bound that name or options do not keep.
    pub fn new(
        session: &Session,
        name: impl Into<Name>,
        options: LatchOptions,
    ) -> Result<Self, ConfigError> {
        options.check()?;
        let topic = Arc::new(LatchTopic::new(session.prefix(), name.into())?);
        let line = Line::new(session, topic.clone());
        Ok(Self { topic, line, options, generation: Arc::default() })
    }

    /// Arms it: from now on `count` calls of [`count_down`](Self::count_down) open it. `true` if this call armed it;
    /// `false` if it was armed, by whomever, open or not, and nothing was changed. `count` is 1 to 100 000
    /// ([`LARGEST_COUNT`](crate::LARGEST_COUNT)). One round trip.
    ///
    /// # Errors
    /// * [`Config`](LatchError::Config): the count is out of its bounds, or there is no tokio runtime here; nothing was
    ///   sent.
    /// * [`Closed`](LatchError::Closed): the session was shut down.
    /// * [`Unknown`](LatchError::Unknown): no answer within the response timeout; it may be armed, now or a little later.
    ///   Calling again is another call: `false` may then mean that this one had done it.
    /// * [`Backend`](LatchError::Backend): Redis was out of reach, or refused; it was not armed.
    ///
    /// # Cancel safety
    /// Dropping the future may or may not have armed it.
    pub async fn arm(&self, count: u32) -> Result<bool, LatchError> {
        if count == 0 || count > scripts::LARGEST_COUNT {
            return Err(out_of_bounds("count", "1 to 100 000").into());
        }
        let uuid = Uuid::new_v4().simple().to_string();
        let call = scripts::arm(&self.topic.keys, &uuid, count, self.options.expires_ms());
        let reply = self.change(&call).await?.reply;
        let ArmReply { armed, generation } = self.read(ArmReply::decode(&reply))?;
        self.generation.store(generation, Ordering::Relaxed);
        Ok(armed)
    }

    /// Counts down by one, and answers how many are left; at 0 it is open, and further counts change nothing. What counts
    /// restarts [`expires_after`](LatchOptions::expires_after). One round trip; a second one when this value does not know
    /// yet which generation is armed, or another one than before.
    ///
    /// A call is sent until it is answered, and counts once. Calling again is another count: after
    /// [`Unknown`](LatchError::Unknown) do not repeat it blindly, or use [`count_down_as`](Self::count_down_as), which can
    /// be repeated.
    ///
    /// # Errors
    /// * [`NotArmed`](LatchError::NotArmed): nobody armed it, or it was reset or has ended.
    /// * [`Reset`](LatchError::Reset), [`Expired`](LatchError::Expired): an answer was lost, and the generation is over that
    ///   it was meant for, the last one that this value knew: it may have counted there. It did not count in a later one.
    /// * [`Closed`](LatchError::Closed): the session was shut down.
    /// * [`Config`](LatchError::Config): there is no tokio runtime here; nothing was sent.
    /// * [`Unknown`](LatchError::Unknown): no answer within the response timeout; it may have counted, or still will.
    /// * [`Backend`](LatchError::Backend): Redis was out of reach, or refused; it did not count.
    ///
    /// # Cancel safety
    /// Dropping the future may or may not have counted.
    pub async fn count_down(&self) -> Result<u64, LatchError> {
        let uuid = Uuid::new_v4().simple().to_string();
        self.count_as(Counter::Call(&uuid)).await
    }

    /// As [`count_down`](Self::count_down), for an id of 1 to 128 bytes of any kind: it counts once in a generation,
    /// however many calls of whatever process name it. A repeat answers what the first one did: how many were left then.
    ///
    /// # Errors
    /// As [`count_down`](Self::count_down), and [`Config`](LatchError::Config) for an id that is too long or empty.
    /// Whatever the error, the call may be repeated.
    ///
    /// # Cancel safety
    /// Dropping the future may or may not have counted; repeating it is harmless.
    pub async fn count_down_as(&self, id: impl AsRef<[u8]>) -> Result<u64, LatchError> {
        let id = id.as_ref();
        if id.is_empty() || id.len() > scripts::LONGEST_ID {
            return Err(out_of_bounds("id", "1 to 128 bytes").into());
        }
        self.count_as(Counter::Named(id)).await
    }

    /// How many have still to count down; 0 is open. One round trip.
    ///
    /// # Errors
    /// * [`NotArmed`](LatchError::NotArmed): nobody armed it, or it was reset or has ended.
    /// * [`Closed`](LatchError::Closed): the session was shut down.
    /// * [`Config`](LatchError::Config): there is no tokio runtime here; nothing was sent.
    /// * [`Backend`](LatchError::Backend): Redis did not answer within the response timeout, or refused.
    ///
    /// # Cancel safety
    /// It changes nothing.
    pub async fn count(&self) -> Result<u64, LatchError> {
        let found = self.look().await?;
        match found.state {
            State::Waits | State::Open => Ok(found.left),
            State::Reset | State::NotArmed => Err(self.not_armed()),
        }
    }

    /// Waits until it is open, as long as [`LatchOptions::max_wait`] says (default 5 s). Round trips, errors and cancel
    /// safety as [`wait_within`](Self::wait_within).
    ///
    /// # Errors
    /// As [`wait_within`](Self::wait_within).
    pub async fn wait(&self) -> Result<(), LatchError> {
        match self.options.wait() {
            Some(wait) => self.wait_within(wait).await,
            None => self.over(self.line.wait(None).await),
        }
    }

    /// Waits until it is open, at most so long; less than a millisecond is one look. One round trip, which looks and
    /// listens at once, shared by all tasks that begin to wait meanwhile; from then on the message comes by itself.
    ///
    /// # Errors
    /// * [`NotArmed`](LatchError::NotArmed): nobody armed it, or it was reset or has ended before; at once.
    /// * [`Expired`](LatchError::Expired): it ended by itself, while this call waited.
    /// * [`Reset`](LatchError::Reset): it was reset while this call waited, whether or not it was armed again.
    /// * [`TimedOut`](LatchError::TimedOut): the wait is over.
    /// * [`Closed`](LatchError::Closed): the session was shut down, before or meanwhile.
    /// * [`Config`](LatchError::Config): there is no tokio runtime here.
    /// * [`Backend`](LatchError::Backend): Redis was out of reach for the whole wait, or refused (at once).
    ///
    /// # Cancel safety
    /// Dropping the future ends the waiting. When the last task of a session leaves, its entry at the server is taken
    /// away, or ends by itself within the session's `waiter_deadline` (10 s).
    pub async fn wait_within(&self, wait: Duration) -> Result<(), LatchError> {
        if wait >= SHORTEST_WAIT {
            return self.over(self.line.wait(Some(wait)).await);
        }
        match self.look().await?.state {
            State::Open => Ok(()),
            State::Waits => Err(LatchError::TimedOut { name: self.name(), waited: wait }),
            State::Reset | State::NotArmed => Err(self.not_armed()),
        }
    }

    /// Ends the present generation, open or not: `true` if this call did it, `false` if the latch was not armed, or
    /// somebody else did it in between. Whoever waits is told ([`Reset`](LatchError::Reset)), and it can be armed anew.
    /// Two round trips: it reads which generation is armed and ends just that one, so a resend never hits the next.
    ///
    /// # Errors
    /// * [`Closed`](LatchError::Closed): the session was shut down.
    /// * [`Config`](LatchError::Config): there is no tokio runtime here; nothing was sent.
    /// * [`Unknown`](LatchError::Unknown): no answer within the response timeout; it may be reset, now or a little later.
    /// * [`Backend`](LatchError::Backend): Redis was out of reach, or refused; it was not reset.
    ///
    /// # Cancel safety
    /// Dropping the future may or may not have reset it.
    pub async fn reset(&self) -> Result<bool, LatchError> {
        let found = self.look().await?;
        if !matches!(found.state, State::Waits | State::Open) {
            return Ok(false);
        }
        let call = scripts::reset(&self.topic.keys, found.generation);
        let answer = self.change(&call).await?;
        // After a lost answer nobody can tell whose reset it was; the generation is over.
        let (done, again) = match self.read(ResetReply::decode(&answer.reply))? {
            ResetReply::Reset { again } => (true, again),
            ResetReply::Before { again } => (answer.doubtful, again),
            ResetReply::Other => (answer.doubtful, false),
        };
        if again {
            self.tell_the_others(&call, |reply| {
                matches!(
                    ResetReply::decode(reply),
                    Ok(ResetReply::Reset { again: true } | ResetReply::Before { again: true })
                )
            })
            .await;
        }
        Ok(done)
    }

    async fn count_as(&self, counter: Counter<'_>) -> Result<u64, LatchError> {
        let mut generation = self.known_generation().await?;
        loop {
            let call = scripts::count_down(&self.topic.keys, generation, counter);
            let answer = self.change(&call).await?;
            match self.read(CountReply::decode(&answer.reply))? {
                CountReply::Counted { left, again } => {
                    self.generation.store(generation, Ordering::Relaxed);
                    if again {
                        self.tell_the_others(&call, |reply| {
                            matches!(
                                CountReply::decode(reply),
                                Ok(CountReply::Counted { again: true, .. })
                            )
                        })
                        .await;
                    }
                    return Ok(left);
                }
                // I6: the earlier copy may have counted in its generation, so this one must not count in the next.
                CountReply::Other { .. } | CountReply::Reset if answer.doubtful => {
                    self.forget_generation();
                    return Err(LatchError::Reset { name: self.name() });
                }
                CountReply::NotArmed if answer.doubtful => {
                    self.forget_generation();
                    return Err(LatchError::Expired { name: self.name() });
                }
                CountReply::Other { generation: armed } => generation = armed,
                CountReply::Reset | CountReply::NotArmed => {
                    self.forget_generation();
                    return Err(self.not_armed());
                }
            }
        }
    }

    /// The script told as many processes as one call may. What the call was for is done: whoever is not reached finds it
    /// by itself.
    async fn tell_the_others(&self, call: &Call, more: impl Fn(&Reply) -> bool) {
        while let Ok(answer) = self.line.ask(call).await {
            if !more(&answer.reply) {
                break;
            }
        }
    }

    async fn known_generation(&self) -> Result<u64, LatchError> {
        match self.generation.load(Ordering::Relaxed) {
            0 => {}
            known => return Ok(known),
        }
        let found = self.look().await?;
        match found.state {
            State::Waits | State::Open => Ok(found.generation),
            State::Reset | State::NotArmed => Err(self.not_armed()),
        }
    }

    fn forget_generation(&self) {
        self.generation.store(0, Ordering::Relaxed);
    }

    async fn look(&self) -> Result<LookReply, LatchError> {
        let answer = self.line.ask(&scripts::look(&self.topic.keys)).await;
        let answer = answer.map_err(|error| self.unchanged(error))?;
        self.read(LookReply::decode(&answer.reply))
    }

    /// Sends a call that changes something.
    async fn change(&self, call: &Call) -> Result<Answer, LatchError> {
        match self.line.ask(call).await {
            Err(AskError::Failed { error: source, doubtful: true }) => {
                Err(LatchError::Unknown { name: self.name(), source })
            }
            answer => answer.map_err(|error| self.unchanged(error)),
        }
    }

    fn over(&self, waited: Result<Over, WaitError>) -> Result<(), LatchError> {
        let name = self.name();
        match waited {
            Ok(over) => match end_of(over) {
                End::Open => Ok(()),
                End::NotArmed => Err(LatchError::NotArmed { name }),
                End::Expired => Err(LatchError::Expired { name }),
                End::Reset => Err(LatchError::Reset { name }),
            },
            Err(WaitError::TimedOut { waited }) => Err(LatchError::TimedOut { name, waited }),
            Err(WaitError::Config(error)) => Err(error.into()),
            Err(WaitError::Backend(error)) => Err(self.failed(error)),
            Err(WaitError::Closed) => Err(LatchError::Closed),
            Err(_) => Err(LatchError::Closed),
        }
    }

    fn unchanged(&self, error: AskError) -> LatchError {
        match error {
            AskError::Config(error) => error.into(),
            AskError::Failed { error, .. } => self.failed(error),
            AskError::Closed => LatchError::Closed,
            _ => LatchError::Closed,
        }
    }

    fn read<T>(&self, decoded: Result<T, DecodeError>) -> Result<T, LatchError> {
        decoded.map_err(|error| self.failed(error.into()))
    }

    fn failed(&self, source: BackendError) -> LatchError {
        LatchError::Backend { name: self.name(), source }
    }

    fn not_armed(&self) -> LatchError {
        LatchError::NotArmed { name: self.name() }
    }

    fn name(&self) -> Name {
        self.topic.name.clone()
    }
}

impl fmt::Debug for Latch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Latch")
            .field("name", &self.topic.name)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
