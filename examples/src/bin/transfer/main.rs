//! Money moved between accounts by several processes at once, and between any two of them in both directions.
//! `scripts/with-redis cargo run -p leasehold-examples --bin transfer`
//!
//! A transfer reads two balances, works for a while, and writes both, so it needs both accounts for itself. Four processes
//! with four tasks each make transfers as fast as they can, and while one wants account 1 and then 2, another wants 2 and
//! then 1. A multi-lock takes both accounts or none, in an order that is the same for all: nobody ever waits in a circle, and
//! the sum of all balances stays what it was.
//!
//! The balances are in SQLite, which is the second layer: each account keeps the largest fencing token that it has seen, and
//! refuses smaller ones, also when it is read. To show what that is for, one process is frozen between its read and its
//! write, for longer than its lease. The others get its two accounts; then it goes on, writes what it had in mind, and is
//! refused.
//!
//! What to copy: `worker.rs` and `bank.rs`. The exit status says whether it went so, and two switches show what the locks
//! are for, each with status 1: `--no-lock` takes none, and money appears or disappears; `--one-by-one` takes a mutex of each
//! account in the order that the transfer names them, and transfers wait for each other until their wait is over.

mod bank;
mod run;
mod verdict;
mod worker;

use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use leasehold::{ConfigError, Mutex, Name, Options, Session};
use leasehold_examples::program::{self, exit, until_interrupted, with_session};
use leasehold_examples::{Failure, crew};

use crate::bank::Bank;
use crate::run::Run;

const USAGE: &str = "usage: transfer [--no-lock | --one-by-one]";
const WORKER: &str = "worker";
/// How long a hold outlives its process. In life 30 s, the default.
const LEASE: Duration = Duration::from_secs(1);

/// How a transfer gets its two accounts for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// By a multi-lock of both.
    Together,
    /// The wrong way: the mutex of one, and then that of the other.
    OneByOne,
    /// Not at all.
    Unlocked,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let words: Vec<_> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        // The program starts itself again as its own workers.
        [WORKER, index, how, bank] => worker::run(index, how, bank).await,
        [] => transfer(How::Together).await,
        ["--one-by-one"] => transfer(How::OneByOne).await,
        ["--no-lock"] => transfer(How::Unlocked).await,
        _ => Err(USAGE.into()),
    };
    exit("transfer", done)
}

async fn transfer(how: How) -> Result<(), Failure> {
    // Before anything else: is there a server?
    with_session(program::session_builder()?, async |_| Ok(())).await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("bank.sqlite");
    let bank = Bank::create(&file)?;
    let before = bank.books()?;
    println!(
        "{} accounts, {} processes with {} tasks each",
        before.len(),
        run::WORKERS,
        worker::TASKS
    );
    let story = crew::with_crew(async |crew| {
        let run = Run::start(crew, how, &file)?;
        until_interrupted(run.run()).await
    })
    .await?;
    let after = bank.books()?;
    println!("\n{story}{}\n", verdict::sums(&before, &after));
    program::verdict(&verdict::faults(how, &before, &after, &story))?;
    println!("No transfer waited in a circle, and no money was made or lost.");
    Ok(())
}

/// The lock of an account, as each process makes it. Making it sends nothing.
fn lock(session: &Session, account: u32, label: &str) -> Result<Mutex, ConfigError> {
    let options = Options::default().lease(LEASE).label(label);
    Mutex::new(session, name(account), options)
}

/// A fine name: one lock an account, not one for the whole bank.
fn name(account: u32) -> Name {
    format!("account:{account}").into()
}

impl How {
    /// How long a transfer waits for its accounts. In life 5 s, the default.
    fn wait(self) -> Duration {
        match self {
            Self::Together | Self::Unlocked => Duration::from_secs(30),
            // Long enough for every queue here. Who waits longer, waits in a circle.
            Self::OneByOne => Duration::from_secs(2),
        }
    }

    /// The name on a worker's command line.
    fn name(self) -> &'static str {
        match self {
            Self::Together => "together",
            Self::OneByOne => "one-by-one",
            Self::Unlocked => "unlocked",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Together => "both accounts are taken together",
            Self::OneByOne => "one account is taken, then the other",
            Self::Unlocked => "no account is locked",
        }
    }
}

impl FromStr for How {
    type Err = Failure;

    fn from_str(name: &str) -> Result<Self, Failure> {
        let all = [Self::Together, Self::OneByOne, Self::Unlocked];
        let found = all.into_iter().find(|how| how.name() == name);
        found.ok_or_else(|| format!("nothing is called {name}").into())
    }
}
