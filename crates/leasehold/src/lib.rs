#![doc = include_str!("../README.md")]

#[cfg(feature = "mutex")]
pub use leasehold_mutex as mutex;
#[cfg(feature = "mutex")]
pub use leasehold_mutex::Mutex;
pub use leasehold_runtime::{
    AcquireError, AdoptError, Any, BackendError, BackendErrorKind, Commands, ConfigError, Event,
    ExtendError, FencingToken, Finding, Guard, Holder, Lost, LostFuture, LostReason, Name, Options,
    Owner, Queue, ReleaseError, Session, SessionBuilder, Severity, ShutdownError, Statistics,
    Subject, Trace, Waiter, redis,
};
