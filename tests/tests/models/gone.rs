//! The zset of what has ended, by its marks, which the kinds say.

use std::collections::BTreeMap;

use super::ending::Ending;

const GONE_MS: u64 = 60_000;

pub(crate) type Gone<Mark> = Ending<BTreeMap<Mark, u64>>;

impl<Mark: Ord> Gone<Mark> {
    pub(crate) fn mark(&mut self, mark: Mark, now_ms: u64) {
        self.of.insert(mark, now_ms + GONE_MS);
        self.lasts(now_ms + GONE_MS);
    }

    /// A minute after the newest mark, also when the clock went back meanwhile.
    pub(crate) fn ends_with_the_newest(&mut self, now_ms: u64) {
        self.ends_ms = now_ms + GONE_MS;
    }

    /// Whether it is there, over or not.
    pub(crate) fn has(&self, mark: &Mark) -> bool {
        self.of.contains_key(mark)
    }

    pub(crate) fn remembers(&self, mark: &Mark, now_ms: u64) -> bool {
        self.of.get(mark).is_some_and(|until| *until > now_ms)
    }
}
