//! Jobs of one account in order, over several processes, one of which is killed in the middle.
//! `scripts/with-redis cargo run -p leasehold-examples --bin job_queue`
//!
//! Each account has a list of jobs, and each job needs the account for itself: it reads the balance, works, and writes what
//! it comes to. A dispatcher deals the jobs to four processes, and a fair lock per account keeps them in order: whoever's
//! acquire arrived at Redis first has its turn first. That is the order of *arrival*, so the dispatcher deals an account's
//! next job when it is told that the one before stands in the queue.
//!
//! In the middle one process is killed while it holds an account and waits for others. Its places are skipped as soon as
//! their turn comes; its hold ends with its lease. The jobs that it leaves behind are done first by whoever comes next in
//! the same account: the books say which was the last, and its hold is the right to go on from there.
//!
//! What to copy: `worker.rs` (the lock, its token, the position while it waits) and `books.rs` (the fencing check). The
//! exit status says whether all jobs were done once and in order. `--unordered` takes the locks by trying again and again,
//! as one does without a queue: then jobs overtake each other, and the status is 1.

mod books;
mod dispatcher;
mod verdict;
mod worker;

use std::collections::BTreeMap;
use std::process::ExitCode;

use leasehold_examples::orders::{self, Order};
use leasehold_examples::program::{self, exit, until_interrupted, with_session};
use leasehold_examples::{Failure, crew};

use crate::books::Books;
use crate::dispatcher::Dispatcher;

const USAGE: &str = "usage: job_queue [--unordered]";
const WORKER: &str = "worker";
/// So many accounts …
const ACCOUNTS: usize = 6;
/// … with so many jobs each.
const JOBS: usize = 14;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let words: Vec<_> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        // The program starts itself again as its own workers.
        [WORKER, index, how, books] => worker::run(index, *how == "unordered", books).await,
        [] => job_queue("ordered").await,
        ["--unordered"] => job_queue("unordered").await,
        _ => Err(USAGE.into()),
    };
    exit("job_queue", done)
}

async fn job_queue(how: &str) -> Result<(), Failure> {
    // Before anything else: is there a server?
    with_session(program::session_builder()?, async |_| Ok(())).await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("books.sqlite");
    let jobs = jobs_by_account();
    let books = Books::create(&file, jobs.keys().copied())?;
    println!(
        "{} jobs of {ACCOUNTS} accounts: each books an order to the account of its product,\n{}",
        ACCOUNTS * JOBS,
        orders::SOURCE
    );
    let story = crew::with_crew(async |crew| {
        until_interrupted(Dispatcher::start(crew, &jobs, how, &file)?.run()).await
    })
    .await?;
    println!("\n{story}");
    program::verdict(&verdict::faults(&jobs, &books.entries()?, &story))?;
    println!("All jobs were done once, and in the order of their account.");
    Ok(())
}

/// The first orders of the most wanted products. The account of a product counts its discs; its jobs are numbered from 1.
fn jobs_by_account() -> BTreeMap<&'static str, Vec<Order>> {
    let mut accounts: BTreeMap<_, Vec<Order>> = BTreeMap::new();
    for order in orders::all() {
        accounts.entry(order.product).or_default().push(order);
    }
    let mut most_wanted: Vec<_> = accounts.into_iter().collect();
    most_wanted.sort_by_key(|(_, jobs)| std::cmp::Reverse(jobs.len()));
    most_wanted.truncate(ACCOUNTS);
    for (_, jobs) in &mut most_wanted {
        jobs.truncate(JOBS);
    }
    most_wanted.into_iter().collect()
}
