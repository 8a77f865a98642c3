//! Names of locks.

use std::fmt;
use std::sync::Arc;

use crate::error::ConfigError;

/// The longest name, in bytes.
pub const LONGEST_NAME: usize = 512;

/// The name of a lock: 1 to 512 bytes of any kind.
///
/// Fine names keep locks independent: prefer `invoice:4711` to `invoices`. The primitive is part of the key, so a mutex
/// and a semaphore of the same name do not meet.
///
/// It is checked where it is used (`Mutex::new`), so that a name can be made from anything without a `?`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Name {
    group: Option<Arc<[u8]>>,
    name: Arc<[u8]>,
}

impl Name {
    /// A name of its own.
    pub fn new(name: impl AsRef<[u8]>) -> Self {
        Self { group: None, name: name.as_ref().into() }
    }

    /// A name that shares a cluster slot with all names of its group, so that one script can take several at once.
    /// A group is as hot as all its names together: keep it small.
    pub fn in_group(group: impl AsRef<[u8]>, name: impl AsRef<[u8]>) -> Self {
        Self { group: Some(group.as_ref().into()), name: name.as_ref().into() }
    }

    /// The bytes of the name, without its group.
    pub fn as_bytes(&self) -> &[u8] {
        &self.name
    }

    /// The bytes of the group, if it is in one.
    pub fn group(&self) -> Option<&[u8]> {
        self.group.as_deref()
    }

    /// Checks the bounds.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        for part in [Some(&self.name), self.group.as_ref()].into_iter().flatten() {
            if part.is_empty() || part.len() > LONGEST_NAME {
                return Err(ConfigError::Name { length: part.len() });
            }
        }
        Ok(())
    }
}

impl<T: AsRef<[u8]> + ?Sized> From<&T> for Name {
    fn from(name: &T) -> Self {
        Self::new(name)
    }
}

impl From<String> for Name {
    fn from(name: String) -> Self {
        Self::new(name)
    }
}

impl From<Vec<u8>> for Name {
    fn from(name: Vec<u8>) -> Self {
        Self::new(name)
    }
}

/// Bytes that are not text are shown as replacement characters.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(group) = &self.group {
            write!(f, "{}/", String::from_utf8_lossy(group).escape_debug())?;
        }
        write!(f, "{}", String::from_utf8_lossy(&self.name).escape_debug())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Name({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_1_and_512_bytes_in_name_and_group() {
        assert!(Name::new("a").check().is_ok());
        assert!(Name::new([0_u8; 512]).check().is_ok());
        for bad in
            [Name::new(""), Name::new([7; 513]), Name::in_group("", "a"), Name::in_group("g", "")]
        {
            assert!(matches!(bad.check(), Err(ConfigError::Name { .. })), "{bad:?}");
        }
    }

    #[test]
    fn a_name_prints_on_one_line() {
        assert_eq!(Name::in_group("shop", "a\nb\0").to_string(), "shop/a\\nb\\0");
    }
}
