//! What both sides say, in a form that can be compared.

use super::reference::Push;

/// A part of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Word(&'static str),
    Exact(u64),
    /// May differ by the time that a call takes.
    About(u64),
}

/// An answer to a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer(Vec<Said>);

impl Answer {
    pub(crate) fn new(word: &'static str) -> Self {
        Self::default().and(word)
    }

    pub(crate) fn and(mut self, word: &'static str) -> Self {
        self.0.push(Said::Word(word));
        self
    }

    pub(crate) fn exact(mut self, number: u64) -> Self {
        self.0.push(Said::Exact(number));
        self
    }

    pub(crate) fn about(mut self, ms: u64) -> Self {
        self.0.push(Said::About(ms));
        self
    }

    pub(crate) fn again(self, again: bool) -> Self {
        self.and(if again { "again" } else { "settled" })
    }

    /// It settled, and a bound was not reached.
    pub(crate) fn is_settled(&self) -> bool {
        self.0.contains(&Said::Word("settled"))
    }

    /// Whether `real` is this answer.
    pub(crate) fn agrees(&self, real: &Self, slack_ms: u64) -> bool {
        let same = |(ours, theirs): (&Said, &Said)| match (ours, theirs) {
            (Said::About(ours), Said::About(theirs)) => ours.abs_diff(*theirs) <= slack_ms,
            (ours, theirs) => ours == theirs,
        };
        self.0.len() == real.0.len() && self.0.iter().zip(&real.0).all(same)
    }
}

/// What a step did, apart from the keys.
#[derive(Clone, Debug)]
pub(crate) struct Done {
    pub(crate) answer: Answer,
    /// By inbox, sorted.
    pub(crate) pushes: Vec<(usize, Push)>,
}
