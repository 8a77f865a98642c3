//! Several independent servers, and sessions at all of them.

use std::time::Duration;

use leasehold_multi_lock::{QuorumLock, QuorumOptions};
use leasehold_mutex::Session;
use leasehold_tests::scene::{SOON, keys_left, session};
use leasehold_tests::{FaultProxy, Server, eventually};

/// The key that stands for the lock of this name while it is held.
pub(crate) fn key(name: &str) -> String {
    format!("lh1:quorum:{{{name}}}")
}

pub(crate) struct Farm {
    pub(crate) servers: Vec<Server>,
}

impl Farm {
    /// So many, all at once.
    pub(crate) fn start(count: usize) -> Self {
        Self::start_as(count, Server::start)
    }

    pub(crate) fn start_as(count: usize, start: fn() -> Server) -> Self {
        let servers = std::thread::scope(|scope| {
            let starting: Vec<_> = (0..count).map(|_| scope.spawn(start)).collect();
            starting.into_iter().map(|one| one.join().expect("a server")).collect()
        });
        Self { servers }
    }

    /// A session at each.
    pub(crate) async fn sessions(&self) -> Vec<Session> {
        let mut sessions = Vec::new();
        for server in &self.servers {
            sessions.push(session(&server.url()).await);
        }
        sessions
    }

    /// A way to each that can fail, and the sessions that go there.
    pub(crate) async fn proxies(&self) -> (Vec<FaultProxy>, Vec<Session>) {
        let proxies: Vec<_> = self.servers.iter().map(FaultProxy::to).collect();
        let mut sessions = Vec::new();
        for proxy in &proxies {
            sessions.push(session(proxy.url()).await);
        }
        (proxies, sessions)
    }

    /// At how many of them the lock is held.
    pub(crate) async fn holds(&self, name: &str) -> usize {
        let mut held = 0;
        for server in &self.servers {
            let keys = server.keys().await;
            held += usize::from(keys.iter().any(|one| one == key(name).as_bytes()));
        }
        held
    }

    /// Nothing but memories at any server, and nothing in hand at any session.
    pub(crate) async fn ends_clean(&self, sessions: &[Session]) {
        let clean = async || {
            for server in &self.servers {
                if !keys_left(server).await.is_empty() {
                    return false;
                }
            }
            let idle = |session: &Session| {
                let statistics = session.statistics();
                statistics.tracked == 0 && statistics.watched == 0
            };
            sessions.iter().all(idle)
        };
        eventually(SOON + SOON, "nothing is left", clean).await;
    }
}

/// What a loaded machine leaves of a short node timeout is none of most tests' business.
pub(crate) fn patient(lease: Duration) -> QuorumOptions {
    QuorumOptions::default().lease(lease).node_timeout(lease / 10)
}

pub(crate) fn lock(sessions: &[Session], options: QuorumOptions) -> QuorumLock {
    QuorumLock::new(sessions, "a", options).expect("a legal lock")
}
