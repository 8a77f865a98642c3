//! The two sides of the read-write lock as the suite sees them.

use std::time::Duration;

use leasehold_rwlock::{
    AcquireError, AdoptError, Holder, Options, Owner, ReadGuard, RwLock, Session, WriteGuard,
};

use super::{Client, Holdable, Lease, Reentrant};
use crate::rwlock::{keys, lock};

const ANSWER: &str = "an answer of the server";

/// A read-write lock, taken for writing: the suite's exclusive parts run over it.
#[derive(Clone, Debug)]
pub struct Writing(RwLock);

/// A read-write lock, taken for reading: it shuts no other reader out.
#[derive(Clone, Debug)]
pub struct Reading(RwLock);

impl Writing {
    /// The write side of a lock of this session.
    #[must_use]
    pub fn of(session: &Session, name: &str, options: Options) -> Self {
        Self(lock(session, name, options))
    }
}

impl Reading {
    /// The read side of a lock of this session.
    #[must_use]
    pub fn of(session: &Session, name: &str, options: Options) -> Self {
        Self(lock(session, name, options))
    }
}

async fn remaining(lock: &RwLock) -> Option<Duration> {
    let left = lock.holders().await.expect(ANSWER).remaining;
    (!left.is_zero()).then_some(left)
}

fn newest(holders: &[Holder]) -> Option<String> {
    holders.iter().min_by_key(|holder| holder.held_for).map(|holder| holder.trace.to_string())
}

async fn waiting(lock: &RwLock) -> Vec<String> {
    let queue = lock.queue().await.expect(ANSWER);
    queue.waiters.iter().map(|waiter| waiter.trace.to_string()).collect()
}

impl Holdable for Writing {
    type Hold = WriteGuard;

    fn open(client: &Client, name: &str, lease: Lease) -> Self {
        Self::of(client.session(), name, lease.options())
    }

    fn key(name: &str) -> Vec<u8> {
        keys(name).holds.to_vec()
    }

    fn token(hold: &WriteGuard) -> Option<u64> {
        Some(hold.fencing_token().get())
    }

    async fn try_acquire(&self) -> Result<Option<WriteGuard>, AcquireError> {
        self.0.write().try_acquire().await
    }

    async fn acquire_within(&self, wait: Duration) -> Result<WriteGuard, AcquireError> {
        self.0.write().acquire_within(wait).await
    }

    async fn is_locked(&self) -> bool {
        self.0.is_write_locked().await.expect(ANSWER)
    }

    async fn remaining(&self) -> Option<Duration> {
        remaining(&self.0).await
    }

    async fn holds(&self) -> usize {
        self.0.holders().await.expect(ANSWER).writers.len()
    }

    async fn holder(&self) -> Option<String> {
        newest(&self.0.holders().await.expect(ANSWER).writers)
    }

    async fn waiting(&self) -> Vec<String> {
        waiting(&self.0).await
    }

    async fn force_release(&self) -> bool {
        !self.0.force_release_writers().await.expect(ANSWER).is_empty()
    }
}

impl Holdable for Reading {
    type Hold = ReadGuard;

    fn open(client: &Client, name: &str, lease: Lease) -> Self {
        Self::of(client.session(), name, lease.options())
    }

    fn key(name: &str) -> Vec<u8> {
        keys(name).holds.to_vec()
    }

    fn token(_: &ReadGuard) -> Option<u64> {
        None
    }

    async fn try_acquire(&self) -> Result<Option<ReadGuard>, AcquireError> {
        self.0.read().try_acquire().await
    }

    async fn acquire_within(&self, wait: Duration) -> Result<ReadGuard, AcquireError> {
        self.0.read().acquire_within(wait).await
    }

    async fn is_locked(&self) -> bool {
        self.0.is_locked().await.expect(ANSWER)
    }

    async fn remaining(&self) -> Option<Duration> {
        remaining(&self.0).await
    }

    async fn holds(&self) -> usize {
        self.0.holders().await.expect(ANSWER).readers.len()
    }

    async fn holder(&self) -> Option<String> {
        newest(&self.0.holders().await.expect(ANSWER).readers)
    }

    async fn waiting(&self) -> Vec<String> {
        waiting(&self.0).await
    }

    async fn force_release(&self) -> bool {
        !self.0.force_release_readers().await.expect(ANSWER).is_empty()
    }
}

impl Reentrant for Writing {
    async fn acquire_by(&self, owner: &Owner) -> Result<Option<WriteGuard>, AcquireError> {
        self.0.write().by(owner).try_acquire().await
    }

    async fn adopt(&self, owner: &Owner) -> Result<WriteGuard, AdoptError> {
        self.0.adopt_write(owner).await
    }

    fn owner(hold: &WriteGuard) -> Owner {
        hold.owner().clone()
    }
}

impl Reentrant for Reading {
    async fn acquire_by(&self, owner: &Owner) -> Result<Option<ReadGuard>, AcquireError> {
        self.0.read().by(owner).try_acquire().await
    }

    async fn adopt(&self, owner: &Owner) -> Result<ReadGuard, AdoptError> {
        self.0.adopt_read(owner).await
    }

    fn owner(hold: &ReadGuard) -> Owner {
        hold.owner().clone()
    }
}
