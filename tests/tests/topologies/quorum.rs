//! A quorum lock whose servers are a cluster, a master that sentinels watch, and one that stands alone. What it asks of
//! them is that they fail apart: a topology counts once, however many of its addresses are given.

use leasehold_multi_lock::{AcquireError, ConfigError, QuorumLock, QuorumOptions};
use leasehold_mutex::Session;
use leasehold_tests::scene::{SOON, session as alone_at};
use leasehold_tests::topology::{Cluster, Sentinels};
use leasehold_tests::{Server, eventually};

use super::{SECOND, cluster, left, session};

/// Three that have nothing to do with each other.
struct Apart {
    cluster: &'static Cluster,
    watched: Sentinels,
    alone: Server,
}

impl Apart {
    async fn start() -> Self {
        let (cluster, watched) = tokio::join!(cluster(), Sentinels::start());
        Self { cluster, watched, alone: Server::start() }
    }

    async fn watched(&self) -> Session {
        let builder = Session::sentinel_builder(self.watched.urls(), self.watched.service());
        builder.expect("URLs").connect().await.expect("a session")
    }

    async fn sessions(&self) -> [Session; 3] {
        [session(self.cluster).await, self.watched().await, alone_at(&self.alone.url()).await]
    }

    /// At how many it is held.
    async fn holds(&self, key: &str) -> usize {
        let mut holds = left(self.cluster, key).await.len();
        for server in [&self.watched.servers()[0], &self.alone] {
            holds += usize::from(server.keys().await.contains(&key.as_bytes().to_vec()));
        }
        holds
    }
}

fn lock(sessions: &[Session], name: &str) -> QuorumLock {
    // So much, because the machine is slow, not the servers.
    let options = QuorumOptions::default().node_timeout(3 * SECOND);
    QuorumLock::new(sessions, name, options).expect("legal options")
}

#[tokio::test]
async fn topologies_vote_and_one_named_twice_is_found_out() {
    let apart = Apart::start().await;
    let (mine, theirs) = (apart.sessions().await, apart.sessions().await);
    let (first, second) = (lock(&mine, "vote"), lock(&theirs, "vote"));
    let guard = first.acquire().await.unwrap();
    assert_eq!((guard.nodes_held(), apart.holds("lh1:quorum:{vote}").await), (3, 3));
    assert!(second.try_acquire().await.unwrap().is_none());
    assert_eq!(guard.release().await.unwrap().released(), 3);
    assert_eq!(apart.holds("lh1:quorum:{vote}").await, 0);
    found_out(&apart, &mine).await;
    // One of them is gone: the others are a majority.
    apart.alone.kill();
    let guard = second.acquire().await.unwrap();
    assert_eq!((guard.nodes_held(), guard.is_held()), (2, true));
    guard.release().await.unwrap();
    let free = async || left(apart.cluster, "{vote}").await.is_empty();
    eventually(SOON, "nothing is left", free).await;
}

/// By another session, or by the address of one of its nodes: its votes would be one vote.
async fn found_out(apart: &Apart, [cluster, watched, alone]: &[Session; 3]) {
    let key = b"lh1:quorum:{twice}";
    let owner = apart.cluster.master_of(key).await;
    let of_cluster = session(apart.cluster).await;
    let of_watched = apart.watched().await;
    let node = |number: usize| alone_at_node(apart.cluster, number);
    let (its_node, another) = (node(owner).await, node((owner + 1) % 3).await);
    let its_master = alone_at(&apart.watched.servers()[0].url()).await;
    let given = [
        ("a cluster twice", [cluster, &of_cluster, alone], (0, 1)),
        ("a cluster and the node of the key", [cluster, alone, &its_node], (0, 2)),
        ("a cluster and another node of it", [&another, alone, cluster], (0, 2)),
        ("sentinels twice", [alone, watched, &of_watched], (1, 2)),
        ("sentinels and their master", [watched, &its_master, alone], (0, 1)),
    ];
    for (what, sessions, (one, other)) in given {
        let lock = lock(&sessions.map(Clone::clone), "twice");
        for _ in 0..2 {
            let refused = lock.acquire().await;
            let Err(AcquireError::Config(ConfigError::SameServer { first, second })) = refused
            else {
                panic!("{what}: {refused:?}")
            };
            assert_eq!((first, second), (one, other), "{what}");
        }
        assert_eq!(apart.holds("lh1:quorum:{twice}").await, 0, "{what}: nothing is taken");
    }
}

async fn alone_at_node(cluster: &Cluster, number: usize) -> Session {
    alone_at(&cluster.nodes()[number].url()).await
}
