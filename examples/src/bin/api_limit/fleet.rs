//! The parent: it tells the fleet how to call, kills one process, raises the limit, and keeps the score.

use std::fmt;
use std::time::{Duration, Instant};

use leasehold::Semaphore;
use leasehold_examples::Failure;
use leasehold_examples::board::Board;
use leasehold_examples::crew::Crew;
use leasehold_examples::report::grouped;
use tokio::time::MissedTickBehavior;

use crate::api::{Api, Counts};
use crate::caller::STOPPED;
use crate::{CALLER, RAISED};

const CALLERS: usize = 4;
/// The caller that is killed.
const VICTIM: usize = 1;
/// How long a phase lasts.
const PHASE: Duration = Duration::from_millis(1200);
/// How often the board is renewed.
const LOOK: Duration = Duration::from_millis(50);
/// A run in which nothing happens for longer has failed.
const LIMIT_OF_A_STEP: Duration = Duration::from_secs(30);

pub(crate) struct Fleet<'a> {
    crew: &'a mut Crew,
    api: &'a Api,
    semaphore: &'a Semaphore,
    board: Board,
    /// How many tasks of the victim stand still with a permit.
    stopped: u32,
    story: Story,
}

/// What happened, as the server counted it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Story {
    pub(crate) phases: Vec<Phase>,
    /// How many permits the killed process had …
    pub(crate) dead_permits: u32,
    /// … and how long it took until they were back.
    pub(crate) returned_after: Option<Duration>,
    /// Permits of living processes that ended before their time (this machine stood still for longer than a lease).
    pub(crate) lost: u32,
}

/// One line of the score.
#[derive(Clone, Debug)]
pub(crate) struct Phase {
    pub(crate) kind: Kind,
    /// What the server allowed.
    pub(crate) limit: u32,
    pub(crate) served: u32,
    pub(crate) refused: u32,
    /// The most calls that ran at a time.
    pub(crate) peak: u32,
    pub(crate) per_second: f64,
}

/// What a phase shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Free,
    Permits,
    Dead,
    Returned,
    Raised,
}

impl Kind {
    /// In the order in which they come.
    pub(crate) const ALL: [Self; 5] =
        [Self::Free, Self::Permits, Self::Dead, Self::Returned, Self::Raised];

    fn words(self) -> &'static str {
        match self {
            Self::Free => "without permits",
            Self::Permits => "with permits",
            Self::Dead => "one process killed",
            Self::Returned => "its permits are back",
            Self::Raised => "the limit is raised",
        }
    }
}

impl<'a> Fleet<'a> {
    pub(crate) fn start(
        crew: &'a mut Crew,
        api: &'a Api,
        semaphore: &'a Semaphore,
    ) -> Result<Self, Failure> {
        for index in 0..CALLERS {
            crew.start([CALLER, &label(index), &api.address().to_string()])?;
        }
        let board = Board::new([("in flight", RAISED as usize)]);
        Ok(Self { crew, api, semaphore, board, stopped: 0, story: Story::default() })
    }

    pub(crate) async fn run(mut self) -> Result<Story, Failure> {
        self.board.say(HEAD)?;
        self.tell_all("free").await?;
        self.phase(Kind::Free).await?;
        self.tell_all("pause").await?;
        self.until("nothing in flight", async |fleet| Ok(fleet.api.counts().in_flight == 0))
            .await?;

        self.tell_all("permits").await?;
        self.phase(Kind::Permits).await?;

        self.kill_with_permits().await?;
        let are_back = async |fleet: &Self| Ok(fleet.victims_permits().await? == 0);
        self.until("its permits to come back", are_back).await?;
        let killed = self.end_of_phase(Kind::Dead)?;
        self.story.returned_after = Some(killed);
        self.phase(Kind::Returned).await?;

        // The server first: nobody may call more than it allows, at no time.
        self.api.allow(RAISED);
        self.semaphore.set_limit(RAISED).await?;
        self.phase(Kind::Raised).await?;
        Ok(self.story)
    }

    async fn kill_with_permits(&mut self) -> Result<(), Failure> {
        self.crew.tell(VICTIM, "halt").await?;
        // No other task of it may wait: it could be granted a permit as it dies.
        let stands_still = async |fleet: &Self| {
            let queue = fleet.semaphore.queue().await?;
            let waits = queue.waiters.iter().any(|waiter| waiter.label == label(VICTIM));
            Ok(fleet.stopped == STOPPED && !waits && fleet.victims_permits().await? == STOPPED)
        };
        self.until("a process that stands still", stands_still).await?;
        self.crew.kill(VICTIM)?;
        self.api.count_anew();
        self.story.dead_permits = self.victims_permits().await?;
        let dead = self.story.dead_permits;
        self.board.say(format!("process {VICTIM} is killed with {dead} permits"))?;
        Ok(())
    }

    /// How many permits the process has that is to be killed; once it is, nobody renews them.
    async fn victims_permits(&self) -> Result<u32, Failure> {
        let holders = self.semaphore.holders().await?;
        let its = holders.iter().filter(|holder| holder.holder.label == label(VICTIM));
        Ok(its.map(|holder| holder.weight).sum())
    }

    async fn tell_all(&mut self, word: &str) -> Result<(), Failure> {
        for caller in 0..CALLERS {
            self.crew.tell(caller, word).await?;
        }
        self.api.count_anew();
        Ok(())
    }

    async fn phase(&mut self, kind: Kind) -> Result<(), Failure> {
        self.api.count_anew();
        let began = Instant::now();
        self.until("a phase", async |_| Ok(began.elapsed() >= PHASE)).await?;
        self.end_of_phase(kind)?;
        Ok(())
    }

    /// Writes down what the server counted, and answers in how long a time.
    fn end_of_phase(&mut self, kind: Kind) -> Result<Duration, Failure> {
        let counts = self.api.count_anew();
        let lasted = counts.since.elapsed();
        let Counts { limit, served, refused, peak, .. } = counts;
        let per_second = f64::from(served) / lasted.as_secs_f64();
        let phase = Phase { kind, limit, served, refused, peak, per_second };
        self.board.say(phase.to_string())?;
        self.story.phases.push(phase);
        Ok(lasted)
    }

    /// Listens to the fleet and shows what is in flight, until this is so.
    async fn until(
        &mut self,
        what: &str,
        is_so: impl AsyncFn(&Self) -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        let listen = async {
            let mut look = tokio::time::interval(LOOK);
            look.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while !is_so(self).await? {
                tokio::select! {
                    said = self.crew.next_line() => {
                        let (caller, line) = said?;
                        self.hear(caller, &line)?;
                    }
                    _ = look.tick() => self.show().await?,
                }
            }
            Ok(())
        };
        tokio::time::timeout(LIMIT_OF_A_STEP, Box::pin(listen))
            .await
            .map_err(|_| format!("waited {LIMIT_OF_A_STEP:?} for {what}"))?
    }

    fn hear(&mut self, caller: usize, line: &str) -> Result<(), Failure> {
        match line {
            "stopped" => self.stopped += 1,
            "lost" => self.story.lost += 1,
            _ => return Err(format!("process {caller} said: {line}").into()),
        }
        Ok(())
    }

    async fn show(&self) -> Result<(), Failure> {
        let Counts { limit, in_flight, refused, .. } = self.api.counts();
        let usage = self.semaphore.usage().await?;
        self.board.reach(0, in_flight as usize);
        self.board.show(
            0,
            format!(
                "{limit} allowed, {} of {} permits out, {} tasks wait, {} refused",
                usage.used,
                usage.limit,
                usage.waiting,
                grouped(refused)
            ),
        );
        Ok(())
    }
}

fn label(caller: usize) -> String {
    format!("process {caller}")
}

const HEAD: &str = "                       allowed   at once    served   refused   calls/s";

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, limit, served, refused, peak, per_second } = self;
        let kind = kind.words();
        let refused = grouped(refused);
        write!(f, "{kind:<22}{limit:>8}{peak:>10}{served:>10}{refused:>10}{per_second:>10.1}")
    }
}

impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let after = self.returned_after.unwrap_or_default().as_millis();
        write!(
            f,
            "The {} permits of the killed process were back after {} ms, by its lease.",
            self.dead_permits,
            grouped(after)
        )
    }
}
