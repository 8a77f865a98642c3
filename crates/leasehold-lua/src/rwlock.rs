//! The read-write lock: its scripts, and the calls and replies that only it has.

use crate::keys::Keys;
use crate::script::Script;
use crate::verbs::Verbs;

static ACQUIRE: Script = Script::new("rwlock/acquire", include_str!("../lua/rwlock/acquire.lua"));
static CHECK: Script = Script::new("rwlock/check", include_str!("../lua/rwlock/check.lua"));
static RELEASE: Script = Script::new("rwlock/release", include_str!("../lua/rwlock/release.lua"));
static RENEW: Script = Script::new("rwlock/renew", include_str!("../lua/rwlock/renew.lua"));

/// Every script of it.
pub fn scripts() -> [&'static Script; 4] {
    [&ACQUIRE, &CHECK, &RELEASE, &RENEW]
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
