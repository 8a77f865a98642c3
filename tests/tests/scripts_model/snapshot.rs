//! What the keys hold, in a form that can be compared; entries only while they live.

use std::collections::BTreeMap;

use super::keys::Key;
use super::reference::{Entry, Mark};
use super::verdict::{Ends, differ, same_ends, same_marks};
use super::waiters::Waiters;

/// What the keys hold; entries only while they live.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) owner: Option<usize>,
    pub(crate) hold_token: Option<u64>,
    pub(crate) cooling: Option<usize>,
    pub(crate) entries: BTreeMap<usize, Entry>,
    pub(crate) waiters: Waiters,
    pub(crate) token: Option<u64>,
    pub(crate) gone: BTreeMap<Mark, u64>,
    /// When each key ends; 0 if there is no such key.
    pub(crate) ends_ms: Ends,
}

impl Snapshot {
    /// Whether `real` is this; orphaned timeouts are not looked at where they may be.
    pub(crate) fn compare(&self, real: &Self, slack_ms: u64, orphans: bool) -> Result<(), String> {
        let hold = |all: &Self| (all.owner, all.hold_token, all.cooling);
        differ("hold", &hold(self), &hold(real))?;
        differ("entries", &self.entries, &real.entries)?;
        self.waiters.compare(&real.waiters, orphans)?;
        differ("token", &self.token, &real.token)?;
        same_marks(&self.gone, &real.gone, slack_ms)?;
        let orphaned = |key| orphans && key == Key::Timeouts;
        same_ends(&self.ends_ms, &real.ends_ms, slack_ms, orphaned)
    }
}
