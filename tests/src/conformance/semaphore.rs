//! Permits as the suite sees them: one of one, and all of three, which shut everybody else out.

use std::time::Duration;

use leasehold_semaphore::{AcquireError, Many, Options, Permit, PermitHolder, Semaphore, Session};

use super::{Client, Holdable, Lease};
use crate::permits::keys;

const ANSWER: &str = "an answer of the server";

/// So many permits at once of a semaphore of this limit.
#[derive(Clone, Debug)]
pub struct Permits<const WEIGHT: u32, const LIMIT: u32> {
    semaphore: Semaphore,
    many: Many,
}

/// So many permits of a semaphore that has no more.
pub type AllPermits<const LIMIT: u32> = Permits<LIMIT, LIMIT>;

impl<const WEIGHT: u32, const LIMIT: u32> Permits<WEIGHT, LIMIT> {
    /// Of this session, name and options.
    pub fn of(session: &Session, name: &str, options: Options) -> Self {
        let semaphore = Semaphore::new(session, name, LIMIT, options).expect("legal options");
        Self { many: semaphore.many(WEIGHT), semaphore }
    }

    /// The newest first.
    async fn holders(&self) -> Vec<PermitHolder> {
        let mut holders = self.semaphore.holders().await.expect(ANSWER);
        holders.sort_by_key(|found| found.holder.held_for);
        holders
    }
}

impl<const WEIGHT: u32, const LIMIT: u32> Holdable for Permits<WEIGHT, LIMIT> {
    type Hold = Permit;

    fn open(client: &Client, name: &str, lease: Lease) -> Self {
        Self::of(client.session(), name, lease.options())
    }

    fn key(name: &str) -> Vec<u8> {
        keys(name).holds.to_vec()
    }

    /// The key with the limit stays for a minute. Whether anything is held is seen from the notes: there is one a hold.
    fn may_stay(key: &[u8]) -> bool {
        key.ends_with(b":gone") || key.ends_with(b"}")
    }

    fn token(_: &Permit) -> Option<u64> {
        None
    }

    async fn try_acquire(&self) -> Result<Option<Permit>, AcquireError> {
        self.many.try_acquire().await
    }

    async fn acquire_within(&self, wait: Duration) -> Result<Permit, AcquireError> {
        self.many.acquire_within(wait).await
    }

    async fn is_locked(&self) -> bool {
        self.semaphore.used().await.expect(ANSWER) > 0
    }

    async fn remaining(&self) -> Option<Duration> {
        self.holders().await.iter().map(|found| found.holder.remaining).max()
    }

    async fn holds(&self) -> usize {
        self.holders().await.len()
    }

    async fn holder(&self) -> Option<String> {
        self.holders().await.first().map(|found| found.holder.trace.to_string())
    }

    async fn waiting(&self) -> Vec<String> {
        let queue = self.semaphore.queue().await.expect(ANSWER);
        queue.waiters.iter().map(|waiter| waiter.trace.to_string()).collect()
    }

    async fn force_release(&self) -> bool {
        let mut ended = false;
        for found in self.holders().await {
            ended |= self.semaphore.force_release(&found.holder).await.expect(ANSWER);
        }
        ended
    }
}
