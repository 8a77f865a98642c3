#![doc = include_str!("../README.md")]

mod fair_lock;

pub use fair_lock::{FairLock, Guard, Held, View};
#[cfg(feature = "deadpool")]
pub use leasehold_runtime::deadpool_redis;
pub use leasehold_runtime::{
    AcquireError, AdoptError, Any, BackendError, BackendErrorKind, Commands, ConfigError, Event,
    ExtendError, FencingToken, Finding, Holder, Lost, LostFuture, LostReason, Name, Options, Owner,
    Position, Preflight, Queue, ReleaseError, Session, SessionBuilder, Severity, ShutdownError,
    Statistics, Subject, Trace, Waiter, redis,
};
