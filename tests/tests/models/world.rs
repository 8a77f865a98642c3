//! The acquisitions of a case, and the calls that their clients make of every kind.

use std::ops::Index;

use leasehold_lua::wire::acquisition_id;
use leasehold_lua::{Acquisition, Call, Keys, Mode, Settings, Share, Terms, Verbs};

use super::bench::channel;
use super::names::{note, number_of, owner_name, uuid};

pub(crate) const CHECK_MS: u64 = 1_000;
pub(crate) const GRANT_MS: u64 = 2_000;

/// One acquisition; its number is its place in the world.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) lease_ms: u64,
    pub(crate) owner: usize,
    pub(crate) inbox: usize,
    pub(crate) share: Share,
}

#[derive(Clone, Debug)]
pub(crate) struct Acquisitions(Vec<Attempt>);

impl FromIterator<Attempt> for Acquisitions {
    fn from_iter<T: IntoIterator<Item = Attempt>>(attempts: T) -> Self {
        Self(attempts.into_iter().collect())
    }
}

impl Index<usize> for Acquisitions {
    type Output = Attempt;

    fn index(&self, number: usize) -> &Attempt {
        &self.0[number]
    }
}

impl Acquisitions {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// `uuid|lease_ms|share|inbox`; ids sort as their numbers do.
    pub(crate) fn id(&self, number: usize) -> String {
        let Attempt { lease_ms, inbox, share, .. } = self[number];
        let id = acquisition_id(&uuid(number), lease_ms, share, channel(inbox).as_bytes());
        String::from_utf8(id).expect("plain text")
    }

    /// The number of an id, which must be whole.
    pub(crate) fn number(&self, id: &str) -> Result<usize, String> {
        let number = number_of(id);
        if self.id(number) == id { Ok(number) } else { Err(format!("{id} is no acquisition")) }
    }

    /// With the leases that renewals ask for: their own, but for those that are given.
    pub(crate) fn leases(&self, elements: Vec<(usize, Option<u64>)>) -> Vec<(usize, u64)> {
        let lease = |(id, other): (usize, Option<u64>)| (id, other.unwrap_or(self[id].lease_ms));
        elements.into_iter().map(lease).collect()
    }

    /// `owner`: as the call says; as a rule its own.
    pub(crate) fn text(&self, number: usize, owner: usize) -> Text {
        let lease_ms = self[number].lease_ms;
        Text { id: self.id(number), owner: owner_name(owner), note: note(number), lease_ms }
    }

    pub(crate) fn own_text(&self, number: usize) -> Text {
        self.text(number, self[number].owner)
    }
}

/// The texts of an acquisition.
pub(crate) struct Text {
    id: String,
    owner: String,
    note: String,
    lease_ms: u64,
}

impl Text {
    pub(crate) fn wire(&self) -> Acquisition<'_> {
        let (id, note) = (self.id.as_bytes(), self.note.as_bytes());
        Acquisition { id, owner: &self.owner, note, lease_ms: self.lease_ms }
    }
}

/// Encodes the calls that every kind has.
pub(crate) struct Caller<'a> {
    pub(crate) acquisitions: &'a Acquisitions,
    pub(crate) verbs: &'a Verbs,
    pub(crate) settings: Settings,
    pub(crate) keys: &'a Keys,
    pub(crate) terms: Terms,
}

impl Caller<'_> {
    pub(crate) fn acquire(&self, id: usize, queues: bool, max_waiters: Option<u32>) -> Call {
        let mode = if queues { Mode::Wait { max_waiters } } else { Mode::Try };
        let text = self.acquisitions.own_text(id);
        self.verbs.acquire(self.keys, &self.settings, text.wire(), mode, self.terms)
    }

    /// Acquisitions with the tickets that they bring.
    pub(crate) fn check(&self, waiting: &[(usize, u64)], deaf: bool) -> Call {
        let text = |(id, ticket): &(usize, u64)| (self.acquisitions.own_text(*id), *ticket);
        let texts: Vec<_> = waiting.iter().map(text).collect();
        let waiting = texts.iter().map(|(text, ticket)| (text.wire(), *ticket));
        self.verbs.check(self.keys, &self.settings, waiting, deaf, self.terms)
    }

    /// Acquisitions with the leases that they ask for.
    pub(crate) fn renew(&self, elements: &[(usize, u64)]) -> Call {
        let mut calls = elements.iter().map(|(id, lease_ms)| {
            self.verbs.renew(self.keys, self.acquisitions.id(*id).as_bytes(), *lease_ms)
        });
        let mut call = calls.next().expect("at least one");
        calls.for_each(|other| call.join(other));
        call
    }

    pub(crate) fn release(&self, id: usize, late: bool, at_least_ms: u64) -> Call {
        let id = self.acquisitions.id(id);
        self.verbs.release(self.keys, id.as_bytes(), late, at_least_ms, self.terms)
    }
}
