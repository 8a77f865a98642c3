//! The three runs, and what they have in common.

use std::str::FromStr;
use std::time::Duration;

use leasehold::Options;

use crate::Failure;

/// Worker processes of a run.
pub const WORKERS: usize = 4;

/// Tasks of a worker that sell at the same time.
pub const TASKS: usize = 4;

/// The stock of a product, in per cent of its demand.
pub const STOCK_PERCENT: i64 = 60;

/// Between reading the stock and writing it: the time of a real section, and enough to make the fault of an unguarded one
/// certain.
pub const PAUSE: Duration = Duration::from_millis(2);

/// The lease of the run in which a worker is frozen: short, so that the others need not wait long.
pub const SHORT_LEASE: Duration = Duration::from_secs(1);

/// How the products are guarded, and what goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// Nothing guards the section.
    NoLock,
    /// One mutex a product.
    Mutex,
    /// The same, and a worker is frozen inside its section beyond its lease.
    FrozenWorker,
}

impl Scenario {
    /// In the order in which they run.
    pub const ALL: [Self; 3] = [Self::NoLock, Self::Mutex, Self::FrozenWorker];

    /// A few words for the table, also the name on a worker's command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoLock => "no lock",
            Self::Mutex => "mutex",
            Self::FrozenWorker => "mutex, frozen worker",
        }
    }

    /// Whether a mutex guards each product.
    pub fn is_guarded(self) -> bool {
        self != Self::NoLock
    }

    /// How the mutexes are held and waited for.
    pub fn options(self) -> Options {
        let options = Options::default().max_wait(Duration::from_secs(60)).label("flash sale");
        match self {
            Self::FrozenWorker => options.lease(SHORT_LEASE),
            Self::NoLock | Self::Mutex => options, // 30 s, renewed
        }
    }
}

impl FromStr for Scenario {
    type Err = Failure;

    fn from_str(name: &str) -> Result<Self, Failure> {
        let found = Self::ALL.into_iter().find(|scenario| scenario.name() == name);
        found.ok_or_else(|| format!("no scenario is called {name}").into())
    }
}
