//! A Redis Cluster.

use std::collections::BTreeMap;

use redis::aio::MultiplexedConnection;

use super::{NODE_TIMEOUT, PATIENCE, ask, in_step, tell};
use crate::{Authority, Server, ServerBuilder, eventually};

/// How many slots there are.
const SLOTS: usize = 16_384;

/// Masters that share the slots evenly, each with as many replicas; on free ports of 127.0.0.1. All
/// processes end with this value, and also when the test's process is killed.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Server>,
}

impl Cluster {
    /// Starts one, and returns when every node says that all slots are served, and every replica has
    /// what its master has. The masters are the first nodes.
    pub async fn start(masters: usize, replicas_each: usize) -> Self {
        Self::of(masters, replicas_each, || node().start()).await
    }

    /// Masters alone that speak TLS with clients and with each other.
    pub async fn start_with_tls(masters: usize, authority: &Authority) -> Self {
        let node = || node().tls(authority).arg("--tls-cluster", "yes").start();
        Self::of(masters, 0, node).await
    }

    async fn of(masters: usize, replicas_each: usize, node: impl Fn() -> Server) -> Self {
        let nodes: Vec<Server> = (0..masters * (1 + replicas_each)).map(|_| node()).collect();
        let cluster = Self { nodes };
        for (number, node) in cluster.nodes.iter().enumerate() {
            tell(node, &["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]).await;
            if number < masters {
                let (first, last) = (SLOTS * number / masters, SLOTS * (number + 1) / masters - 1);
                let range = [first.to_string(), last.to_string()];
                tell(node, &["CLUSTER", "ADDSLOTSRANGE", &range[0], &range[1]]).await;
            }
        }
        for other in &cluster.nodes[1..] {
            cluster.meet(other).await;
        }
        cluster.know_each_other().await;
        for number in masters..cluster.nodes.len() {
            let master = cluster.id(number % masters).await;
            tell(&cluster.nodes[number], &["CLUSTER", "REPLICATE", &master]).await;
        }
        cluster.settled().await;
        cluster
    }

    /// Its nodes, whatever they are now.
    #[must_use]
    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// The URLs of all nodes.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Server::url).collect()
    }

    /// Waits until all nodes run, agree who has which slot, serve all, and every replica is in step.
    pub async fn settled(&self) {
        let agreed = async || {
            let first = view_of(&self.nodes[0]).await;
            for node in &self.nodes {
                if first.is_none() || view_of(node).await != first {
                    return false;
                }
            }
            true
        };
        eventually(PATIENCE, "the nodes agree and serve all slots", agreed).await;
        in_step(self.replicas().await).await;
    }

    /// The number of the node that has the slot of this key, as the nodes that run say.
    pub async fn master_of(&self, key: &[u8]) -> usize {
        let slot = self.slot_of(key).await;
        self.owner_of(slot).await.expect("somebody has the slot")
    }

    /// The slot of a key, as a node says.
    pub async fn slot_of(&self, key: &[u8]) -> u16 {
        let mut connection = self.any().connection().await;
        let mut command = redis::cmd("CLUSTER");
        command.arg("KEYSLOT").arg(key);
        command.query_async(&mut connection).await.expect("CLUSTER KEYSLOT")
    }

    /// Which node has a slot, as a node that runs says.
    pub async fn owner_of(&self, slot: u16) -> Option<usize> {
        let view = slots_of(self.any()).await?;
        let (_, port) = view.range(..=slot).next_back()?;
        self.nodes.iter().position(|node| node.addr().port() == *port)
    }

    /// The nodes that have slots, as a node that runs says.
    pub async fn masters(&self) -> Vec<&Server> {
        let view = slots_of(self.any()).await.expect("CLUSTER SLOTS");
        let is_master = |node: &&Server| view.values().any(|port| *port == node.addr().port());
        self.nodes.iter().filter(|node| node.is_running()).filter(is_master).collect()
    }

    /// All other nodes that run.
    pub async fn replicas(&self) -> Vec<&Server> {
        let masters = self.masters().await;
        let is_replica = |node: &&Server| !masters.iter().any(|one| one.addr() == node.addr());
        self.nodes.iter().filter(|node| node.is_running()).filter(is_replica).collect()
    }

    /// Names with this beginning, one on each master, in the masters' order.
    pub async fn one_a_master(&self, begins: &str) -> Vec<String> {
        let mut found = vec![String::new(); self.masters().await.len()];
        for number in 0.. {
            let name = format!("{begins}-{number}");
            let master = self.master_of(&crate::scene::keys(&name).holds).await;
            if found[master].is_empty() {
                found[master] = name;
            }
            if found.iter().all(|name| !name.is_empty()) {
                break;
            }
        }
        found
    }

    /// Waits until the replicas of this master have everything that it was sent until now.
    pub async fn acknowledged(&self, master: usize) {
        let master = &self.nodes[master];
        tell(master, &["PUBLISH", "anywhere", "1"]).await;
        let fact = async || {
            let info: String = ask(master, &["INFO", "replication"]).await.unwrap_or_default();
            let number = |text: &str| -> Option<u64> { text.trim().parse().ok() };
            let written = info.lines().find_map(|line| line.strip_prefix("master_repl_offset:"));
            let read = info.lines().find_map(|line| line.strip_prefix("slave0:"));
            let read = read.and_then(|line| line.split("offset=").nth(1)?.split(',').next());
            written.and_then(number).is_some() && written.and_then(number) == read.and_then(number)
        };
        eventually(PATIENCE, "the replica has all", fact).await;
    }

    /// All keys of all masters.
    pub async fn keys(&self) -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        for master in self.masters().await {
            keys.extend(master.keys().await);
        }
        keys
    }

    /// How many channels somebody is subscribed to at any node.
    pub async fn channels(&self) -> usize {
        let mut channels = Vec::new();
        for node in self.nodes.iter().filter(|node| node.is_running()) {
            let here: Vec<String> = ask(node, &["PUBSUB", "CHANNELS"]).await.expect("CHANNELS");
            channels.extend(here);
        }
        channels.sort();
        channels.dedup();
        channels.len()
    }

    /// Begins to move a slot: from now on what needs several of its keys is refused.
    pub async fn begin_to_move(&self, slot: u16, to: usize) {
        let from = self.owner_of(slot).await.expect("somebody has the slot");
        let (slot, ids) = (slot.to_string(), [self.id(from).await, self.id(to).await]);
        tell(&self.nodes[to], &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &ids[0]]).await;
        tell(&self.nodes[from], &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &ids[1]]).await;
    }

    /// Moves the keys of the slot, and then the slot itself.
    pub async fn finish_to_move(&self, slot: u16, to: usize) {
        let from = self.owner_of(slot).await.expect("somebody has the slot");
        let (text, id) = (slot.to_string(), self.id(to).await);
        let (mut source, port) =
            (self.nodes[from].connection().await, self.nodes[to].addr().port());
        while move_keys(&mut source, slot, port).await > 0 {}
        for node in [&self.nodes[to], &self.nodes[from]] {
            tell(node, &["CLUSTER", "SETSLOT", &text, "NODE", &id]).await;
        }
    }

    /// Makes a node that left known to all others again.
    pub async fn join(&self, number: usize) {
        self.meet(&self.nodes[number]).await;
        self.know_each_other().await;
        let knows = async || view_of(&self.nodes[number]).await.is_some();
        eventually(PATIENCE, "it knows who has which slot", knows).await;
    }

    /// Puts a proxy before each node, which every node then says it lives at: sessions that begin at a proxy reach every
    /// node through its own.
    pub async fn behind_proxies(&self) -> Vec<crate::FaultProxy> {
        let proxies: Vec<_> = self.nodes.iter().map(crate::FaultProxy::to).collect();
        for (node, proxy) in self.nodes.iter().zip(&proxies) {
            let port = proxy.addr().port().to_string();
            tell(node, &["CONFIG", "SET", "cluster-announce-port", &port]).await;
        }
        let known = async || {
            let mut seen = Vec::new();
            for node in &self.nodes {
                let nodes: String = ask(node, &["CLUSTER", "NODES"]).await.expect("CLUSTER NODES");
                seen.extend(nodes.lines().map(|line| line.split(' ').nth(1).map(str::to_owned)));
            }
            let at = |proxy: &crate::FaultProxy| format!("127.0.0.1:{}@", proxy.addr().port());
            let by_proxy = |seen: &String| proxies.iter().any(|proxy| seen.starts_with(&at(proxy)));
            seen.iter().all(|address| address.as_ref().is_some_and(by_proxy))
        };
        eventually(PATIENCE, "all nodes are known by their proxies", known).await;
        proxies
    }

    fn any(&self) -> &Server {
        self.nodes.iter().find(|node| node.is_running()).expect("a node that runs")
    }

    async fn id(&self, number: usize) -> String {
        ask(&self.nodes[number], &["CLUSTER", "MYID"]).await.expect("CLUSTER MYID")
    }

    async fn meet(&self, other: &Server) {
        let (host, port) = (other.addr().ip().to_string(), other.addr().port().to_string());
        tell(&self.nodes[0], &["CLUSTER", "MEET", &host, &port]).await;
    }

    async fn know_each_other(&self) {
        let all = format!("cluster_known_nodes:{}", self.nodes.len());
        for node in &self.nodes {
            let known = async || {
                let info: String = ask(node, &["CLUSTER", "INFO"]).await.unwrap_or_default();
                // Whom one has only heard of is no node to replicate yet.
                let nodes: String = ask(node, &["CLUSTER", "NODES"]).await.unwrap_or_default();
                info.contains(&all) && !nodes.contains("handshake")
            };
            eventually(PATIENCE, "the nodes know each other", known).await;
        }
    }
}

fn node() -> ServerBuilder {
    let timeout = NODE_TIMEOUT.as_millis().to_string();
    Server::builder()
        .arg("--cluster-enabled", "yes")
        .arg("--cluster-node-timeout", &timeout)
        .arg("--repl-diskless-sync-delay", "0")
        .arg("--repl-ping-replica-period", "1")
}

/// Moves up to 100 keys, and answers how many there were.
async fn move_keys(source: &mut MultiplexedConnection, slot: u16, port: u16) -> usize {
    let mut command = redis::cmd("CLUSTER");
    command.arg("GETKEYSINSLOT").arg(slot).arg(100);
    let keys: Vec<Vec<u8>> = command.query_async(source).await.expect("GETKEYSINSLOT");
    if !keys.is_empty() {
        let mut command = redis::cmd("MIGRATE");
        command.arg("127.0.0.1").arg(port).arg("").arg(0).arg(5_000).arg("KEYS").arg(&keys);
        command.exec_async(source).await.expect("MIGRATE");
    }
    keys.len()
}

/// The first slot of each range, and the port of its master.
async fn slots_of(node: &Server) -> Option<BTreeMap<u16, u16>> {
    let ranges: redis::Value = ask(node, &["CLUSTER", "SLOTS"]).await.ok()?;
    let redis::Value::Array(ranges) = ranges else { return None };
    let mut slots = BTreeMap::new();
    for range in ranges {
        let redis::Value::Array(parts) = range else { return None };
        let [redis::Value::Int(first), _, redis::Value::Array(master), ..] = parts.as_slice()
        else {
            return None;
        };
        let redis::Value::Int(port) = master.get(1)? else { return None };
        slots.insert(u16::try_from(*first).ok()?, u16::try_from(*port).ok()?);
    }
    Some(slots)
}

/// Who has which slot, from a node that runs and says that all is well.
async fn view_of(node: &Server) -> Option<BTreeMap<u16, u16>> {
    if !node.is_running() {
        return None;
    }
    let info: String = ask(node, &["CLUSTER", "INFO"]).await.ok()?;
    let well = info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384");
    if well { slots_of(node).await } else { None }
}
