//! The read-write lock: its scripts, and the calls and replies that only it has.

use crate::call::{Call, Reply, number};
use crate::holders::{self, Listed};
use crate::keys::Keys;
use crate::reply::{DecodeError, Fields};
use crate::script::Script;
use crate::terms::{Acquisition, Terms};
use crate::verbs::Verbs;

static ACQUIRE: Script = Script::new("rwlock/acquire", include_str!("../lua/rwlock/acquire.lua"));
static CHECK: Script = Script::new("rwlock/check", include_str!("../lua/rwlock/check.lua"));
static RELEASE: Script = Script::new("rwlock/release", include_str!("../lua/rwlock/release.lua"));
static FORCE_RELEASE: Script =
    Script::new("rwlock/force_release", include_str!("../lua/rwlock/force_release.lua"));
static INSPECT: Script = Script::new("rwlock/inspect", include_str!("../lua/rwlock/inspect.lua"));
static RENEW: Script = Script::new("rwlock/renew", include_str!("../lua/rwlock/renew.lua"));
static EXCHANGE: Script =
    Script::new("rwlock/exchange", include_str!("../lua/rwlock/exchange.lua"));
static ADOPT: Script = Script::new("rwlock/adopt", include_str!("../lua/rwlock/adopt.lua"));

/// Every script of it.
pub fn scripts() -> [&'static Script; 8] {
    [&ACQUIRE, &CHECK, &RELEASE, &RENEW, &EXCHANGE, &ADOPT, &FORCE_RELEASE, &INSPECT]
}

/// What it has in common with everything that can be held.
pub static VERBS: Verbs = Verbs {
    kind: "rwlock",
    acquire: &ACQUIRE,
    check: &CHECK,
    release: &RELEASE,
    renew: &RENEW,
    keys: Keys::all,
    renewal_keys: |keys| vec![keys.holds.clone(), keys.gone.clone(), keys.notes.clone()],
    fenced: true,
};

/// Ends the hold `old` and begins this acquisition of the other side, which is by the same owner.
/// [`ExchangeReply`](crate::reply::ExchangeReply) reads the answer.
pub fn exchange(keys: &Keys, old: &[u8], acquisition: Acquisition<'_>, terms: Terms) -> Call {
    let mut args = vec![
        old.to_vec(),
        acquisition.id.to_vec(),
        acquisition.owner.into(),
        acquisition.note.to_vec(),
        number(terms.grant_ms),
    ];
    VERBS.fence(terms, &mut args);
    Call { script: &EXCHANGE, keys: keys.all(), args }
}

/// Replaces the live holds that an owner has of one side by this acquisition.
/// [`AdoptReply`](crate::mutex::AdoptReply) reads the answer.
pub fn adopt(keys: &Keys, acquisition: Acquisition<'_>, terms: Terms) -> Call {
    let mut args = vec![
        acquisition.id.to_vec(),
        acquisition.owner.into(),
        acquisition.note.to_vec(),
        number(acquisition.lease_ms),
    ];
    VERBS.fence(terms, &mut args);
    let keys =
        [&keys.holds, &keys.token, &keys.gone, &keys.notes].map(std::sync::Arc::clone).into();
    Call { script: &ADOPT, keys, args }
}

/// Ends the holds of these acquisitions. [`holders::forced`] reads the answer.
pub fn force_release(keys: &Keys, ids: &[&[u8]], terms: Terms) -> Call {
    holders::force_release(&FORCE_RELEASE, &VERBS, keys, ids, terms)
}

/// Who holds (at most so many), and how many wait.
pub fn inspect(keys: &Keys, most: u32) -> Call {
    let keys =
        [&keys.holds, &keys.queue, &keys.token, &keys.notes].map(std::sync::Arc::clone).into();
    Call { script: &INSPECT, keys, args: vec![number(most.into())] }
}

/// What inspecting answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// Server clock.
    pub now_us: u64,
    /// How many wait.
    pub waiters: u64,
    /// The last writer's token; 0 if none is remembered.
    pub token: u64,
    /// When the last of the holds ends, server clock; 0 if there is none.
    pub ends_ms: u64,
    /// The holds, those that end first.
    pub holds: Vec<Listed>,
}

impl Inspection {
    /// Reads the reply of the inspect script.
    ///
    /// # Errors
    /// [`DecodeError`] on anything else.
    pub fn decode(reply: &Reply) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(reply, "inspect")?;
        Ok(Self {
            now_us: fields.number()?,
            waiters: fields.number()?,
            token: fields.number()?,
            ends_ms: fields.number()?,
            holds: Listed::all(&mut fields)?,
        })
    }
}
