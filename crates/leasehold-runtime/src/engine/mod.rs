//! For crates that build primitives; services use the primitives.
//!
//! A primitive is a *spec*: its validated name, options and owner, and for each verb of the protocol a pure function to
//! a [`Call`](leasehold_lua::Call). A spec together with one [`Acquisition`] is a [`Plan`]: the calls of one hold, as
//! values. Everything that sends, waits, renews or forgets is in this crate and the same for all primitives:
//! [`View`] has the three verbs that take, and [`Guard`](crate::Guard) is what they give.
//!
//! The module is under semver, but grows with each primitive.

mod plan;
mod view;

pub use plan::{Acquisition, Plan, Spec};
pub use view::View;

/// The options of a spec, checked, and what the engine reads of them.
#[derive(Debug, Clone)]
pub struct Checked {
    pub(crate) options: crate::Options,
}

impl Checked {
    /// Checks name and options.
    ///
    /// # Errors
    /// [`ConfigError`](crate::ConfigError) with the first bound that is not kept.
    pub fn new(name: &crate::Name, options: crate::Options) -> Result<Self, crate::ConfigError> {
        name.check()?;
        options.check()?;
        Ok(Self { options })
    }

    /// Most waiters, if bounded.
    pub fn max_waiters(&self) -> Option<u32> {
        self.options.max_waiters
    }

    /// The shortest hold, in milliseconds.
    pub fn hold_at_least_ms(&self) -> u64 {
        crate::options::whole_ms(self.options.hold_at_least)
    }
}
