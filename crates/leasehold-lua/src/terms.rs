//! What the calls of every primitive are made from.

/// What every script that may grant needs to know of the caller's session.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// A waiter that stays silent so long is dead.
    pub wait_ms: u64,
    /// Longest pause until a waiter asks again.
    pub check_ms: u64,
    /// Lease of a pushed grant.
    pub grant_ms: u64,
    /// How long an unused token key is kept.
    pub fence_ms: u64,
    /// The highest fencing token this client has seen.
    pub floor: u64,
}

/// One acquisition, as the scripts know it.
#[derive(Debug, Clone, Copy)]
pub struct Acquisition<'a> {
    /// `uuid|lease_ms|share|inbox`.
    pub id: &'a [u8],
    /// Who may re-enter.
    pub owner: &'a str,
    /// Description of the holder.
    pub note: &'a [u8],
    /// Length of the lease; the same as in the id.
    pub lease_ms: u64,
}

/// Whether an acquire may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Takes, or enters the queue; `max_waiters` bounds it.
    Wait {
        /// Most waiters, if bounded.
        max_waiters: Option<u32>,
    },
    /// Takes, or answers busy.
    Try,
}

/// How much of an object an acquisition takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// All of it: nobody else holds meanwhile.
    Exclusive,
    /// A reader's part, beside other readers.
    Read,
    /// So many permits.
    Weight(u32),
}
