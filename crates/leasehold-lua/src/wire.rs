//! What travels inside ids, notes and pushes.

use std::fmt;

use crate::reply::DecodeError;
use crate::terms::Share;

/// The id of an acquisition as it stands in Redis: `uuid|lease_ms|share|inbox`. What a granter needs is in the id; it is
/// fixed for life and never used again. The inbox comes last because a user's prefix may hold a `|`.
pub fn acquisition_id(uuid: &str, lease_ms: u64, share: Share, inbox: &[u8]) -> Vec<u8> {
    let head = match share {
        Share::Exclusive => format!("{uuid}|{lease_ms}|w|"),
        Share::Read => format!("{uuid}|{lease_ms}|r|"),
        Share::Weight(weight) => format!("{uuid}|{lease_ms}|{weight}|"),
    };
    [head.as_bytes(), inbox].concat()
}

/// How much an acquisition takes, from its id.
pub(crate) fn share_of(id: &[u8]) -> Result<Share, DecodeError> {
    let share = id.splitn(4, |&byte| byte == b'|').nth(2).unwrap_or_default();
    match share {
        b"w" => Ok(Share::Exclusive),
        b"r" => Ok(Share::Read),
        digits => std::str::from_utf8(digits)
            .ok()
            .and_then(|digits| digits.parse().ok())
            .map(Share::Weight)
            .ok_or(DecodeError::new("id", "no share")),
    }
}

/// Who holds or waits, for people who look: opaque to the scripts, copied from the queue into the hold.
///
/// `trace` and `session` are random values of their own, not the acquisition's id or the inbox (I19): they may be
/// printed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Note {
    /// Names this acquisition.
    pub trace: u64,
    /// Names the session that made it.
    pub session: u64,
    /// Process id.
    pub pid: u32,
    /// Host name.
    pub host: String,
    /// The user's own words.
    pub label: String,
}

impl Note {
    /// As the scripts carry it.
    pub fn encode(&self) -> Vec<u8> {
        let host: String = self.host.chars().map(|c| if c == '|' { '_' } else { c }).collect();
        format!("{:016x}|{:016x}|{}|{host}|{}", self.trace, self.session, self.pid, self.label)
            .into_bytes()
    }

    /// Reads what [`encode`](Self::encode) wrote; anything else (another version's note, say) is an error, never a
    /// panic.
    ///
    /// # Errors
    /// [`DecodeError`] if it is not a note of this layout.
    pub fn decode(raw: &[u8]) -> Result<Self, DecodeError> {
        let text = std::str::from_utf8(raw).map_err(|_| DecodeError::new("note", "not text"))?;
        let mut parts = text.splitn(5, '|');
        let mut next = || parts.next().ok_or(DecodeError::new("note", "too few parts"));
        let hex = |part: &str| {
            u64::from_str_radix(part, 16).map_err(|_| DecodeError::new("note", "not hexadecimal"))
        };
        Ok(Self {
            trace: hex(next()?)?,
            session: hex(next()?)?,
            pid: next()?
                .parse()
                .map_err(|_| DecodeError::new("note", "process id is not a number"))?,
            host: next()?.to_owned(),
            label: next()?.to_owned(),
        })
    }
}

/// A message on a process's inbox.
#[derive(Clone, PartialEq, Eq)]
pub enum Push {
    /// The acquisition holds since `at_us` (server clock), for `lease_ms`.
    Granted {
        /// Which acquisition: the first part of its id.
        uuid: String,
        /// Its fencing token.
        token: u64,
        /// Length of the grant's lease.
        lease_ms: u64,
        /// When the server granted it.
        at_us: u64,
    },
    /// The acquisition's hold was ended by force.
    Forced {
        /// Which acquisition.
        uuid: String,
    },
    /// The acquisition's hold was adopted by another acquisition.
    Adopted {
        /// Which acquisition.
        uuid: String,
    },
    /// The acquisition waits no more: its weight is over the limit now.
    Refused {
        /// Which acquisition.
        uuid: String,
    },
    /// The acquisition waits no more: an operator took it out of the queue.
    Cancelled {
        /// Which acquisition.
        uuid: String,
    },
    /// A round of a topic that the process listens to is over (the generation of a latch).
    Over {
        /// Which registration of the process: the first part of its entry.
        uuid: String,
        /// Which round.
        round: u64,
        /// How it ended.
        state: u64,
    },
    /// The session's own proof that its inbox delivers.
    Proof {
        /// What it sent.
        nonce: String,
    },
}

impl Push {
    /// Reads a message.
    ///
    /// # Errors
    /// [`DecodeError`] if it is none of ours: anybody may publish to a channel.
    pub fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
        let text =
            std::str::from_utf8(payload).map_err(|_| DecodeError::new("push", "not text"))?;
        let parts: Vec<&str> = text.split(' ').collect();
        let number =
            |part: &str| part.parse().map_err(|_| DecodeError::new("push", "not a number"));
        match parts[..] {
            [uuid, "1", token, lease_ms, at_us] => Ok(Self::Granted {
                uuid: uuid.to_owned(),
                token: number(token)?,
                lease_ms: number(lease_ms)?,
                at_us: number(at_us)?,
            }),
            [uuid, "2"] => Ok(Self::Forced { uuid: uuid.to_owned() }),
            [uuid, "3"] => Ok(Self::Adopted { uuid: uuid.to_owned() }),
            [uuid, "5"] => Ok(Self::Refused { uuid: uuid.to_owned() }),
            [uuid, "6"] => Ok(Self::Cancelled { uuid: uuid.to_owned() }),
            [uuid, "4", round, state] => Ok(Self::Over {
                uuid: uuid.to_owned(),
                round: number(round)?,
                state: number(state)?,
            }),
            ["proof", nonce, ""] => Ok(Self::Proof { nonce: nonce.to_owned() }),
            _ => Err(DecodeError::new("push", "unknown form")),
        }
    }

    /// The message that proves an inbox.
    pub fn proof(nonce: &str) -> String {
        format!("proof {nonce} ")
    }
}

/// I19: the uuid of an acquisition never reaches a log.
impl fmt::Debug for Push {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Granted { token, lease_ms, .. } => f
                .debug_struct("Granted")
                .field("token", token)
                .field("lease_ms", lease_ms)
                .finish_non_exhaustive(),
            Self::Forced { .. } => f.write_str("Forced"),
            Self::Adopted { .. } => f.write_str("Adopted"),
            Self::Refused { .. } => f.write_str("Refused"),
            Self::Cancelled { .. } => f.write_str("Cancelled"),
            Self::Over { round, state, .. } => f
                .debug_struct("Over")
                .field("round", round)
                .field("state", state)
                .finish_non_exhaustive(),
            Self::Proof { .. } => f.write_str("Proof"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_comes_back_as_it_went() {
        let note = Note {
            trace: 7,
            session: u64::MAX,
            pid: 12,
            host: "db-1".into(),
            label: "a|b|c".into(),
        };
        assert_eq!(Note::decode(&note.encode()).unwrap(), note);
    }

    #[test]
    fn a_foreign_note_is_an_error() {
        for raw in [&b""[..], b"x", b"1|2|3", b"zz|0|1|h|l", b"\xff\xfe|0|1|h|l"] {
            assert!(Note::decode(raw).is_err(), "{raw:?}");
        }
    }

    #[test]
    fn pushes_are_read_or_refused() {
        let granted = Push::Granted { uuid: "ab".into(), token: 5, lease_ms: 2000, at_us: 9 };
        assert_eq!(Push::decode(b"ab 1 5 2000 9").unwrap(), granted);
        assert_eq!(Push::decode(b"ab 2").unwrap(), Push::Forced { uuid: "ab".into() });
        let over = Push::Over { uuid: "ab".into(), round: 7, state: 1 };
        assert_eq!(Push::decode(b"ab 4 7 1").unwrap(), over);
        assert_eq!(Push::decode(b"ab 3").unwrap(), Push::Adopted { uuid: "ab".into() });
        assert_eq!(
            Push::decode(Push::proof("n").as_bytes()).unwrap(),
            Push::Proof { nonce: "n".into() }
        );
        for raw in [
            &b""[..],
            b"ab",
            b"ab 1 x 2000 9",
            b"ab 1 5 2000",
            b"ab 1 5 2000 99999999999999999999",
            b"\xff 2",
        ] {
            assert!(Push::decode(raw).is_err(), "{raw:?}");
        }
    }

    #[test]
    fn a_push_does_not_print_its_acquisition() {
        let push = Push::Granted { uuid: "secret".into(), token: 5, lease_ms: 2000, at_us: 9 };
        assert!(!format!("{push:?}").contains("secret"));
    }
}
