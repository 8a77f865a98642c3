//! Time that runs out, for what is made of several calls.

use std::time::Duration;

use crate::clock::{Moment, now};

/// A wait that several calls share.
#[derive(Debug, Clone, Copy)]
pub struct Countdown {
    started: Moment,
    ends: Moment,
}

impl Countdown {
    /// Begins now.
    pub fn of(wait: Duration) -> Self {
        let started = now();
        Self { started, ends: started.plus(wait) }
    }

    /// What is left of it.
    pub fn left(&self) -> Duration {
        self.ends.left()
    }

    /// How long it has run.
    pub fn elapsed(&self) -> Duration {
        now().since(self.started)
    }
}
