//! A view: the three verbs that take.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use leasehold_lua::{Call, Terms};
use uuid::Uuid;

use super::{Acquisition, Plan, Spec};
use crate::acquire::{self, Patience};
use crate::clock::now;
use crate::error::AcquireError;
use crate::guard::{Guard, Mode};
use crate::options::Wait;
use crate::owner::Owner;
use crate::position::{Board, Position, Seat, Waiting};
use crate::session::{Link, Session};

/// One way to take an object, by one owner or by nobody in particular. Owned and cheap to clone, so it can go into a
/// task.
pub struct View<M: Mode> {
    session: Session,
    spec: Arc<Spec>,
    owner: Option<Owner>,
    /// Where its waits tell their position.
    board: Option<Board>,
    mode: PhantomData<fn() -> M>,
}

impl<M: Mode> View<M> {
    /// A view of an object.
    pub fn new(session: &Session, spec: Arc<Spec>) -> Self {
        Self { session: session.clone(), spec, owner: None, board: None, mode: PhantomData }
    }

    /// The same, taken as this owner: while the owner holds, it enters again.
    #[must_use]
    pub fn by(&self, owner: &Owner) -> Self {
        Self { owner: Some(owner.clone()), ..self.clone() }
    }

    /// The same, and the position of its waits. For primitives that promise an order.
    #[must_use]
    pub fn watched(&self) -> (Self, Position) {
        let board = Board::default();
        let position = Position::of(&board);
        (Self { board: Some(board), ..self.clone() }, position)
    }

    /// Takes it if it is free and nobody waits; `None` if not. One round trip.
    ///
    /// # Errors
    /// As [`acquire_within`](Self::acquire_within), but for the waiting.
    ///
    /// # Cancel safety
    /// As [`acquire_within`](Self::acquire_within).
    pub async fn try_acquire(&self) -> Result<Option<Guard<M>>, AcquireError> {
        self.take(Patience::Try).await
    }

    /// Takes it, waiting at most so long; less than a millisecond is one full try. One round trip if it is free, one
    /// more message (no round trip) when it is handed over.
    ///
    /// # Errors
    /// * [`TimedOut`](AcquireError::TimedOut): the wait is over.
    /// * [`Saturated`](AcquireError::Saturated): the queue has as many waiters as the options allow; at once.
    /// * [`TooManyEntries`](AcquireError::TooManyEntries): the owner entered 64 times already; at once.
    /// * [`ValidityTooShort`](AcquireError::ValidityTooShort): granted, but too late to be of use; given back.
    /// * [`NotReplicated`](AcquireError::NotReplicated): granted, but not at as many replicas as the options ask for; given
    ///   back.
    /// * [`Closed`](AcquireError::Closed): the session was shut down, before or while it waited.
    /// * [`Config`](AcquireError::Config): there is no tokio runtime here.
    /// * [`Backend`](AcquireError::Backend): Redis was out of reach for the whole wait, or refused (at once).
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue, and the hold if it was granted meanwhile: the session
    /// tells the server. While Redis is out of reach, a hold stays until its lease ends, a place in the queue until the waiter
    /// deadline (10 s).
    pub async fn acquire_within(&self, wait: Duration) -> Result<Guard<M>, AcquireError> {
        let taken = self.take(Patience::Within(wait)).await?;
        taken.ok_or(AcquireError::Closed)
    }

    /// Takes it, waiting as long as [`Options::max_wait`](crate::Options::max_wait) says. Round trips, errors and cancel
    /// safety as [`acquire_within`](Self::acquire_within).
    ///
    /// # Errors
    /// As [`acquire_within`](Self::acquire_within).
    pub async fn acquire(&self) -> Result<Guard<M>, AcquireError> {
        let patience = match self.spec.options().max_wait {
            Wait::AtMost(wait) => Patience::Within(wait),
            Wait::Forever => Patience::Forever,
        };
        let taken = self.take(patience).await?;
        taken.ok_or(AcquireError::Closed)
    }

    async fn take(&self, patience: Patience) -> Result<Option<Guard<M>>, AcquireError> {
        let (link, asked, mut patience) = (self.session.link(), now(), patience);
        loop {
            let (began, plan) = (now(), self.plan());
            let _waiting = Waiting(plan.acquisition.seat.as_ref());
            // Boxed: the waiting part would make every caller's future large.
            let untaken = match Box::pin(acquire::acquire(link, plan.clone(), patience)).await {
                Ok(taken) => return Ok(taken.map(Guard::new)),
                Err(untaken) => untaken,
            };
            match untaken.patience_left(patience, began) {
                Some(left) => patience = left,
                None => return Err(untaken.since(asked)),
            }
        }
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    pub(crate) fn spec(&self) -> &Arc<Spec> {
        &self.spec
    }

    pub(crate) fn owner(&self) -> Option<&Owner> {
        self.owner.as_ref()
    }

    /// The same object, held in another way.
    pub(crate) fn holding(&self, spec: Arc<Spec>) -> Self {
        Self { spec, ..self.clone() }
    }

    /// The same without its mode.
    pub(crate) fn erased(&self) -> View<crate::Any> {
        View {
            session: self.session.clone(),
            spec: self.spec.clone(),
            owner: self.owner.clone(),
            board: self.board.clone(),
            mode: PhantomData,
        }
    }

    /// A fresh acquisition of this view.
    pub(crate) fn plan(&self) -> Arc<Plan> {
        let identity = self.session.link().identity();
        let mut acquisition = Acquisition::new(identity, &self.spec, self.owner.as_ref());
        acquisition.seat = self.board.clone().map(Seat::at);
        Arc::new(Plan { spec: self.spec.clone(), acquisition })
    }

    /// Asks once for it as this acquisition, no longer than so; `None` if it is busy.
    pub(crate) async fn ask_as(
        &self,
        uuid: Uuid,
        within: Duration,
    ) -> Result<Option<Guard<M>>, AcquireError> {
        let link = self.session.link();
        let acquisition = Acquisition::of(uuid, link.identity(), &self.spec, self.owner.as_ref());
        let plan = Arc::new(Plan { spec: self.spec.clone(), acquisition });
        let taken = Box::pin(acquire::acquire(link, plan, Patience::Ask(within))).await;
        taken.map(|taken| taken.map(Guard::new)).map_err(|untaken| untaken.error)
    }

    /// Whether this is a hold of the same object in the same session.
    pub(crate) fn is_of(&self, plan: &Plan, link: &Link) -> bool {
        self.spec.slot_key() == plan.spec.slot_key()
            && Arc::ptr_eq(self.session.link().shared(), link.shared())
    }

    /// Adopts the hold of this view's owner, with the adopt call of the primitive. One round trip.
    ///
    /// # Errors
    /// See [`AdoptError`](crate::AdoptError).
    pub async fn adopt(
        &self,
        call: impl FnOnce(&Acquisition, Terms) -> Call,
    ) -> Result<Guard<M>, crate::AdoptError> {
        let hold = Box::pin(crate::adopt::adopt(self.session.link(), self.plan(), call)).await?;
        Ok(Guard::new(hold))
    }
}

impl<M: Mode> Clone for View<M> {
    fn clone(&self) -> Self {
        Self {
            session: self.session.clone(),
            spec: self.spec.clone(),
            owner: self.owner.clone(),
            board: self.board.clone(),
            mode: PhantomData,
        }
    }
}

impl<M: Mode> fmt::Debug for View<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View")
            .field("spec", &self.spec)
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}
