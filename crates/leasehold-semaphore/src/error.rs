//! A limit that was not set.

use std::fmt;

use leasehold_runtime::{BackendError, ConfigError};

/// A limit that was not set.
#[derive(Debug)]
#[non_exhaustive]
pub enum LimitError {
    /// Not 1 to 999 999 999; nothing was sent.
    Config(ConfigError),
    /// Redis could not be asked. It may have been set; a repeat is harmless.
    Backend(BackendError),
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(error) => error.fmt(f),
            Self::Backend(_) => f.write_str("redis failed"),
        }
    }
}

impl std::error::Error for LimitError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Config(error) => error.source(),
            Self::Backend(error) => Some(error),
        }
    }
}

impl From<ConfigError> for LimitError {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

impl From<BackendError> for LimitError {
    fn from(error: BackendError) -> Self {
        Self::Backend(error)
    }
}
