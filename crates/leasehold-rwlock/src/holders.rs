//! What a look at the server shows.

use std::time::Duration;

use leasehold_lua::Share;
use leasehold_lua::rwlock::Inspection;
use leasehold_runtime::Holder;

/// Who holds a read-write lock at one moment: readers, or writers of one owner (who may read as well).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holders {
    /// Those that write: more than one only with re-entry. In a cool-down, who wrote last.
    pub writers: Vec<Holder>,
    /// Those that read, and those that have read and cool down; of all holds the 128 that end first are listed.
    pub readers: Vec<Holder>,
    /// When the last of the holds ends if none is renewed; zero if nobody holds.
    pub remaining: Duration,
    /// How many wait, dead ones that were not noticed yet included.
    pub waiting: u64,
}

impl Holders {
    pub(crate) fn of(found: &Inspection) -> Self {
        let side = |share| {
            let listed = found.holds.iter().filter(move |listed| listed.share == share);
            listed.map(|listed| Holder::from_listed(listed, found.now_us)).collect()
        };
        let remaining = found.ends_ms.saturating_sub(found.now_us / 1000);
        Self {
            writers: side(Share::Exclusive),
            readers: side(Share::Read),
            remaining: Duration::from_millis(remaining),
            waiting: found.waiters,
        }
    }
}
