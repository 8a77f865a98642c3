//! Options of a latch.

use std::time::Duration;

use leasehold_runtime::ConfigError;

const MS: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// How long a latch lives and is waited for. A value: make it once, give it to several latches.
///
/// ```
/// use leasehold_latch::LatchOptions;
/// use std::time::Duration;
///
/// let nightly = LatchOptions::default()
///     .expires_after(Duration::from_secs(6 * 3600))
///     .max_wait(Duration::from_secs(3600));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct LatchOptions {
    expires_after: Duration,
    max_wait: Option<Duration>,
}

impl Default for LatchOptions {
    fn default() -> Self {
        Self { expires_after: Duration::from_secs(3600), max_wait: Some(Duration::from_secs(5)) }
    }
}

impl LatchOptions {
    /// An armed latch ends so long after it was armed or last counted down, open or not; default 1 h, whole milliseconds
    /// from 1 ms to 7 days. What [`arm`](crate::Latch::arm) is called with holds for the whole generation, whoever counts.
    ///
    /// Short: a latch whose workers died is told soon, and its keys are gone. Long: slow workers may pause between two
    /// counts, and whoever comes late still finds it open.
    pub fn expires_after(mut self, after: Duration) -> Self {
        self.expires_after = after;
        self
    }

    /// How long [`wait`](crate::Latch::wait) waits; default 5 s. Any wait is legal. To wait without end, ask for it by
    /// name: [`wait_forever`](Self::wait_forever).
    pub fn max_wait(mut self, wait: Duration) -> Self {
        self.max_wait = Some(wait);
        self
    }

    /// [`wait`](crate::Latch::wait) waits until the latch opens, is reset, or expires. A bound is nearly always better:
    /// others can go on counting down for ever.
    pub fn wait_forever(mut self) -> Self {
        self.max_wait = None;
        self
    }

    pub(crate) fn wait(&self) -> Option<Duration> {
        self.max_wait
    }

    pub(crate) fn expires_ms(&self) -> u64 {
        u64::try_from(self.expires_after.as_millis()).unwrap_or(u64::MAX)
    }

    /// Redis refuses fractions of a millisecond, and 0 would delete the key.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let after = self.expires_after;
        if after < MS || after > LONGEST || !after.subsec_nanos().is_multiple_of(1_000_000) {
            return Err(out_of_bounds("expires_after", "whole milliseconds from 1 ms to 7 days"));
        }
        Ok(())
    }
}

pub(crate) fn out_of_bounds(option: &'static str, bounds: &'static str) -> ConfigError {
    ConfigError::SessionOption { option, bounds }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latch_lives_for_whole_milliseconds_up_to_7_days() {
        for legal in [MS, Duration::from_millis(1500), LONGEST] {
            assert!(LatchOptions::default().expires_after(legal).check().is_ok(), "{legal:?}");
        }
        let bad =
            [Duration::ZERO, Duration::from_micros(1500), LONGEST + MS, Duration::from_nanos(1)];
        for bad in bad.into_iter().chain([Duration::MAX]) {
            assert!(LatchOptions::default().expires_after(bad).check().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn any_wait_is_legal() {
        for wait in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
            assert!(LatchOptions::default().max_wait(wait).check().is_ok());
        }
    }
}
