//! A spec: what is to be held, and how.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use leasehold_lua::{Acquisition, Call, Keys, Mode, ObjectName, Settings, Share, Terms, Verbs};

use crate::error::ConfigError;
use crate::event::{Event, Events};
use crate::name::Name;
use crate::options::{Options, whole_ms};
use crate::session::Session;

/// An object and one way to hold it: validated name and options, the scripts of its kind, how much of it is taken.
///
/// For each verb of the protocol it has a pure function to a [`Call`]; its tests need no server.
#[derive(Clone)]
pub struct Spec {
    name: Name,
    options: Options,
    keys: Keys,
    verbs: &'static Verbs,
    share: Share,
    settings: Settings,
    limit: Option<u32>,
    /// A differing limit is told once an object.
    limit_told: Arc<AtomicBool>,
}

impl Spec {
    /// The exclusive way to hold an object of this kind. No I/O.
    ///
    /// # Errors
    /// [`ConfigError`] with the first bound that name or options do not keep.
    pub fn new(
        verbs: &'static Verbs,
        session: &Session,
        name: Name,
        options: Options,
    ) -> Result<Self, ConfigError> {
        Self::with_prefix(verbs, session.prefix(), name, options)
    }

    pub(crate) fn with_prefix(
        verbs: &'static Verbs,
        prefix: &[u8],
        name: Name,
        options: Options,
    ) -> Result<Self, ConfigError> {
        name.check()?;
        options.check()?;
        let (kind, group) = (verbs.kind, name.group());
        let keys = Keys::new(ObjectName { prefix, kind, group, name: name.as_bytes() });
        Ok(Self {
            name,
            options,
            keys,
            verbs,
            share: Share::Exclusive,
            settings: Settings::default(),
            limit: None,
            limit_told: Arc::default(),
        })
    }

    /// The same object, held in another way.
    #[must_use]
    pub fn sharing(&self, share: Share) -> Self {
        Self { share, ..self.clone() }
    }

    /// The same, with what its kind alone is told: the limit that this process goes by.
    #[must_use]
    pub fn limited(self, limit: u32, settings: Settings) -> Self {
        Self { settings, limit: Some(limit), ..self }
    }

    /// The name, as the user gave it.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The keys, for calls that only one kind has.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// How much is taken.
    pub fn share(&self) -> Share {
        self.share
    }

    pub(crate) fn verbs(&self) -> &'static Verbs {
        self.verbs
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    /// The limit that this process goes by, for kinds that have one.
    pub(crate) fn limit(&self) -> Option<u32> {
        self.limit
    }

    /// The server goes by another limit than this process: told once.
    pub(crate) fn limit_differs(&self, server: u32, events: &Events) {
        let Some(ours) = self.limit else { return };
        if !self.limit_told.swap(true, Ordering::Relaxed) {
            events.emit(&Event::LimitDiffers { name: self.name.clone(), ours, server });
        }
    }

    /// The key that stands for the object: its slot is the object's, and waiters with equal keys share their checks.
    pub(crate) fn slot_key(&self) -> &Arc<[u8]> {
        &self.keys.holds
    }

    /// Takes, or enters the queue.
    pub(crate) fn acquire(&self, acquisition: Acquisition<'_>, mode: Mode, terms: Terms) -> Call {
        self.verbs.acquire(&self.keys, &self.settings, acquisition, mode, terms)
    }

    /// Asks for several waiting acquisitions, each with its ticket; `deaf`: messages do not reach them.
    pub(crate) fn check(
        &self,
        waiting: &[(Acquisition<'_>, u64)],
        deaf: bool,
        terms: Terms,
    ) -> Call {
        self.verbs.check(&self.keys, &self.settings, waiting.iter().copied(), deaf, terms)
    }

    /// Moves the deadline of one hold upward; the watchdog joins many.
    pub(crate) fn renew(&self, id: &[u8], lease_ms: u64) -> Call {
        self.verbs.renew(&self.keys, id, lease_ms)
    }

    /// Ends a hold or leaves the queue; `late` = an acquire of it may still arrive.
    pub(crate) fn release(&self, id: &[u8], late: bool, terms: Terms) -> Call {
        let at_least_ms = whole_ms(self.options.hold_at_least);
        self.verbs.release(&self.keys, id, late, at_least_ms, terms)
    }

    /// As [`release`](Self::release), for an acquisition that nobody ever held: it starts no cool-down.
    pub(crate) fn cancel(&self, id: &[u8], late: bool, terms: Terms) -> Call {
        self.verbs.release(&self.keys, id, late, 0, terms)
    }
}

impl fmt::Debug for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spec")
            .field("kind", &self.verbs.kind)
            .field("name", &self.name)
            .field("share", &self.share)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_lua::mutex;

    const TERMS: Terms =
        Terms { wait_ms: 10_000, check_ms: 1_000, grant_ms: 2_000, fence_ms: 3_600_000, floor: 0 };

    fn spec(name: &str, options: Options) -> Result<Spec, ConfigError> {
        Spec::with_prefix(&mutex::VERBS, b"p:", Name::new(name), options)
    }

    #[test]
    fn a_bad_name_or_option_is_refused_before_there_is_a_spec() {
        assert!(matches!(spec("", Options::default()), Err(ConfigError::Name { .. })));
        let made = spec("a", Options::default().lease(std::time::Duration::ZERO));
        assert!(matches!(made, Err(ConfigError::Lease { .. })));
    }

    #[test]
    fn equal_inputs_make_equal_calls_so_a_resend_is_the_same_call() {
        let spec = spec("a", Options::default()).unwrap();
        let acquisition =
            Acquisition { id: b"u|30000|w|i", owner: "o", note: b"n", lease_ms: 30_000 };
        let (one, two) = (
            spec.acquire(acquisition, Mode::Try, TERMS),
            spec.acquire(acquisition, Mode::Try, TERMS),
        );
        assert_eq!((one.keys, one.args), (two.keys, two.args));
        let mut renewals = spec.renew(b"u|30000|w|i", 30_000);
        renewals.join(spec.renew(b"v|30000|w|i", 30_000));
        assert_eq!((renewals.keys.len(), renewals.args.len()), (4, 4));
    }

    #[test]
    fn a_differing_limit_is_told_once_an_object() {
        let told = Arc::new(std::sync::Mutex::new(0));
        let counter = told.clone();
        let events = Events::to(move |_| *counter.lock().unwrap() += 1);
        let spec = spec("a", Options::default()).unwrap().limited(3, Settings::default());
        spec.limit_differs(5, &events);
        spec.sharing(Share::Weight(2)).limit_differs(5, &events);
        assert_eq!(*told.lock().unwrap(), 1);
    }
}
