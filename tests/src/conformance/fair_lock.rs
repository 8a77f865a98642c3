//! The fair lock as the suite sees it.

use std::time::Duration;

use leasehold_fair_lock::{AcquireError, AdoptError, FairLock, Guard, Owner};

use super::{Client, Holdable, Lease, Reentrant};
use crate::fair::keys;

const ANSWER: &str = "an answer of the server";

impl Holdable for FairLock {
    type Hold = Guard;

    fn open(client: &Client, name: &str, lease: Lease) -> Self {
        Self::new(client.session(), name, lease.options()).expect("legal options")
    }

    fn key(name: &str) -> Vec<u8> {
        keys(name).holds.to_vec()
    }

    fn token(hold: &Guard) -> Option<u64> {
        Some(hold.fencing_token().get())
    }

    async fn try_acquire(&self) -> Result<Option<Guard>, AcquireError> {
        Self::try_acquire(self).await
    }

    async fn acquire_within(&self, wait: Duration) -> Result<Guard, AcquireError> {
        Self::acquire_within(self, wait).await
    }

    async fn is_locked(&self) -> bool {
        Self::is_locked(self).await.expect(ANSWER)
    }

    async fn remaining(&self) -> Option<Duration> {
        Self::remaining(self).await.expect(ANSWER)
    }

    async fn holds(&self) -> usize {
        Self::holder(self).await.expect(ANSWER).map_or(0, |holder| holder.entries)
    }

    async fn holder(&self) -> Option<String> {
        Self::holder(self).await.expect(ANSWER).map(|holder| holder.trace.to_string())
    }

    async fn waiting(&self) -> Vec<String> {
        let queue = self.queue().await.expect(ANSWER);
        queue.waiters.iter().map(|waiter| waiter.trace.to_string()).collect()
    }

    async fn force_release(&self) -> bool {
        Self::force_release(self).await.expect(ANSWER).is_some()
    }
}

impl Reentrant for FairLock {
    async fn acquire_by(&self, owner: &Owner) -> Result<Option<Guard>, AcquireError> {
        self.by(owner).try_acquire().await
    }

    async fn adopt(&self, owner: &Owner) -> Result<Guard, AdoptError> {
        Self::adopt(self, owner).await
    }

    fn owner(hold: &Guard) -> Owner {
        hold.owner().clone()
    }
}
