//! The hold of a quorum lock.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use leasehold_runtime::engine::Quorum;
use leasehold_runtime::{ExtendError, FencingToken, Lost, LostReason, Name, ReleaseError};

/// A quorum lock, held at more than half of its servers. Dropping it releases it at all of them.
///
/// # On loss
/// A hold can end at a server before the guard does. As long as more than half of the servers are left the guard is held,
/// and those that lost it are asked again. Then [`is_held`](Self::is_held) is false and stays so, [`lost`](Self::lost)
/// resolves, what is left is released at once, and [`release`](Self::release) is an error. Each session tells the loss of
/// its own hold as an event too, under the lock's name: one such event is not yet the loss of the lock.
#[must_use = "a guard that is dropped at once releases at once"]
pub struct QuorumGuard {
    quorum: Quorum,
}

impl QuorumGuard {
    pub(crate) fn new(quorum: Quorum) -> Self {
        Self { quorum }
    }

    /// The lock's name.
    pub fn name(&self) -> &Name {
        self.quorum.name()
    }

    /// Whether more than half of the servers still hold it, by the local clock. No round trip.
    pub fn is_held(&self) -> bool {
        self.quorum.lost().is_none()
    }

    /// At how many servers it is held, by the local clock. No round trip.
    pub fn nodes_held(&self) -> usize {
        self.quorum.held()
    }

    /// How long more than half of the servers surely hold it even if no renewal gets through any more: the shortest of the
    /// longest that make a majority. No round trip.
    pub fn remaining(&self) -> Duration {
        self.quorum.remaining()
    }

    /// The largest token of the servers that granted it. **Best effort**: it grows with every grant as long as the servers'
    /// clocks agree better than the time between two grants, because each server mints from its own clock and the next
    /// majority may be another one. It does not have to grow otherwise, as that of a mutex has to.
    pub fn fencing_token(&self) -> FencingToken {
        self.quorum.token()
    }

    /// Resolves when the majority is gone, and says why: what most of the holds were lost by. Never if it is released
    /// first.
    pub fn lost(&self) -> impl Future<Output = Lost> + Send + use<> {
        self.quorum.losing()
    }

    /// Runs work as long as the majority stands. When it is lost the work's future is dropped, at its next await point.
    ///
    /// # Errors
    /// [`Lost`] if the hold ended first. If the work itself returns a `Result`: `guard.while_held(work).await??`.
    ///
    /// # Cancel safety
    /// Dropping it drops the work; the guard still holds.
    pub async fn while_held<F: Future>(&self, work: F) -> Result<F::Output, Lost> {
        tokio::select! {
            biased;
            lost = self.lost() => Err(lost),
            output = work => Ok(output),
        }
    }

    /// Makes the hold last at least `by` from now, at more than half of the servers; never shortens it. One round trip to
    /// all servers at once, bounded by the node timeout.
    ///
    /// # Errors
    /// The first [`ExtendError`] of a server, where less than a majority was extended.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the guard as it was; extensions may happen.
    pub async fn extend(&self, by: Duration) -> Result<(), ExtendError> {
        self.quorum.extend(by).await
    }

    /// Releases it at all servers at once, and says what became of each hold. One round trip, bounded by the node timeout;
    /// the sessions go on with what was not answered.
    ///
    /// # Errors
    /// [`QuorumReleaseError`]: fewer than a majority said that they held it until now.
    ///
    /// # Cancel safety
    /// Dropping the future still releases.
    pub async fn release(self) -> Result<QuorumReleased, QuorumReleaseError> {
        let (name, lost) = (self.name().clone(), self.quorum.lost());
        let nodes = self.quorum.release().await.into_iter().map(NodeRelease::of).collect();
        QuorumReleased { nodes }.judged(name, lost)
    }
}

impl fmt::Debug for QuorumGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuorumGuard")
            .field("name", self.name())
            .field("held", &self.is_held())
            .field("nodes", &self.nodes_held())
            .finish()
    }
}

/// What a release came to at one server.
#[derive(Debug)]
#[non_exhaustive]
pub enum NodeRelease {
    /// It held, and does no longer.
    Released,
    /// It did not hold: it never granted the lock, or was not asked again after a loss.
    NotHeld,
    /// The hold had ended there before.
    Lost(LostReason),
    /// It did not answer, or refused: what is there ends with its lease, and the session goes on trying until then.
    Unknown(ReleaseError),
}

impl NodeRelease {
    fn of(released: Option<Result<(), ReleaseError>>) -> Self {
        match released {
            None => Self::NotHeld,
            Some(Ok(())) => Self::Released,
            Some(Err(ReleaseError::Lost(lost))) => Self::Lost(lost.reason),
            Some(Err(error)) => Self::Unknown(error),
        }
    }
}

/// A release that a majority has confirmed: the lock was held until then.
#[derive(Debug)]
pub struct QuorumReleased {
    nodes: Vec<NodeRelease>,
}

impl QuorumReleased {
    /// What became of it at each server, in the order of the sessions.
    pub fn nodes(&self) -> &[NodeRelease] {
        &self.nodes
    }

    /// At how many servers it was held until now.
    pub fn released(&self) -> usize {
        self.count(|node| matches!(node, NodeRelease::Released))
    }

    fn count(&self, like: impl Fn(&NodeRelease) -> bool) -> usize {
        self.nodes.iter().filter(|node| like(node)).count()
    }

    /// I7: released if a majority says so; lost if too few can have held it; else nobody knows.
    fn judged(self, name: Name, lost: Option<Lost>) -> Result<Self, QuorumReleaseError> {
        let majority = self.nodes.len() / 2 + 1;
        let unknown = self.count(|node| matches!(node, NodeRelease::Unknown(_)));
        match lost {
            None if self.released() >= majority => Ok(self),
            None if self.released() + unknown >= majority => Err(QuorumReleaseError::Unknown {
                name,
                released: self.released(),
                nodes: self.nodes,
            }),
            None => {
                let reason = self.nodes.iter().find_map(|node| match node {
                    NodeRelease::Lost(reason) => Some(*reason),
                    NodeRelease::Released | NodeRelease::NotHeld | NodeRelease::Unknown(_) => None,
                });
                let lost = Lost { name, reason: reason.unwrap_or(LostReason::Expired) };
                Err(QuorumReleaseError::Lost { lost, nodes: self.nodes })
            }
            Some(lost) => Err(QuorumReleaseError::Lost { lost, nodes: self.nodes }),
        }
    }
}

/// A release that a majority has not confirmed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuorumReleaseError {
    /// The hold had ended before. Treat it as an alarm: its work may have run beside another's.
    #[error("{lost}")]
    Lost {
        /// Which lock, and why.
        lost: Lost,
        /// What became of it at each server, in the order of the sessions.
        nodes: Vec<NodeRelease>,
    },
    /// Too few servers answered to know whether it was held until now. What is left of it ends with its lease.
    #[error("released or not: {released} of {} servers of {name} confirmed it", .nodes.len())]
    Unknown {
        /// The lock.
        name: Name,
        /// How many confirmed it.
        released: usize,
        /// What became of it at each server, in the order of the sessions.
        nodes: Vec<NodeRelease>,
    },
}
