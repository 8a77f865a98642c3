//! A job that one process begins and another ends, under one hold with one fencing token.
//! `scripts/with-redis cargo run -p leasehold-examples --bin adopt`
//!
//! The first process does half of it, writes down how far it came and who owns the hold, gives the hold away (`detach`)
//! and ends. The second reads that and goes on with the hold (`Mutex::adopt`). Nobody else gets the lock in between. If the
//! second comes too late, the hold has ended with its lease, and adopting is the error `Lost`: it never takes a lock.
//!
//! `adopt` alone does both, in processes of its own; `adopt start FILE` and `adopt resume FILE` do one.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use leasehold::{AdoptError, Guard, Mutex, Options, Owner, Session, mutex::Held};
use leasehold_examples::Failure;
use leasehold_examples::orders;

const USAGE: &str = "usage: adopt | adopt start FILE | adopt resume FILE";
const SHUTDOWN: Duration = Duration::from_secs(2);
/// How long a process has to take the job over: nobody renews a hold that was given away.
const ON_THE_WAY: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let words: Vec<_> = arguments.iter().map(String::as_str).collect();
    let url = std::env::var("REDIS_URL").map_err(|_| "REDIS_URL is not set")?;
    let session = Session::connect(&url).await?;
    let mutex = Mutex::new(&session, "monthly-report", Options::default().label("monthly report"))?;
    let done = match words.as_slice() {
        [] => both(&mutex).await,
        ["start", file] => start(&mutex, Path::new(file)).await,
        ["resume", file] => resume(&mutex, Path::new(file)).await,
        _ => Err(USAGE.into()),
    };
    // What was given away is not this session's any more: the shutdown leaves it alone.
    let closed = session.shutdown(SHUTDOWN).await;
    done?;
    Ok(closed?)
}

/// The two processes one after the other, and a third party that looks in between.
async fn both(mutex: &Mutex) -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("job");
    run("start", &file).await?;
    let taken = mutex.try_acquire().await?;
    match mutex.holder().await? {
        Some(holder) if taken.is_none() => println!("in between: busy, held by {holder}"),
        _ => return Err("the hold ended in between".into()),
    }
    run("resume", &file).await
}

async fn run(verb: &str, file: &Path) -> Result<(), Failure> {
    let program = std::env::current_exe()?;
    let status = tokio::process::Command::new(program).arg(verb).arg(file).status().await?;
    if status.success() { Ok(()) } else { Err(format!("adopt {verb} failed").into()) }
}

async fn start(mutex: &Mutex, file: &Path) -> Result<(), Failure> {
    let guard = mutex.acquire().await?;
    let orders = orders::all().len();
    let mut job = Job { next: 0, discs: 0, owner: guard.owner().clone() };
    guard.while_held(job.count(orders / 2)).await?;
    // First make it last for the way, then write down whose it is, then give it away: if a step fails, the guard is still
    // here and releases.
    guard.extend(ON_THE_WAY).await?;
    job.write(file)?;
    say("counted", &guard, &job);
    guard.detach();
    Ok(())
}

async fn resume(mutex: &Mutex, file: &Path) -> Result<(), Failure> {
    let mut job = Job::read(file)?;
    let guard = match mutex.adopt(&job.owner).await {
        Ok(guard) => guard,
        Err(AdoptError::Lost(lost)) => {
            // Somebody may have done the job meanwhile: who wants to begin anew has to take the lock like everybody else.
            return Err(format!("too late: {lost}").into());
        }
        Err(error) => return Err(error.into()),
    };
    guard.while_held(job.count(orders::all().len())).await?;
    say("adopted and counted on", &guard, &job);
    std::fs::remove_file(file)?;
    guard.release().await?; // an error says that the hold had ended before: an alarm
    Ok(())
}

fn say(what: &str, guard: &Guard<Held>, job: &Job) {
    let (pid, token) = (std::process::id(), guard.fencing_token());
    println!(
        "process {pid}: {what} to order {}: {} discs, under token {token}",
        job.next, job.discs
    );
}

/// How far the job came, and whose hold it is under.
struct Job {
    next: usize,
    discs: i64,
    owner: Owner,
}

impl Job {
    async fn count(&mut self, until: usize) {
        for order in &orders::all()[self.next..until] {
            self.discs += order.quantity;
            self.next += 1;
            if self.next.is_multiple_of(100) {
                tokio::time::sleep(Duration::from_millis(5)).await; // where a loss is noticed
            }
        }
    }

    /// For this user's eyes only: whoever knows the owner can adopt the hold.
    fn write(&self, file: &Path) -> Result<(), Failure> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?;
        let Self { next, discs, owner } = self;
        write!(file, "owner {}\nnext {next}\ndiscs {discs}\n", owner.as_str())?;
        Ok(file.sync_all()?)
    }

    fn read(file: &Path) -> Result<Self, Failure> {
        let text = std::fs::read_to_string(file)?;
        let fields: BTreeMap<_, _> = text.lines().filter_map(|line| line.split_once(' ')).collect();
        let field = |name| fields.get(name).copied().ok_or("not a job");
        Ok(Self {
            owner: Owner::parse(field("owner")?)?,
            next: field("next")?.parse()?,
            discs: field("discs")?.parse()?,
        })
    }
}
