//! Waiting for a fact instead of sleeping.

use std::time::{Duration, Instant};

/// How often the fact is looked at: short against every lease and margin of the suites.
const PAUSE: Duration = Duration::from_millis(5);

/// Waits until `fact` is true and returns how long that took; fails the test when it still is not
/// after `within`. `what` names the fact in that failure.
pub async fn eventually(
    within: Duration,
    what: &str,
    mut fact: impl AsyncFnMut() -> bool,
) -> Duration {
    let begin = Instant::now();
    while !fact().await {
        assert!(begin.elapsed() < within, "not within {within:?}: {what}");
        tokio::time::sleep(PAUSE).await;
    }
    begin.elapsed()
}
