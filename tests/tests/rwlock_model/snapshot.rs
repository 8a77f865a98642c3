//! What the keys hold, in a form that can be compared.

use std::collections::BTreeMap;
use std::fmt::Debug;

use super::keys::KEYS;
use super::reference::{Mark, Member, Note};

/// What the keys hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Snapshot {
    pub(crate) holds: BTreeMap<Member, u64>,
    pub(crate) notes: BTreeMap<Member, Note>,
    pub(crate) lists: BTreeMap<usize, Vec<usize>>,
    pub(crate) queue: Vec<(u64, usize)>,
    pub(crate) timeouts: BTreeMap<usize, u64>,
    pub(crate) last_ticket: u64,
    pub(crate) token: Option<u64>,
    pub(crate) gone: BTreeMap<Mark, u64>,
    /// When each key ends; 0 if there is no such key.
    pub(crate) ends_ms: [u64; 6],
}

fn differ<T: Debug + PartialEq>(what: &str, ours: &T, real: &T) -> Option<String> {
    (ours != real).then(|| format!("{what}: model {ours:?}, server {real:?}"))
}

impl Snapshot {
    pub(crate) fn waiting(&self) -> Vec<usize> {
        let mut ids: Vec<_> = self.queue.iter().map(|(_, id)| *id).collect();
        ids.sort_unstable();
        ids
    }

    /// The first difference that `real` has; orphaned timeouts are not looked at where they may be.
    pub(crate) fn difference(&self, real: &Self, slack_ms: u64, orphans: bool) -> Option<String> {
        let of_queue = |all: &Self| -> BTreeMap<usize, Option<u64>> {
            all.queue.iter().map(|(_, id)| (*id, all.timeouts.get(id).copied())).collect()
        };
        let marks = |all: &Self| all.gone.keys().cloned().collect::<Vec<_>>();
        let timeouts = |all: &Self| (all.timeouts.clone(), all.last_ticket);
        differ("holds", &self.holds, &real.holds)
            .or_else(|| differ("notes", &self.notes, &real.notes))
            .or_else(|| differ("lists of owners", &self.lists, &real.lists))
            .or_else(|| differ("queue", &self.queue, &real.queue))
            .or_else(|| differ("deadlines of waiters", &of_queue(self), &of_queue(real)))
            .or_else(|| match orphans {
                true => None,
                false => differ("timeouts", &timeouts(self), &timeouts(real)),
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
