//! From the server's values to the forms that both sides share.

use leasehold_lua::Reply;
use leasehold_lua::holders::{Listed, forced};
use leasehold_lua::mutex::{AdoptReply, QueueReply};
use leasehold_lua::reply::{AcquireReply, CheckReply, ExchangeReply, ReleaseReply, RenewReply};
use leasehold_lua::rwlock::Inspection;

use super::answer::Answer;
use super::keys::Found;
use super::names::number_of;
use super::reference::{Mark, Member, Note};
use super::replies::{acquired, checked, id_in, queue, released, renewed, word};
use super::request::{Request, World};
use super::snapshot::Snapshot;
use super::waiters::Waiters;
use super::world::Acquisitions;

/// The answer, and the server's clock where the answer has it.
pub(crate) fn answer(request: &Request, reply: &Reply) -> Result<(Answer, Option<u64>), String> {
    let read = match request {
        Request::Acquire { .. } => AcquireReply::decode(reply).map(acquired),
        Request::Check { .. } => CheckReply::decode(reply).map(checked),
        Request::Renew { .. } => RenewReply::decode(reply).map(renewed),
        Request::Release { .. } => ReleaseReply::decode(reply).map(released),
        Request::Exchange { .. } => return exchanged(reply),
        Request::Adopt { .. } => AdoptReply::decode(reply).map(adopted),
        Request::Force { .. } => forced(reply)
            .map(|(count, again)| (Answer::new("ended").exact(count).again(again), None)),
        Request::Inspect => Inspection::decode(reply).map(|found| inspected(&found)),
        Request::Queue { .. } => QueueReply::decode(reply).map(|found| queue(&found)),
    };
    read.map_err(|error| format!("{error}: {reply:?}"))
}

fn exchanged(reply: &Reply) -> Result<(Answer, Option<u64>), String> {
    let said = ExchangeReply::decode(reply).map_err(|error| format!("{error}: {reply:?}"))?;
    Ok(match said {
        ExchangeReply::Done { again, token, left_ms, now_us } => {
            (Answer::new("taken").exact(token).about(left_ms).again(again), Some(now_us))
        }
        ExchangeReply::NotHeld { why } => {
            let again = matches!(reply, Reply::List(parts) if parts[1] == Reply::Int(1));
            (Answer::new("not held").and(word(why)).again(again), None)
        }
        ExchangeReply::Refused { again } => (Answer::new("refused").exact(again.into()), None),
        ExchangeReply::Cancelled => (Answer::new("cancelled"), None),
    })
}

fn adopted(reply: AdoptReply) -> (Answer, Option<u64>) {
    match reply {
        AdoptReply::Adopted { token, left_ms, now_us } => {
            (Answer::new("taken").exact(token).about(left_ms), Some(now_us))
        }
        AdoptReply::NotHeld { why } => (Answer::new("not held").and(word(why)), None),
        AdoptReply::Cancelled => (Answer::new("cancelled"), None),
    }
}

fn inspected(found: &Inspection) -> (Answer, Option<u64>) {
    let answer = Answer::new("holds").exact(found.waiters).exact(found.token).exact(found.ends_ms);
    let one = |answer: Answer, hold: &Listed| {
        let id = number_of(&String::from_utf8_lossy(&hold.id));
        assert!(hold.note.is_empty() || id_in(&hold.note) == id || hold.since_ms > 0);
        let answer = answer.and(if hold.cooling { "cooling" } else { "held" });
        answer.exact(id as u64).exact(hold.deadline_ms).exact(hold.since_ms)
    };
    (found.holds.iter().fold(answer, one), Some(found.now_us))
}

/// The keys as the model has them.
pub(crate) fn snapshot(world: &World, found: &Found) -> Result<Snapshot, String> {
    let mut snapshot =
        Snapshot { token: found.token, ends_ms: found.ends_ms, ..Snapshot::default() };
    for (name, deadline) in &found.holds {
        snapshot.holds.insert(member(world, name)?, *deadline);
    }
    for (field, value) in &found.notes {
        match field.strip_prefix('=') {
            Some(owner) => {
                snapshot.lists.insert(owner_number(owner)?, packed(&world.acquisitions, value)?);
            }
            None => {
                let value = String::from_utf8_lossy(value);
                snapshot.notes.insert(member(world, field)?, noted(&value)?);
            }
        }
    }
    snapshot.waiters = Waiters::decode(&world.acquisitions, found)?;
    for (mark, until) in &found.gone {
        let mark = match mark.split_once('|') {
            Some(("forced", id)) => Mark::Forced(world.acquisitions.number(id)?),
            Some(("adopted", id)) => Mark::Adopted(world.acquisitions.number(id)?),
            Some(_) | None => Mark::Gone(world.acquisitions.number(mark)?),
        };
        snapshot.gone.insert(mark, *until);
    }
    Ok(snapshot)
}

fn member(world: &World, raw: &str) -> Result<Member, String> {
    let member = match raw.strip_prefix('-') {
        Some(id) => Member::Cooling(number_of(id)),
        None if raw == "~w" => Member::Writing,
        None => Member::Id(number_of(raw)),
    };
    if member.name(world) == raw { Ok(member) } else { Err(format!("{raw} is no hold")) }
}

fn owner_number(name: &str) -> Result<usize, String> {
    let number = name.strip_prefix("owner ").and_then(|number| number.parse().ok());
    number.ok_or_else(|| format!("owner {name}"))
}

fn noted(value: &str) -> Result<Note, String> {
    let parts: Vec<_> = value.splitn(4, '|').collect();
    let [since_ms, token, owner, described] = parts[..] else {
        return Err(format!("note {value}"));
    };
    let number = |text: &str| text.parse().map_err(|_| format!("note {value}"));
    let owner = if owner.is_empty() { None } else { Some(owner_number(owner)?) };
    let of = id_in(described.as_bytes());
    Ok(Note { since_ms: number(since_ms)?, token: number(token)?, owner, of })
}

/// A MessagePack array of short strings.
fn packed(acquisitions: &Acquisitions, raw: &[u8]) -> Result<Vec<usize>, String> {
    let bad = || format!("list {:?}", raw.escape_ascii().to_string());
    let (first, mut rest) = raw.split_first().ok_or_else(bad)?;
    let mut ids = Vec::new();
    for _ in 0..first.checked_sub(0x90).ok_or_else(bad)? {
        let (head, tail) = rest.split_first().ok_or_else(bad)?;
        let (length, tail) = match head {
            0xd9 => tail.split_first().map(|(length, tail)| (*length, tail)).ok_or_else(bad)?,
            short => (short.checked_sub(0xa0).ok_or_else(bad)?, tail),
        };
        let (id, tail) = tail.split_at_checked(length.into()).ok_or_else(bad)?;
        ids.push(acquisitions.number(&String::from_utf8_lossy(id))?);
        rest = tail;
    }
    if rest.is_empty() { Ok(ids) } else { Err(bad()) }
}
