//! The negative control: locks that are wrong, each in a way that scenarios must catch.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_mutex::{AcquireError, AdoptError, Guard, LostReason, Mutex, Owner, ReleaseError};
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use tokio::sync::OnceCell;

use super::{Client, Hold, Holdable, Lease, Reentrant};

/// Lets everybody in.
#[derive(Clone, Debug)]
pub struct Unlocked;

/// What [`Unlocked`] gives.
#[derive(Debug)]
pub struct Nothing;

impl Holdable for Unlocked {
    type Hold = Nothing;

    fn open(_: &Client, _: &str, _: Lease) -> Self {
        Self
    }

    fn key(name: &str) -> Vec<u8> {
        name.into()
    }

    fn token(_: &Nothing) -> Option<u64> {
        None
    }

    async fn try_acquire(&self) -> Result<Option<Nothing>, AcquireError> {
        Ok(Some(Nothing))
    }

    async fn acquire_within(&self, _: Duration) -> Result<Nothing, AcquireError> {
        Ok(Nothing)
    }

    async fn is_locked(&self) -> bool {
        false
    }

    async fn remaining(&self) -> Option<Duration> {
        None
    }

    async fn holds(&self) -> usize {
        0
    }

    async fn holder(&self) -> Option<String> {
        None
    }

    async fn waiting(&self) -> Vec<String> {
        Vec::new()
    }

    async fn force_release(&self) -> bool {
        false
    }
}

impl Hold for Nothing {
    async fn release(self) -> Result<(), ReleaseError> {
        Ok(())
    }

    fn is_held(&self) -> bool {
        true
    }

    async fn lost(&self) -> LostReason {
        std::future::pending().await
    }

    fn trace(&self) -> String {
        String::new()
    }
}

/// What many write themselves: `SET key value NX PX lease`, again and again until it is there, and `DEL
/// key`, whoever holds by then. Nothing renews it, nobody hears of a loss, and nobody waits in order. With
/// `EXPIRES` false it has no lease either.
#[derive(Clone)]
pub struct SetNx<const EXPIRES: bool> {
    url: String,
    key: String,
    lease: Duration,
    connection: Arc<OnceCell<MultiplexedConnection>>,
}

/// What [`SetNx`] gives.
#[derive(Debug)]
pub struct SetNxHold<const EXPIRES: bool> {
    object: SetNx<EXPIRES>,
    id: String,
}

impl<const EXPIRES: bool> SetNx<EXPIRES> {
    /// One connection for a value and its clones: what was sent runs, whoever still waits for it.
    async fn connection(&self) -> MultiplexedConnection {
        let connect = || async {
            let client = redis::Client::open(&*self.url).expect("a URL");
            client.get_multiplexed_async_connection().await.expect("a connection")
        };
        self.connection.get_or_init(connect).await.clone()
    }

    async fn ask<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = redis::Cmd::new();
        command.arg(words);
        command.query_async(&mut self.connection().await).await.expect("an answer")
    }

    fn waiters(&self) -> String {
        format!("{}:waiters", self.key)
    }
}

impl<const EXPIRES: bool> std::fmt::Debug for SetNx<EXPIRES> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SetNx").field("key", &self.key).finish_non_exhaustive()
    }
}

impl<const EXPIRES: bool> Holdable for SetNx<EXPIRES> {
    type Hold = SetNxHold<EXPIRES>;

    fn open(client: &Client, name: &str, lease: Lease) -> Self {
        let (Lease::Renewed(lease) | Lease::Fixed(lease)) = lease;
        let url = client.url().to_owned();
        Self { url, key: name.to_owned(), lease, connection: Arc::default() }
    }

    fn key(name: &str) -> Vec<u8> {
        name.into()
    }

    /// The count of its waiters never ends.
    fn may_stay(key: &[u8]) -> bool {
        key.ends_with(b":waiters")
    }

    fn token(_: &Self::Hold) -> Option<u64> {
        None
    }

    async fn try_acquire(&self) -> Result<Option<Self::Hold>, AcquireError> {
        let id = uuid::Uuid::new_v4().simple().to_string();
        let lease_ms = self.lease.as_millis().to_string();
        let mut words = vec!["SET", &self.key, &id, "NX"];
        if EXPIRES {
            words.extend(["PX", &lease_ms]);
        }
        let set: Option<String> = self.ask(&words).await;
        Ok(set.map(|_| SetNxHold { object: self.clone(), id }))
    }

    async fn acquire_within(&self, wait: Duration) -> Result<Self::Hold, AcquireError> {
        let began = Instant::now();
        let () = self.connection().await.incr(self.waiters(), 1).await.expect("INCR");
        let outcome = loop {
            if let Some(hold) = self.try_acquire().await? {
                break Ok(hold);
            }
            if began.elapsed() >= wait {
                break Err(AcquireError::TimedOut {
                    name: self.key.as_str().into(),
                    waited: began.elapsed(),
                    position: None,
                    holder: None,
                    remaining: None,
                    held_by_this_session: false,
                });
            }
            let random = u64::from(uuid::Uuid::new_v4().as_bytes()[0]);
            tokio::time::sleep(Duration::from_micros(5_000 + 50 * random)).await;
        };
        let () = self.connection().await.decr(self.waiters(), 1).await.expect("DECR");
        outcome
    }

    async fn is_locked(&self) -> bool {
        self.ask(&["EXISTS", &self.key]).await
    }

    async fn remaining(&self) -> Option<Duration> {
        let left: i64 = self.ask(&["PTTL", &self.key]).await;
        u64::try_from(left).ok().map(Duration::from_millis)
    }

    async fn holds(&self) -> usize {
        self.ask(&["EXISTS", &self.key]).await
    }

    async fn holder(&self) -> Option<String> {
        self.ask(&["GET", &self.key]).await
    }

    async fn waiting(&self) -> Vec<String> {
        let waiters: Option<usize> = self.ask(&["GET", &self.waiters()]).await;
        vec![String::new(); waiters.unwrap_or(0)]
    }

    async fn force_release(&self) -> bool {
        self.ask(&["DEL", &self.key]).await
    }
}

impl<const EXPIRES: bool> Hold for SetNxHold<EXPIRES> {
    async fn release(self) -> Result<(), ReleaseError> {
        let _: u32 = self.object.ask(&["DEL", &self.object.key]).await;
        Ok(())
    }

    fn is_held(&self) -> bool {
        true
    }

    async fn lost(&self) -> LostReason {
        std::future::pending().await
    }

    fn trace(&self) -> String {
        self.id.clone()
    }
}

/// The mutex, without its watchdog.
#[derive(Clone, Debug)]
pub struct Unrenewed(Mutex);

impl Holdable for Unrenewed {
    type Hold = Guard;

    fn open(client: &Client, name: &str, lease: Lease) -> Self {
        let (Lease::Renewed(lease) | Lease::Fixed(lease)) = lease;
        Self(Holdable::open(client, name, Lease::Fixed(lease)))
    }

    fn key(name: &str) -> Vec<u8> {
        <Mutex as Holdable>::key(name)
    }

    fn token(hold: &Guard) -> Option<u64> {
        <Mutex as Holdable>::token(hold)
    }

    async fn try_acquire(&self) -> Result<Option<Guard>, AcquireError> {
        self.0.try_acquire().await
    }

    async fn acquire_within(&self, wait: Duration) -> Result<Guard, AcquireError> {
        self.0.acquire_within(wait).await
    }

    async fn is_locked(&self) -> bool {
        Holdable::is_locked(&self.0).await
    }

    async fn remaining(&self) -> Option<Duration> {
        Holdable::remaining(&self.0).await
    }

    async fn holds(&self) -> usize {
        self.0.holds().await
    }

    async fn holder(&self) -> Option<String> {
        Holdable::holder(&self.0).await
    }

    async fn waiting(&self) -> Vec<String> {
        self.0.waiting().await
    }

    async fn force_release(&self) -> bool {
        Holdable::force_release(&self.0).await
    }
}

impl Reentrant for Unrenewed {
    async fn acquire_by(&self, owner: &Owner) -> Result<Option<Guard>, AcquireError> {
        self.0.acquire_by(owner).await
    }

    async fn adopt(&self, owner: &Owner) -> Result<Guard, AdoptError> {
        self.0.adopt(owner).await
    }

    fn owner(hold: &Guard) -> Owner {
        <Mutex as Reentrant>::owner(hold)
    }
}
