//! From the server's values to the forms that both sides share, and back to the keys as the server must have them.

use std::collections::BTreeMap;

use leasehold_lua::Reply;
use leasehold_lua::holders::{Listed, forced};
use leasehold_lua::mutex::QueueReply;
use leasehold_lua::reply::{AcquireReply, CheckReply, ReleaseReply, RenewReply};
use leasehold_lua::semaphore::{self, Inspection, ManyReply, MergeReply, SplitReply};
use leasehold_lua::{DecodeError, Share};

use super::Holds;
use super::answer::Answer;
use super::names::{note, number_of, owner_name};
use super::reference::{Mark, Note, Reference};
use super::replies::{acquired, checked, id_in, queue, released, renewed, word};
use super::request::{Member, Request, World};

type Read = Result<(Answer, Option<u64>), DecodeError>;

/// The answer, and the server's clock where the answer has it.
pub(crate) fn answer(request: &Request, reply: &Reply) -> Result<(Answer, Option<u64>), String> {
    let read = match request {
        Request::Acquire { .. } => taken(reply),
        Request::Check { .. } => CheckReply::decode(reply).map(checked),
        Request::Renew { .. } => RenewReply::decode(reply).map(renewed),
        Request::Release { .. } => ReleaseReply::decode(reply).map(released),
        Request::ReleaseMany { .. } => ManyReply::decode(reply).map(|many| (ended(many), None)),
        Request::SetLimit { .. } => {
            semaphore::limit_set(reply).map(|again| (Answer::new("set").again(again), last(reply)))
        }
        Request::Split { .. } => split(reply),
        Request::Merge { .. } => merged(reply),
        Request::Adopt { .. } => adopted(reply),
        Request::Force { .. } => forced(reply)
            .map(|(count, again)| (Answer::new("ended").exact(count).again(again), None)),
        Request::Inspect { .. } => Inspection::decode(reply).map(|found| inspected(&found)),
        Request::Queue { .. } => QueueReply::decode(reply).map(|found| queue(&found)),
    };
    read.map_err(|error| format!("{error}: {reply:?}"))
}

/// The last value of a reply, where that is the server's clock.
fn last(reply: &Reply) -> Option<u64> {
    let Reply::List(values) = reply else { return None };
    let Reply::Bytes(text) = values.last()? else { return None };
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn taken(reply: &Reply) -> Read {
    let (answer, now_us) = acquired(AcquireReply::decode(reply)?);
    Ok(match AcquireReply::differing_limit(reply) {
        Some(server) => (answer.and("differing").exact(server.into()), now_us),
        None => (answer, now_us),
    })
}

fn ended(reply: ManyReply) -> Answer {
    let all = reply.answers.into_iter().fold(Answer::new("many"), |answer, one| match one {
        Ok(()) => answer.and("released"),
        Err(why) => answer.and("not held").and(word(why)),
    });
    all.again(reply.again)
}

fn split(reply: &Reply) -> Read {
    let answer = match SplitReply::decode(reply)? {
        SplitReply::Split { left_ms } => Answer::new("split").about(left_ms),
        SplitReply::NotHeld { why } => Answer::new("not held").and(word(why)),
        SplitReply::TooMuch { weight } => Answer::new("too much").exact(weight.into()),
        SplitReply::Cancelled => Answer::new("cancelled"),
    };
    Ok((answer, last(reply)))
}

fn merged(reply: &Reply) -> Read {
    let answer = match MergeReply::decode(reply)? {
        MergeReply::Merged { weight, left_ms } => {
            Answer::new("merged").exact(weight.into()).about(left_ms)
        }
        MergeReply::KeptNotHeld { why } => Answer::new("kept not held").and(word(why)),
        MergeReply::MergedNotHeld { why } => Answer::new("merged not held").and(word(why)),
        MergeReply::EndedTogether { why } => Answer::new("both ended").and(word(why)),
    };
    Ok((answer, last(reply)))
}

fn adopted(reply: &Reply) -> Read {
    use leasehold_lua::mutex::AdoptReply;
    Ok(match AdoptReply::decode(reply)? {
        AdoptReply::Adopted { left_ms, now_us, .. } => {
            let weight = semaphore::adopted_weight(reply).expect("a weight");
            (Answer::new("adopted").exact(0).about(left_ms).exact(weight.into()), Some(now_us))
        }
        AdoptReply::NotHeld { why } => (Answer::new("not held").and(word(why)), last(reply)),
        AdoptReply::Cancelled => (Answer::new("cancelled"), last(reply)),
    })
}

fn inspected(found: &Inspection) -> (Answer, Option<u64>) {
    let answer = Answer::new("found").again(found.again).exact(found.waiters);
    let answer = answer.exact(found.used.into()).exact(found.limit.into());
    let one = |answer: Answer, hold: &Listed| {
        let id = number_of(&String::from_utf8_lossy(&hold.id));
        assert!(hold.note.is_empty() || id_in(&hold.note) == id);
        let Share::Weight(weight) = hold.share else { panic!("no weight: {hold:?}") };
        let answer = answer.and(if hold.cooling { "cooling" } else { "held" });
        answer.exact(id as u64).exact(weight.into()).exact(hold.deadline_ms).exact(hold.since_ms)
    };
    (found.holds.iter().fold(answer, one), Some(found.now_us))
}

/// The holds as the server must have them.
pub(crate) fn holds(reference: &Reference) -> Holds {
    let mut all = Holds::new();
    let holds = &reference.holds.of;
    for (member, permit) in &holds.permits {
        let name = member.name(&reference.world);
        if let Some(weight) = permit.changed {
            all.insert(format!("={name}"), weight.into());
        }
        all.insert(name, permit.deadline_ms);
    }
    for (name, number) in [("#u", holds.used), ("#l", holds.limit)] {
        all.extend(number.map(|number| (name.to_owned(), u64::from(number))));
    }
    all
}

/// The notes as the server must have them.
pub(crate) fn notes(reference: &Reference) -> BTreeMap<String, Vec<u8>> {
    let (world, notes) = (&reference.world, &reference.notes.of);
    let members = notes.of.iter();
    let members =
        members.map(|(member, noted)| (member.name(world), noted_as(*member, *noted).into_bytes()));
    let owners = notes.lists.iter();
    let owners =
        owners.map(|(owner, ids)| (format!("={}", owner_name(*owner)), packed(world, ids)));
    members.chain(owners).collect()
}

/// What has ended, as the server must have it.
pub(crate) fn gone(reference: &Reference) -> BTreeMap<String, u64> {
    let marks = reference.gone.of.iter();
    marks.map(|(mark, until)| (mark_name(&reference.world, *mark), *until)).collect()
}

pub(crate) fn mark_name(world: &World, mark: Mark) -> String {
    match mark {
        Mark::Gone((false, id)) => world.acquisitions.id(id),
        Mark::Gone((true, owner)) => owner_name(owner),
        Mark::Forced(id) => format!("forced|{}", world.acquisitions.id(id)),
        Mark::Adopted(id) => format!("adopted|{}", world.acquisitions.id(id)),
        Mark::Merged(kept, merged) => {
            format!("merged|{}|{}", world.acquisitions.id(kept), world.acquisitions.id(merged))
        }
    }
}

fn noted_as(member: Member, noted: Note) -> String {
    let owner = noted.owner.map(owner_name).unwrap_or_default();
    format!("{}|0|{owner}|{}", noted.since_ms, note(member.id))
}

/// As MessagePack has a short list of short texts.
fn packed(world: &World, ids: &[usize]) -> Vec<u8> {
    let count = u8::try_from(ids.len()).expect("a short list");
    let mut bytes = vec![0x90 | count];
    for id in ids {
        let id = world.acquisitions.id(*id);
        bytes.push(0xa0 | u8::try_from(id.len()).expect("a short text"));
        bytes.extend_from_slice(id.as_bytes());
    }
    bytes
}
