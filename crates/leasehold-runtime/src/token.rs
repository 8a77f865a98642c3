//! Fencing tokens.

use std::fmt;

/// A number that grows with every grant of a lock's name, to be stored beside the data and checked there.
///
/// No lease lock excludes alone: a holder that was paused beyond its lease still believes that it holds. So the resource
/// itself refuses a write whose token is **smaller** than the largest it has seen, and accepts an **equal** one (the
/// same hold writes more than once). Compare as numbers, never as text.
///
/// A section that reads, decides and writes has to raise the stored token **when it reads**, not only when it writes:
/// else a stale write can slip in between the newcomer's read and its write, while the database still knows only the
/// stale token, and the newcomer overwrites it.
///
/// ```sql
/// UPDATE stock SET fence = :token WHERE product = :product AND fence <= :token RETURNING left   -- the read
/// UPDATE stock SET left = :left   WHERE product = :product AND fence =  :token                  -- the write
/// ```
///
/// Source: Martin Kleppmann, *How to do distributed locking* (2016),
/// <https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html>.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    pub(crate) fn new(value: u64) -> Self {
        Self(value)
    }

    /// The number.
    pub fn get(self) -> u64 {
        self.0
    }

    /// The number as databases store it; it stays positive until the year 2255 (microseconds below 2^53).
    pub fn as_i64(self) -> i64 {
        i64::try_from(self.0).unwrap_or(i64::MAX)
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> Self {
        token.0
    }
}
