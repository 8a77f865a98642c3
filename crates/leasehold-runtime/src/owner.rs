//! Owners: who may re-enter.

use std::fmt;
use std::sync::Arc;

use uuid::Uuid;

use crate::error::ConfigError;

/// Who a hold belongs to, as a value.
///
/// A task or a thread is never an owner: futures move between threads, and jobs between processes. Pass the owner down
/// to let a callee enter the same lock again (`mutex.by(&owner)`); store it, or hand it to another process, to let the
/// hold be adopted there (`mutex.adopt(&owner)`).
///
/// An owner is a capability: whoever knows it may enter or adopt the hold. `Debug` does not print it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Owner(Arc<str>);

/// The longest owner, in bytes.
const LONGEST: usize = 128;

impl Owner {
    /// A fresh owner that nobody can guess (122 random bits).
    pub fn new() -> Self {
        Self(Uuid::new_v4().simple().to_string().into())
    }

    /// An owner that was stored as text.
    ///
    /// # Errors
    /// [`ConfigError::Owner`] unless it is 1 to 128 characters of `A-Z a-z 0-9 . _ -`.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if text.is_empty() || text.len() > LONGEST || !text.chars().all(plain) {
            return Err(ConfigError::Owner { length: text.len() });
        }
        Ok(Self(text.into()))
    }

    /// As text, to store it or to hand it to another process.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Owner {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Owner(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_survives_the_way_through_text_and_is_not_printed() {
        let owner = Owner::new();
        assert_eq!(Owner::parse(owner.as_str()).unwrap(), owner);
        assert!(!format!("{owner:?}").contains(owner.as_str()));
    }

    #[test]
    fn text_that_would_break_the_wire_is_refused() {
        for bad in ["", "a|b", "a b", "é", &"x".repeat(129)] {
            assert!(matches!(Owner::parse(bad), Err(ConfigError::Owner { .. })), "{bad}");
        }
    }
}
