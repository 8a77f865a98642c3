//! Events: what happened to holds while nobody looked. Losing silently is impossible.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::error::LostReason;
use crate::name::Name;

/// Something that an operator may want to know. Holds neither a password nor the id of an acquisition (I19).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A renewal was not answered or refused; it is repeated until the local deadline.
    RenewalFailed {
        /// The lock.
        name: Name,
        /// How many in a row.
        failures: u32,
    },
    /// A renewal came back later than a third of the lease after it was due: this process does not get the processor in
    /// time. (A slow network shows as [`RenewalFailed`](Self::RenewalFailed): no renewal is waited for so long.)
    Late {
        /// The lock.
        name: Name,
        /// By how much.
        by: Duration,
    },
    /// A hold is older than [`held_long_after`](crate::SessionBuilder::held_long_after).
    HeldLong {
        /// The lock.
        name: Name,
        /// For how long it is held.
        held_for: Duration,
    },
    /// A hold was lost.
    Lost {
        /// The lock.
        name: Name,
        /// Why.
        reason: LostReason,
    },
    /// A hold reached [`hold_at_most`](crate::Options::hold_at_most).
    HoldLimit {
        /// The lock.
        name: Name,
    },
    /// A release found that the hold had ended before. Dropped guards tell it here, since nobody awaits them. Not after a
    /// shutdown, which tells [`Lost`](Self::Lost) alone.
    ReleaseLost {
        /// The lock.
        name: Name,
        /// Why.
        reason: LostReason,
    },
    /// A release was never answered, or "not held" after a copy that was not: nobody knows who ended the hold. It ends with
    /// its lease at the latest.
    ReleaseUnknown {
        /// The lock.
        name: Name,
    },
    /// A semaphore's limit at the server is not the one that this process goes by; told once a `Semaphore`.
    LimitDiffers {
        /// The semaphore.
        name: Name,
        /// What this process goes by.
        ours: u32,
        /// What the server goes by.
        server: u32,
    },
    /// The inbox is disconnected; the check serves the waiters, more often than usual.
    InboxDown,
    /// The inbox is back.
    InboxUp,
}

impl Event {
    /// The lock that it concerns, if it concerns one.
    pub fn name(&self) -> Option<&Name> {
        match self {
            Self::RenewalFailed { name, .. }
            | Self::Late { name, .. }
            | Self::HeldLong { name, .. }
            | Self::Lost { name, .. }
            | Self::HoldLimit { name }
            | Self::ReleaseLost { name, .. }
            | Self::LimitDiffers { name, .. }
            | Self::ReleaseUnknown { name } => Some(name),
            Self::InboxDown | Self::InboxUp => None,
        }
    }
}

type Callback = Arc<dyn Fn(&Event) + Send + Sync>;

/// Where events go.
#[derive(Clone, Default)]
pub(crate) struct Events {
    callback: Option<Callback>,
}

impl Events {
    pub(crate) fn to(callback: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        Self { callback: Some(Arc::new(callback)) }
    }

    /// A callback that panics ends neither the watchdog nor the caller.
    pub(crate) fn emit(&self, event: &Event) {
        #[cfg(feature = "tracing")]
        trace(event);
        if let Some(callback) = &self.callback {
            drop(catch_unwind(AssertUnwindSafe(|| callback(event))));
        }
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").field("callback", &self.callback.is_some()).finish()
    }
}

#[cfg(feature = "tracing")]
fn trace(event: &Event) {
    let lock = event.name().map(tracing::field::display);
    match event {
        Event::RenewalFailed { failures, .. } => tracing::warn!(lock, failures, "renewal failed"),
        Event::Late { by, .. } => tracing::warn!(lock, ?by, "renewal late"),
        Event::HeldLong { held_for, .. } => tracing::warn!(lock, ?held_for, "held long"),
        Event::Lost { reason, .. } => tracing::error!(lock, %reason, "hold lost"),
        Event::HoldLimit { .. } => tracing::error!(lock, "longest hold reached"),
        Event::ReleaseLost { reason, .. } => {
            tracing::error!(lock, %reason, "release found the hold ended")
        }
        Event::ReleaseUnknown { .. } => tracing::warn!(lock, "release unanswered"),
        Event::InboxDown => tracing::warn!("inbox down"),
        Event::LimitDiffers { name, ours, server } => {
            tracing::warn!(%name, ours, server, "limit differs");
        }
        Event::InboxUp => tracing::warn!("inbox up"),
    }
}
