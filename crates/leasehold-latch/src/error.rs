//! What can go wrong at a latch.

use std::time::Duration;

use leasehold_runtime::{BackendError, ConfigError, Name};

/// A latch did not do what it was asked for, or did not open.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LatchError {
    /// Nobody armed it, or it ended before this call: by `reset`, or by itself.
    #[error("the latch {name} is not armed")]
    NotArmed {
        /// The latch.
        name: Name,
    },
    /// It was armed when the call began and ended by itself before it was open: nobody counted down for as long as
    /// [`expires_after`](crate::LatchOptions::expires_after) says, or its keys were deleted, evicted, or lost with their
    /// server. Whether the work that it counted is done is not known. (Also for a reset of which this process could learn
    /// nothing for a minute.)
    #[error("the latch {name} expired before it was open")]
    Expired {
        /// The latch.
        name: Name,
    },
    /// The generation that the call was meant for is over: it was reset, or another one was armed after it.
    #[error("the latch {name} was reset")]
    Reset {
        /// The latch.
        name: Name,
    },
    /// The wait is over, and the latch is not open.
    #[error("the latch {name} did not open within {waited:?}")]
    TimedOut {
        /// The latch.
        name: Name,
        /// How long it waited.
        waited: Duration,
    },
    /// The session was shut down.
    #[error("the session is shut down")]
    Closed,
    /// Something that the caller set is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A call that changes the latch was sent and never answered: it may have run, or may still run.
    #[error("done or not: the latch {name} got no answer")]
    Unknown {
        /// The latch.
        name: Name,
        /// The last thing that went wrong.
        #[source]
        source: BackendError,
    },
    /// Redis could not be asked, or refused: nothing was changed.
    #[error("redis failed the latch {name}")]
    Backend {
        /// The latch.
        name: Name,
        /// What went wrong.
        #[source]
        source: BackendError,
    },
}
