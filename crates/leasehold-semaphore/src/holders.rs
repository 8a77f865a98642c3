//! What a look at the server shows.

use leasehold_lua::Share;
use leasehold_lua::holders::Listed;
use leasehold_lua::semaphore::Inspection;
use leasehold_runtime::Holder;

/// How full a semaphore is at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// The limit in force; if the server knows none, what the looking process goes by.
    pub limit: u32,
    /// How many permits are out, those in a cool-down included. More than the limit after it was lowered.
    pub used: u32,
    /// How many acquisitions wait, dead ones that were not noticed yet included.
    pub waiting: u64,
}

impl Usage {
    /// How many permits are free. Some may be spoken for: while anybody waits, a newcomer does not pass.
    pub fn available(&self) -> u32 {
        self.limit.saturating_sub(self.used)
    }

    pub(crate) fn of(found: &Inspection, ours: u32) -> Self {
        let limit = if found.limit == 0 { ours } else { found.limit };
        Self { limit, used: found.used, waiting: found.waiters }
    }
}

/// One of those that hold permits.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PermitHolder {
    /// Who, since when, and how long it lasts if it is not renewed.
    pub holder: Holder,
    /// How many permits.
    pub weight: u32,
    /// It was released earlier than [`hold_at_least`](crate::Options::hold_at_least) allows: nobody holds, and the permits
    /// come back at its end.
    pub cooling: bool,
}

impl PermitHolder {
    pub(crate) fn of(listed: &Listed, now_us: u64) -> Self {
        let weight = match listed.share {
            Share::Weight(weight) => weight,
            Share::Exclusive | Share::Read => 0,
        };
        let holder = Holder::from_listed(listed, now_us);
        Self { holder, weight, cooling: listed.cooling }
    }
}
