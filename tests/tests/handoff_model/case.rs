//! What one search is about: the kind of lock, the faults, and which mechanism is taken out.

use super::state::{CLIENTS, Client};

/// What is locked. A client's role is its share of it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// Mutex, fair lock: one holder.
    Exclusive,
    /// Readers together, a writer alone.
    ReadWrite,
    /// As many as fit: a role is a weight. An operator may change the limit to `lower` and back.
    Semaphore { limit: u8, lower: u8 },
}

pub(crate) const READER: u8 = 1;
pub(crate) const WRITER: u8 = 2;

impl Kind {
    /// Whether one more with this role may stand beside those.
    pub(crate) fn admits(self, mut beside: impl Iterator<Item = u8>, role: u8) -> bool {
        match self {
            Self::Exclusive => beside.next().is_none(),
            Self::ReadWrite if role == WRITER => beside.next().is_none(),
            Self::ReadWrite => beside.all(|other| other == READER),
            Self::Semaphore { limit, .. } => beside.sum::<u8>() + role <= limit,
        }
    }

    /// Whether it will never fit.
    pub(crate) fn refuses(self, role: u8) -> bool {
        match self {
            Self::Exclusive | Self::ReadWrite => false,
            Self::Semaphore { limit, .. } => role > limit,
        }
    }

    /// As it is once an operator has lowered the limit.
    pub(crate) fn lowered(self) -> Self {
        match self {
            Self::Exclusive | Self::ReadWrite => self,
            Self::Semaphore { lower, .. } => Self::Semaphore { limit: lower, lower },
        }
    }
}

/// What may go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A process dies. The server counts its inbox until it notices.
    Crash,
    /// A pushed message is lost.
    LostPush,
    /// An inbox is not subscribed for a while, and what was on its way to it is lost.
    InboxDown,
    /// A call gets no answer (it, or its answer, was lost or is late) and is sent again.
    Resend,
    /// The future of an acquire is dropped, or its time is over.
    Cancel,
    /// A waiter was silent for longer than the server waits for one.
    Purge,
    /// A lease ends: at the client, or, where the client does not say "held", at the server.
    Expiry,
    /// An operator changes the limit; who will never fit is refused. Semaphores only.
    Limit,
    /// An operator takes a waiter out of the queue. The fair lock's verb: exclusive locks only.
    Removal,
}

impl Fault {
    /// Whether it can happen to this kind of lock.
    pub(crate) fn concerns(self, kind: Kind) -> bool {
        match self {
            Self::Limit => matches!(kind, Kind::Semaphore { .. }),
            Self::Removal => matches!(kind, Kind::Exclusive),
            Self::Crash
            | Self::LostPush
            | Self::InboxDown
            | Self::Resend
            | Self::Cancel
            | Self::Purge
            | Self::Expiry => true,
        }
    }
}

pub(crate) const ALL_FAULTS: &[Fault] = &[
    Fault::Crash,
    Fault::LostPush,
    Fault::InboxDown,
    Fault::Resend,
    Fault::Cancel,
    Fault::Purge,
    Fault::Expiry,
    Fault::Limit,
    Fault::Removal,
];

/// A mechanism that a negative control takes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mechanism {
    /// Waiting acquisitions ask again.
    Check,
    /// The check puts a waiter back that is in no queue.
    Reentry,
    /// An acquire that arrives after its cancel is refused.
    Gone,
    /// A check under way makes an end `late`, as an acquire does.
    LateByCheck,
    /// A call that was sent again makes an end `late`.
    LateByResend,
    /// A push for a held id is dropped (taken out: answered with a release).
    RegistryRule,
    /// A release grants to the next.
    SettleOnRelease,
    /// A waiter that leaves the queue grants to the next.
    SettleOnLeave,
    /// Settle passes over waiters whose deadline has passed.
    DeadSkipped,
    /// A grant that nobody heard is taken back.
    CountZero,
    /// A grant whose lease is over when it is heard is recognised.
    Deadline,
    /// A script does not publish to its caller.
    CallerQuiet,
    /// What a refusal of the past may have left is ended.
    RefusalEnded,
}

/// One search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) kind: Kind,
    pub(crate) roles: [u8; CLIENTS],
    /// Fixed leases: every pushed grant is confirmed by a renewal before it is handed out.
    pub(crate) fixed: bool,
    pub(crate) faults: &'static [Fault],
    /// So many faults happen at most.
    pub(crate) budget: u8,
    pub(crate) without: &'static [Mechanism],
}

impl Case {
    pub(crate) const fn new(kind: Kind, roles: [u8; CLIENTS]) -> Self {
        Self { kind, roles, fixed: false, faults: &[], budget: 0, without: &[] }
    }

    pub(crate) const fn faults(self, budget: u8, faults: &'static [Fault]) -> Self {
        Self { faults, budget, ..self }
    }

    pub(crate) const fn fixed(self) -> Self {
        Self { fixed: true, ..self }
    }

    pub(crate) const fn without(self, without: &'static [Mechanism]) -> Self {
        Self { without, ..self }
    }

    pub(crate) fn has(&self, mechanism: Mechanism) -> bool {
        !self.without.contains(&mechanism)
    }

    /// Whether these can hold together.
    pub(crate) fn compatible(&self, holders: &[Client]) -> bool {
        (0..holders.len()).all(|i| {
            let beside = holders[..i].iter().map(|holder| holder.role);
            self.kind.admits(beside, holders[i].role)
        })
    }
}
