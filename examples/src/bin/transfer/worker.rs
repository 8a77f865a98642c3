//! A worker: one process that makes transfers. This is how a service uses a multi-lock.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex as LocalMutex};
use std::time::{Duration, Instant};

use leasehold::multi_lock::MultiGuard;
use leasehold::mutex::Guard;
use leasehold::{AcquireError, MultiLock, Session};
use leasehold_examples::Failure;
use leasehold_examples::program::{self, Instructions, with_session};
use tokio::sync::oneshot;
use tokio::task::{JoinSet, spawn_blocking};

use crate::How;
use crate::bank::{Bank, Tokens, Transfer};

/// Tasks of a worker that make transfers at the same time.
pub(crate) const TASKS: usize = 4;
/// How long a transfer works between its read and its write.
const WORK: Duration = Duration::from_millis(2);

/// What it is told: `make FIRST LAST`, all transfers from FIRST to before LAST that are this worker's; `freeze NUMBER`, one
/// transfer, which stands still before its write until it is told `on`.
///
/// What it tells, each with NUMBER: `made` or `declined`, and how long it waited in µs; `stuck`, its wait for the accounts was
/// over, and who held; `inside`, it stands still, and the tokens of its two accounts; `stale`, the bank refused its tokens;
/// `lost`, a hold had ended before its release.
pub(crate) async fn run(index: &str, how: &str, bank: &str) -> Result<(), Failure> {
    let (index, how): (u32, How) = (index.parse()?, how.parse()?);
    let bank = Arc::new(LocalMutex::new(Bank::open(Path::new(bank))?));
    // One session a process: its tasks share the connections, the inbox and the watchdog.
    with_session(program::session_builder()?, async |session| {
        let worker = Worker { session: session.clone(), bank, how };
        let (mut instructions, mut tasks) = (Instructions::new()?, JoinSet::new());
        let mut go_on = None;
        loop {
            tokio::select! {
                line = instructions.next() => {
                    let Some(line) = line? else { return Ok(()) };
                    match line.split(' ').collect::<Vec<_>>().as_slice() {
                        ["make", first, last] => {
                            worker.make_all(index, [first.parse()?, last.parse()?], &mut tasks);
                        }
                        ["freeze", number] => {
                            let (tell, told) = oneshot::channel();
                            go_on = Some(tell);
                            let (worker, transfer) = (worker.clone(), Transfer::of(number.parse()?));
                            tasks.spawn(async move { worker.make(transfer, Some(told)).await });
                        }
                        ["on"] => drop(go_on.take().map(|tell| tell.send(()))),
                        _ => return Err(line.into()),
                    }
                }
                Some(done) = tasks.join_next() => done??,
            }
        }
    })
    .await
}

#[derive(Clone)]
struct Worker {
    session: Session,
    /// One connection for all tasks, used by one at a time.
    bank: Arc<LocalMutex<Bank>>,
    how: How,
}

/// What a transfer has of its two accounts.
enum Held {
    Both(Box<MultiGuard>),
    Each(Box<[Guard; 2]>),
    Nothing,
}

/// How a section ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Made,
    /// Too little was there.
    Declined,
    /// The bank has seen a newer hold than this one.
    Stale,
}

impl Worker {
    fn make_all(
        &self,
        index: u32,
        [first, last]: [u32; 2],
        tasks: &mut JoinSet<Result<(), Failure>>,
    ) {
        let next = Arc::new(AtomicU32::new(first + index));
        for _ in 0..TASKS {
            let (worker, next) = (self.clone(), next.clone());
            tasks.spawn(async move {
                loop {
                    let number = next.fetch_add(crate::run::WORKERS, Ordering::Relaxed);
                    if number >= last {
                        return Ok(());
                    }
                    worker.make(Transfer::of(number), None).await?;
                }
            });
        }
    }

    /// The two layers: the locks in front, and their tokens, which go to the bank with every step.
    async fn make(
        &self,
        transfer: Transfer,
        mut freeze: Option<oneshot::Receiver<()>>,
    ) -> Result<(), Failure> {
        let number = transfer.number;
        let mut waited = Duration::ZERO;
        loop {
            let asked = Instant::now();
            let held = match self.hold(&transfer).await {
                Ok(held) => held,
                // Granted, but this process was too slow to notice (it was frozen, say): ask again.
                Err(AcquireError::ValidityTooShort { .. }) => continue,
                Err(AcquireError::TimedOut { name, holder, .. }) => {
                    let holder = holder.map(|holder| holder.label).unwrap_or_default();
                    println!("stuck {number} {name} was held by {holder}");
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            waited += asked.elapsed();
            // A service would write `guard.while_held(self.section(…)).await`: it stops the section as soon as a hold is
            // known to be lost. This bank does not ask its guards, to show that its money is safe all the same.
            let outcome = self.section(transfer, held.tokens(&transfer)?, &mut freeze).await;
            // The hold had ended before: an alarm. The money needs nothing more, the fencing check has decided.
            if !held.release().await {
                println!("lost {number}");
            }
            match outcome? {
                Outcome::Made => break println!("made {number} {}", waited.as_micros()),
                Outcome::Declined => break println!("declined {number} {}", waited.as_micros()),
                Outcome::Stale => {} // nothing was changed: it is made again, under a hold of its own
            }
        }
        Ok(())
    }

    /// Both accounts, however the transfer names them.
    async fn hold(&self, transfer: &Transfer) -> Result<Held, AcquireError> {
        let label = format!("{} to {}", transfer.from, transfer.to);
        let lock = |account| crate::lock(&self.session, account, &label);
        let (from, to, wait) = (lock(transfer.from)?, lock(transfer.to)?, self.how.wait());
        Ok(match self.how {
            How::Together => {
                let both = MultiLock::of(&from).and(&to);
                Held::Both(Box::new(both.acquire_within(wait).await?))
            }
            How::OneByOne => {
                let first = from.acquire_within(wait).await?;
                Held::Each(Box::new([first, to.acquire_within(wait).await?]))
            }
            How::Unlocked => Held::Nothing,
        })
    }

    /// The naive read, check and write.
    async fn section(
        &self,
        transfer: Transfer,
        tokens: Option<Tokens>,
        freeze: &mut Option<oneshot::Receiver<()>>,
    ) -> Result<Outcome, Failure> {
        let stale = || {
            println!("stale {}", transfer.number);
            Ok(Outcome::Stale)
        };
        let accounts = transfer.accounts();
        let Some([from, to]) = self.with_bank(move |bank| bank.read(accounts, tokens)).await?
        else {
            return stale();
        };
        tokio::time::sleep(WORK).await;
        if from < transfer.amount {
            return Ok(Outcome::Declined);
        }
        if let Some(go_on) = freeze.take() {
            self.wait_to_be_frozen(transfer.number, tokens.unwrap_or_default(), go_on).await?;
        }
        let left = [from - transfer.amount, to + transfer.amount];
        if self.with_bank(move |bank| bank.book(transfer, left, tokens)).await? {
            return Ok(Outcome::Made);
        }
        stale()
    }

    /// The parent freezes this process while it waits here. It keeps the connection meanwhile: frozen in the middle of
    /// another task's transaction, it would lock the database file for everybody, and SQLite has no lease.
    async fn wait_to_be_frozen(
        &self,
        number: u32,
        [from, to]: Tokens,
        go_on: oneshot::Receiver<()>,
    ) -> Result<(), Failure> {
        self.with_bank(move |_idle| {
            println!("inside {number} {from} {to}");
            Ok(go_on.blocking_recv()?)
        })
        .await
    }

    /// SQLite blocks, so it runs beside the tasks and not in them.
    async fn with_bank<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Bank) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let bank = self.bank.clone();
        spawn_blocking(move || work(&mut bank.lock().expect("no panic in it"))).await?
    }
}

impl Held {
    /// Each account has a token of its own: the holds of two accounts are granted one at a time.
    fn tokens(&self, transfer: &Transfer) -> Result<Option<Tokens>, Failure> {
        let both = match self {
            Self::Both(guard) => {
                transfer.accounts().map(|account| guard.fencing_token(&crate::name(account)))
            }
            Self::Each(guards) => guards.each_ref().map(|guard| Some(guard.fencing_token())),
            Self::Nothing => return Ok(None),
        };
        let [Some(from), Some(to)] = both else { return Err("a mutex without a token".into()) };
        Ok(Some([from, to].map(|token| token.as_i64())))
    }

    /// Whether all was still held.
    async fn release(self) -> bool {
        match self {
            Self::Both(guard) => guard.release().await.is_ok(),
            Self::Each(guards) => {
                let [first, second] = *guards;
                let released = [second.release().await, first.release().await];
                released.iter().all(Result::is_ok)
            }
            Self::Nothing => true,
        }
    }
}
