//! What is compared after every step, whatever the kind.

use std::collections::BTreeMap;
use std::fmt::Debug;

use super::answer::Answer;
use super::bench::Seen;
use super::keys::{KEYS, Key};
use super::runner::STEPS;

pub(crate) type Ends = [u64; KEYS.len()];

pub(crate) fn differ<T: Debug + PartialEq>(what: &str, ours: &T, real: &T) -> Result<(), String> {
    match ours == real {
        true => Ok(()),
        false => Err(format!("{what}: model {ours:?}, server {real:?}")),
    }
}

fn near(what: &str, ours: u64, real: u64, slack_ms: u64) -> Result<(), String> {
    match ours.abs_diff(real) <= slack_ms {
        true => Ok(()),
        false => Err(format!("{what}: model {ours}, server {real}")),
    }
}

/// The marks themselves, and until when each is remembered.
pub(crate) fn same_marks<Mark: Debug + Ord>(
    ours: &BTreeMap<Mark, u64>,
    real: &BTreeMap<Mark, u64>,
    slack_ms: u64,
) -> Result<(), String> {
    differ("gone", &ours.keys().collect::<Vec<_>>(), &real.keys().collect())?;
    ours.iter().try_for_each(|(mark, until)| {
        near(&format!("until of {mark:?}"), *until, real[mark], slack_ms)
    })
}

/// When the keys end, but for those of which that is not known.
pub(crate) fn same_ends(
    ours: &Ends,
    real: &Ends,
    slack_ms: u64,
    unsure: impl Fn(Key) -> bool,
) -> Result<(), String> {
    let mut sure = (0..KEYS.len()).filter(|at| !unsure(KEYS[*at]));
    sure.try_for_each(|at| near(&format!("end of {:?}", KEYS[at]), ours[at], real[at], slack_ms))
}

/// I17: no key lives longer than the longest thing that it may hold.
pub(crate) fn ends_in_time(
    ends_ms: &Ends,
    now_ms: u64,
    longest_ms: &[(Key, u64)],
) -> Result<(), String> {
    let back_ms = STEPS as u64 * 3_000; // all the steps back that a case can have
    for (key, longest_ms) in longest_ms {
        let at = KEYS.iter().position(|one| one == key).expect("a key");
        if ends_ms[at] > now_ms + longest_ms + back_ms {
            return Err(format!("I17: {key:?} ends at {}", ends_ms[at]));
        }
    }
    Ok(())
}

/// A moment that is said to be that of the call must be.
pub(crate) fn of_the_call(at_us: u64, seen: &Seen, request: &impl Debug) -> Result<(), String> {
    match (seen.before_us..=seen.called_us).contains(&at_us) {
        true => Ok(()),
        false => Err(format!("clock: {at_us} in {request:?} is not the server's")),
    }
}

pub(crate) fn same_answer(
    ours: &Answer,
    real: &Answer,
    slack_ms: u64,
    request: &impl Debug,
) -> Result<(), String> {
    match ours.agrees(real, slack_ms) {
        true => Ok(()),
        false => Err(format!("reply: model {ours:?}, server {real:?} to {request:?}")),
    }
}
