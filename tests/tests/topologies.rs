//! What several locks, several servers and the whole family do on a cluster and with sentinels: situations that a suite
//! of one kind on one server does not meet.
//!
//! All but the failover and the replicas share one cluster of three masters, so each test has names of its own.

#[path = "topologies/failover.rs"]
mod failover;
#[path = "topologies/family.rs"]
mod family;
#[path = "topologies/names.rs"]
mod names;
#[path = "topologies/quorum.rs"]
mod quorum;
#[path = "topologies/replicas.rs"]
mod replicas;
#[path = "topologies/rights.rs"]
mod rights;
#[path = "topologies/several.rs"]
mod several;
#[path = "topologies/several_faults.rs"]
mod several_faults;

use std::time::Duration;

use leasehold_mutex::Session;
use leasehold_tests::eventually;
use leasehold_tests::rig::Monitor;
use leasehold_tests::scene::SOON;
use leasehold_tests::topology::Cluster;
use tokio::sync::OnceCell;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

async fn cluster() -> &'static Cluster {
    static ONE: OnceCell<Cluster> = OnceCell::const_new();
    ONE.get_or_init(|| Cluster::start(3, 0)).await
}

async fn session(cluster: &Cluster) -> Session {
    let builder = Session::cluster_builder(cluster.urls()).expect("URLs");
    builder.connect().await.expect("a session")
}

/// What is there of names with this part on any node, but for memories (I17).
async fn left(cluster: &Cluster, part: &str) -> Vec<String> {
    let mut keys = Vec::new();
    for node in cluster.nodes() {
        keys.extend(node.keys().await.iter().map(|key| key.escape_ascii().to_string()));
    }
    keys.retain(|key| {
        let memory = key.ends_with(":token") || key.ends_with(":gone");
        key.contains(part) && !memory
    });
    keys
}

/// Nothing is left on any node, and nothing in hand.
async fn ends_clean(cluster: &Cluster, part: &str, sessions: &[&Session]) {
    let clean = async || {
        let idle = |session: &&Session| {
            let now = session.statistics();
            (now.tracked, now.watched) == (0, 0)
        };
        sessions.iter().all(idle) && left(cluster, part).await.is_empty()
    };
    eventually(SOON, "nothing is left", clean).await;
}

/// Hears what clients send to any node.
struct Monitors<'a> {
    cluster: &'a Cluster,
    monitors: Vec<Monitor>,
}

impl<'a> Monitors<'a> {
    fn of(cluster: &'a Cluster) -> Self {
        Self { cluster, monitors: cluster.nodes().iter().map(Monitor::of).collect() }
    }

    /// Everything that clients sent until now, not what scripts did, in its order: one clock serves all nodes.
    async fn sent(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (monitor, node) in self.monitors.iter().zip(self.cluster.nodes()) {
            lines.extend(monitor.heard(node).await);
        }
        lines.retain(|line| !line.contains(" lua] "));
        lines.sort(); // They begin with the time.
        lines
    }

    /// The calls about what has this in its keys.
    async fn calls(&self, part: &str) -> Vec<String> {
        let mut lines = self.sent().await;
        lines.retain(|line| line.contains("] \"EVAL") && line.contains(part));
        lines
    }
}
