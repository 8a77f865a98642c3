//! The verbs that everything has that can be held: a call a verb, of whatever kind the scripts are.

use std::sync::Arc;

use crate::call::{Call, number};
use crate::keys::Keys;
use crate::script::Script;
use crate::terms::{Acquisition, Mode, Terms};

/// The scripts of one kind, and which keys they take.
///
/// What one kind alone is told goes in as `settings`: the limit of a semaphore, say.
#[derive(Debug)]
pub struct Verbs {
    /// Part of the keys: objects of two kinds do not meet, whatever their names.
    pub kind: &'static str,
    pub(crate) acquire: &'static Script,
    pub(crate) check: &'static Script,
    pub(crate) release: &'static Script,
    pub(crate) renew: &'static Script,
    pub(crate) keys: fn(&Keys) -> Vec<Arc<[u8]>>,
    pub(crate) renewal_keys: fn(&Keys) -> Vec<Arc<[u8]>>,
    /// Grants have fencing tokens.
    pub(crate) fenced: bool,
}

/// What one kind alone is told, with an acquire and with a check.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    pub(crate) acquire: Vec<Vec<u8>>,
    pub(crate) check: Vec<Vec<u8>>,
}

impl Verbs {
    /// Takes, or enters the queue. One call; a resend is harmless.
    pub fn acquire(
        &self,
        keys: &Keys,
        settings: &Settings,
        acquisition: Acquisition<'_>,
        mode: Mode,
        terms: Terms,
    ) -> Call {
        let (mode, max_waiters) = match mode {
            Mode::Wait { max_waiters } => ("wait", max_waiters),
            Mode::Try => ("try", None),
        };
        let mut args = vec![
            acquisition.id.to_vec(),
            acquisition.owner.into(),
            acquisition.note.to_vec(),
            number(acquisition.lease_ms),
            mode.into(),
            max_waiters.map_or_else(|| b"-1".to_vec(), |most| number(most.into())),
            number(terms.wait_ms),
            number(terms.check_ms),
            number(terms.grant_ms),
        ];
        self.fence(terms, &mut args);
        args.extend_from_slice(&settings.acquire);
        Call { script: self.acquire, keys: (self.keys)(keys), args }
    }

    /// Asks for all waiting acquisitions of a process on one name, each with its ticket (0 = to the tail). `deaf`: messages
    /// do not reach the process, so it is granted without one for the next `check_ms`, and has to ask again before.
    pub fn check<'a>(
        &self,
        keys: &Keys,
        settings: &Settings,
        waiting: impl IntoIterator<Item = (Acquisition<'a>, u64)>,
        deaf: bool,
        terms: Terms,
    ) -> Call {
        let mut args = vec![
            number(terms.wait_ms),
            number(terms.check_ms),
            number(terms.grant_ms),
            number(deaf.into()),
        ];
        self.fence(terms, &mut args);
        args.extend_from_slice(&settings.check);
        for (acquisition, ticket) in waiting {
            args.push(acquisition.id.to_vec());
            args.push(number(ticket));
            args.push(acquisition.owner.into());
            args.push(acquisition.note.to_vec());
        }
        Call { script: self.check, keys: (self.keys)(keys), args }
    }

    /// Ends an acquisition, whatever state it is in. `late`: an acquire of it may still arrive.
    pub fn release(
        &self,
        keys: &Keys,
        id: &[u8],
        late: bool,
        at_least_ms: u64,
        terms: Terms,
    ) -> Call {
        let mut args =
            vec![id.to_vec(), number(late.into()), number(at_least_ms), number(terms.grant_ms)];
        self.fence(terms, &mut args);
        Call { script: self.release, keys: (self.keys)(keys), args }
    }

    /// Moves one hold's deadline upward; [join](Call::join) many to one call.
    pub fn renew(&self, keys: &Keys, id: &[u8], lease_ms: u64) -> Call {
        let args = vec![id.to_vec(), number(lease_ms)];
        Call { script: self.renew, keys: (self.renewal_keys)(keys), args }
    }

    pub(crate) fn fence(&self, terms: Terms, args: &mut Vec<Vec<u8>>) {
        if self.fenced {
            args.extend([number(terms.fence_ms), number(terms.floor)]);
        }
    }
}
