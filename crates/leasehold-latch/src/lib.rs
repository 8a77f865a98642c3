#![doc = include_str!("../README.md")]

mod error;
mod latch;
mod options;
mod topic;

pub use error::LatchError;
pub use latch::Latch;
pub use leasehold_lua::latch::{LARGEST_COUNT, LONGEST_ID};
#[cfg(feature = "deadpool")]
pub use leasehold_runtime::deadpool_redis;
pub use leasehold_runtime::{
    BackendError, BackendErrorKind, Commands, ConfigError, Event, Finding, Name, Preflight,
    Session, SessionBuilder, Severity, ShutdownError, Statistics, Subject, redis,
};
pub use options::LatchOptions;
