#![doc = include_str!("../README.md")]

mod error;
mod holders;
mod rwlock;

pub use error::{DowngradeError, UpgradeError};
pub use holders::Holders;
#[cfg(feature = "deadpool")]
pub use leasehold_runtime::deadpool_redis;
pub use leasehold_runtime::{
    AcquireError, AdoptError, Any, BackendError, BackendErrorKind, Commands, ConfigError, Event,
    ExtendError, FencingToken, Finding, Guard, Holder, Lost, LostFuture, LostReason, Name, Options,
    Owner, Preflight, Queue, ReleaseError, Session, SessionBuilder, Severity, ShutdownError,
    Statistics, Subject, Trace, Waiter, redis,
};
pub use rwlock::{Read, ReadGuard, ReadView, RwLock, Write, WriteGuard, WriteView};
