#![doc = include_str!("../README.md")]

mod acquire;
mod adopt;
mod backend;
mod clock;
mod delivery;
pub mod engine;
mod error;
mod event;
mod extend;
mod guard;
mod hold;
mod holder;
mod name;
mod options;
mod owner;
mod position;
mod session;
mod token;

pub use backend::Commands;
#[cfg(feature = "deadpool")]
pub use deadpool_redis;
pub use error::{
    AcquireError, AdoptError, BackendError, BackendErrorKind, ConfigError, ExtendError, Lost,
    LostReason, ReleaseError, ShutdownError,
};
pub use event::Event;
pub use guard::{Any, Exclusive, Guard, LostFuture, Mode, Weighted};
pub use holder::{Holder, Queue, Trace, Waiter};
pub use name::{LONGEST_NAME, Name};
pub use options::Options;
pub use owner::Owner;
pub use position::Position;
pub use redis;
pub use session::{Finding, Preflight, Session, SessionBuilder, Severity, Statistics, Subject};
pub use token::FencingToken;
