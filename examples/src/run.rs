//! The parent's side of a run: it starts the workers, counts what they tell, and freezes one if the scenario says so.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::time::MissedTickBehavior;

use crate::Failure;
use crate::crew::{Crew, Event};
use crate::message::Message;
use crate::orders;
use crate::progress::Progress;
use crate::report::{Freeze, Record};
use crate::scenario::{STOCK_PERCENT, Scenario, WORKERS};
use crate::shop::Shop;
use crate::worker::VICTIM;

/// The command line of a worker begins with it.
pub const WORKER: &str = "worker";

/// A run that takes longer has failed; a usual one takes some seconds.
const LIMIT: Duration = Duration::from_secs(120);

/// How often the database is asked whether a frozen worker was overtaken.
const LOOK: Duration = Duration::from_millis(5);

/// Runs a scenario with the first `count` orders, in a shop of its own in this folder.
///
/// # Errors
/// A worker failed, or it took too long.
pub async fn run(scenario: Scenario, count: usize, folder: &Path) -> Result<Record, Failure> {
    let mut orders = orders::all();
    orders.truncate(count);
    let database = folder.join(format!("{}.sqlite", scenario.name().replace([' ', ','], "-")));
    let stock = orders::demand(&orders)
        .into_iter()
        .map(|(product, discs)| (product, (discs * STOCK_PERCENT / 100).max(1)))
        .collect();
    let shop = Shop::create(&database, &stock)?;
    let run = Run::start(scenario, orders.len(), &database)?;
    let mut record = Record::new(scenario, orders.len());
    tokio::time::timeout(LIMIT, run.work(&shop, &mut record))
        .await
        .map_err(|_| format!("{}: not done after {LIMIT:?}", scenario.name()))??;
    record.books = shop.books()?;
    Ok(record)
}

/// A run that goes on. Dropped, it kills the workers, frozen or not.
struct Run {
    crew: Crew,
    ready: usize,
    ended: usize,
    started: Instant,
    frozen: Option<Frozen>,
    progress: Progress,
}

/// A worker that is frozen now.
struct Frozen {
    worker: usize,
    product: String,
    token: i64,
    since: Instant,
}

impl Run {
    fn start(scenario: Scenario, orders: usize, database: &Path) -> Result<Self, Failure> {
        let mut crew = Crew::default();
        let database = database.to_str().ok_or("a path that is no text")?;
        for index in 0..WORKERS {
            let (index, orders) = (index.to_string(), orders.to_string());
            crew.start([WORKER, &index, scenario.name(), &orders, database])?;
        }
        Ok(Self {
            crew,
            ready: 0,
            ended: 0,
            started: Instant::now(),
            frozen: None,
            progress: Progress::new(scenario, u64::try_from(orders)?),
        })
    }

    /// Lets them sell, and returns when all have ended well, or as soon as one has failed.
    async fn work(mut self, shop: &Shop, record: &mut Record) -> Result<(), Failure> {
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while self.ended < WORKERS {
            tokio::select! {
                event = self.crew.next() => match event? {
                    Event::Said { worker, line } => self.hear(worker, line.parse()?, record).await?,
                    Event::Ended { status, .. } if status.success() => self.ended += 1,
                    Event::Ended { worker, status } => {
                        return Err(format!("worker {worker}: {status}").into());
                    }
                },
                _ = look.tick(), if self.frozen.is_some() => {
                    if let Some(freeze) = self.thaw_if_overtaken(shop).await? {
                        record.freeze = Some(freeze);
                    }
                }
            }
        }
        Ok(())
    }

    async fn hear(
        &mut self,
        worker: usize,
        message: Message,
        record: &mut Record,
    ) -> Result<(), Failure> {
        match message {
            Message::Ready => {
                self.ready += 1;
                if self.ready == WORKERS {
                    self.started = Instant::now();
                    let freezes = record.scenario == Scenario::FrozenWorker;
                    let first = if freezes { VICTIM..VICTIM + 1 } else { 0..WORKERS };
                    self.tell_to_go_on(first).await?;
                }
            }
            Message::Inside { product, token } => {
                self.crew.signal(worker, Signal::STOP)?;
                self.progress.say(format!("(worker {worker} is frozen)"));
                self.frozen = Some(Frozen { worker, product, token, since: Instant::now() });
                // Only now do the others begin, so it is certain that they want this product.
                self.tell_to_go_on((0..WORKERS).filter(|other| *other != worker)).await?;
            }
            Message::StaleWrite => record.stale_writes += 1,
            Message::HoldLost => record.holds_lost += 1,
            Message::Order { sold, waited } => {
                self.progress.order();
                record.order(sold, waited);
                record.elapsed = self.started.elapsed();
            }
        }
        Ok(())
    }

    /// The fence is the proof: it has grown once another worker holds the product and has read its stock.
    async fn thaw_if_overtaken(&mut self, shop: &Shop) -> Result<Option<Freeze>, Failure> {
        let Some(frozen) = &self.frozen else { return Ok(None) };
        let fence = shop.fence(&frozen.product)?;
        if fence <= frozen.token {
            return Ok(None);
        }
        let (worker, lasted) = (frozen.worker, frozen.since.elapsed());
        let freeze = Freeze {
            worker,
            product: frozen.product.clone(),
            token: frozen.token,
            overtaken_by: fence,
            lasted,
        };
        self.frozen = None;
        self.progress.say(String::new());
        self.crew.signal(worker, Signal::CONT)?;
        self.tell_to_go_on([worker]).await?;
        Ok(Some(freeze))
    }

    async fn tell_to_go_on(
        &mut self,
        workers: impl IntoIterator<Item = usize>,
    ) -> Result<(), Failure> {
        for worker in workers {
            self.crew.tell(worker, "").await?;
        }
        Ok(())
    }
}
