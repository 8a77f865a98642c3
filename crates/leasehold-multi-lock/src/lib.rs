#![doc = include_str!("../README.md")]

mod guard;
mod multi;
mod quorum;
mod quorum_guard;

pub use guard::{MultiGuard, MultiReleaseError};
#[cfg(feature = "deadpool")]
pub use leasehold_runtime::deadpool_redis;
pub use leasehold_runtime::{
    AcquireError, BackendError, BackendErrorKind, Commands, ConfigError, Event, ExtendError,
    FencingToken, Holder, Lost, LostReason, Name, Options, Owner, ReleaseError, Session,
    SessionBuilder, ShutdownError, engine, redis,
};
pub use multi::MultiLock;
pub use quorum::{QuorumLock, QuorumOptions};
pub use quorum_guard::{NodeRelease, QuorumGuard, QuorumReleaseError, QuorumReleased};
