#![doc = include_str!("../README.md")]

#[cfg(feature = "fair-lock")]
pub use leasehold_fair_lock as fair_lock;
#[cfg(feature = "fair-lock")]
pub use leasehold_fair_lock::FairLock;
#[cfg(feature = "latch")]
pub use leasehold_latch as latch;
#[cfg(feature = "latch")]
pub use leasehold_latch::{Latch, LatchError, LatchOptions};
#[cfg(feature = "multi-lock")]
pub use leasehold_multi_lock as multi_lock;
#[cfg(feature = "multi-lock")]
pub use leasehold_multi_lock::{MultiLock, QuorumLock, QuorumOptions};
#[cfg(feature = "mutex")]
pub use leasehold_mutex as mutex;
#[cfg(feature = "mutex")]
pub use leasehold_mutex::Mutex;
#[cfg(feature = "deadpool")]
pub use leasehold_runtime::deadpool_redis;
pub use leasehold_runtime::{
    AcquireError, AdoptError, Any, BackendError, BackendErrorKind, Commands, ConfigError, Event,
    ExtendError, FencingToken, Finding, Guard, Holder, Lost, LostFuture, LostReason, Name, Options,
    Owner, Position, Preflight, Queue, ReleaseError, Session, SessionBuilder, Severity,
    ShutdownError, Statistics, Subject, Trace, Waiter, redis,
};
#[cfg(feature = "rwlock")]
pub use leasehold_rwlock as rwlock;
#[cfg(feature = "rwlock")]
pub use leasehold_rwlock::RwLock;
#[cfg(feature = "semaphore")]
pub use leasehold_semaphore as semaphore;
#[cfg(feature = "semaphore")]
pub use leasehold_semaphore::Semaphore;
