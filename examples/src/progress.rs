//! The progress bar of a run. On standard error, and only if that is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::scenario::Scenario;

/// A bar of one run. It disappears when it is dropped: the table says the rest.
#[derive(Debug)]
pub struct Progress(ProgressBar);

impl Progress {
    /// A bar for so many orders.
    pub fn new(scenario: Scenario, orders: u64) -> Self {
        let bar = ProgressBar::new(orders).with_prefix(scenario.name());
        let style = "{prefix:20} [{bar:24}] {pos:>5} of {len} orders, {elapsed} {wide_msg}";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        Self(bar)
    }

    /// One order more.
    pub fn order(&self) {
        self.0.inc(1);
    }

    /// What is going on, in a few words; none to take them away.
    pub fn say(&self, words: String) {
        self.0.set_message(words);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
