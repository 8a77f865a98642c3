//! The coordinator: it deals the shards, kills an importer, and deals its shards again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use leasehold_examples::Failure;
use leasehold_examples::board::Board;
use leasehold_examples::crew::Crew;
use leasehold_examples::report::grouped;

use crate::waiter::TASKS;
use crate::{IMPORTER, SHARDS, WAITER};

const IMPORTERS: usize = 4;
const WAITERS: usize = 3;
/// The importer that is killed.
const VICTIM: usize = 1;
/// So many shards an importer has at a time.
const AT_A_TIME: usize = 2;
/// The last shard comes in late, so much after the others are done.
const LATE: Duration = Duration::from_millis(500);
/// A run that takes longer has failed; a usual one takes some three seconds.
const LIMIT: Duration = Duration::from_secs(60);

/// Rows of the board.
const LATCH: usize = 0;
const ORDERS: usize = 1;

pub(crate) struct Coordinator<'a> {
    crew: &'a mut Crew,
    board: Board,
    to_deal: VecDeque<u32>,
    /// Which importer has which shards.
    dealt: BTreeMap<usize, Vec<u32>>,
    /// Where the victim stands still.
    stopped: usize,
    ready: usize,
    /// Which batches of which shards are in.
    batches: BTreeSet<(u32, usize)>,
    imported: usize,
    done_at: Instant,
    opened_at: Instant,
    story: Story,
}

/// What happened, as the coordinator heard it.
#[derive(Debug, Default)]
pub(crate) struct Story {
    pub(crate) done: BTreeSet<u32>,
    /// What the killed importer had not reported.
    pub(crate) left_behind: Vec<u32>,
    /// How many orders each waiting task found when the latch opened for it.
    pub(crate) found: Vec<usize>,
    /// From the report of the last shard to the last task that went on.
    pub(crate) opened_within: Duration,
}

impl<'a> Coordinator<'a> {
    pub(crate) fn start(
        crew: &'a mut Crew,
        how: &str,
        name: &str,
        store: &Path,
    ) -> Result<Self, Failure> {
        let store = store.to_str().ok_or("a path that is no text")?;
        for _ in 0..IMPORTERS {
            crew.start([IMPORTER, how, name, store])?;
        }
        for _ in 0..WAITERS {
            crew.start([WAITER, name, store])?;
        }
        let orders = leasehold_examples::orders::all().len();
        Ok(Self {
            crew,
            board: Board::new([("shards", SHARDS as usize), ("orders", orders)]),
            to_deal: (1..SHARDS).collect(),
            dealt: (0..IMPORTERS).map(|importer| (importer, Vec::new())).collect(),
            stopped: 0,
            ready: 0,
            batches: BTreeSet::new(),
            imported: 0,
            done_at: Instant::now(),
            opened_at: Instant::now(),
            story: Story::default(),
        })
    }

    pub(crate) async fn run(self) -> Result<Story, Failure> {
        let run = tokio::time::timeout(LIMIT, self.deal_and_hear());
        run.await.map_err(|_| format!("not done after {LIMIT:?}"))?
    }

    async fn deal_and_hear(mut self) -> Result<Story, Failure> {
        while self.story.found.len() < WAITERS * TASKS || self.story.done.len() < SHARDS as usize {
            if self.ready == WAITERS {
                self.deal().await?;
            }
            let (process, line) = self.crew.next_line().await?;
            self.hear(process, &line)?;
            if self.stopped == AT_A_TIME {
                self.stopped = 0;
                self.kill()?;
            }
            if self.story.done.len() + 1 == SHARDS as usize
                && self.dealt.values().all(Vec::is_empty)
            {
                self.board.say("the last shard comes in late")?;
                tokio::time::sleep(LATE).await;
                self.to_deal.push_back(SHARDS);
            }
        }
        // Both are told at the same time, and either may be heard first.
        self.story.opened_within = self.opened_at.saturating_duration_since(self.done_at);
        Ok(self.story)
    }

    async fn deal(&mut self) -> Result<(), Failure> {
        for (&importer, shards) in &mut self.dealt {
            while shards.len() < AT_A_TIME {
                let Some(shard) = self.to_deal.pop_front() else { return Ok(()) };
                let verb = match (importer, shards.len()) {
                    (VICTIM, 0) => "half",
                    (VICTIM, _) => "silent",
                    _ => "import",
                };
                self.crew.tell(importer, &format!("{verb} {shard}")).await?;
                shards.push(shard);
            }
        }
        let working: Vec<_> = self
            .dealt
            .iter()
            .filter(|(_, shards)| !shards.is_empty())
            .map(|(importer, shards)| format!("importer {importer}: {shards:?}"))
            .collect();
        self.board.show(ORDERS, working.join("  "));
        Ok(())
    }

    fn hear(&mut self, process: usize, line: &str) -> Result<(), Failure> {
        let misheard = || format!("process {process} said: {line}");
        let words: Vec<_> = line.split(' ').collect();
        match words.as_slice() {
            ["waits"] => {
                self.ready += 1;
                self.board.show(LATCH, format!("{} tasks wait", self.ready * TASKS));
            }
            ["batch", shard, number, orders] => {
                if self.batches.insert((shard.parse()?, number.parse()?)) {
                    self.imported += orders.parse::<usize>()?;
                    self.board.reach(ORDERS, self.imported);
                }
            }
            ["stopped", _] => self.stopped += 1,
            ["done", shard, left] => {
                let shard = shard.parse()?;
                let dealt = self.dealt.get_mut(&process).ok_or_else(misheard)?;
                dealt.retain(|dealt| *dealt != shard);
                self.done_at = Instant::now();
                self.story.done.insert(shard);
                self.board.reach(LATCH, self.story.done.len());
                let again = if self.story.left_behind.contains(&shard) { ", again" } else { "" };
                self.board.say(format!(
                    "shard {shard:>2}: importer {process} is done{again}; the latch stood at {left} then"
                ))?;
            }
            ["opened", orders] => {
                self.story.found.push(orders.parse()?);
                self.opened_at = Instant::now();
                if self.story.found.len().is_multiple_of(TASKS) {
                    let (tasks, orders) = (self.story.found.len(), grouped(orders));
                    self.board.say(format!("{tasks} tasks went on, with {orders} orders there"))?;
                }
            }
            _ => return Err(misheard().into()),
        }
        Ok(())
    }

    fn kill(&mut self) -> Result<(), Failure> {
        self.crew.kill(VICTIM)?;
        let shards = self.dealt.remove(&VICTIM).unwrap_or_default();
        self.board.say(format!(
            "importer {VICTIM} is killed with the shards {shards:?}: one is in by half, one in and counted"
        ))?;
        self.to_deal.extend(&shards);
        self.story.left_behind = shards;
        Ok(())
    }
}

impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tasks, least) = (self.found.len(), self.found.iter().min().copied());
        writeln!(
            f,
            "{tasks} tasks of {WAITERS} processes waited; each found {} orders or more,\n\
             the last one {} ms after the last shard was reported.",
            grouped(least.unwrap_or_default()),
            self.opened_within.as_millis()
        )?;
        writeln!(f, "The shards {:?} of the killed importer were imported again.", self.left_behind)
    }
}
