//! What is locked on the tour, and how: the same code as for one server.

use std::str::FromStr;

use leasehold::multi_lock::{MultiGuard, MultiReleaseError};
use leasehold::{
    ConfigError, FairLock, FencingToken, Guard, Latch, LatchOptions, MultiLock, Mutex, Name,
    Options, ReleaseError, RwLock, Semaphore, Session,
};
use leasehold_examples::Failure;

/// A stop of the tour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Object {
    Mutex,
    FairLock,
    RwLock,
    Semaphore,
    Latch,
    /// Two mutexes of one group.
    InGroup,
    /// Two mutexes that have nothing in common.
    Across,
}

/// Who takes it: this program first, and the visitor after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Host,
    Visitor,
}

/// What is held.
#[derive(Debug)]
pub(crate) enum Held {
    /// With its token, if it shuts everybody else out.
    One(Guard, Option<FencingToken>),
    Several(Box<MultiGuard>),
}

impl Object {
    /// In the order of the tour.
    pub(crate) const ALL: [Self; 7] = [
        Self::Mutex,
        Self::FairLock,
        Self::RwLock,
        Self::Semaphore,
        Self::Latch,
        Self::InGroup,
        Self::Across,
    ];

    /// Takes it, waiting for whoever holds it.
    pub(crate) async fn take(self, session: &Session, who: Who) -> Result<Held, Failure> {
        Ok(match self {
            Self::Mutex => {
                let mutex = Mutex::new(session, "order:42", options())?;
                let guard = mutex.acquire().await?;
                let token = guard.fencing_token();
                Held::One(guard.into_any(), Some(token))
            }
            Self::FairLock => {
                let lock = FairLock::new(session, "account:7", options())?;
                let guard = lock.acquire().await?;
                let token = guard.fencing_token();
                Held::One(guard.into_any(), Some(token))
            }
            Self::RwLock => {
                let lock = RwLock::new(session, "config", options())?;
                match who {
                    Who::Host => {
                        let guard = lock.write().acquire().await?;
                        let token = guard.fencing_token();
                        Held::One(guard.into_any(), Some(token))
                    }
                    Who::Visitor => {
                        let guard = lock.read().acquire().await?;
                        // A reader has no token of its own, but knows that of the last writer.
                        let last = lock.last_token(&guard);
                        Held::One(guard.into_any(), last)
                    }
                }
            }
            Self::Semaphore => {
                let permits = Semaphore::new(session, "api-calls", 2, options())?;
                let wanted = if who == Who::Host { 2 } else { 1 };
                Held::One(permits.many(wanted).acquire().await?.into_any(), None)
            }
            Self::InGroup | Self::Across => {
                let [one, other] = self.pair().map(|name| Mutex::new(session, name, options()));
                let both = MultiLock::of(&one?).and(&other?);
                Held::Several(Box::new(both.acquire().await?))
            }
            Self::Latch => return Err("a latch is not held".into()),
        })
    }

    /// The names of the two mutexes.
    pub(crate) fn pair(self) -> [Name; 2] {
        ["account:1", "account:2"].map(|name| {
            if self == Self::InGroup { Name::in_group("bank", name) } else { Name::new(name) }
        })
    }

    /// The name on the visitor's input, and of the stop.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Mutex => "mutex",
            Self::FairLock => "fair lock",
            Self::RwLock => "read-write lock",
            Self::Semaphore => "semaphore",
            Self::Latch => "latch",
            Self::InGroup => "multi-lock, one group",
            Self::Across => "multi-lock, two slots",
        }
    }
}

/// The latch of the tour.
pub(crate) fn latch(session: &Session) -> Result<Latch, ConfigError> {
    Latch::new(session, "import", LatchOptions::default())
}

fn options() -> Options {
    Options::default().label("cluster tour").max_wait(std::time::Duration::from_secs(20))
}

impl Held {
    pub(crate) fn tokens(&self) -> Vec<u64> {
        match self {
            Self::One(_, token) => token.iter().map(|token| token.get()).collect(),
            Self::Several(guard) => guard.tokens().map(|(_, token)| token.get()).collect(),
        }
    }

    pub(crate) async fn release(self) -> Result<(), Failure> {
        match self {
            Self::One(guard, _) => {
                guard.release().await.map_err(|error: ReleaseError| error.into())
            }
            Self::Several(guard) => {
                guard.release().await.map_err(|error: MultiReleaseError| error.into())
            }
        }
    }
}

impl FromStr for Object {
    type Err = Failure;

    fn from_str(name: &str) -> Result<Self, Failure> {
        let found = Self::ALL.into_iter().find(|object| object.name() == name);
        found.ok_or_else(|| format!("nothing is called {name}").into())
    }
}
