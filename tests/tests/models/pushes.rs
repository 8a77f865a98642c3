//! What inboxes are sent.

use leasehold_lua::wire::Push as Message;

use super::bench::INBOXES;
use super::names::number_of;

/// A push to an inbox, without its time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Push {
    Granted { id: usize, token: u64, lease_ms: u64 },
    Forced { id: usize },
    Adopted { id: usize },
    Cancelled { id: usize },
    Refused { id: usize },
}

/// Of the model.
#[derive(Clone, Debug)]
pub(crate) struct Inboxes {
    /// Which have a subscriber.
    pub(crate) alive: [bool; INBOXES],
    pushes: Vec<(usize, Push)>,
    /// Grants without a message: who got them looks for them.
    unheard: Vec<(usize, Push)>,
}

impl Inboxes {
    pub(crate) fn new() -> Self {
        Self { alive: [true; INBOXES], pushes: Vec::new(), unheard: Vec::new() }
    }

    /// Whether anybody heard it.
    pub(crate) fn push(&mut self, inbox: usize, push: Push) -> bool {
        if self.alive[inbox] {
            self.pushes.push((inbox, push));
        }
        self.alive[inbox]
    }

    /// Whether it is heard of, or found by one that looks for it.
    pub(crate) fn grant(&mut self, inbox: usize, push: Push, looks: bool) -> bool {
        let heard = self.push(inbox, push.clone());
        if looks && !heard {
            self.unheard.push((inbox, push));
        }
        heard || looks
    }

    /// What was pushed, and what was granted without a message: whoever looks for it has it from then on.
    pub(crate) fn told(&self, pushed: &[(usize, Push)]) -> Vec<(usize, Push)> {
        [pushed, &self.unheard].concat()
    }

    /// Those of the last request, by inbox, sorted.
    pub(crate) fn pushed(&self) -> Vec<(usize, Push)> {
        let mut all = self.pushes.clone();
        all.sort();
        all
    }

    pub(crate) fn clear(&mut self) {
        self.pushes.clear();
        self.unheard.clear();
    }
}

/// The server's pushes by inbox, sorted, and the moment that they were made.
pub(crate) fn decode(messages: &[(usize, Message)]) -> (Option<u64>, Vec<(usize, Push)>) {
    let mut made_us = None;
    let mut all = Vec::new();
    for (inbox, message) in messages {
        let push = match message {
            Message::Granted { uuid, token, lease_ms, at_us } => {
                made_us = Some(*at_us);
                Push::Granted { id: number_of(uuid), token: *token, lease_ms: *lease_ms }
            }
            Message::Forced { uuid } => Push::Forced { id: number_of(uuid) },
            Message::Adopted { uuid } => Push::Adopted { id: number_of(uuid) },
            Message::Cancelled { uuid } => Push::Cancelled { id: number_of(uuid) },
            Message::Refused { uuid } => Push::Refused { id: number_of(uuid) },
            Message::Over { .. } | Message::Proof { .. } => panic!("nobody sends {message:?} here"),
        };
        all.push((*inbox, push));
    }
    all.sort();
    (made_us, all)
}
