//! Options of a hold.

use std::time::Duration;

use crate::error::ConfigError;

const MS: Duration = Duration::from_millis(1);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// How a lock is held and waited for. A value: make it once, give it to several locks.
///
/// ```
/// use std::time::Duration;
/// use leasehold_runtime::Options;
///
/// let nightly = Options::default()
///     .lease(Duration::from_secs(10))
///     .hold_at_most(Duration::from_secs(3600))
///     .max_wait(Duration::from_secs(30))
///     .label("nightly invoices");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Options {
    pub(crate) lease: Duration,
    pub(crate) renewed: bool,
    pub(crate) hold_at_most: Duration,
    pub(crate) hold_at_least: Duration,
    pub(crate) max_wait: Wait,
    pub(crate) max_waiters: Option<u32>,
    pub(crate) label: String,
    pub(crate) replicas: Option<Replicas>,
}

/// How many replicas have to have a grant, and within which time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Replicas {
    pub(crate) count: u32,
    pub(crate) within: Duration,
}

/// How long replicas may take unless it is said.
const REPLICATION: Duration = Duration::from_millis(100);

/// How long `acquire` waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    AtMost(Duration),
    Forever,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(30),
            renewed: true,
            hold_at_most: Duration::from_secs(600),
            hold_at_least: Duration::ZERO,
            max_wait: Wait::AtMost(Duration::from_secs(5)),
            max_waiters: None,
            label: String::new(),
            replicas: None,
        }
    }
}

impl Options {
    /// How long the server keeps a hold that is not renewed; default 30 s, whole milliseconds from 1 ms to 24 h, and at
    /// most [`hold_at_most`](Self::hold_at_most) (10 min unless it is set).
    ///
    /// The watchdog renews at a third of it, whatever it is: setting the lease never switches renewal off. Short: a dead
    /// holder frees the lock soon. Long: an outage of Redis or a paused process costs no hold.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self.renewed = true;
        self
    }

    /// A lease that is never renewed: the hold ends after it, whatever happens. [`hold_at_most`](Self::hold_at_most) is
    /// ignored. For work whose length is known and whose process may be stopped from outside.
    pub fn fixed(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self.renewed = false;
        self
    }

    /// The longest hold, from its grant; default 10 min, up to 7 days. Then renewal stops and the guard reports
    /// [`LostReason::HoldLimit`](crate::LostReason::HoldLimit): a stuck holder does not keep the lock for ever.
    pub fn hold_at_most(mut self, most: Duration) -> Self {
        self.hold_at_most = most;
        self
    }

    /// The shortest hold, from its grant; default 0, not more than [`hold_at_most`](Self::hold_at_most). An earlier
    /// release keeps the lock closed until then: several machines whose clocks differ start the same short job once. The
    /// server's clock counts: where it is set back after the release, the lock opens so much later, as a lease ends later.
    pub fn hold_at_least(mut self, least: Duration) -> Self {
        self.hold_at_least = least;
        self
    }

    /// How long `acquire` waits; default 5 s. Any wait is legal. To wait without end, ask for it by name:
    /// [`wait_forever`](Self::wait_forever).
    pub fn max_wait(mut self, wait: Duration) -> Self {
        self.max_wait = Wait::AtMost(wait);
        self
    }

    /// `acquire` waits without end. A bound is nearly always better: a caller that has given up should not wait.
    pub fn wait_forever(mut self) -> Self {
        self.max_wait = Wait::Forever;
        self
    }

    /// The most waiters of the name; default no bound. One more is refused at once with
    /// [`AcquireError::Saturated`](crate::AcquireError::Saturated): shed load instead of piling it up.
    pub fn max_waiters(mut self, most: u32) -> Self {
        self.max_waiters = Some(most);
        self
    }

    /// Words for people who look at the lock: the name of the job, say. At most 128 bytes. Anybody who may read the
    /// keys can read it.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// A grant counts only once so many replicas have it: the hold is renewed and `WAIT` is sent, on a connection that
    /// serves nothing else, before the guard is handed out. Default 0: no replica. `within`: at most so long, 100 ms if it
    /// is `None`, from 1 ms to half the lease.
    ///
    /// Redis replicates after it has answered, so a failover may lose a grant, and with it exclusion, until the lease is
    /// over. One acknowledgement of two replicas closes that gap where the replica that has most is promoted (Sentinel and
    /// Cluster choose so); a majority is better. It is no consensus: a master that is cut off still renews what it
    /// granted, unless `min-replicas-to-write` at the server stops it, and renewals are not waited for. The fencing token
    /// stays what excludes (`WAIT` in the documentation of Redis says as much of itself).
    ///
    /// Costs two round trips more, and what the replicas take; holds that are acquired at the same time share one `WAIT`.
    /// Each number and time of its own costs the session a connection to each master, until it ends: use few. What is waited
    /// for replicas is not part of the wait for the lock: an acquire may end by `within` and the response timeout later. Fewer acknowledgements:
    /// [`AcquireError::NotReplicated`](crate::AcquireError::NotReplicated), and the hold is given back. The user needs
    /// the right to `wait`.
    pub fn wait_replicas(mut self, count: u32, within: impl Into<Option<Duration>>) -> Self {
        let within = within.into().unwrap_or(REPLICATION);
        self.replicas = (count > 0).then_some(Replicas { count, within });
        self
    }

    /// Checks every bound; nothing is sent before.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        check_lease(self.lease)?;
        if self.renewed && self.lease > self.hold_at_most {
            return Err(ConfigError::LeaseOverHoldAtMost {
                lease: self.lease,
                hold_at_most: self.hold_at_most,
            });
        }
        if self.hold_at_most > DAY * 7 {
            return Err(ConfigError::HoldAtMost { hold_at_most: self.hold_at_most });
        }
        if self.hold_at_least > self.hold_at_most {
            return Err(ConfigError::HoldAtLeast {
                hold_at_least: self.hold_at_least,
                hold_at_most: self.hold_at_most,
            });
        }
        if let Some(Replicas { within, .. }) = self.replicas
            && (within < MS || within > self.lease / 2)
        {
            return Err(ConfigError::Replication { within, lease: self.lease });
        }
        if self.label.len() > 128 {
            return Err(ConfigError::Label { length: self.label.len() });
        }
        Ok(())
    }

    pub(crate) fn lease_ms(&self) -> u64 {
        whole_ms(self.lease)
    }
}

/// A lease is whole milliseconds, 1 ms to 24 h: Redis refuses fractions, and 0 would delete the key.
pub(crate) fn check_lease(lease: Duration) -> Result<(), ConfigError> {
    if lease < MS || lease > DAY || !lease.subsec_nanos().is_multiple_of(1_000_000) {
        return Err(ConfigError::Lease { lease });
    }
    Ok(())
}

/// Milliseconds for the wire; part of one counts whole, too large saturates.
pub(crate) fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_outside_the_bounds_are_refused() {
        let bad = [
            Duration::ZERO,
            Duration::from_micros(999),
            Duration::from_micros(1_500),
            DAY + MS,
            Duration::MAX,
        ];
        for lease in bad {
            for options in [Options::default().lease(lease), Options::default().fixed(lease)] {
                assert!(matches!(options.check(), Err(ConfigError::Lease { .. })), "{lease:?}");
            }
        }
    }

    #[test]
    fn a_lease_fits_into_the_hold_unless_it_is_fixed() {
        let hour = Duration::from_secs(3600);
        assert!(matches!(
            Options::default().lease(hour).check(),
            Err(ConfigError::LeaseOverHoldAtMost { .. })
        ));
        assert!(Options::default().fixed(hour).check().is_ok());
        assert!(Options::default().lease(hour).hold_at_most(hour).check().is_ok());
    }

    #[test]
    fn the_shortest_hold_is_not_longer_than_the_longest() {
        let options = Options::default().hold_at_least(Duration::from_secs(601));
        assert!(matches!(options.check(), Err(ConfigError::HoldAtLeast { .. })));
        assert!(matches!(
            Options::default().hold_at_most(Duration::MAX).check(),
            Err(ConfigError::HoldAtMost { .. })
        ));
    }

    #[test]
    fn replicas_are_waited_for_no_longer_than_half_the_lease() {
        let lease = Duration::from_secs(1);
        let waits = |count, within: Option<Duration>| {
            Options::default().lease(lease).wait_replicas(count, within).check()
        };
        for within in [Duration::ZERO, Duration::from_micros(999), lease / 2 + MS, Duration::MAX] {
            assert!(
                matches!(waits(1, Some(within)), Err(ConfigError::Replication { .. })),
                "{within:?}"
            );
            assert!(waits(0, Some(within)).is_ok(), "nobody waits");
        }
        assert!(waits(1, None).is_ok() && waits(u32::MAX, Some(lease / 2)).is_ok());
        let short = Options::default().lease(MS * 150).wait_replicas(1, None);
        assert!(matches!(short.check(), Err(ConfigError::Replication { .. })));
    }

    #[test]
    fn any_wait_is_legal() {
        for wait in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
            assert!(Options::default().max_wait(wait).check().is_ok());
        }
    }

    #[test]
    fn milliseconds_round_up_and_saturate() {
        assert_eq!(whole_ms(Duration::from_micros(1)), 1);
        assert_eq!(whole_ms(Duration::MAX), u64::MAX);
    }
}
