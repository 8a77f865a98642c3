//! What the keys hold, in a form that can be compared.

use std::collections::BTreeMap;

use super::keys::Key;
use super::reference::{Mark, Member, Note};
use super::verdict::{Ends, differ, same_ends, same_marks};
use super::waiters::Waiters;

/// What the keys hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) holds: BTreeMap<Member, u64>,
    pub(crate) notes: BTreeMap<Member, Note>,
    pub(crate) lists: BTreeMap<usize, Vec<usize>>,
    pub(crate) waiters: Waiters,
    pub(crate) token: Option<u64>,
    pub(crate) gone: BTreeMap<Mark, u64>,
    /// When each key ends; 0 if there is no such key.
    pub(crate) ends_ms: Ends,
}

impl Snapshot {
    /// Whether `real` is this; orphaned timeouts are not looked at where they may be.
    pub(crate) fn compare(&self, real: &Self, slack_ms: u64, orphans: bool) -> Result<(), String> {
        differ("holds", &self.holds, &real.holds)?;
        differ("notes", &self.notes, &real.notes)?;
        differ("lists of owners", &self.lists, &real.lists)?;
        self.waiters.compare(&real.waiters, orphans)?;
        differ("token", &self.token, &real.token)?;
        same_marks(&self.gone, &real.gone, slack_ms)?;
        let orphaned = |key| orphans && key == Key::Timeouts;
        same_ends(&self.ends_ms, &real.ends_ms, slack_ms, orphaned)
    }
}
