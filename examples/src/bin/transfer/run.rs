//! The parent: it tells the workers what to transfer, freezes one, and keeps the score.

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use leasehold_examples::Failure;
use leasehold_examples::board::Board;
use leasehold_examples::crew::Crew;
use leasehold_examples::report::grouped;
use rustix::process::Signal;
use tokio::time::MissedTickBehavior;

use crate::bank::{Bank, Transfer};
use crate::{How, WORKER};

/// Worker processes.
pub(crate) const WORKERS: u32 = 4;
/// The worker that is frozen.
pub(crate) const VICTIM: usize = 0;
/// Transfers of the undisturbed phase …
const UNDISTURBED: u32 = 600;
/// … and of that in which a worker is frozen.
const DISTURBED: u32 = 120;
/// So many waits that were over are enough to see that it gets nowhere.
const GIVEN_UP: usize = 4;
/// How often the bank is asked whether the frozen worker was overtaken.
const LOOK: Duration = Duration::from_millis(5);
/// A run in which nothing happens for longer has failed.
const LIMIT_OF_A_STEP: Duration = Duration::from_secs(60);

pub(crate) struct Run<'a> {
    crew: &'a mut Crew,
    bank: Bank,
    how: How,
    board: Board,
    /// How many transfers each worker has done.
    done: [u32; WORKERS as usize],
    /// Who stands still, and the tokens of its two accounts.
    inside: Option<(u32, [i64; 2])>,
    phase: Phase,
    began: Instant,
    story: Story,
}

/// What happened.
#[derive(Clone, Debug, Default)]
pub(crate) struct Story {
    pub(crate) phases: Vec<Phase>,
    pub(crate) freeze: Option<Freeze>,
    /// Waits that were over before both accounts were held: the transfer, and what it was told.
    pub(crate) stuck: Vec<String>,
    /// Who had a read or a write refused by the bank.
    pub(crate) stale: Vec<usize>,
    /// Holds that had ended before their release.
    pub(crate) lost: usize,
}

/// What one phase came to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Phase {
    pub(crate) wanted: u32,
    pub(crate) made: u32,
    pub(crate) declined: u32,
    pub(crate) lasted: Duration,
    pub(crate) waits: Vec<Duration>,
}

/// A worker that was frozen between its read and its write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Freeze {
    pub(crate) transfer: Transfer,
    /// Its tokens …
    pub(crate) tokens: [i64; 2],
    /// … and those that the bank had seen when it went on.
    pub(crate) overtaken_by: [i64; 2],
    pub(crate) lasted: Duration,
}

impl<'a> Run<'a> {
    pub(crate) fn start(crew: &'a mut Crew, how: How, bank: &Path) -> Result<Self, Failure> {
        let file = bank.to_str().ok_or("a path that is no text")?;
        for index in 0..WORKERS {
            crew.start([WORKER, &index.to_string(), how.name(), file])?;
        }
        let disturbed = if how == How::Together { DISTURBED } else { 0 };
        let share = ((UNDISTURBED + disturbed) / WORKERS) as usize;
        let rows = (0..WORKERS).map(|worker| (format!("worker {worker}"), share));
        Ok(Self {
            crew,
            bank: Bank::open(bank)?,
            how,
            board: Board::new(rows),
            done: [0; WORKERS as usize],
            inside: None,
            phase: Phase::default(),
            began: Instant::now(),
            story: Story::default(),
        })
    }

    pub(crate) async fn run(mut self) -> Result<Story, Failure> {
        self.begin(UNDISTURBED);
        self.board.say(format!("{UNDISTURBED} transfers, for which {}", self.how.words()))?;
        for worker in 0..WORKERS as usize {
            self.tell(worker, &format!("make 0 {UNDISTURBED}")).await?;
        }
        self.end("the transfers").await?;
        if self.how == How::Together {
            self.with_a_frozen_worker().await?;
        }
        Ok(self.story)
    }

    async fn with_a_frozen_worker(&mut self) -> Result<(), Failure> {
        self.begin(DISTURBED + 1);
        let transfer = self.affordable(UNDISTURBED + DISTURBED)?;
        // Alone, so that no other task of its process stands in a queue when it is frozen.
        self.tell(VICTIM, &format!("freeze {}", transfer.number)).await?;
        self.until("a worker that stands still", |run| Ok(run.inside.is_some())).await?;
        self.crew.signal(VICTIM, Signal::STOP)?;
        let (began, Transfer { from, to, .. }) = (Instant::now(), transfer);
        self.board.say(format!(
            "worker {VICTIM} is frozen between its read and its write, {from} to {to}"
        ))?;
        self.board.show(VICTIM, "frozen");
        let make = format!("make {UNDISTURBED} {}", UNDISTURBED + DISTURBED);
        for worker in (0..WORKERS as usize).filter(|worker| *worker != VICTIM) {
            self.tell(worker, &make).await?;
        }
        let (_, tokens) = self.inside.take().ok_or("nobody stands still")?;
        // The fences are the proof: they have grown when others hold these accounts, and have read them.
        let overtaken = |run: &Self| {
            Ok(run.fences(transfer)?.iter().zip(&tokens).all(|(fence, token)| fence > token))
        };
        self.until("others to get its accounts", overtaken).await?;
        let (overtaken_by, lasted) = (self.fences(transfer)?, began.elapsed());
        self.crew.signal(VICTIM, Signal::CONT)?;
        self.board.say(format!(
            "others got its accounts; after {} ms it goes on, and writes",
            grouped(lasted.as_millis())
        ))?;
        self.board.show(VICTIM, "");
        self.story.freeze = Some(Freeze { transfer, tokens, overtaken_by, lasted });
        self.tell(VICTIM, "on").await?;
        self.tell(VICTIM, &make).await?;
        self.end("the transfers beside a frozen worker").await
    }

    /// A transfer from this number on that its account can pay as things stand.
    fn affordable(&self, first: u32) -> Result<Transfer, Failure> {
        let books = self.bank.books()?;
        let pays = |transfer: &Transfer| books[&transfer.from].balance >= transfer.amount;
        (first..).map(Transfer::of).find(pays).ok_or_else(|| "nobody has money".into())
    }

    fn fences(&self, transfer: Transfer) -> Result<[i64; 2], Failure> {
        Ok([self.bank.fence(transfer.from)?, self.bank.fence(transfer.to)?])
    }

    async fn tell(&mut self, worker: usize, line: &str) -> Result<(), Failure> {
        self.crew.tell(worker, line).await
    }

    fn begin(&mut self, wanted: u32) {
        self.phase = Phase { wanted, ..Phase::default() };
        self.began = Instant::now();
    }

    /// Listens until all transfers of the phase are done, or too many waits were over.
    async fn end(&mut self, what: &str) -> Result<(), Failure> {
        let is_over = |run: &Self| {
            let Phase { wanted, made, declined, .. } = run.phase;
            Ok(made + declined >= wanted || run.story.stuck.len() >= GIVEN_UP)
        };
        self.until(what, is_over).await?;
        self.phase.lasted = self.began.elapsed();
        self.story.phases.push(std::mem::take(&mut self.phase));
        Ok(())
    }

    async fn until(
        &mut self,
        what: &str,
        is_so: impl Fn(&Self) -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        let listen = async {
            let mut look = tokio::time::interval(LOOK);
            look.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while !is_so(self)? {
                tokio::select! {
                    said = self.crew.next_line() => {
                        let (worker, line) = said?;
                        self.hear(worker, &line)?;
                    }
                    _ = look.tick() => {}
                }
            }
            Ok(())
        };
        tokio::time::timeout(LIMIT_OF_A_STEP, listen)
            .await
            .map_err(|_| format!("waited {LIMIT_OF_A_STEP:?} for {what}"))?
    }

    fn hear(&mut self, worker: usize, line: &str) -> Result<(), Failure> {
        let (verb, rest) = line.split_once(' ').ok_or_else(|| line.to_owned())?;
        let words: Vec<_> = rest.split(' ').collect();
        match (verb, words.as_slice()) {
            ("made" | "declined", [_, micros]) => {
                let count = match verb {
                    "made" => &mut self.phase.made,
                    _ => &mut self.phase.declined,
                };
                *count += 1;
                self.phase.waits.push(Duration::from_micros(micros.parse()?));
                self.done[worker] += 1;
                self.board.reach(worker, self.done[worker] as usize);
            }
            ("inside", [number, from, to]) => {
                self.inside = Some((number.parse()?, [from.parse()?, to.parse()?]));
            }
            ("stale", _) => self.story.stale.push(worker),
            ("lost", _) => self.story.lost += 1,
            ("stuck", [number, words @ ..]) => {
                let Transfer { from, to, .. } = Transfer::of(number.parse()?);
                let stuck = format!("{from} to {to} gave up: {}", words.join(" "));
                self.board.say(&stuck)?;
                self.story.stuck.push(stuck);
            }
            _ => return Err(format!("worker {worker} said: {line}").into()),
        }
        Ok(())
    }
}

impl Phase {
    fn per_second(&self) -> f64 {
        f64::from(self.made + self.declined) / self.lasted.as_secs_f64()
    }

    /// The wait that half of the transfers did not exceed, and the longest.
    fn waits(&self) -> [Duration; 2] {
        let mut waits = self.waits.clone();
        waits.sort_unstable();
        [waits.get(waits.len() / 2), waits.last()].map(|wait| wait.copied().unwrap_or_default())
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { made, declined, lasted, .. } = self;
        let [median, longest] = self.waits().map(|wait| wait.as_secs_f64() * 1e3);
        write!(
            f,
            "{:>9}{:>12}{made:>8}{declined:>10}{:>14.1}{median:>17.1}{longest:>13.1}",
            made + declined,
            format!("{:.1} s", lasted.as_secs_f64()),
            self.per_second()
        )
    }
}

const HEAD: &str = "                 transfers        time    made  declined  transfers/s  median wait, ms  longest, ms";

impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEAD}")?;
        for (name, phase) in ["undisturbed", "a worker frozen"].into_iter().zip(&self.phases) {
            writeln!(f, "{name:<17}{phase}")?;
        }
        writeln!(f)?;
        if let Some(Freeze { tokens: [from, to], overtaken_by, .. }) = &self.freeze {
            let [over_from, over_to] = overtaken_by;
            writeln!(
                f,
                "the frozen worker came with tokens {from} and {to}, the bank had seen {over_from} and {over_to}"
            )?;
        }
        writeln!(f, "{:<22}{:>8}", "dead-locks", self.stuck.len())?;
        writeln!(f, "{:<22}{:>8}", "stale writes refused", self.stale.len())
    }
}
