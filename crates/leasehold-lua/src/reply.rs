//! Replies of the scripts, decoded. The codes are shared: what `taken` or `queued` looks like is the same everywhere.

use std::fmt;

use crate::call::Reply;

/// A reply or message that is not of this layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodeError {
    what: &'static str,
    why: &'static str,
}

impl DecodeError {
    pub(crate) const fn new(what: &'static str, why: &'static str) -> Self {
        Self { what, why }
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unreadable {}: {}", self.what, self.why)
    }
}

impl std::error::Error for DecodeError {}

/// What an acquire answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AcquireReply {
    /// The acquisition holds, now or since an earlier copy of this call.
    Taken {
        /// Its fencing token.
        token: u64,
        /// How long the hold still lasts.
        left_ms: u64,
        /// Server clock.
        now_us: u64,
    },
    /// It waits.
    Queued {
        /// How many stand before it.
        position: u64,
        /// When to ask again.
        check_ms: u64,
        /// Its place, to come back to.
        ticket: u64,
        /// The script reached its bound: call again at once.
        again: bool,
        /// Server clock.
        now_us: u64,
    },
    /// A try found it held, or others waiting.
    Busy {
        /// How long the present hold still lasts.
        left_ms: u64,
        /// Call again at once.
        again: bool,
        /// Server clock.
        now_us: u64,
    },
    /// The queue is full.
    Saturated {
        /// How long the present hold still lasts.
        retry_ms: u64,
        /// Call again at once.
        again: bool,
        /// Server clock.
        now_us: u64,
    },
    /// It was cancelled before it arrived.
    Cancelled,
    /// It asks for more than there will ever be.
    NeverFits,
    /// Its owner has as many entries as a hold may have.
    TooManyEntries,
    /// The limit that it was sent with is not the server's, and it asked to be told so.
    LimitDiffers {
        /// The server's limit.
        server: u32,
    },
}

impl AcquireReply {
    /// The server's limit, where an acquire was answered beside it: it differs from the one that was sent.
    pub fn differing_limit(reply: &Reply) -> Option<u32> {
        let Reply::List(values) = reply else { return None };
        let Reply::Bytes(last) = values.last()? else { return None };
        std::str::from_utf8(last).ok()?.strip_prefix("limit|")?.parse().ok()
    }

    /// Reads the reply of an acquire script.
    ///
    /// # Errors
    /// [`DecodeError`] on anything else.
    pub fn decode(reply: &Reply) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(reply, "acquire")?;
        match fields.number()? {
            1 => Ok(Self::Taken {
                token: fields.number()?,
                left_ms: fields.number()?,
                now_us: fields.number()?,
            }),
            0 => Ok(Self::Queued {
                position: fields.number()?,
                check_ms: fields.number()?,
                ticket: fields.number()?,
                again: fields.flag()?,
                now_us: fields.number()?,
            }),
            2 => Ok(Self::Busy {
                left_ms: fields.number()?,
                again: fields.flag()?,
                now_us: fields.number()?,
            }),
            3 => Ok(Self::Saturated {
                retry_ms: fields.number()?,
                again: fields.flag()?,
                now_us: fields.number()?,
            }),
            4 => Ok(Self::Cancelled),
            5 => Ok(Self::NeverFits),
            6 => Ok(Self::TooManyEntries),
            7 => Ok(Self::LimitDiffers { server: fields.small()? }),
            _ => Err(fields.unknown_code()),
        }
    }
}

/// Why an acquisition is not held (I7: the script says it, nobody guesses).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// There is no hold.
    Absent,
    /// There is a hold, and it is not this one; or it was adopted.
    OtherHolder,
    /// It was ended by force.
    Forced,
}

/// What a release answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReleaseReply {
    /// It held, and does no longer.
    Released {
        /// Call again at once.
        again: bool,
    },
    /// It waited, and does no longer.
    Left {
        /// Call again at once.
        again: bool,
        /// How many stood before it.
        position: u64,
        /// How long the present hold still lasts.
        left_ms: u64,
        /// Since when the holder holds (server clock); 0 if nobody does.
        since_ms: u64,
        /// The holder's note; empty if nobody holds.
        note: Vec<u8>,
        /// Server clock.
        now_us: u64,
    },
    /// It neither held nor waited.
    NotHeld {
        /// Call again at once.
        again: bool,
        /// Why.
        why: Why,
    },
}

impl ReleaseReply {
    /// Reads the reply of a release script.
    ///
    /// # Errors
    /// [`DecodeError`] on anything else.
    pub fn decode(reply: &Reply) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(reply, "release")?;
        match fields.number()? {
            1 => Ok(Self::Released { again: fields.flag()? }),
            4 => Ok(Self::Left {
                again: fields.flag()?,
                position: fields.number()?,
                left_ms: fields.number()?,
                since_ms: fields.number()?,
                note: fields.bytes()?.to_vec(),
                now_us: fields.number()?,
            }),
            0 => Ok(Self::NotHeld { again: fields.flag()?, why: fields.why()? }),
            _ => Err(fields.unknown_code()),
        }
    }

    /// The script reached its bound: call again at once.
    pub fn again(&self) -> bool {
        match self {
            Self::Released { again } | Self::Left { again, .. } | Self::NotHeld { again, .. } => {
                *again
            }
        }
    }
}

/// What exchanging a hold for another answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExchangeReply {
    /// The new acquisition holds, since now or since an earlier copy of this call.
    Done {
        /// Call again at once: there is more to grant.
        again: bool,
        /// Its fencing token; for a reader the last writer's.
        token: u64,
        /// How long the hold still lasts.
        left_ms: u64,
        /// Server clock.
        now_us: u64,
    },
    /// The old one did not hold.
    NotHeld {
        /// Why.
        why: Why,
    },
    /// Somebody else is in the way; no hold was changed.
    Refused {
        /// Call again at once: it may be what has ended and is not cleared away.
        again: bool,
    },
    /// The new one was cancelled before this call arrived; nothing was changed.
    Cancelled,
}

impl ExchangeReply {
    /// Reads the reply of an exchange script: `{1, again, token, left_ms, now_us}`, `{0, again, why}`, `{2, again}`
    /// or `{4}`.
    ///
    /// # Errors
    /// [`DecodeError`] on anything else.
    pub fn decode(reply: &Reply) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(reply, "exchange")?;
        match fields.number()? {
            1 => Ok(Self::Done {
                again: fields.flag()?,
                token: fields.number()?,
                left_ms: fields.number()?,
                now_us: fields.number()?,
            }),
            0 => {
                fields.flag()?;
                Ok(Self::NotHeld { why: fields.why()? })
            }
            2 => Ok(Self::Refused { again: fields.flag()? }),
            4 => Ok(Self::Cancelled),
            _ => Err(fields.unknown_code()),
        }
    }
}

/// What a release by force answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForceReply {
    /// The named hold was ended, by this call or an earlier copy of it.
    pub ended: bool,
    /// Call again at once.
    pub again: bool,
}

impl ForceReply {
    /// Reads the reply of a force_release script.
    ///
    /// # Errors
    /// [`DecodeError`] on anything else.
    pub fn decode(reply: &Reply) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(reply, "force_release")?;
        Ok(Self { ended: fields.flag()?, again: fields.flag()? })
    }
}

/// What a renewal answers for one hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RenewReply {
    /// It holds.
    Renewed {
        /// For how long still.
        left_ms: u64,
    },
    /// It does not.
    NotHeld {
        /// Why.
        why: Why,
    },
    /// The server refused this element.
    Refused {
        /// The server's words.
        error: String,
    },
}

impl RenewReply {
    /// Reads the reply of a renew script: the server clock in microseconds, and an answer an element.
    ///
    /// # Errors
    /// [`DecodeError`] on anything else.
    pub fn decode(reply: &Reply) -> Result<(u64, Vec<Self>), DecodeError> {
        let mut fields = Fields::of(reply, "renew")?;
        let now_us = fields.number()?;
        let mut answers = Vec::new();
        while !fields.is_empty() {
            answers.push(match fields.number()? {
                1 => Self::Renewed { left_ms: fields.number()? },
                0 => Self::NotHeld { why: fields.why()? },
                3 => Self::Refused { error: String::from_utf8_lossy(fields.bytes()?).into_owned() },
                _ => return Err(fields.unknown_code()),
            });
        }
        Ok((now_us, answers))
    }
}

/// What a check answers for one waiting acquisition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckAnswer {
    /// It holds.
    Taken {
        /// Its fencing token.
        token: u64,
        /// How long the hold still lasts.
        left_ms: u64,
    },
    /// It waits.
    Queued {
        /// How many stand before it.
        position: u64,
        /// Its place.
        ticket: u64,
    },
    /// It was cancelled.
    Cancelled,
    /// It asks for more than there will ever be.
    NeverFits,
    /// Its owner has as many entries as a hold may have.
    TooManyEntries,
}

/// What a check answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckReply {
    /// The script reached its bound: call again at once.
    pub again: bool,
    /// When to check again.
    pub check_ms: u64,
    /// Server clock.
    pub now_us: u64,
    /// One answer an acquisition, in the order of the call.
    pub answers: Vec<CheckAnswer>,
}

impl CheckReply {
    /// Reads the reply of a check script.
    ///
    /// # Errors
    /// [`DecodeError`] on anything else.
    pub fn decode(reply: &Reply) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(reply, "check")?;
        let (again, check_ms, now_us) = (fields.flag()?, fields.number()?, fields.number()?);
        let answers = fields.rest.iter().map(Self::answer).collect::<Result<_, _>>()?;
        Ok(Self { again, check_ms, now_us, answers })
    }

    fn answer(reply: &Reply) -> Result<CheckAnswer, DecodeError> {
        let mut fields = Fields::of(reply, "check")?;
        match fields.number()? {
            1 => Ok(CheckAnswer::Taken { token: fields.number()?, left_ms: fields.number()? }),
            0 => Ok(CheckAnswer::Queued { position: fields.number()?, ticket: fields.number()? }),
            4 => Ok(CheckAnswer::Cancelled),
            5 => Ok(CheckAnswer::NeverFits),
            6 => Ok(CheckAnswer::TooManyEntries),
            _ => Err(fields.unknown_code()),
        }
    }
}

/// Reads an array field by field; a number may come as an integer or as its decimal text (Lua's integers lose
/// nothing up to 2^53, but tokens travel as text, so that they compare as the `u64` they are).
pub(crate) struct Fields<'a> {
    rest: &'a [Reply],
    what: &'static str,
}

impl<'a> Fields<'a> {
    pub(crate) fn of(reply: &'a Reply, what: &'static str) -> Result<Self, DecodeError> {
        match reply {
            Reply::List(rest) => Ok(Self { rest, what }),
            Reply::Nil | Reply::Int(_) | Reply::Bytes(_) => {
                Err(DecodeError::new(what, "not an array"))
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    fn next(&mut self) -> Result<&'a Reply, DecodeError> {
        let (first, rest) =
            self.rest.split_first().ok_or(DecodeError::new(self.what, "too short"))?;
        self.rest = rest;
        Ok(first)
    }

    pub(crate) fn any(&mut self) -> Result<&'a Reply, DecodeError> {
        self.next()
    }

    pub(crate) fn number(&mut self) -> Result<u64, DecodeError> {
        let not_a_number = DecodeError::new(self.what, "not a number");
        match self.next()? {
            Reply::Int(value) => u64::try_from(*value).map_err(|_| not_a_number),
            Reply::Bytes(text) => std::str::from_utf8(text)
                .ok()
                .and_then(|text| text.parse().ok())
                .ok_or(not_a_number),
            Reply::Nil | Reply::List(_) => Err(not_a_number),
        }
    }

    pub(crate) fn small(&mut self) -> Result<u32, DecodeError> {
        let what = self.what;
        u32::try_from(self.number()?).map_err(|_| DecodeError::new(what, "too large a number"))
    }

    pub(crate) fn flag(&mut self) -> Result<bool, DecodeError> {
        Ok(self.number()? != 0)
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        match self.next()? {
            Reply::Bytes(bytes) => Ok(bytes),
            Reply::Nil | Reply::Int(_) | Reply::List(_) => {
                Err(DecodeError::new(self.what, "not a string"))
            }
        }
    }

    pub(crate) fn why(&mut self) -> Result<Why, DecodeError> {
        match self.number()? {
            0 => Ok(Why::Absent),
            1 => Ok(Why::OtherHolder),
            2 => Ok(Why::Forced),
            _ => Err(self.unknown_code()),
        }
    }

    pub(crate) fn unknown_code(&self) -> DecodeError {
        DecodeError::new(self.what, "unknown code")
    }
}
