//! The fair lock: the scripts of the mutex under keys of its own, and the one that only it has.

use crate::call::{Call, Reply, number};
use crate::keys::Keys;
use crate::mutex;
use crate::reply::{DecodeError, Fields};
use crate::script::Script;
use crate::terms::Terms;
use crate::verbs::Verbs;

static CANCEL: Script = Script::new("fair/cancel", include_str!("../lua/fair/cancel.lua"));

/// Every script that is not the mutex's too.
pub fn scripts() -> [&'static Script; 1] {
    [&CANCEL]
}

/// What it has in common with everything that can be held. [`mutex::adopt`], [`mutex::force_release`],
/// [`mutex::inspect`] and [`mutex::queue`] are made for its keys as well.
pub static VERBS: Verbs = Verbs { kind: "fair", ..mutex::VERBS };

/// How long it is remembered that a waiter was cancelled.
pub const CANCELLED_MARK_MS: u64 = 60_000;

/// Takes the waiter of this ticket and this trace out of the queue.
pub fn cancel(keys: &Keys, ticket: u64, trace: &str, terms: Terms) -> Call {
    let mut args =
        vec![number(ticket), trace.into(), number(CANCELLED_MARK_MS), number(terms.grant_ms)];
    VERBS.fence(terms, &mut args);
    Call { script: &CANCEL, keys: keys.exclusive(), args }
}

/// What a cancel by an operator answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CancelReply {
    /// The named waiter was taken out, by this call or an earlier copy of it.
    pub cancelled: bool,
    /// The script reached its bound: call again at once.
    pub again: bool,
}

impl CancelReply {
    /// Reads the reply of the cancel script.
    ///
    /// # Errors
    /// [`DecodeError`] on anything else.
    pub fn decode(reply: &Reply) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(reply, "cancel")?;
        Ok(Self { cancelled: fields.flag()?, again: fields.flag()? })
    }
}
