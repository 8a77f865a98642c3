//! Keys that end as a whole.

/// What a key holds, and when it ends (0: there is none).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ending<T> {
    pub(crate) of: T,
    pub(crate) ends_ms: u64,
}

impl<T: Default> Ending<T> {
    /// The clock shows `now_ms`: if its time is over, it is gone.
    pub(crate) fn at(&mut self, now_ms: u64) {
        if self.ends_ms <= now_ms {
            self.lose();
        }
    }

    /// It is deleted behind the scripts' back.
    pub(crate) fn lose(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn lasts(&mut self, until_ms: u64) {
        self.ends_ms = self.ends_ms.max(until_ms);
    }
}
