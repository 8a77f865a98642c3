//! A fleet that calls an HTTP server which refuses more than so many calls at a time.
//! `scripts/with-redis cargo run -p leasehold-examples --bin api_limit`
//!
//! Four processes with four tasks each call as fast as they can: first without a limit of their own, and most calls are
//! refused. Then each call takes a permit of one semaphore that the whole fleet shares: none is refused, and the server is
//! as busy as it allows. Then one process is killed with its permits: fewer calls run until its lease is over, then the
//! permits are back. At last the server allows more, `set_limit` says so to everybody at once, and more calls run.
//!
//! What to copy: `caller.rs`. The exit status says whether it went so. `--too-many` gives the semaphore more permits than
//! the server allows: then calls are refused, and the status is 1.
//!
//! A limit of concurrency is not a limit of rate: how many calls a second there are depends on how long they take.

mod api;
mod caller;
mod fleet;
mod verdict;

use std::process::ExitCode;
use std::time::Duration;

use leasehold::{ConfigError, Options, Semaphore, Session};
use leasehold_examples::program::{self, exit, until_interrupted, with_session};
use leasehold_examples::{Failure, crew};

use crate::api::Api;
use crate::fleet::Fleet;

const USAGE: &str = "usage: api_limit [--too-many]";
const CALLER: &str = "caller";
/// So many calls the server allows at a time …
const LIMIT: u32 = 4;
/// … and so many in the end.
const RAISED: u32 = 8;
/// How long the permits of a process outlive it. In life 30 s, the default.
const LEASE: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let words: Vec<_> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        // The program starts itself again as its own callers.
        [CALLER, label, address] => caller::run(label, address).await,
        [] => api_limit(LIMIT).await,
        ["--too-many"] => api_limit(LIMIT + 2).await,
        _ => Err(USAGE.into()),
    };
    exit("api_limit", done)
}

async fn api_limit(permits: u32) -> Result<(), Failure> {
    with_session(program::session_builder()?, async |session| {
        let api = Api::start(LIMIT).await?;
        println!(
            "a server at {} takes {} ms for a call and refuses more than {LIMIT} at a time",
            api.address(),
            api::WORK.as_millis()
        );
        let semaphore = semaphore(session, "operator")?;
        // An earlier run may have left another limit: it is kept at the server.
        semaphore.set_limit(permits).await?;
        let story = crew::with_crew(async |crew| {
            let fleet = Fleet::start(crew, &api, &semaphore)?;
            until_interrupted(fleet.run()).await
        })
        .await?;
        println!("\n{story}\n");
        program::verdict(&verdict::faults(&story))?;
        println!("With permits no call was refused, and as many ran as the server allows.");
        Ok(())
    })
    .await
}

/// The permits for the calls of the whole fleet, as each process makes them.
fn semaphore(session: &Session, label: &str) -> Result<Semaphore, ConfigError> {
    let options = Options::default().lease(LEASE).max_wait(Duration::from_secs(30)).label(label);
    Semaphore::new(session, "api-calls", LIMIT, options)
}
