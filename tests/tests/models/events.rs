//! What happens beside the calls.

use proptest::prelude::*;
use proptest::sample::select;

use super::bench::INBOXES;
use super::keys::Key;
use super::runner::Action;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    Forward {
        ms: u64,
    },
    Back {
        ms: u64,
    },
    /// Its process comes, or goes away without a word.
    Inbox {
        inbox: usize,
        alive: bool,
    },
    Lose {
        key: Key,
    },
    FlushScripts,
}

impl Event {
    pub(crate) fn action<Request>(self) -> Action<Request> {
        match self {
            Self::Forward { ms } => Action::Clock(ms.cast_signed()),
            Self::Back { ms } => Action::Clock(-ms.cast_signed()),
            Self::Inbox { inbox, alive } => Action::Inbox { inbox, alive },
            Self::Lose { key } => Action::Lose(key),
            Self::FlushScripts => Action::FlushScripts,
        }
    }
}

/// One of these.
pub(crate) fn forward(ms: Vec<u64>) -> impl Strategy<Value = Event> {
    select(ms).prop_map(|ms| Event::Forward { ms })
}

pub(crate) fn back() -> impl Strategy<Value = Event> {
    select(vec![1_500, 3_000]).prop_map(|ms| Event::Back { ms })
}

/// So probably it comes.
pub(crate) fn inbox(comes: f64) -> impl Strategy<Value = Event> {
    (0..INBOXES, prop::bool::weighted(comes))
        .prop_map(|(inbox, alive)| Event::Inbox { inbox, alive })
}

/// One of these.
pub(crate) fn lose(keys: Vec<Key>) -> impl Strategy<Value = Event> {
    select(keys).prop_map(|key| Event::Lose { key })
}
