//! A worker: one process of the shop. This is how a service uses leasehold.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex as LocalMutex};
use std::time::{Duration, Instant};

use leasehold::{AcquireError, Mutex, Session};
use tokio::task::{JoinSet, spawn_blocking};

use crate::Failure;
use crate::message::{Message, wait_to_go_on};
use crate::orders::{self, Order};
use crate::scenario::{PAUSE, Scenario, TASKS, WORKERS};
use crate::shop::{Shop, ShopError};

/// The worker that is frozen in [`Scenario::FrozenWorker`].
pub const VICTIM: usize = 0;

/// How long the end of a session may take.
const SHUTDOWN: Duration = Duration::from_secs(5);

/// What a worker is told on its command line.
#[derive(Debug)]
pub struct Job {
    /// Which worker it is, from 0.
    pub index: usize,
    /// Which run.
    pub scenario: Scenario,
    /// How many orders all workers have together.
    pub orders: usize,
    /// The shop's database.
    pub database: PathBuf,
    /// The Redis server.
    pub redis_url: String,
}

/// Sells this worker's share of the orders.
///
/// # Errors
/// Redis or the database failed for good, or the parent is gone.
pub async fn run(job: Job) -> Result<(), Failure> {
    let shop = Shop::open(&job.database)?;
    if !job.scenario.is_guarded() {
        return Worker::new(&job, shop, None).work().await;
    }
    // One session a process: its tasks share the connections, the inbox and the watchdog.
    let session = Session::connect(&job.redis_url).await?;
    let done = Worker::new(&job, shop, Some(session.clone())).work().await;
    // A process that just ends leaves its holds to their leases. Whatever happened, end in good order.
    let closed = session.shutdown(SHUTDOWN).await;
    done?;
    Ok(closed?)
}

struct Worker {
    scenario: Scenario,
    session: Option<Session>,
    /// One connection for all tasks, used by one at a time.
    shop: Arc<LocalMutex<Shop>>,
    orders: Vec<Order>,
    next: AtomicUsize,
    /// A worker that is to be frozen waits for it at one order of this product; see `is_to_be_frozen_at`.
    freeze_at: Option<&'static str>,
    frozen: AtomicBool,
}

impl Worker {
    fn new(job: &Job, shop: Shop, session: Option<Session>) -> Arc<Self> {
        let mut all = orders::all();
        all.truncate(job.orders);
        let is_victim = job.scenario == Scenario::FrozenWorker && job.index == VICTIM;
        Arc::new(Self {
            scenario: job.scenario,
            session,
            shop: Arc::new(LocalMutex::new(shop)),
            freeze_at: orders::most_wanted(&all).filter(|_| is_victim),
            frozen: AtomicBool::new(false),
            orders: all.into_iter().skip(job.index).step_by(WORKERS).collect(),
            next: AtomicUsize::new(0),
        })
    }

    async fn work(self: Arc<Self>) -> Result<(), Failure> {
        Message::Ready.send()?;
        spawn_blocking(wait_to_go_on).await??;
        let mut tasks = JoinSet::new();
        for _ in 0..TASKS {
            tasks.spawn(self.clone().sell_the_next_ones());
        }
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        Ok(())
    }

    async fn sell_the_next_ones(self: Arc<Self>) -> Result<(), Failure> {
        while let Some(&order) = self.orders.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            let (sold, waited) = match &self.session {
                Some(session) => self.sell_guarded(session, order).await?,
                None => (self.section(order, None).await? == Outcome::Sold, Duration::ZERO),
            };
            Message::Order { sold, waited }.send()?;
        }
        Ok(())
    }

    /// The two layers: the lock in front, and its token, which goes to the database with every step. Answers whether the
    /// order was sold, and how long it waited.
    async fn sell_guarded(
        &self,
        session: &Session,
        order: Order,
    ) -> Result<(bool, Duration), Failure> {
        // A fine name: one lock a product, not one for the whole shop. Making a mutex sends nothing.
        let name = format!("flash-sale:{}", order.product);
        let mutex = Mutex::new(session, name, self.scenario.options())?;
        let mut waited = Duration::ZERO;
        loop {
            let asked = Instant::now();
            let guard = match mutex.acquire().await {
                Ok(guard) => guard,
                // Granted, but this process was too slow to notice (it was frozen, say): ask again.
                Err(AcquireError::ValidityTooShort { .. }) => continue,
                Err(error) => return Err(error.into()),
            };
            waited += asked.elapsed();
            // A service would write `guard.while_held(self.section(…)).await`: it stops the section as soon as the hold is
            // known to be lost. This shop does not ask its guard, to show that its data is safe all the same.
            let outcome = self.section(order, Some(guard.fencing_token().as_i64())).await;
            // An error says that the hold had ended before: an alarm. The data needs nothing more, the fencing check has
            // decided.
            if guard.release().await.is_err() {
                Message::HoldLost.send()?;
            }
            match outcome? {
                Outcome::Sold => return Ok((true, waited)),
                Outcome::SoldOut => return Ok((false, waited)),
                Outcome::Stale => {} // nothing was changed: the order is done again, under a hold of its own
            }
        }
    }

    /// The naive read, check and write.
    async fn section(&self, order: Order, token: Option<i64>) -> Result<Outcome, Failure> {
        let stock = match self.with_shop(move |shop| shop.stock(order.product, token)).await? {
            Err(ShopError::Stale) => return Ok(Outcome::Stale),
            stock => stock?,
        };
        tokio::time::sleep(PAUSE).await;
        if stock < order.quantity {
            return Ok(Outcome::SoldOut);
        }
        if let Some(token) = token.filter(|_| self.is_to_be_frozen_at(order)) {
            self.wait_to_be_frozen(order.product, token).await?;
        }
        let left = stock - order.quantity;
        match self.with_shop(move |shop| shop.sell(order, left, token)).await? {
            Ok(()) => Ok(Outcome::Sold),
            Err(ShopError::Stale) => {
                Message::StaleWrite.send()?;
                Ok(Outcome::Stale)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// SQLite blocks, so it runs beside the tasks and not in them.
    async fn with_shop<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Shop) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let shop = self.shop.clone();
        Ok(spawn_blocking(move || work(&mut shop.lock().expect("no panic in it"))).await?)
    }

    /// True once: in the victim, at its first order of the most wanted product.
    fn is_to_be_frozen_at(&self, order: Order) -> bool {
        self.freeze_at == Some(order.product) && !self.frozen.swap(true, Ordering::Relaxed)
    }

    /// The parent freezes this process while it waits here. It keeps the connection meanwhile: frozen in the middle of
    /// another task's transaction, it would lock the database file for everybody, and SQLite has no lease.
    async fn wait_to_be_frozen(&self, product: &'static str, token: i64) -> Result<(), Failure> {
        self.with_shop(move |_idle| {
            Message::Inside { product: product.to_owned(), token }.send()?;
            wait_to_go_on()
        })
        .await?
    }
}

/// How a section ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Sold,
    /// Less is left than was ordered.
    SoldOut,
    /// The database has seen a newer hold than this one.
    Stale,
}
