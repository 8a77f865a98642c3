//! Waiting for a fact instead of sleeping.

use std::time::Duration;

use crate::rig::Watch;

/// How often the fact is looked at: short against every lease and margin of the suites.
const PAUSE: Duration = Duration::from_millis(5);

/// Waits until `fact` is true and returns how long that took; fails the test when it still is not
/// after `within`, times in which the machine stood still not counted. `what` names the fact in that failure.
pub async fn eventually(
    within: Duration,
    what: &str,
    mut fact: impl AsyncFnMut() -> bool,
) -> Duration {
    let begin = Watch::start();
    while !fact().await {
        assert!(begin.awake() < within, "not within {within:?}: {what}");
        tokio::time::sleep(PAUSE).await;
    }
    begin.awake()
}
