//! Several holds as one.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use leasehold_runtime::engine::Bundle;
use leasehold_runtime::{ExtendError, FencingToken, Lost, Name, ReleaseError};

/// All members of a multi-lock, held. Dropping it releases all.
///
/// # On loss
/// The loss of one member is the loss of the guard: [`is_held`](Self::is_held) is false from then on,
/// [`lost`](Self::lost) names the member, and the others are released at once.
#[must_use = "a guard that is dropped at once releases at once"]
pub struct MultiGuard {
    bundle: Bundle,
}

impl MultiGuard {
    pub(crate) fn new(bundle: Bundle) -> Self {
        Self { bundle }
    }

    /// The members' names, in the order in which they are held.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        self.bundle.names()
    }

    /// Whether every member is still held, by the local clock. No round trip.
    pub fn is_held(&self) -> bool {
        self.bundle.lost_member().is_none()
    }

    /// How long all are surely held even if no renewal gets through any more: the least of them. No round trip.
    pub fn remaining(&self) -> Duration {
        self.bundle.remaining()
    }

    /// The fencing token of each member that shuts everybody else out; readers and permits have none.
    pub fn tokens(&self) -> impl Iterator<Item = (&Name, FencingToken)> {
        let members = self.bundle.names().enumerate();
        members.filter_map(|(at, name)| Some((name, self.bundle.token(at)?)))
    }

    /// The fencing token of the member of this name, if it shuts everybody else out; of several (a mutex and a fair lock
    /// of one name, say) the first.
    pub fn fencing_token(&self, name: &Name) -> Option<FencingToken> {
        self.tokens().find(|(of, _)| *of == name).map(|(_, token)| token)
    }

    /// Resolves when a member is lost, with which and why; never if all are released first.
    pub fn lost(&self) -> impl Future<Output = Lost> + Send + use<> {
        self.bundle.lost()
    }

    /// Runs work as long as all members are held. When one is lost the work's future is dropped, at its next await point.
    ///
    /// # Errors
    /// [`Lost`] with the member that was lost first.
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

    /// Makes every member last at least `by` from now; never shortens. One round trip a member, all at once.
    ///
    /// # Errors
    /// The first [`ExtendError`] of a member; the others are extended all the same.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the guard as it was; extensions may happen.
    pub async fn extend(&self, by: Duration) -> Result<(), ExtendError> {
        self.bundle.extend(by).await
    }

    /// Releases every member, all at once, whatever comes of one. One round trip a member. Where one was lost before, the
    /// others were given to the session to release at that moment, and count as released here: should one not be, an event
    /// tells it.
    ///
    /// # Errors
    /// [`MultiReleaseError`] with the outcome of each, if one was not released. See [`ReleaseError`].
    ///
    /// # Cancel safety
    /// Dropping the future still releases all.
    pub async fn release(self) -> Result<(), MultiReleaseError> {
        let members = self.bundle.release().await;
        if members.iter().all(|(_, released)| released.is_ok()) {
            return Ok(());
        }
        Err(MultiReleaseError { members })
    }
}

impl fmt::Debug for MultiGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiGuard")
            .field("members", &self.bundle)
            .field("held", &self.is_held())
            .finish()
    }
}

/// A release of several, of which some did not release.
#[derive(Debug, thiserror::Error)]
#[error("{} of {} members not released: {}", self.failed().count(), self.members.len(), self.words())]
pub struct MultiReleaseError {
    /// What became of each member, in the order in which they were held.
    pub members: Vec<(Name, Result<(), ReleaseError>)>,
}

impl MultiReleaseError {
    /// The members that were not released, and why.
    pub fn failed(&self) -> impl Iterator<Item = (&Name, &ReleaseError)> {
        self.members.iter().filter_map(|(name, released)| Some((name, released.as_ref().err()?)))
    }

    fn words(&self) -> String {
        let words: Vec<_> = self.failed().map(|(_, error)| error.to_string()).collect();
        words.join("; ")
    }
}
