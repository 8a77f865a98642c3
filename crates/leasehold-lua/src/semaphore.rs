//! The semaphore: its scripts, and the calls and replies that only it has.

use crate::call::{Call, Reply, number};
use crate::holders::{self, Listed};
use crate::keys::Keys;
use crate::reply::{DecodeError, Fields};
use crate::script::Script;
use crate::terms::Terms;
use crate::verbs::{Settings, Verbs};

static ACQUIRE: Script =
    Script::new("semaphore/acquire", include_str!("../lua/semaphore/acquire.lua"));
static CHECK: Script = Script::new("semaphore/check", include_str!("../lua/semaphore/check.lua"));
static RELEASE: Script =
    Script::new("semaphore/release", include_str!("../lua/semaphore/release.lua"));
static FORCE_RELEASE: Script =
    Script::new("semaphore/force_release", include_str!("../lua/semaphore/force_release.lua"));
static INSPECT: Script =
    Script::new("semaphore/inspect", include_str!("../lua/semaphore/inspect.lua"));
static RENEW: Script = Script::new("semaphore/renew", include_str!("../lua/semaphore/renew.lua"));

/// Every script of it.
pub fn scripts() -> [&'static Script; 6] {
    [&ACQUIRE, &CHECK, &RELEASE, &RENEW, &FORCE_RELEASE, &INSPECT]
}

/// What it has in common with everything that can be held.
pub static VERBS: Verbs = Verbs {
    kind: "semaphore",
    acquire: &ACQUIRE,
    check: &CHECK,
    release: &RELEASE,
    renew: &RENEW,
    keys: Keys::permits,
    renewal_keys: |keys| vec![keys.holds.clone(), keys.gone.clone(), keys.notes.clone()],
    fenced: false,
};

/// The limit that the first use sets. `strict`: an acquire is refused where the server's differs.
pub fn settings(limit: u32, strict: bool) -> Settings {
    let limit = number(limit.into());
    Settings { acquire: vec![limit.clone(), number(strict.into())], check: vec![limit] }
}

/// Ends the holds of these acquisitions.
pub fn force_release(keys: &Keys, ids: &[&[u8]], terms: Terms) -> Call {
    holders::force_release(&FORCE_RELEASE, &VERBS, keys, ids, terms)
}

/// Who holds (at most so many), and how many wait.
pub fn inspect(keys: &Keys, most: u32) -> Call {
    let keys =
        [&keys.holds, &keys.queue, &keys.gone, &keys.notes].map(std::sync::Arc::clone).into();
    Call { script: &INSPECT, keys, args: vec![number(most.into())] }
}

/// What inspecting answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// The script reached its bound: call again at once.
    pub again: bool,
    /// Server clock.
    pub now_us: u64,
    /// How many wait.
    pub waiters: u64,
    /// The sum of the weights.
    pub used: u32,
    /// The limit; 0 if the server knows none.
    pub limit: u32,
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
            again: fields.flag()?,
            now_us: fields.number()?,
            waiters: fields.number()?,
            used: fields.small()?,
            limit: fields.small()?,
            holds: Listed::all(&mut fields)?,
        })
    }
}
