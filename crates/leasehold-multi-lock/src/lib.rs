#![doc = include_str!("../README.md")]

mod guard;
mod multi;

pub use guard::{MultiGuard, MultiReleaseError};
#[cfg(feature = "deadpool")]
pub use leasehold_runtime::deadpool_redis;
pub use leasehold_runtime::{
    AcquireError, BackendError, BackendErrorKind, Commands, ConfigError, Event, ExtendError,
    FencingToken, Holder, Lost, LostReason, Name, Options, Owner, ReleaseError, Session,
    SessionBuilder, ShutdownError, engine, redis,
};
pub use multi::MultiLock;
