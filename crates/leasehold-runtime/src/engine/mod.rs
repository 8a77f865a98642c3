//! For crates that build primitives; services use the primitives.
//!
//! A primitive is a [`Spec`]: its validated name and options, the scripts of its kind and how much an acquisition takes;
//! for each verb of the protocol it has a pure function to a [`Call`]. A spec together with
//! one [`Acquisition`] is a [`Plan`]: the calls of one hold, as values. Everything that sends, waits, renews or forgets
//! is in this crate and the same for all primitives: [`View`] has the three verbs that take, and
//! [`Guard`](crate::Guard) is what they give. [`ReadSide`] looks, [`ask`] sends what only one kind has.
//!
//! What many wait for together, and nobody holds, is a [`Topic`]; a [`Line`] leads to it.
//!
//! The module is under semver, but grows with each primitive.

mod bundle;
mod countdown;
mod exchange;
mod many;
mod parts;
mod plan;
mod quorum;
mod read_side;
mod spec;
mod together;
mod topic;
mod view;

use leasehold_lua::{Call, Reply, Terms};

use crate::error::{AcquireError, BackendError};
use crate::session::Session;

pub use bundle::{Bundle, Gathering};
pub use countdown::{Countdown, Pauses};
pub use exchange::{ExchangeError, exchange};
pub use many::{ReleaseMany, Report, release_all, release_named};
pub use parts::{MergeError, SplitError, merge, split};
pub use plan::{Acquisition, Plan};
pub use quorum::{Nodes, Quorum};
pub use read_side::ReadSide;
pub use spec::Spec;
pub use together::{Holdable, Member, Together, take_together};
pub use topic::{
    Answer, AskError, GOES_ON, Line, Listener, Look, News, Over, Topic, WaitError, check_name,
};
pub use view::View;

/// Asks something about an object, beside any hold: sent until it is answered, refused, or the session's response
/// timeout is over.
///
/// # Errors
/// [`BackendError`] as the server or the connection gave it.
pub async fn ask(
    session: &Session,
    call: impl FnOnce(Terms) -> Call,
) -> Result<Reply, BackendError> {
    let link = session.link();
    let until = crate::clock::now().plus(link.settings().response_timeout);
    let answer = crate::delivery::deliver(link, &call(link.terms()), until, || ()).await;
    answer.map(|delivered| delivered.reply).map_err(|failed| failed.error)
}

/// Waits until as many replicas have a hold as its options ask for; whatever takes does so by itself. Two round trips
/// and what the replicas take, or none if none are asked for.
///
/// # Errors
/// [`NotReplicated`](AcquireError::NotReplicated), [`ValidityTooShort`](AcquireError::ValidityTooShort) if it ended
/// meanwhile, [`Closed`](AcquireError::Closed) or [`Backend`](AcquireError::Backend). The guard is as it was.
pub async fn replicated<M: crate::Mode>(guard: &crate::Guard<M>) -> Result<(), AcquireError> {
    crate::session::replicated(guard.hold()).await
}

/// The token that came with a grant: of an exclusive hold its own, of a reader the last writer's; none with a permit, or
/// where no writer is remembered.
pub fn seen_token<M: crate::Mode>(guard: &crate::Guard<M>) -> Option<crate::FencingToken> {
    let token = guard.state().token;
    (token.get() > 0).then_some(token)
}
