//! What clients send, and the world that they live in.

use leasehold_lua::semaphore::{self, Ended};
use leasehold_lua::{Call, Keys, Settings, Share, Terms, mutex};

use super::names::owner_name;
use super::world::{Acquisitions, CHECK_MS, Caller, GRANT_MS};

/// The values of `hold_at_least` that releases carry.
pub(crate) const AT_LEAST_MS: [u64; 3] = [0, 4_000, 90_000];

/// What does not change in a case.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) acquisitions: Acquisitions,
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
    pub(crate) fn weight(&self, number: usize) -> u32 {
        match self.acquisitions[number].share {
            Share::Weight(weight) => weight,
            other @ (Share::Exclusive | Share::Read) => panic!("no weight: {other:?}"),
        }
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
            Self::Id(id) => world.acquisitions.id(id),
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
        let id = world.acquisitions.id(self.id);
        if self.cooling { format!("-{id}") } else { id }
    }
}

/// A call, as a client makes it.
#[derive(Clone, Debug)]
pub(crate) enum Request {
    Acquire { id: usize, queues: bool, max_waiters: Option<u32>, limit: u32, strict: bool },
    Check { waiting: Vec<(usize, u64)>, deaf: bool, limit: u32 },
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

    /// What the sending process goes by.
    fn settings(&self) -> Settings {
        match self {
            Self::Acquire { limit, strict, .. } => semaphore::settings(*limit, *strict),
            Self::Check { limit, .. } => semaphore::settings(*limit, false),
            Self::Renew { .. }
            | Self::Release { .. }
            | Self::ReleaseMany { .. }
            | Self::SetLimit { .. }
            | Self::Split { .. }
            | Self::Merge { .. }
            | Self::Adopt { .. }
            | Self::Force { .. }
            | Self::Inspect { .. }
            | Self::Queue { .. } => Settings::default(),
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
        let caller = Caller {
            acquisitions: &world.acquisitions,
            verbs: &semaphore::VERBS,
            settings: self.settings(),
            keys,
            terms,
        };
        let id_of = |id: &usize| world.acquisitions.id(*id).into_bytes();
        match self {
            Self::Acquire { id, queues, max_waiters, .. } => {
                caller.acquire(*id, *queues, *max_waiters)
            }
            Self::Check { waiting, deaf, .. } => caller.check(waiting, *deaf),
            Self::Renew { elements } => caller.renew(elements),
            Self::Release { id, late, at_least_ms } => caller.release(*id, *late, *at_least_ms),
            Self::ReleaseMany { elements } => {
                let names: Vec<_> = elements.iter().map(|(named, ..)| named.text(world)).collect();
                let ended = elements.iter().zip(&names).map(|((_, late, at_least_ms), name)| {
                    Ended { name: name.as_bytes(), late: *late, at_least_ms: *at_least_ms }
                });
                semaphore::release_many(keys, &ended.collect::<Vec<_>>(), terms)
            }
            Self::SetLimit { limit } => semaphore::set_limit(keys, *limit, terms),
            Self::Split { old, id } => {
                semaphore::split(keys, &id_of(old), world.acquisitions.own_text(*id).wire())
            }
            Self::Merge { kept, merged } => semaphore::merge(keys, &id_of(kept), &id_of(merged)),
            Self::Adopt { id, owner } => {
                semaphore::adopt(keys, world.acquisitions.text(*id, *owner).wire())
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
