//! A worker: one process that does jobs as they are dealt to it. This is how a service uses a fair lock.

use std::path::Path;
use std::sync::{Arc, Mutex as LocalMutex};
use std::time::Duration;

use leasehold::fair_lock::Guard;
use leasehold::{AcquireError, FairLock, FencingToken, Options, Position, Session};
use leasehold_examples::Failure;
use leasehold_examples::orders::Order;
use leasehold_examples::program::{self, Instructions, with_session};
use tokio::task::{JoinSet, spawn_blocking};

use crate::books::{Books, Entry};

/// How long a hold outlives its process. In life 30 s, the default.
pub(crate) const LEASE: Duration = Duration::from_secs(2);
/// How long a job works, between reading the account and writing it.
const WORK: Duration = Duration::from_millis(100);
/// How often a waiting process asks where it stands. A second, the default, would do without somebody who watches.
const CHECK: Duration = Duration::from_millis(100);

/// What it is dealt: `job ACCOUNT NUMBER`, or `halt ACCOUNT NUMBER`, a job that takes the account and never ends.
///
/// What it tells, each with ACCOUNT and NUMBER: `stands` and how many stand before it; `begins`; `lost`, its hold ended
/// before its time; `done`.
pub(crate) async fn run(index: &str, is_unordered: bool, books: &str) -> Result<(), Failure> {
    let books = Arc::new(LocalMutex::new(Books::open(Path::new(books))?));
    let index = index.parse()?;
    // One session a process: its jobs share the connections, the inbox and the watchdog.
    with_session(program::session_builder()?.check_every(CHECK), async |session| {
        let (mut instructions, mut jobs) = (Instructions::new()?, JoinSet::new());
        loop {
            tokio::select! {
                line = instructions.next() => match line? {
                    Some(line) => {
                        let worker = Worker { session: session.clone(), books: books.clone(), index, is_unordered };
                        jobs.spawn(worker.do_as_told(line));
                    }
                    None => return Ok(()), // jobs that are not done are dropped, and their guards with them
                },
                Some(done) = jobs.join_next() => done??,
            }
        }
    })
    .await
}

struct Worker {
    session: Session,
    books: Arc<LocalMutex<Books>>,
    index: usize,
    is_unordered: bool,
}

impl Worker {
    async fn do_as_told(self, line: String) -> Result<(), Failure> {
        let words: Vec<_> = line.split(' ').collect();
        let &[verb, account, number] = words.as_slice() else { return Err(line.into()) };
        let jobs = crate::jobs_by_account().remove(account).ok_or("no such account")?;
        let number: usize = number.parse()?;
        let lock = FairLock::new(
            &self.session,
            format!("account:{account}"),
            Options::default()
                .lease(LEASE)
                .max_wait(Duration::from_secs(30))
                .label(format!("job {number}")),
        )?;
        loop {
            let guard = self.take(&lock, account, number).await?;
            println!("begins {account} {number}");
            if verb == "halt" {
                std::future::pending::<()>().await; // until this process is killed
            }
            let token = guard.fencing_token();
            // Stops the job when the hold is known to be lost. Should it write all the same, the books refuse its token.
            let booked = guard.while_held(self.book(account, &jobs[..number], token)).await;
            // An error says that the hold had ended before: an alarm.
            let kept = guard.release().await.is_ok();
            if !kept {
                println!("lost {account} {number}");
            }
            if booked.unwrap_or(Ok(false))? {
                break;
            } // else once more: the books know what was booked
        }
        println!("done {account} {number}");
        Ok(())
    }

    /// Waits for its turn, and tells where it stands meanwhile.
    async fn take(&self, lock: &FairLock, account: &str, job: usize) -> Result<Guard, Failure> {
        if self.is_unordered {
            return self.take_somehow(lock, account, job).await;
        }
        let (view, mut position) = lock.watched();
        loop {
            let told = tell(&mut position, account, job);
            let acquired = tokio::select! {
                acquired = view.acquire() => acquired,
                never = told => never,
            };
            match acquired {
                // Granted, but this process was too slow to notice: it stands at the tail now.
                Err(AcquireError::ValidityTooShort { .. }) => println!("lost {account} {job}"),
                acquired => return Ok(acquired?),
            }
        }
    }

    /// The wrong way: nobody knows who was here first.
    async fn take_somehow(
        &self,
        lock: &FairLock,
        account: &str,
        job: usize,
    ) -> Result<Guard, Failure> {
        println!("stands {account} {job} ?");
        loop {
            if let Some(guard) = lock.try_acquire().await? {
                return Ok(guard);
            }
            let pause = 3 + (7 * job + 5 * self.index) % 11;
            tokio::time::sleep(Duration::from_millis(u64::try_from(pause)?)).await;
        }
    }

    /// Books all that is not booked yet of these jobs, the last of which is this one's. Usually that is only its own;
    /// what stands before it was left by a process that died. `false` if a newer hold was there.
    async fn book(
        &self,
        account: &str,
        jobs: &[Order],
        token: FencingToken,
    ) -> Result<bool, Failure> {
        let name = account.to_owned();
        let standing = self.with_books(move |books| books.read(&name, token)).await?;
        let Some(standing) = standing else { return Ok(false) };
        let mut balance = standing.balance;
        for (index, order) in jobs.iter().enumerate().skip(standing.last_job) {
            tokio::time::sleep(WORK).await;
            balance += order.quantity;
            let entry = Entry {
                account: account.to_owned(),
                job: index + 1,
                discs: order.quantity,
                balance,
                worker: self.index,
                token: token.as_i64(),
            };
            if !self.with_books(move |books| books.book(&entry)).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// SQLite blocks, so it runs beside the jobs and not in them.
    async fn with_books<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Books) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let books = self.books.clone();
        spawn_blocking(move || work(&mut books.lock().expect("no panic in it"))).await?
    }
}

/// Tells each position of a wait; never ends.
async fn tell<T>(position: &mut Position, account: &str, job: usize) -> T {
    loop {
        if let Some(before) = position.next().await {
            println!("stands {account} {job} {before}");
        }
    }
}
