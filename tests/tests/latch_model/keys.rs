//! The keys of a latch, as the server has them.

use std::collections::BTreeMap;

use leasehold_lua::Keys;
use redis::{Cmd, Value};

use super::values::{scores, texts};

/// A key of the latch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Latch,
    Ids,
    Waiters,
}

/// In the order of [`Found::ends_ms`].
pub(crate) const KEYS: [Key; 3] = [Key::Latch, Key::Ids, Key::Waiters];

impl Key {
    /// Of an object of the kind `latch`, whose first key is the latch's own.
    pub(crate) fn name(self, keys: &Keys) -> Vec<u8> {
        let suffix: &[u8] = match self {
            Self::Latch => b"",
            Self::Ids => b":ids",
            Self::Waiters => b":waiters",
        };
        [&*keys.holds, suffix].concat()
    }

    /// What shows all that it holds.
    pub(crate) fn ask(self, keys: &Keys) -> Cmd {
        let name = self.name(keys);
        match self {
            Self::Latch => redis::cmd("HGETALL").arg(name).clone(),
            Self::Ids | Self::Waiters => {
                redis::cmd("ZRANGE").arg(name).arg(0).arg(-1).arg("WITHSCORES").clone()
            }
        }
    }
}

/// What the keys hold, as it stands there, and when each ends (0: there is none).
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    pub(crate) latch: BTreeMap<String, String>,
    pub(crate) ids: BTreeMap<String, u64>,
    pub(crate) waiters: BTreeMap<String, u64>,
    pub(crate) ends_ms: [u64; KEYS.len()],
}

impl Found {
    /// From the answers to [`Key::ask`] of all keys.
    pub(crate) fn read(values: &[Value], ends_ms: [u64; KEYS.len()]) -> Result<Self, String> {
        Ok(Self {
            latch: texts(&values[0]),
            ids: scores(&values[1])?.into_iter().collect(),
            waiters: scores(&values[2])?.into_iter().collect(),
            ends_ms,
        })
    }
}
