//! From the server's values to the forms that both sides share.

use std::collections::BTreeMap;

use leasehold_lua::Reply;
use leasehold_lua::fair::CancelReply;
use leasehold_lua::mutex::{AdoptReply, HoldState, Inspection, QueueReply};
use leasehold_lua::reply::{
    AcquireReply, CheckAnswer, CheckReply, ForceReply, ReleaseReply, RenewReply, Why,
};
use leasehold_lua::wire::Push as Message;
use redis::Value;

use super::answer::{Answer, Snapshot};
use super::reference::{Entry, Mark, Push};
use super::request::{Request, World, note, number_of, owner_name};

pub(crate) fn time(value: &Value) -> u64 {
    let Value::Array(parts) = value else { panic!("not a time: {value:?}") };
    number(&parts[0]) * 1_000_000 + number(&parts[1])
}

pub(crate) fn int(value: &Value) -> i64 {
    let Value::Int(number) = value else { panic!("not an integer: {value:?}") };
    *number
}

fn number(value: &Value) -> u64 {
    text(value).parse().expect("a number")
}

fn text(value: &Value) -> String {
    let Value::BulkString(bytes) = value else { panic!("not a string: {value:?}") };
    String::from_utf8_lossy(bytes).into_owned()
}

/// Channel and payload.
pub(crate) fn message(value: Value) -> (String, Vec<u8>) {
    let Value::Array(parts) = value else { panic!("not a message: {value:?}") };
    match &parts[..] {
        [kind, channel, Value::BulkString(payload)] if text(kind) == "message" => {
            (text(channel), payload.clone())
        }
        _ => panic!("not a message: {parts:?}"),
    }
}

/// A script's reply; a script that failed is a violation, not a panic.
#[expect(clippy::wildcard_enum_match_arm, reason = "the client's enum is open")]
pub(crate) fn reply(value: Value) -> Result<Reply, String> {
    Ok(match value {
        Value::Nil => Reply::Nil,
        Value::Int(number) => Reply::Int(number),
        Value::BulkString(bytes) => Reply::Bytes(bytes),
        Value::Array(values) => {
            Reply::List(values.into_iter().map(reply).collect::<Result<_, _>>()?)
        }
        Value::ServerError(error) => return Err(format!("script failed: {error:?}")),
        other => return Err(format!("script answered {other:?}")),
    })
}

/// The pushes by inbox, sorted, and the moment that they were made.
pub(crate) fn pushes(messages: Vec<(usize, Message)>) -> (Option<u64>, Vec<(usize, Push)>) {
    let mut made_us = None;
    let mut all = Vec::new();
    for (inbox, message) in messages {
        let push = match message {
            Message::Granted { uuid, token, lease_ms, at_us } => {
                made_us = Some(at_us);
                Push::Granted { id: number_of(&uuid), token, lease_ms }
            }
            Message::Forced { uuid } => Push::Forced { id: number_of(&uuid) },
            Message::Adopted { uuid } => Push::Adopted { id: number_of(&uuid) },
            Message::Cancelled { uuid } => Push::Cancelled { id: number_of(&uuid) },
            Message::Refused { .. } => panic!("an exclusive lock never refuses a waiter"),
            Message::Over { .. } => panic!("no latch is here"),
            Message::Proof { .. } => panic!("nobody proves an inbox here"),
        };
        all.push((inbox, push));
    }
    all.sort();
    (made_us, all)
}

/// The answer, and the server's clock where the answer has it.
pub(crate) fn answer(request: &Request, reply: &Reply) -> Result<(Answer, Option<u64>), String> {
    let read = match request {
        Request::Acquire { .. } => AcquireReply::decode(reply).map(acquired),
        Request::Check { .. } => CheckReply::decode(reply).map(checked),
        Request::Renew { .. } => {
            RenewReply::decode(reply).map(|(now_us, answers)| (renewed(answers), Some(now_us)))
        }
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

fn acquired(reply: AcquireReply) -> (Answer, Option<u64>) {
    match reply {
        AcquireReply::Taken { token, left_ms, now_us } => {
            (Answer::new("taken").exact(token).about(left_ms), Some(now_us))
        }
        AcquireReply::Queued { position, check_ms, ticket, again, now_us } => {
            let answer = Answer::new("queued").exact(position).exact(ticket);
            (answer.about(check_ms).again(again), Some(now_us))
        }
        AcquireReply::Busy { left_ms, again, now_us } => {
            (Answer::new("busy").about(left_ms).again(again), Some(now_us))
        }
        AcquireReply::Saturated { retry_ms, again, now_us } => {
            (Answer::new("saturated").about(retry_ms).again(again), Some(now_us))
        }
        AcquireReply::Cancelled => (Answer::new("cancelled"), None),
        AcquireReply::TooManyEntries => (Answer::new("too many entries"), None),
        AcquireReply::NeverFits => (Answer::new("never fits"), None),
        AcquireReply::LimitDiffers { .. } => (Answer::new("limit differs"), None),
    }
}

fn checked(reply: CheckReply) -> (Answer, Option<u64>) {
    let mut answer = Answer::new("checked").about(reply.check_ms).again(reply.again);
    for one in reply.answers {
        answer = match one {
            CheckAnswer::Taken { token, left_ms } => {
                answer.and("taken").exact(token).about(left_ms)
            }
            CheckAnswer::Queued { position, ticket } => {
                answer.and("queued").exact(position).exact(ticket)
            }
            CheckAnswer::Cancelled => answer.and("cancelled"),
            CheckAnswer::TooManyEntries => answer.and("too many entries"),
            CheckAnswer::NeverFits => answer.and("never fits"),
        };
    }
    (answer, Some(reply.now_us))
}

fn renewed(answers: Vec<RenewReply>) -> Answer {
    answers.into_iter().fold(Answer::new("renewals"), |answer, one| match one {
        RenewReply::Renewed { left_ms } => answer.and("renewed").about(left_ms),
        RenewReply::NotHeld { why } => answer.and("not held").and(word(why)),
        RenewReply::Refused { .. } => answer.and("refused"),
    })
}

fn released(reply: ReleaseReply) -> (Answer, Option<u64>) {
    let again = reply.again();
    let (answer, now_us) = match reply {
        ReleaseReply::Released { .. } => (Answer::new("released"), None),
        ReleaseReply::Left { position, left_ms, since_ms, note, now_us, .. } => {
            let answer = Answer::new("left").exact(position).about(left_ms);
            let holder = (!note.is_empty()).then(|| (id_in(&note), since_ms));
            (answer.holders(holder.into_iter().collect()), Some(now_us))
        }
        ReleaseReply::NotHeld { why, .. } => (Answer::new("not held").and(word(why)), None),
    };
    (answer.again(again), now_us)
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

fn queue(found: &QueueReply) -> (Answer, Option<u64>) {
    let mut answer = Answer::new("waiters").exact(found.length);
    for waiting in &found.waiting {
        answer = answer.exact(waiting.ticket);
        if waiting.deadline_ms > 0 {
            answer = answer.exact(id_in(&waiting.note) as u64).exact(waiting.deadline_ms);
        }
    }
    (answer, Some(found.now_us))
}

fn word(why: Why) -> &'static str {
    match why {
        Why::Absent => "absent",
        Why::OtherHolder => "other holder",
        Why::Forced => "forced",
    }
}

/// The acquisition that a note describes; the note must have come through whole.
fn id_in(raw: &[u8]) -> usize {
    let id = number_of(&String::from_utf8_lossy(raw));
    assert_eq!(raw, note(id).as_bytes(), "a note was changed on its way");
    id
}

/// The five keys as the model has them; entries only while they live at `now_ms`.
pub(crate) fn snapshot(world: &World, keys: &[Value], now_ms: u64) -> Result<Snapshot, String> {
    let mut snapshot = Snapshot::default();
    for (field, value) in pairs(&keys[0]) {
        match field.as_str() {
            "owner" => snapshot.owner = Some(owner_number(&value)?),
            "token" => snapshot.hold_token = value.parse().ok(),
            "cooling" => snapshot.cooling = Some(id_of(world, &value)?),
            id => {
                let id = id_of(world, id)?;
                let entry = entry(&value, id)?;
                if entry.deadline_ms > now_ms {
                    snapshot.entries.insert(id, entry);
                }
            }
        }
    }
    for (id, ticket) in pairs(&keys[1]) {
        let ticket = ticket.parse().map_err(|_| format!("ticket {ticket}"))?;
        snapshot.queue.push((ticket, id_of(world, &id)?));
    }
    snapshot.timeouts = timeouts(world, &keys[2], &mut snapshot.last_ticket)?;
    snapshot.token = (keys[3] != Value::Nil).then(|| number(&keys[3]));
    for (member, until) in pairs(&keys[4]) {
        let mark = mark(world, &member)?;
        snapshot.gone.insert(mark, until.parse().map_err(|_| format!("until {until}"))?);
    }
    Ok(snapshot)
}

fn timeouts(
    world: &World,
    key: &Value,
    last_ticket: &mut u64,
) -> Result<BTreeMap<usize, u64>, String> {
    let mut all = BTreeMap::new();
    for (field, value) in pairs(key) {
        if field == "#" {
            *last_ticket = value.parse().map_err(|_| format!("last ticket {value}"))?;
            continue;
        }
        let id = id_of(world, &field)?;
        let described = format!("|{}|{}", owner_name(world.acquisitions[id].owner), note(id));
        let deadline = value.strip_suffix(&described).and_then(|deadline| deadline.parse().ok());
        all.insert(id, deadline.ok_or_else(|| format!("waiter {value}"))?);
    }
    Ok(all)
}

fn pairs(value: &Value) -> Vec<(String, String)> {
    let Value::Array(parts) = value else { panic!("not a list: {value:?}") };
    parts.chunks(2).map(|pair| (text(&pair[0]), text(&pair[1]))).collect()
}

fn id_of(world: &World, raw: &str) -> Result<usize, String> {
    let id = number_of(raw);
    if world.id(id) == raw.as_bytes() { Ok(id) } else { Err(format!("{raw} is no acquisition")) }
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
        return id_of(world, member).map(Mark::Gone);
    };
    match forced.parse() {
        Ok(token) => Ok(Mark::ForcedToken(token)),
        Err(_) => id_of(world, forced).map(Mark::ForcedId),
    }
}
