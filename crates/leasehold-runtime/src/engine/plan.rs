//! A plan: the calls of one hold, as values.

use std::fmt;
use std::sync::Arc;

use leasehold_lua::wire::{self, Note};
use leasehold_lua::{Call, Mode, Terms};
use uuid::Uuid;

use super::Spec;
use crate::backend::here;
use crate::clock;
use crate::holder::Trace;
use crate::name::Name;
use crate::owner::Owner;
use crate::position::Seat;
use crate::session::Identity;

/// One attempt: one id, never used again.
///
/// `Debug` shows its trace, not its id (I19).
pub struct Acquisition {
    pub(crate) uuid: Uuid,
    pub(crate) id: Vec<u8>,
    pub(crate) owner: Owner,
    pub(crate) trace: Trace,
    pub(crate) note: Vec<u8>,
    pub(crate) lease_ms: u64,
    /// The runtime that it was begun on, whose connection carries its acquire.
    pub(crate) home: Option<tokio::runtime::Id>,
    /// Where it tells its position, if anybody asked for it.
    pub(crate) seat: Option<Seat>,
}

impl fmt::Debug for Acquisition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquisition").field("trace", &self.trace).finish_non_exhaustive()
    }
}

impl Acquisition {
    /// A fresh one. Without an owner it gets one of its own.
    pub(crate) fn new(identity: &Identity, spec: &Spec, owner: Option<&Owner>) -> Self {
        Self::of(Uuid::new_v4(), identity, spec, owner)
    }

    /// The one of this uuid: fresh too, but the same at several servers.
    pub(crate) fn of(uuid: Uuid, identity: &Identity, spec: &Spec, owner: Option<&Owner>) -> Self {
        let trace = clock::random();
        let lease_ms = spec.options().lease_ms();
        let note = Note {
            trace,
            session: identity.trace,
            pid: std::process::id(),
            host: identity.host.clone(),
            label: spec.options().label.clone(),
        };
        Self {
            uuid,
            id: wire::acquisition_id(
                uuid.simple().encode_lower(&mut Uuid::encode_buffer()),
                lease_ms,
                spec.share(),
                &identity.inbox,
            ),
            owner: owner.cloned().unwrap_or_default(),
            trace: Trace(trace),
            note: note.encode(),
            lease_ms,
            home: here(),
            seat: None,
        }
    }

    /// As the scripts know it.
    pub fn wire(&self) -> leasehold_lua::Acquisition<'_> {
        leasehold_lua::Acquisition {
            id: &self.id,
            owner: self.owner.as_str(),
            note: &self.note,
            lease_ms: self.lease_ms,
        }
    }
}

/// A spec and one acquisition.
#[derive(Debug)]
pub struct Plan {
    pub(crate) spec: Arc<Spec>,
    pub(crate) acquisition: Acquisition,
}

impl Plan {
    pub(crate) fn uuid(&self) -> Uuid {
        self.acquisition.uuid
    }

    pub(crate) fn name(&self) -> &Name {
        self.spec.name()
    }

    pub(crate) fn options(&self) -> &crate::Options {
        self.spec.options()
    }

    pub(crate) fn acquire(&self, mode: Mode, terms: Terms) -> Call {
        self.spec.acquire(self.acquisition.wire(), mode, terms)
    }

    pub(crate) fn renew(&self, lease_ms: u64) -> Call {
        self.spec.renew(&self.acquisition.id, lease_ms)
    }

    pub(crate) fn release(&self, late: bool, terms: Terms) -> Call {
        self.spec.release(&self.acquisition.id, late, terms)
    }

    pub(crate) fn cancel(&self, late: bool, terms: Terms) -> Call {
        self.spec.cancel(&self.acquisition.id, late, terms)
    }
}
