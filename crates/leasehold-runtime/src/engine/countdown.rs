//! Time that runs out, for what is made of several calls, and the pauses between them.

use std::time::Duration;

use crate::clock::{Moment, now, random};

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

/// Pauses between tries that double from `first` to `most`, each shortened by up to a half at random: what failed together
/// must not try together.
#[derive(Debug, Clone)]
pub struct Pauses {
    next: Duration,
    most: Duration,
}

impl Pauses {
    /// Begins with `first`.
    pub fn new(first: Duration, most: Duration) -> Self {
        Self { next: first, most }
    }

    /// The next one.
    pub fn next_pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.most);
        let share = u32::try_from(random() % 1024).unwrap_or(0);
        pause - pause / 2 * share / 1023
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_and_are_at_most_halved() {
        let ms = Duration::from_millis;
        let mut pauses = Pauses::new(ms(50), ms(150));
        for most in [50, 100, 150, 150] {
            let pause = pauses.next_pause();
            assert!(pause <= ms(most) && pause >= ms(most) / 2, "{pause:?} of {most}");
        }
    }
}
