//! The countdown latch: a call a script, and their replies.

use crate::call::{Call, Reply, number};
use crate::keys::LatchKeys;
use crate::reply::{DecodeError, Fields};
use crate::script::Script;

static ARM: Script = Script::new("latch/arm", include_str!("../lua/latch/arm.lua"));
static COUNT_DOWN: Script =
    Script::new("latch/count_down", include_str!("../lua/latch/count_down.lua"));
static LOOK: Script = Script::new("latch/look", include_str!("../lua/latch/look.lua"));
static WAIT: Script = Script::new("latch/wait", include_str!("../lua/latch/wait.lua"));
static LEAVE: Script = Script::new("latch/leave", include_str!("../lua/latch/leave.lua"));
static RESET: Script = Script::new("latch/reset", include_str!("../lua/latch/reset.lua"));

/// Every script of the latch.
pub fn scripts() -> [&'static Script; 6] {
    [&ARM, &COUNT_DOWN, &LOOK, &WAIT, &LEAVE, &RESET]
}

/// The largest count. The ids of a generation are one key, which Redis frees at once when it ends: so many take it some
/// tens of milliseconds (I18).
pub const LARGEST_COUNT: u32 = 100_000;

/// The longest id that a user may give a count, in bytes.
pub const LONGEST_ID: usize = 128;

/// Who counts down. Calls and users never share an id, and none is the id of an arm.
#[derive(Debug, Clone, Copy)]
pub enum Counter<'a> {
    /// One call: its own uuid.
    Call(&'a str),
    /// Whatever the user names.
    Named(&'a [u8]),
}

impl Counter<'_> {
    fn id(self) -> Vec<u8> {
        match self {
            Self::Call(uuid) => [b"u", uuid.as_bytes()].concat(),
            Self::Named(id) => [b"n", id].concat(),
        }
    }
}

/// Arms it with this count, unless it is armed. `call` names the call for its resends.
pub fn arm(keys: &LatchKeys, call: &str, count: u32, expires_ms: u64) -> Call {
    let args = vec![[b"a", call.as_bytes()].concat(), number(count.into()), number(expires_ms)];
    Call { script: &ARM, keys: keys.state(), args }
}

/// Counts down in this generation.
pub fn count_down(keys: &LatchKeys, generation: u64, counter: Counter<'_>) -> Call {
    Call { script: &COUNT_DOWN, keys: keys.all(), args: vec![number(generation), counter.id()] }
}

/// How it is.
pub fn look(keys: &LatchKeys) -> Call {
    Call { script: &LOOK, keys: keys.state(), args: vec![] }
}

/// Who is told: `uuid|inbox`. The inbox comes last because a user's prefix may hold a `|`.
fn listener(uuid: &str, inbox: &[u8]) -> Vec<u8> {
    [uuid.as_bytes(), b"|", inbox].concat()
}

/// Looks, and listens while it is armed. Again: the sign of life.
pub fn wait(keys: &LatchKeys, uuid: &str, inbox: &[u8], wait_ms: u64, check_ms: u64) -> Call {
    let args = vec![listener(uuid, inbox), number(wait_ms), number(check_ms)];
    Call { script: &WAIT, keys: keys.all(), args }
}

/// Listens no longer.
pub fn leave(keys: &LatchKeys, uuid: &str, inbox: &[u8]) -> Call {
    Call { script: &LEAVE, keys: vec![keys.waiters.clone()], args: vec![listener(uuid, inbox)] }
}

/// Ends this generation.
pub fn reset(keys: &LatchKeys, generation: u64) -> Call {
    Call { script: &RESET, keys: keys.all(), args: vec![number(generation)] }
}

/// How a latch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Armed, and somebody has still to count down.
    Waits,
    /// Everybody has counted down.
    Open,
    /// It was reset, and not armed again.
    Reset,
    /// Never armed, or it ended by itself.
    NotArmed,
}

impl State {
    /// As it travels.
    pub const fn code(self) -> u64 {
        match self {
            Self::Waits => 0,
            Self::Open => 1,
            Self::Reset => 2,
            Self::NotArmed => 3,
        }
    }

    /// Reads the [`code`](Self::code).
    pub const fn of(code: u64) -> Option<Self> {
        match code {
            0 => Some(Self::Waits),
            1 => Some(Self::Open),
            2 => Some(Self::Reset),
            3 => Some(Self::NotArmed),
            _ => None,
        }
    }
}

/// What arming answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArmReply {
    /// This call armed it; `false`: it was armed.
    pub armed: bool,
    /// The generation that this call began, or that was armed.
    pub generation: u64,
}

impl ArmReply {
    /// Reads the reply of the arm script.
    ///
    /// # Errors
    /// [`DecodeError`] on anything else.
    pub fn decode(reply: &Reply) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(reply, "arm")?;
        Ok(Self { armed: fields.flag()?, generation: fields.number()? })
    }
}

/// What counting down answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountReply {
    /// Counted, now or by an earlier copy of this call.
    Counted {
        /// How many were left after it.
        left: u64,
        /// Call again at once: there are more processes to tell.
        again: bool,
    },
    /// Nothing was counted: this generation is armed.
    Other {
        /// Which.
        generation: u64,
    },
    /// Nothing was counted: it was reset.
    Reset,
    /// Nothing was counted: it is not armed.
    NotArmed,
}

impl CountReply {
    /// Reads the reply of the count_down script.
    ///
    /// # Errors
    /// [`DecodeError`] on anything else.
    pub fn decode(reply: &Reply) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(reply, "count_down")?;
        match fields.number()? {
            1 => Ok(Self::Counted { left: fields.number()?, again: fields.flag()? }),
            0 => Ok(Self::Other { generation: fields.number()? }),
            2 => Ok(Self::Reset),
            3 => Ok(Self::NotArmed),
            _ => Err(fields.unknown_code()),
        }
    }
}

/// What looking answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LookReply {
    /// How it is.
    pub state: State,
    /// The generation that is so; 0 if none is known.
    pub generation: u64,
    /// How many have still to count down.
    pub left: u64,
}

impl LookReply {
    /// Reads the reply of the look script.
    ///
    /// # Errors
    /// [`DecodeError`] on anything else.
    pub fn decode(reply: &Reply) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(reply, "look")?;
        let state = State::of(fields.number()?).ok_or(fields.unknown_code())?;
        Ok(Self { state, generation: fields.number()?, left: fields.number()? })
    }
}

/// What waiting answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitReply {
    /// How it is; only while it [waits](State::Waits) the process is among those that are told.
    pub state: State,
    /// The generation that is so; 0 if none is known.
    pub generation: u64,
    /// When to look again.
    pub check_ms: u64,
}

impl WaitReply {
    /// Reads the reply of the wait script.
    ///
    /// # Errors
    /// [`DecodeError`] on anything else.
    pub fn decode(reply: &Reply) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(reply, "wait")?;
        let state = State::of(fields.number()?).ok_or(fields.unknown_code())?;
        Ok(Self { state, generation: fields.number()?, check_ms: fields.number()? })
    }
}

/// What resetting answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResetReply {
    /// This call ended the generation.
    Reset {
        /// Call again at once: there are more processes to tell.
        again: bool,
    },
    /// Another call, or an earlier copy of this one, had ended it.
    Before {
        /// Call again at once: there are more processes to tell.
        again: bool,
    },
    /// Another generation is armed, or none.
    Other,
}

impl ResetReply {
    /// Reads the reply of the reset script.
    ///
    /// # Errors
    /// [`DecodeError`] on anything else.
    pub fn decode(reply: &Reply) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(reply, "reset")?;
        match fields.number()? {
            1 => Ok(Self::Reset { again: fields.flag()? }),
            2 => Ok(Self::Before { again: fields.flag()? }),
            0 => Ok(Self::Other),
            _ => Err(fields.unknown_code()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(numbers: &[i64]) -> Reply {
        Reply::List(numbers.iter().map(|number| Reply::Int(*number)).collect())
    }

    #[test]
    fn ids_of_calls_users_and_arms_never_meet() {
        let ids = [Counter::Call("x").id(), Counter::Named(b"x").id(), Counter::Named(b"ux").id()];
        assert_eq!(ids, [b"ux".to_vec(), b"nx".to_vec(), b"nux".to_vec()]);
    }

    #[test]
    fn states_come_back_from_their_codes() {
        for state in [State::Waits, State::Open, State::Reset, State::NotArmed] {
            assert_eq!(State::of(state.code()), Some(state));
        }
        assert_eq!(State::of(4), None);
    }

    #[test]
    fn replies_are_read_or_refused() {
        let counted = CountReply::Counted { left: 2, again: false };
        assert_eq!(CountReply::decode(&list(&[1, 2, 0])).unwrap(), counted);
        assert_eq!(CountReply::decode(&list(&[3])).unwrap(), CountReply::NotArmed);
        assert_eq!(ResetReply::decode(&list(&[0, 0])).unwrap(), ResetReply::Other);
        let waits = WaitReply { state: State::Waits, generation: 7, check_ms: 1000 };
        assert_eq!(WaitReply::decode(&list(&[0, 7, 1000])).unwrap(), waits);
        for bad in [list(&[]), list(&[9, 1, 1]), list(&[1]), Reply::Nil] {
            assert!(CountReply::decode(&bad).is_err(), "{bad:?}");
            assert!(WaitReply::decode(&bad).is_err(), "{bad:?}");
            assert!(LookReply::decode(&bad).is_err(), "{bad:?}");
        }
    }
}
