//! Objects of which there may be many holders: who they are, and ending some by force.

use crate::call::{Call, Reply, number};
use crate::keys::Keys;
use crate::reply::{DecodeError, Fields};
use crate::script::Script;
use crate::terms::{Share, Terms};
use crate::verbs::Verbs;
use crate::wire;

/// One hold, as an inspect script lists it.
#[derive(Clone, PartialEq, Eq)]
pub struct Listed {
    /// The acquisition: for the call that ends it, never for people (I19).
    pub id: Vec<u8>,
    /// It was released earlier than its holder had promised, and takes room until its end.
    pub cooling: bool,
    /// How much it takes.
    pub share: Share,
    /// When it ends, server clock.
    pub deadline_ms: u64,
    /// When it was granted, server clock; 0 if its note was lost.
    pub since_ms: u64,
    /// Its holder's note; empty if it was lost.
    pub note: Vec<u8>,
}

/// I19: neither id nor owner reaches a log.
impl std::fmt::Debug for Listed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listed").field("share", &self.share).finish_non_exhaustive()
    }
}

impl Listed {
    pub(crate) fn all(fields: &mut Fields<'_>) -> Result<Vec<Self>, DecodeError> {
        let mut all = Vec::new();
        while !fields.is_empty() {
            let (id, weight) = (fields.bytes()?, fields.small()?);
            let (deadline_ms, value) = (fields.number()?, fields.bytes()?);
            let cooling = id.first() == Some(&b'-');
            let id = if cooling { &id[1..] } else { id };
            let share = match wire::share_of(id)? {
                Share::Weight(_) => Share::Weight(weight),
                other @ (Share::Exclusive | Share::Read) => other,
            };
            let (since_ms, note) = note(value);
            all.push(Self { id: id.to_vec(), cooling, share, deadline_ms, since_ms, note });
        }
        Ok(all)
    }
}

/// `since_ms|token|owner|note`, as far as it is there.
fn note(value: &[u8]) -> (u64, Vec<u8>) {
    let mut parts = value.splitn(4, |&byte| byte == b'|');
    let since = parts.next().and_then(|part| std::str::from_utf8(part).ok());
    let note = parts.nth(2).unwrap_or_default();
    (since.and_then(|since| since.parse().ok()).unwrap_or(0), note.to_vec())
}

/// Ends the holds of these acquisitions by force.
pub(crate) fn force_release(
    script: &'static Script,
    verbs: &Verbs,
    keys: &Keys,
    ids: &[&[u8]],
    terms: Terms,
) -> Call {
    let mut args = vec![number(crate::mutex::FORCED_MARK_MS), number(terms.grant_ms)];
    verbs.fence(terms, &mut args);
    args.extend(ids.iter().map(|id| id.to_vec()));
    Call { script, keys: (verbs.keys)(keys), args }
}

/// What a release by force answers: how many were ended, and whether to call again at once.
///
/// # Errors
/// [`DecodeError`] on anything else.
pub fn forced(reply: &Reply) -> Result<(u64, bool), DecodeError> {
    let mut fields = Fields::of(reply, "force_release")?;
    Ok((fields.number()?, fields.flag()?))
}
