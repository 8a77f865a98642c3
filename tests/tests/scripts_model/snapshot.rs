//! What the keys hold, in a form that can be compared; entries only while they live.

use std::collections::BTreeMap;

use super::keys::KEYS;
use super::reference::{Entry, Mark};

/// What the keys hold; entries only while they live.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Snapshot {
    pub(crate) owner: Option<usize>,
    pub(crate) hold_token: Option<u64>,
    pub(crate) cooling: Option<usize>,
    pub(crate) entries: BTreeMap<usize, Entry>,
    pub(crate) queue: Vec<(u64, usize)>,
    pub(crate) timeouts: BTreeMap<usize, u64>,
    pub(crate) last_ticket: u64,
    pub(crate) token: Option<u64>,
    pub(crate) gone: BTreeMap<Mark, u64>,
    /// When each key ends; 0 if there is no such key.
    pub(crate) ends_ms: [u64; 6],
}

impl Snapshot {
    pub(crate) fn waiting(&self) -> Vec<usize> {
        let mut ids: Vec<_> = self.queue.iter().map(|(_, id)| *id).collect();
        ids.sort_unstable();
        ids
    }

    /// The first difference that `real` has; orphaned timeouts are not looked at where they may be.
    pub(crate) fn difference(&self, real: &Self, slack_ms: u64, orphans: bool) -> Option<String> {
        let differ = |what: &str, ours: &dyn std::fmt::Debug, real: &dyn std::fmt::Debug| {
            let (ours, real) = (format!("{ours:?}"), format!("{real:?}"));
            (ours != real).then(|| format!("{what}: model {ours}, server {real}"))
        };
        let of_queue = |all: &Self| -> BTreeMap<usize, Option<u64>> {
            all.queue.iter().map(|(_, id)| (*id, all.timeouts.get(id).copied())).collect()
        };
        let marks = |all: &Self| all.gone.keys().cloned().collect::<Vec<_>>();
        let hold = |all: &Self| (all.owner, all.hold_token, all.cooling);
        differ("hold", &hold(self), &hold(real))
            .or_else(|| differ("entries", &self.entries, &real.entries))
            .or_else(|| differ("queue", &self.queue, &real.queue))
            .or_else(|| differ("deadlines of waiters", &of_queue(self), &of_queue(real)))
            .or_else(|| match orphans {
                true => None,
                false => differ(
                    "timeouts",
                    &(&self.timeouts, self.last_ticket),
                    &(&real.timeouts, real.last_ticket),
                ),
            })
            .or_else(|| differ("token", &self.token, &real.token))
            .or_else(|| differ("gone", &marks(self), &marks(real)))
            .or_else(|| self.difference_in_time(real, slack_ms, orphans))
    }

    fn difference_in_time(&self, real: &Self, slack_ms: u64, orphans: bool) -> Option<String> {
        let late =
            self.gone.iter().find(|(mark, until)| real.gone[mark].abs_diff(**until) > slack_ms);
        if let Some((mark, until)) = late {
            return Some(format!("until of {mark:?}: model {until}, server {}", real.gone[mark]));
        }
        (0..KEYS.len())
            .filter(|key| !(orphans && *key == 2))
            .find(|key| self.ends_ms[*key].abs_diff(real.ends_ms[*key]) > slack_ms)
            .map(|key| {
                let (ours, theirs) = (self.ends_ms[key], real.ends_ms[key]);
                format!("end of key {:?}: model {ours}, server {theirs}", KEYS[key])
            })
    }
}
