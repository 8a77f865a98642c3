#![doc = include_str!("../README.md")]

mod mutex;
mod spec;

pub use leasehold_runtime::{
    AcquireError, AdoptError, Any, BackendError, BackendErrorKind, Commands, ConfigError, Event,
    ExtendError, FencingToken, Holder, Lost, LostFuture, LostReason, Name, Options, Owner, Queue,
    ReleaseError, Session, SessionBuilder, ShutdownError, Statistics, Trace, Waiter, redis,
};
pub use mutex::{Guard, Held, Mutex, View};
