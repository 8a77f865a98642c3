//! A flash sale on real orders, by four processes at once: without a lock, with one, and with a worker that is frozen
//! while it holds one. `scripts/demo` runs it beside a Redis server of its own.
//!
//! Ends with status 0 only if all three runs show what they should: the unguarded one oversells, the guarded ones do not,
//! and the stale write of the frozen worker was refused.

use std::io::Write;
use std::process::ExitCode;

use leasehold_examples::program::{self, exit, until_interrupted, with_session};
use leasehold_examples::report::{self, grouped};
use leasehold_examples::run::{self, WORKER};
use leasehold_examples::scenario::{STOCK_PERCENT, Scenario, TASKS, WORKERS};
use leasehold_examples::{Failure, orders, worker};

const USAGE: &str = "usage: flash_sale [--orders N]   (100 to 6000; default 6000, all)";

/// With fewer it would not be certain that the unguarded run shows its fault.
const FEWEST_ORDERS: usize = 100;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let words: Vec<_> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        // The program starts itself again as its own workers.
        [WORKER, job @ ..] => work(job).await,
        // Interrupted, it still ends in good order: no worker stays behind, frozen or not, and no folder.
        [] => until_interrupted(demo(orders::all().len())).await,
        ["--orders", count] => match count.parse() {
            Ok(count) => until_interrupted(demo(count)).await,
            Err(_) => Err(USAGE.into()),
        },
        _ => Err(USAGE.into()),
    };
    exit("flash_sale", done)
}

async fn work(job: &[&str]) -> Result<(), Failure> {
    let [index, scenario, orders, database] = job else { return Err(USAGE.into()) };
    let job = worker::Job {
        index: index.parse()?,
        scenario: scenario.parse()?,
        orders: orders.parse()?,
        database: database.into(),
        redis_url: program::redis_url()?,
    };
    worker::run(job).await
}

async fn demo(count: usize) -> Result<(), Failure> {
    if !(FEWEST_ORDERS..=orders::all().len()).contains(&count) {
        return Err(USAGE.into());
    }
    // Before anything else: is there a server?
    with_session(program::session_builder()?, async |_| Ok(())).await?;
    let folder = tempfile::tempdir()?;
    print!("{}", introduction(count));
    let mut records = Vec::new();
    for scenario in Scenario::ALL {
        let record = run::run(scenario, count, folder.path()).await?;
        println!("{:<21} done in {:.1} s", scenario.name(), record.elapsed.as_secs_f64());
        records.push(record);
    }
    println!("\n{}\n{}", report::table(&records), report::in_words(&records));
    program::verdict(&report::faults(&records))?;
    println!("\nAll three runs show what they should.");
    Ok(std::io::stdout().flush()?)
}

fn introduction(count: usize) -> String {
    let mut orders = orders::all();
    orders.truncate(count);
    format!(
        "A flash sale: {} orders of {} products,\n\
         {source}.\n\
         Of each product there is {STOCK_PERCENT} % of what is ordered. {WORKERS} worker processes with {TASKS} tasks each\n\
         read the stock, take 2 ms, and write what is left. Three times:\n\n\
         no lock               nobody waits for anybody\n\
         mutex                 one task at a time per product, by a lock on Redis\n\
         mutex, frozen worker  the same, and a worker is stopped inside its section beyond its lease;\n                      \
         then it goes on and writes, without asking whether it still holds\n\n",
        grouped(count),
        orders::demand(&orders).len(),
        source = orders::SOURCE,
    )
}
