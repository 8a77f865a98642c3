//! The read side of a lock that one holder has to itself, and the one verb of an operator.

use std::sync::Arc;
use std::time::Duration;

use leasehold_lua::mutex::{self as scripts, HoldState, Inspection, QueueReply};
use leasehold_lua::reply::ForceReply;

use super::{Spec, ask};
use crate::error::BackendError;
use crate::holder::{Holder, Queue};
use crate::session::Session;

/// How many waiters are listed.
const LISTED: u32 = 128;

/// Looks at an object on the server, and ends holds by force.
#[derive(Debug, Clone)]
pub struct ReadSide {
    session: Session,
    spec: Arc<Spec>,
}

impl ReadSide {
    /// Of this object.
    pub fn new(session: &Session, spec: Arc<Spec>) -> Self {
        Self { session: session.clone(), spec }
    }

    /// Whether it could not be taken just now: somebody holds, or it cools down.
    ///
    /// # Errors
    /// [`BackendError`] as Redis or the connection gave it.
    pub async fn is_locked(&self) -> Result<bool, BackendError> {
        Ok(self.inspect().await?.state != HoldState::Free)
    }

    /// Who holds it; in a cool-down, who held it last.
    ///
    /// # Errors
    /// [`BackendError`] as Redis or the connection gave it.
    pub async fn holder(&self) -> Result<Option<Holder>, BackendError> {
        Ok(Holder::from_inspection(&self.inspect().await?))
    }

    /// How long the present hold lasts if it is not renewed.
    ///
    /// # Errors
    /// [`BackendError`] as Redis or the connection gave it.
    pub async fn remaining(&self) -> Result<Option<Duration>, BackendError> {
        let found = self.inspect().await?;
        Ok((found.state != HoldState::Free).then(|| Duration::from_millis(found.left_ms)))
    }

    /// Who waits. For every kind.
    ///
    /// # Errors
    /// [`BackendError`] as Redis or the connection gave it.
    pub async fn queue(&self) -> Result<Queue, BackendError> {
        let call = |_| scripts::queue(self.spec.keys(), LISTED);
        let reply = ask(&self.session, call).await?;
        Ok(Queue::from_reply(QueueReply::decode(&reply)?))
    }

    /// Ends the present hold, whoever has it, and answers whose it was. It reads who holds and ends just that hold, so
    /// a repeat never hits the next holder.
    ///
    /// # Errors
    /// [`BackendError`] as Redis or the connection gave it; a repeat is harmless.
    pub async fn force_release(&self) -> Result<Option<Holder>, BackendError> {
        let found = self.inspect().await?;
        let Some(holder) = Holder::from_inspection(&found) else { return Ok(None) };
        loop {
            let end = |terms| scripts::force_release(self.spec.keys(), found.token, terms);
            let reply = ForceReply::decode(&ask(&self.session, end).await?)?;
            // A repeat knows the hold that it ended; it goes on with the dead at the head of the queue.
            if !reply.again {
                return Ok(reply.ended.then_some(holder));
            }
        }
    }

    async fn inspect(&self) -> Result<Inspection, BackendError> {
        let reply = ask(&self.session, |_| scripts::inspect(self.spec.keys())).await?;
        Ok(Inspection::decode(&reply)?)
    }
}
