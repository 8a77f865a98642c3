#![doc = include_str!("../README.md")]

mod error;
mod holders;
mod many;
mod semaphore;

pub use error::LimitError;
pub use holders::{PermitHolder, Usage};
#[cfg(feature = "deadpool")]
pub use leasehold_runtime::deadpool_redis;
pub use leasehold_runtime::engine::{Report, SplitError};
pub use leasehold_runtime::{
    AcquireError, AdoptError, Any, BackendError, BackendErrorKind, Commands, ConfigError, Event,
    ExtendError, Finding, Holder, Lost, LostFuture, LostReason, Name, Options, Owner, Preflight,
    Queue, ReleaseError, Session, SessionBuilder, Severity, ShutdownError, Statistics, Subject,
    Trace, Waiter, redis,
};
pub use many::Many;
pub use semaphore::{MergeError, Permit, Permits, Semaphore};
