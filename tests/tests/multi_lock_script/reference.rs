//! What taking several has to answer, by rules that are as short as the protocol's own words.

use std::collections::HashMap;

use leasehold_lua::Share;
use leasehold_lua::multi::{MultiReply, Taken};

use crate::bench::{Element, OBJECTS};

#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub(crate) id: String,
    pub(crate) owner: String,
    pub(crate) share: Share,
    pub(crate) deadline_ms: u64,
    pub(crate) token: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Object {
    pub(crate) holds: Vec<Hold>,
    pub(crate) waited_for: bool,
    pub(crate) limit: Option<u32>,
    /// The last token that was minted.
    pub(crate) token: u64,
    /// Cancelled, until when.
    pub(crate) gone: HashMap<String, u64>,
}

/// What a call must answer, apart from its numbers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Taken,
    Busy(u64),
    Torn(u64),
    Cancelled(u64),
    NeverFits(u64),
    LimitDiffers(u64, u32),
}

impl Answer {
    pub(crate) fn of(reply: &MultiReply) -> Option<Self> {
        Some(match *reply {
            MultiReply::Taken { .. } => Self::Taken,
            MultiReply::Busy { which, again: false, .. } => Self::Busy(which),
            MultiReply::Busy { .. } | MultiReply::TooManyEntries { .. } => return None,
            MultiReply::Torn { which } => Self::Torn(which),
            MultiReply::Cancelled { which } => Self::Cancelled(which),
            MultiReply::NeverFits { which } => Self::NeverFits(which),
            MultiReply::LimitDiffers { which, server } => Self::LimitDiffers(which, server),
        })
    }
}

impl Object {
    pub(crate) fn live(&self, now_ms: u64) -> impl Iterator<Item = &Hold> {
        self.holds.iter().filter(move |hold| hold.deadline_ms > now_ms)
    }

    pub(crate) fn hold(&self, id: &str, now_ms: u64) -> Option<&Hold> {
        self.live(now_ms).find(|hold| hold.id == id)
    }

    /// An owner that holds may enter again, past the queue.
    fn may_reenter(&self, it: &Element, now_ms: u64) -> bool {
        let own = || self.live(now_ms).filter(|hold| hold.owner == it.owner);
        match (OBJECTS[it.object].0, it.share) {
            ("semaphore", _) => false,
            ("rwlock", Share::Exclusive) => {
                own().any(|hold| hold.share == Share::Exclusive)
                    || (own().count() > 0 && own().count() == self.live(now_ms).count())
            }
            _ => own().count() > 0,
        }
    }

    fn fits(&self, it: &Element, now_ms: u64) -> bool {
        match it.share {
            Share::Weight(weight) => {
                let used: u32 = self.live(now_ms).map(|hold| weight_of(hold.share)).sum();
                used + weight <= self.limit.unwrap_or(it.limit)
            }
            Share::Read => self.live(now_ms).all(|hold| hold.share == Share::Read),
            Share::Exclusive => self.live(now_ms).count() == 0,
        }
    }

    fn refusal(&self, which: u64, it: &Element, now_ms: u64) -> Option<Answer> {
        if self.gone.get(&it.id).is_some_and(|until| *until > now_ms) {
            return Some(Answer::Cancelled(which));
        }
        let limit = self.limit.unwrap_or(it.limit);
        if it.is_permit() && it.strict && limit != it.limit {
            return Some(Answer::LimitDiffers(which, limit));
        }
        if self.may_reenter(it, now_ms) {
            return None;
        }
        if it.is_permit() && weight_of(it.share) > limit {
            return Some(Answer::NeverFits(which));
        }
        (self.waited_for || !self.fits(it, now_ms)).then_some(Answer::Busy(which))
    }

    /// The token that it has to have; a fresh one is larger than the last and not behind the clock or the floor.
    fn check_token(
        &mut self,
        it: &Element,
        token: u64,
        now_us: u64,
        floor: u64,
    ) -> Result<(), String> {
        let now_ms = now_us / 1000;
        let own = |hold: &&Hold| hold.owner == it.owner;
        let exclusive = |hold: &&Hold| hold.share == Share::Exclusive;
        let inherited = self.live(now_ms).filter(own).find(exclusive).map(|hold| hold.token);
        let right = match (it.share, inherited) {
            (Share::Weight(_), _) => token == 0,
            (_, Some(mate)) => token == mate,
            (Share::Read, None) => token == self.token,
            (Share::Exclusive, None) => {
                let last = std::mem::replace(&mut self.token, token);
                token > last && token >= now_us && token > floor
            }
        };
        right.then_some(()).ok_or_else(|| format!("token {token} of {it:?}"))
    }
}

pub(crate) fn weight_of(share: Share) -> u32 {
    match share {
        Share::Weight(weight) => weight,
        Share::Exclusive | Share::Read => 1,
    }
}

/// All or none, I16.
pub(crate) fn expected(objects: &[Object], elements: &[Element], now_ms: u64) -> Answer {
    let numbered = || elements.iter().zip(0..);
    let held = |it: &Element| objects[it.object].hold(&it.id, now_ms).is_some();
    let missing = numbered().find(|(it, _)| !held(it)).map(|(_, which)| which);
    match (elements.iter().any(held), missing) {
        (_, None) => Answer::Taken,
        (true, Some(which)) => Answer::Torn(which),
        (false, Some(_)) => numbered()
            .find_map(|(it, which)| objects[it.object].refusal(which, it, now_ms))
            .unwrap_or(Answer::Taken),
    }
}

/// Compares a reply with the rules, and takes over what it did.
pub(crate) fn compare(
    objects: &mut [Object],
    elements: &[Element],
    floor: u64,
    now_ms: u64,
    reply: &MultiReply,
) -> Result<(), String> {
    let expected = expected(objects, elements, now_ms);
    let answer = Answer::of(reply);
    if answer.as_ref() != Some(&expected) {
        return Err(format!("{reply:?} instead of {expected:?}"));
    }
    let MultiReply::Taken { now_us, holds } = reply else { return Ok(()) };
    if holds.len() != elements.len() {
        return Err(format!("{} holds of {}", holds.len(), elements.len()));
    }
    for (it, taken) in elements.iter().zip(holds) {
        take_over(&mut objects[it.object], it, *taken, *now_us, floor)?;
    }
    Ok(())
}

fn take_over(
    object: &mut Object,
    it: &Element,
    taken: Taken,
    now_us: u64,
    floor: u64,
) -> Result<(), String> {
    let now_ms = now_us / 1000;
    if let Some(hold) = object.hold(&it.id, now_ms) {
        // A resend changes nothing (I6). A reader that there was no token for may be told the first that there is.
        let token = hold.token == taken.token || (hold.token == 0 && taken.token == object.token);
        let same = hold.deadline_ms == now_ms + taken.left_ms && token;
        return same.then_some(()).ok_or_else(|| format!("{taken:?} of {hold:?} at {now_ms}"));
    }
    if taken.left_ms != it.lease_ms {
        return Err(format!("{taken:?} of a lease of {}", it.lease_ms));
    }
    if it.is_permit() && taken.limit != object.limit.unwrap_or(it.limit) {
        return Err(format!("{taken:?}, and the limit is {:?}", object.limit));
    }
    object.check_token(it, taken.token, now_us, floor)?;
    object.holds.retain(|hold| hold.id != it.id); // a resend after its end takes anew
    object.holds.push(Hold {
        id: it.id.clone(),
        owner: it.owner.clone(),
        share: it.share,
        deadline_ms: now_ms + taken.left_ms,
        token: taken.token,
    });
    Ok(())
}
