//! A master with replicas, watched by sentinels.

use super::{NODE_TIMEOUT, PATIENCE, ask, in_step, says};
use crate::{Authority, Server, ServerBuilder, eventually};

/// What the sentinels call the master.
const SERVICE: &str = "orders";

/// One master and two replicas, and three sentinels that watch them; on free ports of 127.0.0.1. All
/// processes end with this value, and also when the test's process is killed.
#[derive(Debug)]
pub struct Sentinels {
    servers: Vec<Server>,
    sentinels: Vec<Server>,
}

impl Sentinels {
    /// Starts them, and returns when all know each other and the replicas have what the master has.
    /// The first server is the master.
    pub async fn start() -> Self {
        let master = server(None);
        let port = master.addr().port().to_string();
        let mut servers = vec![master];
        servers.extend((0..2).map(|_| server(Some(&port))));
        in_step(&servers[1..]).await;
        let sentinels = (0..3).map(|_| sentinel(&port, 2).start()).collect();
        let all = Self { servers, sentinels };
        all.settled().await;
        all
    }

    /// One master and one sentinel, which speak TLS with clients and with each other.
    pub async fn start_with_tls(authority: &Authority) -> Self {
        let master = Server::builder().tls(authority).start();
        let sentinel = sentinel(&master.addr().port().to_string(), 1).tls(authority);
        let sentinel = sentinel.arg("--tls-replication", "yes").start();
        let all = Self { servers: vec![master], sentinels: vec![sentinel] };
        all.settled().await;
        all
    }

    /// What the master is called.
    #[must_use]
    pub fn service(&self) -> &'static str {
        SERVICE
    }

    /// The URLs of the sentinels.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(Server::url).collect()
    }

    /// The sentinels.
    #[must_use]
    pub fn sentinels(&self) -> &[Server] {
        &self.sentinels
    }

    /// Master and replicas, whatever they are now.
    #[must_use]
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// The number of the server that the sentinels call the master.
    pub async fn master(&self) -> usize {
        let named = named_by(&self.sentinels[0]).await.expect("a sentinel that answers");
        let place = self.servers.iter().position(|server| server.addr().port() == named);
        place.expect("a server of ours")
    }

    /// Waits until all servers and sentinels run and agree, and every replica is in step.
    pub async fn settled(&self) {
        let others = (self.servers.len() - 1, self.sentinels.len() - 1);
        for sentinel in &self.sentinels {
            eventually(PATIENCE, "the sentinels see all and agree", async || {
                let seen = facts(sentinel).await;
                let named = named_by(sentinel).await;
                seen == Some(others) && named == named_by(&self.sentinels[0]).await
            })
            .await;
        }
        let (master, all) = (self.master().await, 0..self.servers.len());
        in_step(all.filter(|number| *number != master).map(|number| &self.servers[number])).await;
        let is_one = async || says(&self.servers[master], "role:master").await;
        eventually(PATIENCE, "the master is one", is_one).await;
    }
}

fn server(replica_of: Option<&str>) -> Server {
    let builder = Server::builder()
        .arg("--repl-diskless-sync-delay", "0")
        .arg("--repl-ping-replica-period", "1");
    match replica_of {
        Some(port) => builder.replica_of(port).start(),
        None => builder.start(),
    }
}

fn sentinel(port: &str, quorum: usize) -> ServerBuilder {
    let down_after = NODE_TIMEOUT.as_millis();
    Server::builder().sentinel(format!(
        "sentinel monitor {SERVICE} 127.0.0.1 {port} {quorum}\n\
             sentinel down-after-milliseconds {SERVICE} {down_after}\n\
             sentinel failover-timeout {SERVICE} 3000\n\
             sentinel parallel-syncs {SERVICE} 2\n"
    ))
}

async fn named_by(sentinel: &Server) -> Option<u16> {
    let question = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE];
    let named: Option<(String, u16)> = ask(sentinel, &question).await.ok()?;
    named.map(|(_, port)| port)
}

/// How many replicas and other sentinels it knows, if nothing is wrong in its eyes.
async fn facts(sentinel: &Server) -> Option<(usize, usize)> {
    let question = ["SENTINEL", "MASTER", SERVICE];
    let facts: std::collections::HashMap<String, String> = ask(sentinel, &question).await.ok()?;
    let number = |name: &str| facts.get(name)?.parse().ok();
    let well = facts.get("flags").is_some_and(|flags| flags == "master");
    well.then_some((number("num-slaves")?, number("num-other-sentinels")?))
}
