//! What a scenario works with.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Mutex as Lock;
use std::time::Duration;

use leasehold_runtime::{Session, SessionBuilder};

use super::{Hold, Holdable, Lease, Site};
use crate::eventually;
use crate::scene::SOON;

/// The name of the object, where a scenario has one.
pub(super) const NAME: &str = "a";

/// A site, and the kind of object that is tried on it.
pub struct Rig<H, S> {
    /// The servers.
    pub site: S,
    sessions: Lock<Vec<Session>>,
    kind: PhantomData<fn() -> H>,
}

/// A client: a session, and where its server is.
#[derive(Clone, Debug)]
pub struct Client {
    session: Session,
    url: String,
}

impl Client {
    /// Its session.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// What it is connected to.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Waits until nothing of it waits, holds, or is being ended.
    pub async fn is_idle(&self) {
        let idle = async || {
            let now = self.session.statistics();
            (now.tracked, now.watched) == (0, 0)
        };
        eventually(SOON, "nothing of the client is tracked or renewed", idle).await;
    }
}

impl<H: Holdable, S: Site> Rig<H, S> {
    /// Starts a site for one scenario.
    pub async fn start() -> Self {
        Self { site: S::start().await, sessions: Lock::default(), kind: PhantomData }
    }

    /// A client with the defaults.
    pub async fn client(&self) -> Client {
        self.client_with(|builder| builder).await
    }

    /// A client with options of its own.
    pub async fn client_with(&self, set: impl FnOnce(SessionBuilder) -> SessionBuilder) -> Client {
        let session = set(self.site.session()).connect().await.expect("a session");
        self.sessions.lock().expect("no panic inside").push(session.clone());
        Client { session, url: self.site.url() }
    }

    /// The object of the scenario, in a client of its own.
    pub async fn open(&self, lease: Lease) -> H {
        H::open(&self.client().await, NAME, lease)
    }

    /// Ends all clients and looks that nothing of them is left: no hold, no queue, no channel (I20), and
    /// nothing but what may stay at all (I17).
    pub async fn finish(self) {
        let sessions = std::mem::take(&mut *self.sessions.lock().expect("no panic inside"));
        for session in sessions {
            session.shutdown(SOON).await.expect("all is confirmed");
        }
        let nothing = async || self.site.keys().await.iter().all(|key| H::may_stay(key));
        eventually(SOON, "the keys of holds and queues are gone", nothing).await;
        let silent = async || self.site.channels().await == 0;
        eventually(SOON, "no channel is left subscribed", silent).await;
    }
}

impl<H, S: fmt::Debug> fmt::Debug for Rig<H, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rig").field("site", &self.site).finish_non_exhaustive()
    }
}

/// Takes it, as far as this matters to the scenario at once.
pub(super) async fn take<H: Holdable>(object: &H) -> H::Hold {
    object.acquire_within(SOON).await.expect("it is granted")
}

/// Releases a hold that is surely held.
pub(super) async fn release(hold: impl Hold) {
    hold.release().await.expect("it was held until its release");
}

/// Waits until exactly so many stand in the queue.
pub(super) async fn queued<H: Holdable>(object: &H, waiters: usize) {
    let what = format!("{waiters} waiters queue");
    eventually(SOON, &what, async || object.waiting().await.len() == waiters).await;
}

/// Waits until nobody holds.
pub(super) async fn free<H: Holdable>(object: &H, within: Duration) {
    eventually(within, "it is free", async || !object.is_locked().await).await;
}
