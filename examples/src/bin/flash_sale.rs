//! A flash sale on real orders, by four processes at once: without a lock, with one, and with a worker that is frozen
//! while it holds one. `scripts/demo` runs it beside a Redis server of its own.
//!
//! Ends with status 0 only if all three runs show what they should: the unguarded one oversells, the guarded ones do not,
//! and the stale write of the frozen worker was refused.

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use leasehold::Session;
use leasehold_examples::report::{self, grouped};
use leasehold_examples::run::{self, WORKER};
use leasehold_examples::scenario::{STOCK_PERCENT, Scenario, TASKS, WORKERS};
use leasehold_examples::{Failure, orders, worker};
use tokio::signal::unix::{SignalKind, signal};

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
        [] => demo_until_interrupted(orders::all().len()).await,
        ["--orders", count] => match count.parse() {
            Ok(count) => demo_until_interrupted(count).await,
            Err(_) => Err(USAGE.into()),
        },
        _ => Err(USAGE.into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("flash_sale: {}", with_causes(&*failure));
            ExitCode::FAILURE
        }
    }
}

async fn work(job: &[&str]) -> Result<(), Failure> {
    let [index, scenario, orders, database] = job else { return Err(USAGE.into()) };
    let job = worker::Job {
        index: index.parse()?,
        scenario: scenario.parse()?,
        orders: orders.parse()?,
        database: database.into(),
        redis_url: redis_url()?,
    };
    worker::run(job).await
}

/// Interrupted, it still ends in good order: no worker stays behind, frozen or not, and no folder.
async fn demo_until_interrupted(count: usize) -> Result<(), Failure> {
    let (mut interrupt, mut terminate) =
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        done = demo(count) => done,
        _ = interrupt.recv() => Err("interrupted".into()),
        _ = terminate.recv() => Err("terminated".into()),
    }
}

async fn demo(count: usize) -> Result<(), Failure> {
    if !(FEWEST_ORDERS..=orders::all().len()).contains(&count) {
        return Err(USAGE.into());
    }
    // Before anything else: is there a server?
    Session::connect(&redis_url()?).await?.shutdown(Duration::from_secs(2)).await?;
    let folder = tempfile::tempdir()?;
    print!("{}", introduction(count));
    let mut records = Vec::new();
    for scenario in Scenario::ALL {
        let record = run::run(scenario, count, folder.path()).await?;
        println!("{:<21} done in {:.1} s", scenario.name(), record.elapsed.as_secs_f64());
        records.push(record);
    }
    println!("\n{}\n{}", report::table(&records), report::in_words(&records));
    let faults = report::faults(&records);
    if !faults.is_empty() {
        return Err(format!("not as it should be:\n  {}", faults.join("\n  ")).into());
    }
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

fn redis_url() -> Result<String, Failure> {
    std::env::var("REDIS_URL").map_err(|_| {
        "REDIS_URL is not set. Run scripts/demo, which starts a server, or set it to redis://host:port/".into()
    })
}

fn with_causes(failure: &(dyn Error + 'static)) -> String {
    let mut text = failure.to_string();
    let mut cause = failure.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}
