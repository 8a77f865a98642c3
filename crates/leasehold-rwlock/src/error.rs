//! Changing sides that did not work. What is still held comes back with the error.

use std::error::Error;
use std::fmt;

use leasehold_runtime::engine::ExchangeError;
use leasehold_runtime::{BackendError, Lost, Name};

use crate::{ReadGuard, WriteGuard};

/// A reader that did not become the writer.
#[derive(Debug)]
#[non_exhaustive]
pub enum UpgradeError {
    /// Others hold it too. The read hold comes back as it was; a repeat succeeds once they have left. Two readers that both
    /// want to write must not both keep reading: one has to release.
    Refused(ReadGuard),
    /// The read hold is of another lock, or of another session; it comes back as it was.
    Foreign(ReadGuard),
    /// The read hold had ended, or Redis did not answer until it did. Nothing is held.
    Lost(Lost),
    /// It was the writer for a moment, but fewer replicas knew so than
    /// [`Options::wait_replicas`](leasehold_runtime::Options::wait_replicas) asks for. It reads again, and never stopped.
    NotReplicated {
        /// The read hold.
        guard: ReadGuard,
        /// How many replicas were asked for.
        wanted: u32,
        /// How many knew.
        acknowledged: u64,
    },
    /// Redis refused, or was not reached. The read hold comes back as it was.
    Backend {
        /// The read hold.
        guard: ReadGuard,
        /// What went wrong.
        source: BackendError,
    },
}

/// A writer that did not become a reader.
#[derive(Debug)]
#[non_exhaustive]
pub enum DowngradeError {
    /// The write hold is of another lock, or of another session; it comes back as it was.
    Foreign(WriteGuard),
    /// The write hold had ended, or Redis did not answer until it did. Nothing is held.
    Lost(Lost),
    /// Redis refused, or was not reached. The write hold comes back as it was.
    Backend {
        /// The write hold.
        guard: WriteGuard,
        /// What went wrong.
        source: BackendError,
    },
}

impl From<ExchangeError<crate::Read>> for UpgradeError {
    fn from(error: ExchangeError<crate::Read>) -> Self {
        match error {
            ExchangeError::Refused(guard) => Self::Refused(guard),
            ExchangeError::Foreign(guard) => Self::Foreign(guard),
            ExchangeError::Lost(lost) => Self::Lost(lost),
            ExchangeError::Backend { guard, source } => Self::Backend { guard, source },
        }
    }
}

impl From<ExchangeError<crate::Write>> for DowngradeError {
    fn from(error: ExchangeError<crate::Write>) -> Self {
        match error {
            // Never answered to a writer: it would be another layout.
            ExchangeError::Refused(guard) => {
                Self::Backend { guard, source: BackendError::unexpected("a downgrade was refused") }
            }
            ExchangeError::Foreign(guard) => Self::Foreign(guard),
            ExchangeError::Lost(lost) => Self::Lost(lost),
            ExchangeError::Backend { guard, source } => Self::Backend { guard, source },
        }
    }
}

fn foreign(f: &mut fmt::Formatter<'_>, name: &Name) -> fmt::Result {
    write!(f, "the hold of {name} is of another lock, or of another session")
}

impl fmt::Display for UpgradeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(guard) => write!(f, "{} has other readers", guard.name()),
            Self::Foreign(guard) => foreign(f, guard.name()),
            Self::Lost(lost) => lost.fmt(f),
            Self::NotReplicated { guard, wanted, acknowledged } => {
                let name = guard.name();
                write!(f, "{name} not upgraded: only {acknowledged} of {wanted} replicas have it")
            }
            Self::Backend { guard, .. } => write!(f, "{} is not upgraded", guard.name()),
        }
    }
}

impl fmt::Display for DowngradeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign(guard) => foreign(f, guard.name()),
            Self::Lost(lost) => lost.fmt(f),
            Self::Backend { guard, .. } => write!(f, "{} is not downgraded", guard.name()),
        }
    }
}

impl Error for UpgradeError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Backend { source, .. } => Some(source),
            Self::Refused(_) | Self::Foreign(_) | Self::Lost(_) | Self::NotReplicated { .. } => {
                None
            }
        }
    }
}

impl Error for DowngradeError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Backend { source, .. } => Some(source),
            Self::Foreign(_) | Self::Lost(_) => None,
        }
    }
}
