//! What clients send, and the world that they live in.

use leasehold_lua::semaphore::{self, Ended};
use leasehold_lua::wire::acquisition_id;
use leasehold_lua::{Acquisition, Call, Keys, Mode, Share, Terms, mutex};

use super::bench::channel;
use super::names::{note, owner_name, uuid};
use super::reference::{CHECK_MS, GRANT_MS};

/// The values of `hold_at_least` that releases carry.
pub(crate) const AT_LEAST_MS: [u64; 3] = [0, 4_000, 90_000];

/// One acquisition; its number is its place in the world.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) lease_ms: u64,
    pub(crate) owner: usize,
    pub(crate) inbox: usize,
    pub(crate) weight: u32,
}

/// What does not change in a case.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) acquisitions: Vec<Attempt>,
    /// What most processes go by.
    pub(crate) limit: u32,
    pub(crate) wait_ms: u64,
    /// The scripts' bounds: as they are, or so small that a case reaches them.
    pub(crate) small_bounds: bool,
    pub(crate) most_dead: usize,
    pub(crate) most_grants: usize,
    pub(crate) most_expired: usize,
}

impl World {
    /// `uuid|lease_ms|share|inbox`; ids sort as their numbers do.
    pub(crate) fn id(&self, number: usize) -> String {
        let Attempt { lease_ms, inbox, weight, .. } = self.acquisitions[number];
        let share = Share::Weight(weight);
        let id = acquisition_id(&uuid(number), lease_ms, share, channel(inbox).as_bytes());
        String::from_utf8(id).expect("plain text")
    }
}

/// Which hold a call names: an acquisition, or whatever an owner has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    Id(usize),
    Owner(usize),
}

impl Named {
    fn text(self, world: &World) -> String {
        match self {
            Self::Id(id) => world.id(id),
            Self::Owner(owner) => owner_name(owner),
        }
    }
}

/// A member of the zset of holds: a hold, or its cool-down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Member {
    pub(crate) id: usize,
    pub(crate) cooling: bool,
}

impl Member {
    pub(crate) fn held(id: usize) -> Self {
        Self { id, cooling: false }
    }

    pub(crate) fn cooling(id: usize) -> Self {
        Self { id, cooling: true }
    }

    pub(crate) fn name(self, world: &World) -> String {
        let id = world.id(self.id);
        if self.cooling { format!("-{id}") } else { id }
    }
}

/// A call, as a client makes it.
#[derive(Clone, Debug)]
pub(crate) enum Request {
    Acquire { id: usize, queues: bool, max_waiters: Option<u32>, limit: u32, strict: bool },
    Check { waiting: Vec<(usize, u64)>, limit: u32 },
    Renew { elements: Vec<(usize, u64)> },
    Release { id: usize, late: bool, at_least_ms: u64 },
    ReleaseMany { elements: Vec<(Named, bool, u64)> },
    SetLimit { limit: u32 },
    Split { old: usize, id: usize },
    Merge { kept: usize, merged: usize },
    Adopt { id: usize, owner: usize },
    Force { members: Vec<Member> },
    Inspect { most: u32 },
    Queue { most: u32 },
}

impl Request {
    /// The acquisitions that it speaks for.
    pub(crate) fn ids(&self) -> Vec<usize> {
        match self {
            Self::Acquire { id, .. } | Self::Release { id, .. } | Self::Adopt { id, .. } => {
                vec![*id]
            }
            Self::Split { old, id } => vec![*old, *id],
            Self::Merge { kept, merged } => vec![*kept, *merged],
            Self::Check { waiting, .. } => waiting.iter().map(|(id, _)| *id).collect(),
            Self::Renew { elements } => elements.iter().map(|(id, _)| *id).collect(),
            Self::ReleaseMany { .. }
            | Self::SetLimit { .. }
            | Self::Force { .. }
            | Self::Inspect { .. }
            | Self::Queue { .. } => vec![],
        }
    }

    /// As the encoders make it.
    pub(crate) fn call(&self, world: &World, keys: &Keys) -> Call {
        let terms = Terms {
            wait_ms: world.wait_ms,
            check_ms: CHECK_MS,
            grant_ms: GRANT_MS,
            fence_ms: 0,
            floor: 0,
        };
        let own = |id: usize| Text::of(world, id, world.acquisitions[id].owner);
        let (verbs, id_of) = (&semaphore::VERBS, |id: &usize| world.id(*id).into_bytes());
        match self {
            Self::Acquire { id, queues, max_waiters, limit, strict } => {
                let settings = semaphore::settings(*limit, *strict);
                let wait = Mode::Wait { max_waiters: *max_waiters };
                let mode = if *queues { wait } else { Mode::Try };
                verbs.acquire(keys, &settings, own(*id).wire(), mode, terms)
            }
            Self::Check { waiting, limit } => {
                let settings = semaphore::settings(*limit, false);
                let texts: Vec<_> =
                    waiting.iter().map(|(id, ticket)| (own(*id), *ticket)).collect();
                let waiting = texts.iter().map(|(text, ticket)| (text.wire(), *ticket));
                verbs.check(keys, &settings, waiting, terms)
            }
            Self::Renew { elements } => {
                let mut calls = elements.iter().map(|(id, ms)| verbs.renew(keys, &id_of(id), *ms));
                let mut call = calls.next().expect("at least one");
                calls.for_each(|other| call.join(other));
                call
            }
            Self::Release { id, late, at_least_ms } => {
                verbs.release(keys, &id_of(id), *late, *at_least_ms, terms)
            }
            Self::ReleaseMany { elements } => {
                let names: Vec<_> = elements.iter().map(|(named, ..)| named.text(world)).collect();
                let ended = elements.iter().zip(&names).map(|((_, late, at_least_ms), name)| {
                    Ended { name: name.as_bytes(), late: *late, at_least_ms: *at_least_ms }
                });
                semaphore::release_many(keys, &ended.collect::<Vec<_>>(), terms)
            }
            Self::SetLimit { limit } => semaphore::set_limit(keys, *limit, terms),
            Self::Split { old, id } => semaphore::split(keys, &id_of(old), own(*id).wire()),
            Self::Merge { kept, merged } => semaphore::merge(keys, &id_of(kept), &id_of(merged)),
            Self::Adopt { id, owner } => {
                semaphore::adopt(keys, Text::of(world, *id, *owner).wire())
            }
            Self::Force { members } => {
                let names: Vec<_> = members.iter().map(|member| member.name(world)).collect();
                let names: Vec<_> = names.iter().map(String::as_bytes).collect();
                semaphore::force_release(keys, &names, terms)
            }
            Self::Inspect { most } => semaphore::inspect(keys, *most),
            Self::Queue { most } => mutex::queue(keys, *most),
        }
    }
}

/// The texts of an acquisition.
struct Text {
    id: String,
    owner: String,
    note: String,
    lease_ms: u64,
}

impl Text {
    fn of(world: &World, id: usize, owner: usize) -> Self {
        let lease_ms = world.acquisitions[id].lease_ms;
        Self { id: world.id(id), owner: owner_name(owner), note: note(id), lease_ms }
    }

    fn wire(&self) -> Acquisition<'_> {
        let (id, note) = (self.id.as_bytes(), self.note.as_bytes());
        Acquisition { id, owner: &self.owner, note, lease_ms: self.lease_ms }
    }
}
