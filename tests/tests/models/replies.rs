//! The replies that all kinds have, in the form that the models speak; with the server's clock where a reply has it.

use leasehold_lua::mutex::QueueReply;
use leasehold_lua::reply::{AcquireReply, CheckAnswer, CheckReply, ReleaseReply, RenewReply, Why};

use super::answer::Answer;
use super::names::{note, number_of};

pub(crate) fn acquired(reply: AcquireReply) -> (Answer, Option<u64>) {
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
        AcquireReply::LimitDiffers { server } => {
            (Answer::new("limit differs").exact(server.into()), None)
        }
    }
}

pub(crate) fn checked(reply: CheckReply) -> (Answer, Option<u64>) {
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

pub(crate) fn renewed((now_us, answers): (u64, Vec<RenewReply>)) -> (Answer, Option<u64>) {
    let answer = answers.into_iter().fold(Answer::new("renewals"), |answer, one| match one {
        RenewReply::Renewed { left_ms } => answer.and("renewed").about(left_ms),
        RenewReply::NotHeld { why } => answer.and("not held").and(word(why)),
        RenewReply::Refused { .. } => answer.and("refused"),
    });
    (answer, Some(now_us))
}

pub(crate) fn released(reply: ReleaseReply) -> (Answer, Option<u64>) {
    let again = reply.again();
    let (answer, now_us) = match reply {
        ReleaseReply::Released { .. } => (Answer::new("released"), None),
        ReleaseReply::Left { position, left_ms, since_ms, note, now_us, .. } => {
            let answer = Answer::new("left").exact(position).about(left_ms);
            (answer.holders((!note.is_empty()).then(|| (id_in(&note), since_ms))), Some(now_us))
        }
        ReleaseReply::NotHeld { why, .. } => (Answer::new("not held").and(word(why)), None),
    };
    (answer.again(again), now_us)
}

pub(crate) fn queue(found: &QueueReply) -> (Answer, Option<u64>) {
    let mut answer = Answer::new("waiters").exact(found.length);
    for waiting in &found.waiting {
        answer = answer.exact(waiting.ticket);
        if waiting.deadline_ms > 0 {
            answer = answer.exact(id_in(&waiting.note) as u64).exact(waiting.deadline_ms);
        }
    }
    (answer, Some(found.now_us))
}

pub(crate) fn word(why: Why) -> &'static str {
    match why {
        Why::Absent => "absent",
        Why::OtherHolder => "other holder",
        Why::Forced => "forced",
    }
}

/// The acquisition that a note describes; the note must have come through whole.
pub(crate) fn id_in(raw: &[u8]) -> usize {
    let id = number_of(&String::from_utf8_lossy(raw));
    assert_eq!(raw, note(id).as_bytes(), "a note was changed on its way");
    id
}
