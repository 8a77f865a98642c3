//! Figures of a measurement: medians, and what a server spent.

use std::time::Duration;

use crate::Server;

/// The middle of the samples.
#[must_use]
pub fn p50(samples: &[Duration]) -> Duration {
    let mut sorted = samples.to_vec();
    sorted.sort();
    *sorted.get(sorted.len() / 2).expect("samples")
}

/// Prints a ratio beside its target, and says whether this run met it.
pub fn report(what: &str, ratio: f64, target: f64, at_most: bool) {
    let met = if at_most { ratio <= target } else { ratio >= target };
    let sign = if at_most { "<=" } else { ">=" };
    let verdict = if met { "met" } else { "NOT met" };
    println!("{what}: {ratio:.2} (target {sign} {target}: {verdict}, {} build)", build());
}

/// How this test was built: optimised code is what users run.
#[must_use]
pub fn build() -> &'static str {
    if cfg!(debug_assertions) { "debug" } else { "release" }
}

/// CPU time of the server so far, user and system.
pub async fn cpu(server: &Server) -> Duration {
    let info: String = redis::cmd("INFO")
        .arg("cpu")
        .query_async(&mut server.connection().await)
        .await
        .expect("INFO cpu");
    let seconds = |name: &str| -> f64 {
        let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.expect("a CPU time").trim().parse().expect("seconds")
    };
    Duration::from_secs_f64(seconds("used_cpu_user") + seconds("used_cpu_sys"))
}
