//! What both sides say, in a form that can be compared.

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
pub(crate) struct Answer {
    said: Vec<Said>,
    pub(crate) again: Option<bool>,
    /// Acquisition and since when: any of these may be named as the holder.
    holders: Vec<(usize, u64)>,
}

impl Answer {
    pub(crate) fn new(word: &'static str) -> Self {
        Self::default().and(word)
    }

    pub(crate) fn and(mut self, word: &'static str) -> Self {
        self.said.push(Said::Word(word));
        self
    }

    pub(crate) fn exact(mut self, number: u64) -> Self {
        self.said.push(Said::Exact(number));
        self
    }

    pub(crate) fn about(mut self, ms: u64) -> Self {
        self.said.push(Said::About(ms));
        self
    }

    pub(crate) fn again(mut self, again: bool) -> Self {
        self.again = Some(again);
        self
    }

    pub(crate) fn holders(mut self, holders: impl IntoIterator<Item = (usize, u64)>) -> Self {
        self.holders.extend(holders);
        self
    }

    /// Whether `real` is this answer.
    pub(crate) fn agrees(&self, real: &Self, slack_ms: u64) -> bool {
        let same = |(ours, theirs): (&Said, &Said)| match (ours, theirs) {
            (Said::About(ours), Said::About(theirs)) => ours.abs_diff(*theirs) <= slack_ms,
            (ours, theirs) => ours == theirs,
        };
        let holder = match real.holders[..] {
            [] => self.holders.is_empty(),
            ref named => named.iter().all(|one| self.holders.contains(one)),
        };
        self.said.len() == real.said.len()
            && self.said.iter().zip(&real.said).all(same)
            && self.again == real.again
            && holder
    }
}
