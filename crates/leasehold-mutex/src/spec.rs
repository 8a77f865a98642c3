//! The mutex as the engine sees it: pure functions from a validated name and options to calls.

use std::sync::Arc;

use leasehold_lua::{Acquisition, Call, Keys, Mode, ObjectName, Terms, mutex};
use leasehold_runtime::engine::{Checked, Spec};
use leasehold_runtime::{ConfigError, Name, Options};

/// Part of the keys: a mutex and another primitive of the same name do not meet.
const KIND: &str = "mutex";

#[derive(Debug)]
pub(crate) struct MutexSpec {
    name: Name,
    checked: Checked,
    keys: Keys,
}

impl MutexSpec {
    pub(crate) fn new(prefix: &[u8], name: Name, options: Options) -> Result<Self, ConfigError> {
        let checked = Checked::new(&name, options)?;
        let keys = Keys::new(ObjectName {
            prefix,
            kind: KIND,
            group: name.group(),
            name: name.as_bytes(),
        });
        Ok(Self { name, checked, keys })
    }

    pub(crate) fn keys(&self) -> &Keys {
        &self.keys
    }
}

impl Spec for MutexSpec {
    fn name(&self) -> &Name {
        &self.name
    }

    fn checked(&self) -> &Checked {
        &self.checked
    }

    fn slot_key(&self) -> &Arc<[u8]> {
        &self.keys.holds
    }

    fn acquire(&self, acquisition: Acquisition<'_>, mode: Mode, terms: Terms) -> Call {
        mutex::acquire(&self.keys, acquisition, mode, terms)
    }

    fn check(&self, waiting: &[(Acquisition<'_>, u64)], terms: Terms) -> Call {
        mutex::check(&self.keys, waiting.iter().copied(), terms)
    }

    fn renew(&self, id: &[u8], lease_ms: u64) -> Call {
        mutex::renew(&self.keys, id, lease_ms)
    }

    fn release(&self, id: &[u8], late: bool, terms: Terms) -> Call {
        mutex::release(&self.keys, id, late, self.checked.hold_at_least_ms(), terms)
    }

    fn cancel(&self, id: &[u8], late: bool, terms: Terms) -> Call {
        mutex::release(&self.keys, id, late, 0, terms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: Terms =
        Terms { wait_ms: 10_000, check_ms: 1_000, grant_ms: 2_000, fence_ms: 3_600_000, floor: 0 };

    #[test]
    fn a_bad_name_or_option_is_refused_before_there_is_a_spec() {
        let made = MutexSpec::new(b"", Name::new(""), Options::default());
        assert!(matches!(made, Err(ConfigError::Name { .. })));
        let made = MutexSpec::new(
            b"",
            Name::new("a"),
            Options::default().lease(std::time::Duration::ZERO),
        );
        assert!(matches!(made, Err(ConfigError::Lease { .. })));
    }

    #[test]
    fn equal_inputs_make_equal_calls_so_a_resend_is_the_same_call() {
        let spec = MutexSpec::new(b"p:", Name::new("a"), Options::default()).unwrap();
        let acquisition =
            Acquisition { id: b"u|30000|i", owner: "o", note: b"n", lease_ms: 30_000 };
        let (one, two) = (
            spec.acquire(acquisition, Mode::Try, TERMS),
            spec.acquire(acquisition, Mode::Try, TERMS),
        );
        assert_eq!((one.keys, one.args), (two.keys, two.args));
        let mut renewals = spec.renew(b"u|30000|i", 30_000);
        renewals.join(spec.renew(b"v|30000|i", 30_000));
        assert_eq!((renewals.keys.len(), renewals.args.len()), (4, 4));
    }
}
