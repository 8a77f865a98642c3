//! The one place that reads time. Local deadlines use a monotonic clock; order and leases are the server's business.
//!
//! A local deadline must never be later than the server's (I2). The server ran a call after it was sent, so
//! `sent + lease` is safe but for the difference of the two clocks' rates; [`Drift`] takes that off. The margin is the
//! one of the Redlock article (1 % and 2 ms, <https://redis.io/docs/latest/develop/use/patterns/distributed-locks/>).

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A point of the local monotonic clock, in nanoseconds since this process first asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

/// Now.
#[expect(clippy::disallowed_methods, reason = "this is the one clock module")]
pub(crate) fn now() -> Moment {
    static ANCHOR: OnceLock<Instant> = OnceLock::new();
    // The anchor is one second in the past, so that a moment shortly before the first one exists too.
    let anchor = *ANCHOR.get_or_init(Instant::now);
    Moment(1_000_000_000 + nanos(anchor.elapsed()))
}

/// The local wall clock, since 1970. Only to compare it with the server's for people who look; nothing is decided by it.
pub(crate) fn wall() -> Duration {
    std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Moment {
    /// Later than any other.
    pub(crate) const NEVER: Self = Self(u64::MAX);

    pub(crate) fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(nanos(duration)))
    }

    pub(crate) fn minus(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(duration)))
    }

    /// How long from `earlier` to here; nothing if it is not earlier.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// How long from now to here; nothing if it has passed.
    pub(crate) fn left(self) -> Duration {
        self.since(now())
    }

    pub(crate) fn passed(self) -> bool {
        now() >= self
    }

    /// Down to a multiple of `width`, so that what is due at about the same time is due together.
    pub(crate) fn bucket(self, width: Duration) -> Self {
        let width = nanos(width).max(1);
        Self(self.0 - self.0 % width)
    }

    pub(crate) fn from_nanos(raw: u64) -> Self {
        Self(raw)
    }

    pub(crate) fn as_nanos(self) -> u64 {
        self.0
    }
}

/// Nothing is due.
impl Default for Moment {
    fn default() -> Self {
        Self::NEVER
    }
}

/// Sleeps until a moment of this clock.
pub(crate) async fn sleep_until(moment: Moment) {
    // tokio's timer counts whole milliseconds and rounds up: never early, at most one late.
    tokio::time::sleep(moment.left()).await;
}

/// How much faster than the server's the local clock may seem to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Drift {
    /// Share of the span, in millionths.
    pub(crate) rate_ppm: u32,
    /// On top of it.
    pub(crate) margin: Duration,
}

impl Drift {
    fn of(self, span: Duration) -> Duration {
        span.saturating_mul(self.rate_ppm) / 1_000_000 + self.margin
    }

    /// The local deadline of a hold that a reply reports: it had `left` when the server ran the call, after `sent`.
    pub(crate) fn deadline_of_reply(self, sent: Moment, left: Duration) -> Moment {
        sent.plus(left).minus(self.of(left))
    }

    /// The local deadline of a hold that a push reports: granted at `granted_us` of the server's clock for `lease`.
    /// `sample` ties that clock to ours. Capped by the arrival: a server clock that was set forward must not make it
    /// later.
    pub(crate) fn deadline_of_push(
        self,
        sample: Sample,
        granted_us: u64,
        lease: Duration,
        received: Moment,
    ) -> Moment {
        let age = Duration::from_micros(granted_us.saturating_sub(sample.server_us));
        let by_sample = sample.sent.plus(age).plus(lease).minus(self.of(age + lease));
        by_sample.min(received.plus(lease))
    }
}

/// A pair of readings: the server's clock said `server_us` not before `sent`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) sent: Moment,
    pub(crate) server_us: u64,
}

/// A random number for jitter and traces.
pub(crate) fn random() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().1
}

/// Between three quarters of a pause and the whole: what started together must not go on in step.
pub(crate) fn jittered(pause: Duration) -> Duration {
    let share = u32::try_from(random() % 256).unwrap_or(0);
    pause - pause / 4 * share / 255
}

/// Pauses that double from `first` to `most`, jittered.
#[derive(Debug, Clone)]
pub(crate) struct Backoff {
    next: Duration,
    first: Duration,
    most: Duration,
}

impl Backoff {
    pub(crate) fn new(first: Duration, most: Duration) -> Self {
        Self { next: first, first, most }
    }

    pub(crate) fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.most);
        jittered(pause)
    }

    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRIFT: Drift = Drift { rate_ppm: 10_000, margin: Duration::from_millis(2) };
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_reply_counts_from_the_sending_less_drift() {
        let sent = now();
        let deadline = DRIFT.deadline_of_reply(sent, SECOND);
        assert_eq!(deadline.since(sent), Duration::from_millis(988));
    }

    #[test]
    fn a_lease_shorter_than_the_margin_is_over_at_once() {
        assert!(DRIFT.deadline_of_reply(now(), Duration::from_millis(1)).passed());
    }

    #[test]
    fn a_push_counts_from_the_grant_and_never_from_after_its_arrival() {
        let sample = Sample { sent: now(), server_us: 5_000_000 };
        let received = sample.sent.plus(SECOND);
        let half_a_second_old = DRIFT.deadline_of_push(sample, 5_500_000, SECOND, received);
        assert_eq!(half_a_second_old.since(sample.sent), Duration::from_millis(1_483));
        let clock_set_forward = DRIFT.deadline_of_push(sample, 500_000_000, SECOND, received);
        assert_eq!(clock_set_forward, received.plus(SECOND));
        let clock_set_back = DRIFT.deadline_of_push(sample, 1, SECOND, received);
        assert!(clock_set_back < half_a_second_old);
    }

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(now().plus(Duration::MAX), Moment::NEVER);
        assert_eq!(now().since(Moment::NEVER), Duration::ZERO);
        assert!(DRIFT.deadline_of_reply(now(), Duration::MAX) <= Moment::NEVER);
    }

    #[test]
    fn pauses_double_within_their_jitter() {
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(35));
        for most in [10, 20, 35, 35] {
            let pause = backoff.pause();
            assert!(
                pause <= Duration::from_millis(most)
                    && pause >= Duration::from_millis(most) * 3 / 4
            );
        }
        backoff.reset();
        assert!(backoff.pause() <= Duration::from_millis(10));
    }
}
