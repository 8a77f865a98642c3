//! The semaphore: its scripts, and the calls and replies that only it has.

use crate::call::number;
use crate::keys::Keys;
use crate::script::Script;
use crate::verbs::{Settings, Verbs};

static ACQUIRE: Script =
    Script::new("semaphore/acquire", include_str!("../lua/semaphore/acquire.lua"));
static CHECK: Script = Script::new("semaphore/check", include_str!("../lua/semaphore/check.lua"));
static RELEASE: Script =
    Script::new("semaphore/release", include_str!("../lua/semaphore/release.lua"));
static RENEW: Script = Script::new("semaphore/renew", include_str!("../lua/semaphore/renew.lua"));

/// Every script of it.
pub fn scripts() -> [&'static Script; 4] {
    [&ACQUIRE, &CHECK, &RELEASE, &RENEW]
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
