//! All kinds as one type, and both topologies: which one is meant is said for the thread that runs the scenario.
//!
//! The suite is generic, and takes seconds to compile for each pair of a kind and a site. Twelve pairs as one are compiled
//! once.

use std::cell::Cell;
use std::time::Duration;

use leasehold_fair_lock::FairLock;
use leasehold_mutex::Mutex;
use leasehold_runtime::{
    AcquireError, AdoptError, Any, Guard, LostReason, Mode, Owner, ReleaseError, SessionBuilder,
};
use redis::aio::MultiplexedConnection;

use super::{
    AllPermits, Client, Clustered, Hold, Holdable, KeyEvents, Lease, Reading, Reentrant, Site,
    Watched, Writing,
};

thread_local! {
    static HERE: Cell<Option<(Kind, Topology)>> = const { Cell::new(None) };
}

/// What is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Kind {
    Mutex,
    FairLock,
    Write,
    Read,
    OnePermit,
    ManyPermits,
}

/// Where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Topology {
    Cluster,
    Sentinel,
}

/// What this thread means.
pub(super) fn here() -> Option<(Kind, Topology)> {
    HERE.get()
}

/// From now on this thread means these.
pub(super) fn mean(meant: Option<(Kind, Topology)>) {
    HERE.set(meant);
}

fn kind() -> Kind {
    here().expect("a kind was said").0
}

/// An object of the kind that is meant.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the names say it")]
pub enum AnyKind {
    Mutex(Mutex),
    FairLock(FairLock),
    Write(Writing),
    Read(Reading),
    OnePermit(AllPermits<1>),
    ManyPermits(AllPermits<3>),
}

/// A hold of any of them.
#[derive(Debug)]
pub struct AnyHold {
    guard: Guard<Any>,
    token: Option<u64>,
}

impl AnyHold {
    fn of<H: Holdable<Hold = Guard<M>>, M: Mode>(guard: Guard<M>) -> Self {
        Self { token: H::token(&guard), guard: guard.into_any() }
    }
}

impl Hold for AnyHold {
    async fn release(self) -> Result<(), ReleaseError> {
        self.guard.release().await
    }

    fn is_held(&self) -> bool {
        self.guard.is_held()
    }

    async fn lost(&self) -> LostReason {
        self.guard.lost().await
    }

    fn trace(&self) -> String {
        self.guard.trace().to_string()
    }
}

/// The same for each kind.
macro_rules! each {
    ($any:expr, $object:ident => $body:expr) => {
        match $any {
            Self::Mutex($object) => $body,
            Self::FairLock($object) => $body,
            Self::Write($object) => $body,
            Self::Read($object) => $body,
            Self::OnePermit($object) => $body,
            Self::ManyPermits($object) => $body,
        }
    };
}

fn as_any<H: Holdable<Hold = Guard<M>>, M: Mode>(_: &H, guard: Guard<M>) -> AnyHold {
    AnyHold::of::<H, M>(guard)
}

impl Holdable for AnyKind {
    type Hold = AnyHold;

    fn open(client: &Client, name: &str, lease: Lease) -> Self {
        match kind() {
            Kind::Mutex => Self::Mutex(Holdable::open(client, name, lease)),
            Kind::FairLock => Self::FairLock(Holdable::open(client, name, lease)),
            Kind::Write => Self::Write(Holdable::open(client, name, lease)),
            Kind::Read => Self::Read(Holdable::open(client, name, lease)),
            Kind::OnePermit => Self::OnePermit(Holdable::open(client, name, lease)),
            Kind::ManyPermits => Self::ManyPermits(Holdable::open(client, name, lease)),
        }
    }

    fn key(name: &str) -> Vec<u8> {
        match kind() {
            Kind::Mutex => Mutex::key(name),
            Kind::FairLock => FairLock::key(name),
            Kind::Write => Writing::key(name),
            Kind::Read => Reading::key(name),
            Kind::OnePermit => AllPermits::<1>::key(name),
            Kind::ManyPermits => AllPermits::<3>::key(name),
        }
    }

    fn may_stay(key: &[u8]) -> bool {
        match kind() {
            Kind::Mutex => Mutex::may_stay(key),
            Kind::FairLock => FairLock::may_stay(key),
            Kind::Write => Writing::may_stay(key),
            Kind::Read => Reading::may_stay(key),
            Kind::OnePermit => AllPermits::<1>::may_stay(key),
            Kind::ManyPermits => AllPermits::<3>::may_stay(key),
        }
    }

    fn token(hold: &AnyHold) -> Option<u64> {
        hold.token
    }

    async fn try_acquire(&self) -> Result<Option<AnyHold>, AcquireError> {
        each!(self, it => Ok(it.try_acquire().await?.map(|guard| as_any(it, guard))))
    }

    async fn acquire_within(&self, wait: Duration) -> Result<AnyHold, AcquireError> {
        each!(self, it => it.acquire_within(wait).await.map(|guard| as_any(it, guard)))
    }

    async fn is_locked(&self) -> bool {
        each!(self, it => Holdable::is_locked(it).await)
    }

    async fn remaining(&self) -> Option<Duration> {
        each!(self, it => Holdable::remaining(it).await)
    }

    async fn holds(&self) -> usize {
        each!(self, it => Holdable::holds(it).await)
    }

    async fn holder(&self) -> Option<String> {
        each!(self, it => Holdable::holder(it).await)
    }

    async fn waiting(&self) -> Vec<String> {
        each!(self, it => Holdable::waiting(it).await)
    }

    async fn force_release(&self) -> bool {
        each!(self, it => Holdable::force_release(it).await)
    }
}

impl Reentrant for AnyKind {
    async fn acquire_by(&self, owner: &Owner) -> Result<Option<AnyHold>, AcquireError> {
        match self {
            Self::Mutex(it) => Ok(it.acquire_by(owner).await?.map(|guard| as_any(it, guard))),
            Self::FairLock(it) => Ok(it.acquire_by(owner).await?.map(|guard| as_any(it, guard))),
            Self::Write(it) => Ok(it.acquire_by(owner).await?.map(|guard| as_any(it, guard))),
            Self::Read(it) => Ok(it.acquire_by(owner).await?.map(|guard| as_any(it, guard))),
            Self::OnePermit(_) | Self::ManyPermits(_) => panic!("permits are not entered again"),
        }
    }

    async fn adopt(&self, owner: &Owner) -> Result<AnyHold, AdoptError> {
        match self {
            Self::Mutex(it) => Ok(as_any(it, Reentrant::adopt(it, owner).await?)),
            Self::FairLock(it) => Ok(as_any(it, Reentrant::adopt(it, owner).await?)),
            Self::Write(it) => Ok(as_any(it, Reentrant::adopt(it, owner).await?)),
            Self::Read(it) => Ok(as_any(it, Reentrant::adopt(it, owner).await?)),
            Self::OnePermit(_) | Self::ManyPermits(_) => panic!("permits are not entered again"),
        }
    }

    fn owner(hold: &AnyHold) -> Owner {
        hold.guard.owner().clone()
    }
}

/// The topology that is meant.
#[derive(Debug)]
#[expect(missing_docs, reason = "the names say it")]
pub enum AnySite {
    Cluster(Clustered),
    Sentinel(Watched),
}

/// The same for each topology.
macro_rules! either {
    ($any:expr, $site:ident => $body:expr) => {
        match $any {
            Self::Cluster($site) => $body,
            Self::Sentinel($site) => $body,
        }
    };
}

impl Site for AnySite {
    type Connection = MultiplexedConnection;

    async fn start() -> Self {
        match here().expect("a topology was said").1 {
            Topology::Cluster => Self::Cluster(Clustered::start().await),
            Topology::Sentinel => Self::Sentinel(Watched::start().await),
        }
    }

    fn url(&self) -> String {
        either!(self, site => site.url())
    }

    fn session(&self) -> SessionBuilder {
        either!(self, site => site.session())
    }

    async fn connection(&self) -> MultiplexedConnection {
        either!(self, site => site.connection().await)
    }

    async fn run(&self, words: &[&str]) {
        either!(self, site => site.run(words).await);
    }

    fn kill(&self) {
        either!(self, site => site.kill());
    }

    fn restart(&self) {
        either!(self, site => site.restart());
    }

    async fn keys(&self) -> Vec<Vec<u8>> {
        either!(self, site => site.keys().await)
    }

    async fn channels(&self) -> usize {
        either!(self, site => site.channels().await)
    }

    async fn key_events(&self, key: &[u8]) -> KeyEvents {
        either!(self, site => site.key_events(key).await)
    }
}
