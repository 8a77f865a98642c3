//! One lock at several independent servers, held while a majority of them holds it.

mod nodes;
mod standing;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use crate::clock::{Moment, now};
use crate::error::{BackendError, ExtendError, Lost, LostReason, ReleaseError};
use crate::guard::{Any, Guard};
use crate::name::Name;
use crate::token::FencingToken;

pub use nodes::Nodes;
use standing::Standing;

/// A lock that a majority of its servers holds. Dropping it releases it at all of them.
///
/// Each hold is renewed by its own session. A server where it is lost is asked again, beside, while the majority stands;
/// when it does not stand any more the rest is released, and nothing brings it back.
pub struct Quorum {
    standing: Arc<Standing>,
}

impl Quorum {
    fn new(standing: Arc<Standing>) -> Self {
        Self { standing }
    }

    /// The lock's name.
    pub fn name(&self) -> &Name {
        self.standing.nodes().name()
    }

    /// Why the majority is gone, if it is. By the local clock.
    pub fn lost(&self) -> Option<Lost> {
        self.standing.lost().map(|reason| self.loss(reason))
    }

    fn loss(&self, reason: LostReason) -> Lost {
        Lost { name: self.name().clone(), reason }
    }

    /// At how many servers it is held, by the local clock.
    pub fn held(&self) -> usize {
        self.standing.held()
    }

    /// For how long a majority surely holds it, if no renewal gets through any more.
    pub fn remaining(&self) -> Duration {
        if self.lost().is_some() { Duration::ZERO } else { self.standing.until().left() }
    }

    /// The largest token that the majority has minted.
    pub fn token(&self) -> FencingToken {
        self.standing.token()
    }

    /// Resolves when the majority is gone, and says why; never if it is released first. It looks at the local deadlines
    /// itself whenever it is polled.
    pub fn losing(&self) -> impl Future<Output = Lost> + Send + use<> {
        let (standing, name) = (self.standing.losing(), self.name().clone());
        async move { Lost { name, reason: standing.await } }
    }

    /// Extends it at every server that holds it; a majority suffices.
    ///
    /// # Errors
    /// The first [`ExtendError`] of a server, where less than a majority was extended.
    pub async fn extend(&self, by: Duration) -> Result<(), ExtendError> {
        let states = self.standing.states();
        let (per_node, name) = (self.standing.nodes().per_node(), self.name());
        let extended = join_all(states.iter().map(|(link, state)| async move {
            let one = crate::extend::extend(link, state, by);
            tokio::time::timeout(per_node, one).await.unwrap_or_else(|_| {
                Err(ExtendError::Unknown { name: name.clone(), source: BackendError::timed_out() })
            })
        }))
        .await;
        let done = extended.iter().filter(|one| one.is_ok()).count();
        match extended.into_iter().find_map(Result::err) {
            Some(error) if done < self.standing.nodes().majority() => Err(error),
            Some(_) | None => Ok(()),
        }
    }

    /// Releases it at all servers, all at once, and answers for each what became of it: nothing where it was not held.
    /// Nobody waits longer for a server than an acquire does; the sessions go on with what is not answered.
    pub async fn release(self) -> Vec<Option<Result<(), ReleaseError>>> {
        let per_node = self.standing.nodes().per_node();
        let name = self.name().clone();
        let releasing = self.standing.take().into_iter().map(|seat| {
            let name = name.clone();
            async move { Some(released(seat?, per_node, name).await) }
        });
        join_all(releasing).await
    }
}

async fn released(guard: Guard<Any>, within: Duration, name: Name) -> Result<(), ReleaseError> {
    let released = tokio::time::timeout(within, guard.release()).await;
    released
        .unwrap_or_else(|_| Err(ReleaseError::Unknown { name, source: BackendError::timed_out() }))
}

impl Drop for Quorum {
    fn drop(&mut self) {
        // A server that is asked again at this moment holds on to what they share.
        drop(self.standing.take());
    }
}

impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quorum")
            .field("name", self.name())
            .field("held", &self.held())
            .finish_non_exhaustive()
    }
}

/// The moment until which so many of these last: the `majority`-th latest.
fn majority_lasts(mut deadlines: Vec<Moment>, majority: usize) -> Moment {
    deadlines.sort_unstable_by(|a, b| b.cmp(a));
    deadlines.get(majority - 1).copied().unwrap_or_else(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_majority_lasts_as_long_as_its_shortest() {
        let at = |seconds| Moment::NEVER.minus(Duration::from_secs(seconds));
        assert_eq!(majority_lasts(vec![at(9), at(1), at(5)], 2), at(5));
        assert_eq!(majority_lasts(vec![at(9), at(1), at(5), at(7), at(3)], 3), at(5));
        assert!(majority_lasts(vec![at(1)], 2).passed(), "less than a majority is over");
    }
}
