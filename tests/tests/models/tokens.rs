//! Fencing tokens.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::bench::Seen;
use super::ending::Ending;

const DAY_US: u64 = 86_400_000_000;

/// The key of the last token.
pub(crate) type Token = Ending<Option<u64>>;

impl Token {
    pub(crate) fn mint(&mut self, now_us: u64, floor: u64, fence_ms: u64) -> u64 {
        let last = self.of.unwrap_or(0);
        let sane = floor <= now_us + DAY_US;
        let floor = if sane { floor } else { 0 };
        let fresh = now_us.max(last + 1).max(floor + 1);
        *self = Self { of: Some(fresh), ends_ms: now_us / 1_000 + fence_ms };
        fresh
    }
}

/// The moment that a minted token says, beside the one of a call at the earliest moment; `None` where it was ahead of the
/// clock, and says nothing.
pub(crate) fn minted_us(real: Option<u64>, guessed: Option<u64>, seen: &Seen) -> Option<u64> {
    let (real, guessed) = real.zip(guessed)?;
    real.checked_sub(guessed).filter(|later| *later > 0).map(|later| seen.before_us + later)
}

/// The tokens that clients were given.
#[derive(Clone, Debug, Default)]
pub(crate) struct Given {
    tokens: BTreeSet<u64>,
    /// They may start again.
    lost: bool,
}

impl Given {
    /// The token key is lost.
    pub(crate) fn lost(&mut self) {
        self.lost = true;
    }

    /// The token key has ended. Tokens that ran ahead of the clock (by a client's floor) are then remembered by clients
    /// alone, and these here forget.
    pub(crate) fn forgotten(&mut self, now_us: u64) {
        self.lost |= self.tokens.last().is_some_and(|last| *last > now_us);
    }

    pub(crate) fn last(&mut self) -> u64 {
        if self.lost {
            self.tokens.clear();
            self.lost = false;
        }
        self.tokens.last().copied().unwrap_or(0)
    }

    /// I5: tokens increase.
    pub(crate) fn granted(&mut self, token: u64) -> Result<(), String> {
        let last = self.last();
        if token < last && !self.tokens.contains(&token) {
            return Err(format!("I5: token {token} granted after {last}"));
        }
        self.tokens.insert(token);
        Ok(())
    }
}

/// The highest token that a client says it has seen.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Floor {
    None,
    /// The highest there was.
    Seen,
    /// An hour ahead of the server's clock.
    Ahead,
    /// So far ahead that it must be ignored.
    TooFar,
}

impl Floor {
    /// `seen`: the highest there was.
    pub(crate) fn token(self, seen: Option<u64>, now_us: u64) -> u64 {
        match self {
            Self::None => 0,
            Self::Seen => seen.unwrap_or(0),
            Self::Ahead => now_us + DAY_US / 24,
            Self::TooFar => now_us + 2 * DAY_US,
        }
    }
}

pub(crate) fn floor() -> impl Strategy<Value = Floor> {
    prop_oneof![
        70 => Just(Floor::None),
        26 => Just(Floor::Seen),
        1 => Just(Floor::Ahead),
        3 => Just(Floor::TooFar),
    ]
}
