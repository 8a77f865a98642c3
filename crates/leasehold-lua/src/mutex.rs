//! The mutex: a call a script, and the replies that only the mutex has.

use crate::call::{Call, Reply, number};
use crate::keys::Keys;
use crate::reply::{DecodeError, Fields, Why};
use crate::script::Script;
use crate::terms::{Acquisition, Terms};
use crate::verbs::Verbs;

static ACQUIRE: Script = Script::new("mutex/acquire", include_str!("../lua/mutex/acquire.lua"));
static CHECK: Script = Script::new("mutex/check", include_str!("../lua/mutex/check.lua"));
static RELEASE: Script = Script::new("mutex/release", include_str!("../lua/mutex/release.lua"));
static RENEW: Script = Script::new("mutex/renew", include_str!("../lua/mutex/renew.lua"));
static ADOPT: Script = Script::new("mutex/adopt", include_str!("../lua/mutex/adopt.lua"));
static FORCE_RELEASE: Script =
    Script::new("mutex/force_release", include_str!("../lua/mutex/force_release.lua"));
static INSPECT: Script = Script::new("mutex/inspect", include_str!("../lua/mutex/inspect.lua"));
static QUEUE: Script = Script::new("mutex/queue", include_str!("../lua/mutex/queue.lua"));

/// Every script of the mutex.
pub fn scripts() -> [&'static Script; 8] {
    [&ACQUIRE, &CHECK, &RELEASE, &RENEW, &ADOPT, &FORCE_RELEASE, &INSPECT, &QUEUE]
}

/// How long the mark of a forced end says so to the holder that was forced.
pub const FORCED_MARK_MS: u64 = 60_000;

/// What a mutex has in common with everything that can be held.
pub static VERBS: Verbs = Verbs {
    kind: "mutex",
    acquire: &ACQUIRE,
    check: &CHECK,
    release: &RELEASE,
    renew: &RENEW,
    keys: Keys::exclusive,
    renewal_keys: |keys| vec![keys.holds.clone(), keys.gone.clone()],
    fenced: true,
};

/// Replaces an owner's live entries by this acquisition.
pub fn adopt(keys: &Keys, acquisition: Acquisition<'_>) -> Call {
    Call {
        script: &ADOPT,
        keys: vec![keys.holds.clone(), keys.gone.clone()],
        args: vec![
            acquisition.id.to_vec(),
            acquisition.owner.into(),
            acquisition.note.to_vec(),
            number(acquisition.lease_ms),
        ],
    }
}

/// Ends the hold of that token.
pub fn force_release(keys: &Keys, token: u64, terms: Terms) -> Call {
    let args = vec![
        number(token),
        number(FORCED_MARK_MS),
        number(terms.grant_ms),
        number(terms.fence_ms),
        number(terms.floor),
    ];
    Call { script: &FORCE_RELEASE, keys: keys.exclusive(), args }
}

/// Who holds, and how many wait.
pub fn inspect(keys: &Keys) -> Call {
    Call { script: &INSPECT, keys: vec![keys.holds.clone(), keys.queue.clone()], args: vec![] }
}

/// The first `most` waiters.
pub fn queue(keys: &Keys, most: u32) -> Call {
    Call {
        script: &QUEUE,
        keys: vec![keys.queue.clone(), keys.timeouts.clone()],
        args: vec![number(most.into())],
    }
}

/// What adopting answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdoptReply {
    /// The acquisition holds.
    Adopted {
        /// The token of the hold, unchanged.
        token: u64,
        /// How long it still lasts.
        left_ms: u64,
        /// Server clock.
        now_us: u64,
    },
    /// That owner does not hold.
    NotHeld {
        /// Why.
        why: Why,
    },
    /// The acquisition was cancelled before it arrived.
    Cancelled,
}

impl AdoptReply {
    /// Reads the reply of the adopt script.
    ///
    /// # Errors
    /// [`DecodeError`] on anything else.
    pub fn decode(reply: &Reply) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(reply, "adopt")?;
        match fields.number()? {
            1 => Ok(Self::Adopted {
                token: fields.number()?,
                left_ms: fields.number()?,
                now_us: fields.number()?,
            }),
            0 => Ok(Self::NotHeld {
                why: if fields.flag()? { Why::OtherHolder } else { Why::Absent },
            }),
            4 => Ok(Self::Cancelled),
            _ => Err(fields.unknown_code()),
        }
    }
}

/// Whether the lock can be taken, and if not, why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldState {
    /// Nobody holds.
    Free,
    /// Somebody holds.
    Held,
    /// Nobody holds, but the lock was held shorter than its holder said it must be.
    CoolingDown,
    /// The key holds something of another layout: it counts as busy.
    Foreign,
}

/// What inspecting answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// Whether it can be taken.
    pub state: HoldState,
    /// How long that lasts.
    pub left_ms: u64,
    /// The token of the hold; 0 if there is none.
    pub token: u64,
    /// How many wait.
    pub waiters: u64,
    /// Server clock.
    pub now_us: u64,
    /// The hold's entries.
    pub entries: Vec<Entry>,
}

/// One acquisition of a hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// When it ends, server clock.
    pub deadline_ms: u64,
    /// When it was granted, server clock.
    pub since_ms: u64,
    /// Its holder's note.
    pub note: Vec<u8>,
}

impl Inspection {
    /// Reads the reply of the inspect script.
    ///
    /// # Errors
    /// [`DecodeError`] on anything else.
    pub fn decode(reply: &Reply) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(reply, "inspect")?;
        let state = match fields.number()? {
            0 => HoldState::Free,
            1 => HoldState::Held,
            2 => HoldState::CoolingDown,
            3 => HoldState::Foreign,
            _ => return Err(fields.unknown_code()),
        };
        let (left_ms, token, waiters, now_us) =
            (fields.number()?, fields.number().unwrap_or(0), fields.number()?, fields.number()?);
        let mut entries = Vec::new();
        while !fields.is_empty() {
            entries.push(entry(fields.bytes()?)?);
        }
        Ok(Self { state, left_ms, token, waiters, now_us, entries })
    }
}

fn entry(raw: &[u8]) -> Result<Entry, DecodeError> {
    let mut parts = raw.splitn(3, |&byte| byte == b'|');
    let bad = DecodeError::new("inspect", "not an entry");
    let mut number = || {
        let text = parts.next().and_then(|part| std::str::from_utf8(part).ok());
        text.and_then(|text| text.parse().ok()).ok_or(bad.clone())
    };
    let (deadline_ms, since_ms) = (number()?, number()?);
    Ok(Entry { deadline_ms, since_ms, note: parts.next().ok_or(bad)?.to_vec() })
}

/// One waiter, as the queue script lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Its place; also the microsecond of its arrival, or a little later.
    pub ticket: u64,
    /// Until when it counts as alive, server clock.
    pub deadline_ms: u64,
    /// Its note.
    pub note: Vec<u8>,
}

/// What listing the queue answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueReply {
    /// Server clock.
    pub now_us: u64,
    /// How many wait in all.
    pub length: u64,
    /// The first of them.
    pub waiting: Vec<Waiting>,
}

impl QueueReply {
    /// Reads the reply of the queue script.
    ///
    /// # Errors
    /// [`DecodeError`] on anything else.
    pub fn decode(reply: &Reply) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(reply, "queue")?;
        let (now_us, length) = (fields.number()?, fields.number()?);
        let mut waiting = Vec::new();
        while !fields.is_empty() {
            let (ticket, deadline_ms) = (fields.number()?, fields.number()?);
            waiting.push(Waiting { ticket, deadline_ms, note: fields.bytes()?.to_vec() });
        }
        Ok(Self { now_us, length, waiting })
    }
}
