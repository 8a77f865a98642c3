//! The parent's side of a run: it starts the workers, counts what they tell, and freezes one if the scenario says so.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::Failure;
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
    let crew = Crew::start(scenario, orders.len(), &database)?;
    let mut record = Record::new(scenario, orders.len());
    tokio::time::timeout(LIMIT, crew.work(&shop, &mut record))
        .await
        .map_err(|_| format!("{}: not done after {LIMIT:?}", scenario.name()))??;
    record.books = shop.books()?;
    Ok(record)
}

/// The workers. Dropped, they are killed, frozen or not.
struct Crew {
    children: Vec<Child>,
    /// Where the workers are told to go on.
    inputs: Vec<ChildStdin>,
    messages: mpsc::UnboundedReceiver<(usize, Message)>,
    listeners: JoinSet<Result<usize, Failure>>,
    ready: usize,
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

impl Crew {
    fn start(scenario: Scenario, orders: usize, database: &Path) -> Result<Self, Failure> {
        let (tell, messages) = mpsc::unbounded_channel();
        let mut crew = Self {
            children: Vec::new(),
            inputs: Vec::new(),
            messages,
            listeners: JoinSet::new(),
            ready: 0,
            started: Instant::now(),
            frozen: None,
            progress: Progress::new(scenario, u64::try_from(orders)?),
        };
        for index in 0..WORKERS {
            let mut child = Command::new(std::env::current_exe()?)
                .args([WORKER, &index.to_string(), scenario.name(), &orders.to_string()])
                .arg(database)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .kill_on_drop(true)
                .spawn()?;
            let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
                return Err("a worker without pipes".into());
            };
            crew.listeners.spawn(listen(index, output, tell.clone()));
            crew.inputs.push(input);
            crew.children.push(child);
        }
        Ok(crew)
    }

    /// Lets them sell, and returns when all have ended well, or as soon as one has failed.
    async fn work(mut self, shop: &Shop, record: &mut Record) -> Result<(), Failure> {
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                message = self.messages.recv() => match message {
                    Some((worker, message)) => self.hear(worker, message, record).await?,
                    None => break, // all have closed their outputs
                },
                Some(worker) = self.listeners.join_next() => self.end_of(worker??).await?,
                _ = look.tick(), if self.frozen.is_some() => {
                    if let Some(freeze) = self.thaw_if_overtaken(shop).await? {
                        record.freeze = Some(freeze);
                    }
                }
            }
        }
        while let Some(worker) = self.listeners.join_next().await {
            self.end_of(worker??).await?;
        }
        Ok(())
    }

    async fn end_of(&mut self, worker: usize) -> Result<(), Failure> {
        let status = self.children[worker].wait().await?;
        if status.success() { Ok(()) } else { Err(format!("worker {worker}: {status}").into()) }
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
                kill_process(self.pid(worker)?, Signal::STOP)?;
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
        kill_process(self.pid(worker)?, Signal::CONT)?;
        self.tell_to_go_on([worker]).await?;
        Ok(Some(freeze))
    }

    async fn tell_to_go_on(
        &mut self,
        workers: impl IntoIterator<Item = usize>,
    ) -> Result<(), Failure> {
        for worker in workers {
            self.inputs[worker].write_all(b"\n").await?;
        }
        Ok(())
    }

    fn pid(&self, worker: usize) -> Result<Pid, Failure> {
        let id = self.children[worker].id().ok_or("the worker has ended")?;
        Ok(Pid::from_raw(i32::try_from(id)?).ok_or("no process id")?)
    }
}

/// Hands on what a worker says, until it closes its output; answers which worker that was.
async fn listen(
    worker: usize,
    output: ChildStdout,
    tell: mpsc::UnboundedSender<(usize, Message)>,
) -> Result<usize, Failure> {
    let mut lines = BufReader::new(output).lines();
    while let Some(line) = lines.next_line().await? {
        tell.send((worker, line.parse()?))?;
    }
    Ok(worker)
}
