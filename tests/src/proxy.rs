//! A link between client and server that fails on command.

mod link;
mod pick;
mod resp;

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use redis::Client;
use redis::aio::MultiplexedConnection;

use crate::server::{Server, client_of};
use link::Link;
pub use pick::Pick;

/// A TCP proxy in front of a [`Server`] whose faults are switched while it runs.
///
/// It cuts both streams into whole commands, replies and RESP3 pushes, so that a fault befalls
/// exactly one of them. Clients must speak RESP3 (in RESP2 a message looks like a reply) and use
/// neither MONITOR nor CLIENT REPLY.
///
/// Each link has threads of its own, independent of any runtime of the test: a paused or blocked
/// runtime does not hold the link up, and a delay is kept to some 0.1 ms (timers of tokio would
/// round 0.5 ms up to 2 ms). Both sides send without Nagle's delay.
#[derive(Debug)]
pub struct FaultProxy {
    url: String,
    addr: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

impl FaultProxy {
    /// A proxy without faults, on a free port.
    #[must_use]
    pub fn to(server: &Server) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let addr = listener.local_addr().expect("a bound socket");
        let shared = Arc::new(Shared::to(server.addr()));
        let acceptor = {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || accept(&listener, &shared))
        };
        Self { url: server.url_at(addr), addr, shared, acceptor: Some(acceptor) }
    }

    /// The server's URL, with the proxy's address.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its address.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// As [`Server::client`], by way of the proxy.
    #[must_use]
    pub fn client(&self) -> Client {
        client_of(self.url.as_str())
    }

    /// A connection by way of the proxy, with the time-outs that redis-rs sets by itself (an
    /// answer within 0.5 s).
    pub async fn connection(&self) -> MultiplexedConnection {
        self.client().get_multiplexed_async_connection().await.expect("a server that answers")
    }

    /// Everything arrives later by this time, in each direction. What follows close behind is
    /// delayed by the same time, not by the sum: throughput stays.
    pub fn delay(&self, each_way: Duration) {
        self.shared.state().faults.delay = each_way;
    }

    /// Loses all pushed messages. Confirmations of subscriptions still arrive.
    pub fn drop_pushes(&self, on: bool) {
        self.shared.state().faults.drop_pushes = on;
    }

    /// Loses the replies of these commands: they run on the server, and the link stays open.
    ///
    /// All that the server sends later on the same link is lost too, as TCP skips no bytes: a
    /// client has to give that link up. For a single failed command see
    /// [`FaultProxy::replace_replies`].
    pub fn drop_replies(&self, of: Pick) {
        self.shared.state().faults.drop_replies = of;
    }

    /// Answers these commands with this line, such as `-LOADING busy`; they run on the server.
    pub fn replace_replies(&self, of: Pick, line: &str) {
        self.shared.state().faults.replace_replies = (of, line.to_owned());
    }

    /// Closes the link behind each of these commands: they run on the server, and the client
    /// sees a broken connection instead of the reply.
    pub fn cut_after_request(&self, of: Pick) {
        self.shared.state().faults.cut_after_request = of;
    }

    /// Closes the link in the middle of each of these commands' replies: they run on the server, and
    /// the client gets the first half.
    pub fn cut_mid_reply(&self, of: Pick) {
        self.shared.state().faults.cut_mid_reply = of;
    }

    /// Loses everything in both directions, the closing of connections included; none is closed.
    ///
    /// A link that has lost something stays silent in that direction when the hole ends (TCP skips
    /// no bytes); others, and new ones, work again.
    pub fn black_hole(&self, on: bool) {
        self.black_hole_ways(on, on);
    }

    /// As [`FaultProxy::black_hole`], for each direction by itself: what clients send, and what the
    /// server answers and pushes.
    pub fn black_hole_ways(&self, requests: bool, answers: bool) {
        self.shared.state().faults.black_hole = BlackHole { requests, answers };
        self.shared.changed.notify_all();
    }

    /// Closes new connections at once; those that are open stay.
    pub fn refuse(&self, on: bool) {
        self.shared.state().faults.refuse = on;
    }

    /// Closes all connections that are open now.
    pub fn cut(&self) {
        for link in self.shared.links() {
            link.close();
        }
    }

    /// How often this command (in lower case) has come from clients.
    #[must_use]
    pub fn commands(&self, name: &str) -> u64 {
        self.shared.state().counts.commands.get(name).copied().unwrap_or(0)
    }

    /// How many pushes were lost on purpose.
    #[must_use]
    pub fn pushes_dropped(&self) -> u64 {
        self.shared.state().counts.pushes_dropped
    }

    /// How many replies were lost by [`FaultProxy::drop_replies`].
    #[must_use]
    pub fn replies_dropped(&self) -> u64 {
        self.shared.state().counts.replies_dropped
    }

    /// How many connections clients have opened, those that were refused left out.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.shared.state().counts.connections
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.shared.state().stopping = true;
        self.shared.changed.notify_all();
        // The acceptor looks at `stopping` when something connects.
        TcpStream::connect(self.addr).ok();
        if let Some(acceptor) = self.acceptor.take() {
            acceptor.join().ok();
        }
        // No link is added any more.
        self.cut();
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for client in listener.incoming().flatten() {
        let state = shared.state();
        if state.stopping {
            return;
        }
        let refuse = state.faults.refuse;
        drop(state);
        // A server that is down refuses too: dropping the client's socket says so.
        if !refuse && let Ok(link) = Link::connect(client, shared) {
            shared.enter(&link);
            link.start();
        }
    }
}

/// What all links of a proxy share.
#[derive(Debug)]
struct Shared {
    upstream: SocketAddr,
    state: Mutex<State>,
    /// Told when a black hole ends or the proxy stops.
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    faults: Faults,
    counts: Counts,
    links: Vec<Weak<Link>>,
    stopping: bool,
}

#[derive(Debug)]
struct Faults {
    delay: Duration,
    drop_pushes: bool,
    drop_replies: Pick,
    replace_replies: (Pick, String),
    cut_after_request: Pick,
    cut_mid_reply: Pick,
    black_hole: BlackHole,
    refuse: bool,
}

/// Which direction is swallowed.
#[derive(Clone, Copy, Debug, Default)]
struct BlackHole {
    requests: bool,
    answers: bool,
}

#[derive(Debug, Default)]
struct Counts {
    commands: HashMap<String, u64>,
    pushes_dropped: u64,
    replies_dropped: u64,
    connections: u64,
}

impl Shared {
    fn to(upstream: SocketAddr) -> Self {
        let faults = Faults {
            delay: Duration::ZERO,
            drop_pushes: false,
            drop_replies: Pick::none(),
            replace_replies: (Pick::none(), String::new()),
            cut_after_request: Pick::none(),
            cut_mid_reply: Pick::none(),
            black_hole: BlackHole::default(),
            refuse: false,
        };
        let counts = Counts::default();
        let state = State { faults, counts, links: Vec::new(), stopping: false };
        Self { upstream, state: Mutex::new(state), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic inside")
    }

    fn enter(&self, link: &Arc<Link>) {
        let mut state = self.state();
        state.counts.connections += 1;
        state.links.retain(|link| link.strong_count() > 0);
        state.links.push(Arc::downgrade(link));
    }

    fn links(&self) -> Vec<Arc<Link>> {
        self.state().links.iter().filter_map(Weak::upgrade).collect()
    }

    fn wait_for_the_end_of_a_black_hole(&self, way: fn(BlackHole) -> bool) {
        let state = self.state();
        let swallows = |state: &mut State| way(state.faults.black_hole) && !state.stopping;
        drop(self.changed.wait_while(state, swallows).expect("no panic inside"));
    }
}
