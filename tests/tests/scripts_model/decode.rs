//! From the server's values to the forms that both sides share.

use leasehold_lua::Reply;
use leasehold_lua::fair::CancelReply;
use leasehold_lua::mutex::{AdoptReply, HoldState, Inspection, QueueReply};
use leasehold_lua::reply::{AcquireReply, CheckReply, ForceReply, ReleaseReply, RenewReply};

use super::answer::Answer;
use super::keys::Found;
use super::names::{note, number_of};
use super::reference::{Entry, Mark};
use super::replies::{acquired, checked, id_in, queue, released, renewed, word};
use super::request::{Request, World};
use super::snapshot::Snapshot;
use super::waiters::Waiters;

/// The answer, and the server's clock where the answer has it.
pub(crate) fn answer(request: &Request, reply: &Reply) -> Result<(Answer, Option<u64>), String> {
    let read = match request {
        Request::Acquire { .. } => AcquireReply::decode(reply).map(acquired),
        Request::Check { .. } => CheckReply::decode(reply).map(checked),
        Request::Renew { .. } => RenewReply::decode(reply).map(renewed),
        Request::Release { .. } => ReleaseReply::decode(reply).map(released),
        Request::Adopt { .. } => AdoptReply::decode(reply).map(adopted),
        Request::Force { .. } => ForceReply::decode(reply).map(|ForceReply { ended, again }| {
            (Answer::new(if ended { "ended" } else { "not that hold" }).again(again), None)
        }),
        Request::Cancel { .. } => {
            CancelReply::decode(reply).map(|CancelReply { cancelled, again }| {
                let says = if cancelled { "cancelled" } else { "no such waiter" };
                (Answer::new(says).again(again), None)
            })
        }
        Request::Inspect => Inspection::decode(reply).map(inspected),
        Request::Queue { .. } => QueueReply::decode(reply).map(|found| queue(&found)),
    };
    read.map_err(|error| format!("{error}: {reply:?}"))
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

fn inspected(found: Inspection) -> (Answer, Option<u64>) {
    let state = match found.state {
        HoldState::Free => "free",
        HoldState::Held => "held",
        HoldState::CoolingDown => "cooling down",
        HoldState::Foreign => "foreign",
    };
    let answer = Answer::new(state).about(found.left_ms).exact(found.token).exact(found.waiters);
    let mut entries: Vec<_> = found
        .entries
        .into_iter()
        .map(|entry| (id_in(&entry.note), entry.deadline_ms, entry.since_ms))
        .collect();
    entries.sort_unstable();
    let answer = entries.into_iter().fold(answer, |answer, (id, deadline_ms, since_ms)| {
        answer.exact(id as u64).exact(deadline_ms).exact(since_ms)
    });
    (answer, Some(found.now_us))
}

/// The keys as the model has them; entries only while they live at `now_ms`.
pub(crate) fn snapshot(world: &World, found: &Found, now_ms: u64) -> Result<Snapshot, String> {
    let mut snapshot =
        Snapshot { token: found.token, ends_ms: found.ends_ms, ..Snapshot::default() };
    if !found.notes.is_empty() {
        return Err("a mutex has no notes".to_owned());
    }
    for (field, value) in &found.holds {
        match field.as_str() {
            "owner" => snapshot.owner = Some(owner_number(value)?),
            "token" => snapshot.hold_token = value.parse().ok(),
            "cooling" => snapshot.cooling = Some(world.acquisitions.number(value)?),
            id => {
                let id = world.acquisitions.number(id)?;
                let entry = entry(value, id)?;
                if entry.deadline_ms > now_ms {
                    snapshot.entries.insert(id, entry);
                }
            }
        }
    }
    snapshot.waiters = Waiters::decode(&world.acquisitions, found)?;
    for (member, until) in &found.gone {
        snapshot.gone.insert(mark(world, member)?, *until);
    }
    Ok(snapshot)
}

fn owner_number(name: &str) -> Result<usize, String> {
    let number = name.strip_prefix("owner ").and_then(|number| number.parse().ok());
    number.ok_or_else(|| format!("owner {name}"))
}

fn entry(value: &str, id: usize) -> Result<Entry, String> {
    let mut parts = value.splitn(3, '|');
    let mut ms = || parts.next().and_then(|ms| ms.parse().ok());
    let (Some(deadline_ms), Some(since_ms)) = (ms(), ms()) else {
        return Err(format!("entry {value}"));
    };
    if parts.next() != Some(note(id).as_str()) {
        return Err(format!("entry {value} of {id}"));
    }
    Ok(Entry { deadline_ms, since_ms })
}

fn mark(world: &World, member: &str) -> Result<Mark, String> {
    if let Some(named) = member.strip_prefix("cancelled|") {
        let (ticket, trace) = named.split_once('|').ok_or_else(|| format!("mark {member}"))?;
        let ticket = ticket.parse().map_err(|_| format!("mark {member}"))?;
        return Ok(Mark::Cancelled(ticket, number_of(trace)));
    }
    let Some(forced) = member.strip_prefix("forced|") else {
        return world.acquisitions.number(member).map(Mark::Gone);
    };
    match forced.parse() {
        Ok(token) => Ok(Mark::ForcedToken(token)),
        Err(_) => world.acquisitions.number(forced).map(Mark::ForcedId),
    }
}
