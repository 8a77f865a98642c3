//! Several permits at once.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_lua::Share;
use leasehold_lua::semaphore::LARGEST;
use leasehold_runtime::engine::{Holdable, Member, Spec, View};
use leasehold_runtime::{AcquireError, ConfigError, Session};

use crate::{Permit, Permits};

/// So many permits of a semaphore at once, all or none: see [`Semaphore::many`](crate::Semaphore::many). Owned and cheap to
/// clone, so it can go into a task.
#[derive(Clone)]
pub struct Many {
    view: View<Permits>,
    weight: u32,
}

impl Many {
    pub(crate) fn new(session: &Session, spec: &Spec, weight: u32) -> Self {
        let spec = Arc::new(spec.sharing(Share::Weight(weight)));
        Self { view: View::new(session, spec), weight }
    }

    /// Takes them if they are free and nobody waits; `None` if not. One round trip; it never enters the queue.
    ///
    /// # Errors
    /// As [`acquire_within`](Self::acquire_within), but for `TimedOut` and `Saturated`.
    ///
    /// # Cancel safety
    /// As [`acquire_within`](Self::acquire_within).
    pub async fn try_acquire(&self) -> Result<Option<Permit>, AcquireError> {
        self.checked()?.try_acquire().await
    }

    /// Takes them, waiting at most so long; less than a millisecond is one full try. One round trip if they are free; handed
    /// over by a message.
    ///
    /// # Errors
    /// * [`TimedOut`](AcquireError::TimedOut): the wait is over; it names one of those that hold.
    /// * [`NeverFits`](AcquireError::NeverFits): more than the limit, at once, or as soon as the limit is lowered below it.
    /// * [`Saturated`](AcquireError::Saturated): as many wait as [`Options::max_waiters`](crate::Options::max_waiters)
    ///   allows; at once. `retry_after` is when the first permit ends if it is not renewed.
    /// * [`LimitDiffers`](AcquireError::LimitDiffers): only with [`strict_limit`](crate::Semaphore::strict_limit).
    /// * [`ValidityTooShort`](AcquireError::ValidityTooShort): granted, but too late to be of use; given back.
    /// * [`NotReplicated`](AcquireError::NotReplicated): granted, but fewer replicas have it than
    ///   [`Options::wait_replicas`](crate::Options::wait_replicas) asks for; given back.
    /// * [`Closed`](AcquireError::Closed): the session was shut down.
    /// * [`Config`](AcquireError::Config): not 1 to 999 999 999 permits, or no tokio runtime here; nothing was sent.
    /// * [`Backend`](AcquireError::Backend): Redis was out of reach for the whole wait, or refused (at once).
    ///
    /// # Cancel safety
    /// Dropping the future loses the place in the queue, and gives the permits back if they were granted meanwhile. While Redis
    /// is out of reach, permits stay until their lease ends, a place in the queue until the waiter deadline (10 s).
    pub async fn acquire_within(&self, wait: Duration) -> Result<Permit, AcquireError> {
        self.checked()?.acquire_within(wait).await
    }

    /// Takes them, waiting as long as [`Options::max_wait`](crate::Options::max_wait) says (default 5 s). Round trips and
    /// cancel safety as [`acquire_within`](Self::acquire_within).
    ///
    /// # Errors
    /// As [`acquire_within`](Self::acquire_within).
    pub async fn acquire(&self) -> Result<Permit, AcquireError> {
        self.checked()?.acquire().await
    }

    pub(crate) fn view(&self) -> &View<Permits> {
        &self.view
    }

    fn checked(&self) -> Result<&View<Permits>, ConfigError> {
        match self.weight {
            1..=LARGEST => Ok(&self.view),
            weight => Err(ConfigError::Weight { weight }),
        }
    }
}

impl Holdable for Many {
    fn member(&self) -> Member {
        self.view.member()
    }
}

impl fmt::Debug for Many {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Many").field("weight", &self.weight).finish_non_exhaustive()
    }
}
