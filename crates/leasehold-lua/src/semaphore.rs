//! The semaphore: its scripts, and the calls and replies that only it has.

use std::sync::Arc;

use crate::call::{Call, Reply, number};
use crate::holders::{self, Listed};
use crate::keys::Keys;
use crate::reply::{DecodeError, Fields, Why};
use crate::script::Script;
use crate::terms::{Acquisition, Terms};
use crate::verbs::{Settings, Verbs};

static ACQUIRE: Script =
    Script::new("semaphore/acquire", include_str!("../lua/semaphore/acquire.lua"));
static CHECK: Script = Script::new("semaphore/check", include_str!("../lua/semaphore/check.lua"));
static RELEASE: Script =
    Script::new("semaphore/release", include_str!("../lua/semaphore/release.lua"));
static RENEW: Script = Script::new("semaphore/renew", include_str!("../lua/semaphore/renew.lua"));
static FORCE_RELEASE: Script =
    Script::new("semaphore/force_release", include_str!("../lua/semaphore/force_release.lua"));
static INSPECT: Script =
    Script::new("semaphore/inspect", include_str!("../lua/semaphore/inspect.lua"));
static SET_LIMIT: Script =
    Script::new("semaphore/set_limit", include_str!("../lua/semaphore/set_limit.lua"));
static RELEASE_MANY: Script =
    Script::new("semaphore/release_many", include_str!("../lua/semaphore/release_many.lua"));
static SPLIT: Script = Script::new("semaphore/split", include_str!("../lua/semaphore/split.lua"));
static MERGE: Script = Script::new("semaphore/merge", include_str!("../lua/semaphore/merge.lua"));
static ADOPT: Script = Script::new("semaphore/adopt", include_str!("../lua/semaphore/adopt.lua"));

/// The largest limit, and the largest weight: numbers stay below all deadlines.
pub const LARGEST: u32 = 999_999_999;

/// How long a limit that was set is kept without any use: 30 days.
const KEEP_LIMIT_MS: u64 = 30 * 24 * 3_600_000;

/// How long the end of a hold that became a part of another is remembered: a minute.
const MARK_MS: u64 = 60_000;

/// Every script of it.
pub fn scripts() -> [&'static Script; 11] {
    [
        &ACQUIRE,
        &CHECK,
        &RELEASE,
        &RENEW,
        &FORCE_RELEASE,
        &INSPECT,
        &SET_LIMIT,
        &RELEASE_MANY,
        &SPLIT,
        &MERGE,
        &ADOPT,
    ]
}

/// What it has in common with everything that can be held.
pub static VERBS: Verbs = Verbs {
    kind: "semaphore",
    acquire: &ACQUIRE,
    check: &CHECK,
    release: &RELEASE,
    renew: &RENEW,
    keys: Keys::permits,
    renewal_keys: part_keys,
    fenced: false,
};

/// Those of a script that grants nothing.
fn part_keys(keys: &Keys) -> Vec<Arc<[u8]>> {
    [&keys.holds, &keys.gone, &keys.notes].map(Arc::clone).into()
}

/// The limit that the first use sets. `strict`: an acquire is refused where the server's differs.
pub fn settings(limit: u32, strict: bool) -> Settings {
    let limit = number(limit.into());
    Settings { acquire: vec![limit.clone(), number(strict.into())], check: vec![limit] }
}

/// Ends the holds of these acquisitions.
pub fn force_release(keys: &Keys, ids: &[&[u8]], terms: Terms) -> Call {
    holders::force_release(&FORCE_RELEASE, &VERBS, keys, ids, terms)
}

/// Who holds (at most so many), and how many wait.
pub fn inspect(keys: &Keys, most: u32) -> Call {
    let keys = [&keys.holds, &keys.queue, &keys.gone, &keys.notes].map(Arc::clone).into();
    Call { script: &INSPECT, keys, args: vec![number(most.into())] }
}

/// Sets the limit.
pub fn set_limit(keys: &Keys, limit: u32, terms: Terms) -> Call {
    let args = vec![number(limit.into()), number(KEEP_LIMIT_MS), number(terms.grant_ms)];
    Call { script: &SET_LIMIT, keys: keys.permits(), args }
}

/// What setting the limit answers: whether to call again at once.
///
/// # Errors
/// [`DecodeError`] on anything else.
pub fn limit_set(reply: &Reply) -> Result<bool, DecodeError> {
    Fields::of(reply, "set_limit")?.flag()
}

/// A hold to end among many.
#[derive(Debug, Clone, Copy)]
pub struct Ended<'a> {
    /// Its acquisition's id, or its owner: then all holds of that owner.
    pub name: &'a [u8],
    /// An acquire of it may still arrive.
    pub late: bool,
    /// An earlier end becomes a cool-down until then.
    pub at_least_ms: u64,
}

/// Ends many holds.
pub fn release_many(keys: &Keys, ended: &[Ended<'_>], terms: Terms) -> Call {
    let mut args = vec![number(terms.grant_ms)];
    for one in ended {
        args.extend([one.name.to_vec(), number(one.late.into()), number(one.at_least_ms)]);
    }
    Call { script: &RELEASE_MANY, keys: keys.permits(), args }
}

/// What ending many holds answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManyReply {
    /// Call again at once; an empty call will do.
    pub again: bool,
    /// Of each, in the order of the call: released, or why it was not held.
    pub answers: Vec<Result<(), Why>>,
}

impl ManyReply {
    /// Reads the reply of the release_many script.
    ///
    /// # Errors
    /// [`DecodeError`] on anything else.
    pub fn decode(reply: &Reply) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(reply, "release_many")?;
        let again = fields.flag()?;
        let mut answers = Vec::new();
        while !fields.is_empty() {
            let mut answer = Fields::of(fields.any()?, "release_many")?;
            answers.push(match answer.number()? {
                1 => Ok(()),
                0 => Err(answer.why()?),
                _ => return Err(answer.unknown_code()),
            });
        }
        Ok(Self { again, answers })
    }
}

/// Splits the share of a new acquisition off a hold.
pub fn split(keys: &Keys, old: &[u8], new: Acquisition<'_>) -> Call {
    let args = vec![old.to_vec(), new.id.to_vec(), new.owner.into(), new.note.to_vec()];
    Call { script: &SPLIT, keys: part_keys(keys), args }
}

/// What splitting answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SplitReply {
    /// Two hold, now or since an earlier copy of this call.
    Split {
        /// How long the new one still lasts.
        left_ms: u64,
    },
    /// The old one did not hold.
    NotHeld {
        /// Why.
        why: Why,
    },
    /// Nothing would be left of the old one.
    TooMuch {
        /// What it has.
        weight: u32,
    },
    /// The new one was cancelled before this call arrived.
    Cancelled,
}

impl SplitReply {
    /// Reads the reply of the split script.
    ///
    /// # Errors
    /// [`DecodeError`] on anything else.
    pub fn decode(reply: &Reply) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(reply, "split")?;
        match fields.number()? {
            1 => Ok(Self::Split { left_ms: fields.number()? }),
            0 => Ok(Self::NotHeld { why: fields.why()? }),
            2 => Ok(Self::TooMuch { weight: fields.small()? }),
            4 => Ok(Self::Cancelled),
            _ => Err(fields.unknown_code()),
        }
    }
}

/// Makes one hold of two.
pub fn merge(keys: &Keys, kept: &[u8], merged: &[u8]) -> Call {
    let args = vec![kept.to_vec(), merged.to_vec(), number(MARK_MS)];
    Call { script: &MERGE, keys: part_keys(keys), args }
}

/// What merging answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MergeReply {
    /// One holds for both, now or since an earlier copy of this call.
    Merged {
        /// Both weights.
        weight: u32,
        /// How long it still lasts.
        left_ms: u64,
    },
    /// The one that was to be kept did not hold; nothing was done.
    KeptNotHeld {
        /// Why.
        why: Why,
    },
    /// The other one did not hold; nothing was done.
    MergedNotHeld {
        /// Why.
        why: Why,
    },
    /// An earlier copy of this call merged them, and since then they have ended.
    EndedTogether {
        /// Why.
        why: Why,
    },
}

impl MergeReply {
    /// Reads the reply of the merge script.
    ///
    /// # Errors
    /// [`DecodeError`] on anything else.
    pub fn decode(reply: &Reply) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(reply, "merge")?;
        match fields.number()? {
            1 => Ok(Self::Merged { weight: fields.small()?, left_ms: fields.number()? }),
            0 => match fields.number()? {
                1 => Ok(Self::KeptNotHeld { why: fields.why()? }),
                2 => Ok(Self::MergedNotHeld { why: fields.why()? }),
                3 => Ok(Self::EndedTogether { why: fields.why()? }),
                _ => Err(fields.unknown_code()),
            },
            _ => Err(fields.unknown_code()),
        }
    }
}

/// Replaces all holds of this acquisition's owner by it.
pub fn adopt(keys: &Keys, acquisition: Acquisition<'_>) -> Call {
    let Acquisition { id, owner, note, lease_ms } = acquisition;
    let args = vec![id.to_vec(), owner.into(), note.to_vec(), number(lease_ms), number(MARK_MS)];
    Call { script: &ADOPT, keys: part_keys(keys), args }
}

/// The weight of what was adopted; the rest of the reply is as everywhere.
pub fn adopted_weight(reply: &Reply) -> Option<u32> {
    let Reply::List(values) = reply else { return None };
    let Reply::Int(weight) = values.get(4)? else { return None };
    u32::try_from(*weight).ok()
}

/// What inspecting answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// The script reached its bound: call again at once.
    pub again: bool,
    /// Server clock.
    pub now_us: u64,
    /// How many wait.
    pub waiters: u64,
    /// The sum of the weights.
    pub used: u32,
    /// The limit; 0 if the server knows none.
    pub limit: u32,
    /// The holds, those that end first.
    pub holds: Vec<Listed>,
}

impl Inspection {
    /// Reads the reply of the inspect script.
    ///
    /// # Errors
    /// [`DecodeError`] on anything else.
    pub fn decode(reply: &Reply) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(reply, "inspect")?;
        Ok(Self {
            again: fields.flag()?,
            now_us: fields.number()?,
            waiters: fields.number()?,
            used: fields.small()?,
            limit: fields.small()?,
            holds: Listed::all(&mut fields)?,
        })
    }
}
