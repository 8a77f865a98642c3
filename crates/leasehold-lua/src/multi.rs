//! Several objects at once, and one object at several servers.

use crate::call::{Call, Reply, number};
use crate::keys::Keys;
use crate::mutex;
use crate::reply::{DecodeError, Fields};
use crate::script::Script;
use crate::terms::{Acquisition, Terms};
use crate::verbs::{Settings, Verbs};

static ACQUIRE: Script = Script::new("multi/acquire", include_str!("../lua/multi/acquire.lua"));

/// Every script of it.
pub fn scripts() -> [&'static Script; 1] {
    [&ACQUIRE]
}

/// A quorum lock at one of its servers: the scripts of the mutex under keys of its own.
pub static QUORUM: Verbs = Verbs { kind: "quorum", ..mutex::VERBS };

/// One of the objects.
#[derive(Debug, Clone, Copy)]
pub struct Element<'a> {
    /// What it is.
    pub verbs: &'static Verbs,
    /// Where it is.
    pub keys: &'a Keys,
    /// Who takes how much of it.
    pub acquisition: Acquisition<'a>,
    /// What its kind alone is told.
    pub settings: &'a Settings,
}

/// Takes all of them or none, without waiting; all keys share a slot. One call; a resend is harmless.
pub fn acquire(elements: &[Element<'_>], terms: Terms) -> Call {
    let mut keys = Vec::with_capacity(elements.len() * 5);
    let mut args = vec![number(terms.fence_ms), number(terms.floor)];
    for element in elements {
        let Keys { holds, queue, token, gone, notes, .. } = element.keys;
        keys.extend([holds, queue, token, gone, notes].map(std::sync::Arc::clone));
        let Acquisition { id, owner, note, lease_ms } = element.acquisition;
        args.extend([element.verbs.kind.into(), id.to_vec(), owner.into(), note.to_vec()]);
        args.extend([number(lease_ms), element.settings.acquire.join(&b',')]);
    }
    Call { script: &ACQUIRE, keys, args }
}

/// What taking several answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MultiReply {
    /// All are held, now or since an earlier copy of this call.
    Taken {
        /// Server clock.
        now_us: u64,
        /// Of each what it has.
        holds: Vec<Taken>,
    },
    /// One of them is held or waited for; nothing was taken.
    Busy {
        /// Which, from 0.
        which: u64,
        /// How long its present hold still lasts.
        left_ms: u64,
        /// Call again at once.
        again: bool,
    },
    /// Of an earlier copy of this call only a part is held still.
    Torn {
        /// Which one is not, from 0.
        which: u64,
    },
    /// One of them was cancelled before this call arrived.
    Cancelled {
        /// Which, from 0.
        which: u64,
    },
    /// One of them asks for more than there will ever be.
    NeverFits {
        /// Which, from 0.
        which: u64,
    },
    /// The owner of one of them has as many entries as a hold may have.
    TooManyEntries {
        /// Which, from 0.
        which: u64,
    },
    /// The limit that one of them was sent with is not the server's, and it asked to be told so.
    LimitDiffers {
        /// Which, from 0.
        which: u64,
        /// The server's limit.
        server: u32,
    },
}

/// One of several, held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// Its fencing token.
    pub token: u64,
    /// How long it still lasts.
    pub left_ms: u64,
    /// The server's limit, of a kind that has one; else 0.
    pub limit: u32,
}

impl MultiReply {
    /// Reads the reply of the script.
    ///
    /// # Errors
    /// [`DecodeError`] on anything else.
    pub fn decode(reply: &Reply) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(reply, "acquire of several")?;
        match fields.number()? {
            1 => {
                let now_us = fields.number()?;
                let mut holds = Vec::new();
                while !fields.is_empty() {
                    let (token, left_ms) = (fields.number()?, fields.number()?);
                    holds.push(Taken { token, left_ms, limit: fields.small()? });
                }
                Ok(Self::Taken { now_us, holds })
            }
            2 => Ok(Self::Busy {
                which: fields.number()?,
                left_ms: fields.number()?,
                again: fields.flag()?,
            }),
            3 => Ok(Self::Torn { which: fields.number()? }),
            4 => Ok(Self::Cancelled { which: fields.number()? }),
            5 => Ok(Self::NeverFits { which: fields.number()? }),
            6 => Ok(Self::TooManyEntries { which: fields.number()? }),
            7 => Ok(Self::LimitDiffers { which: fields.number()?, server: fields.small()? }),
            _ => Err(fields.unknown_code()),
        }
    }
}
