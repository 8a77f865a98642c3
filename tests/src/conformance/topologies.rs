//! A cluster and a watched master as sites of the suite. Starting one takes seconds, so a test binary
//! starts as many as it runs scenarios at a time, and each scenario gets one that is clean.

use std::sync::Mutex as Lock;

use leasehold_runtime::{Session, SessionBuilder};
use redis::aio::MultiplexedConnection;

use super::{KeyEvents, Site};
use crate::Server;
use crate::topology::{Cluster, Sentinels};

/// Those that no scenario works on just now.
static CLUSTERS: Lock<Vec<Cluster>> = Lock::new(Vec::new());
static WATCHED: Lock<Vec<Sentinels>> = Lock::new(Vec::new());

/// Three masters.
#[derive(Debug)]
pub struct Clustered(Option<Cluster>);

/// A master, its replicas and its sentinels.
#[derive(Debug)]
pub struct Watched(Option<Sentinels>);

impl Clustered {
    fn cluster(&self) -> &Cluster {
        self.0.as_ref().expect("there until it is dropped")
    }
}

impl Drop for Clustered {
    fn drop(&mut self) {
        CLUSTERS.lock().expect("no panic inside").extend(self.0.take());
    }
}

impl Site for Clustered {
    type Connection = MultiplexedConnection;

    async fn start() -> Self {
        let used = CLUSTERS.lock().expect("no panic inside").pop();
        Self(Some(aside(|| async {
            let cluster = match used {
                Some(cluster) => cluster,
                None => Cluster::start(3, 0).await,
            };
            revive(cluster.nodes()).await;
            cluster.settled().await;
            clean(cluster.nodes()).await;
            cluster
        })))
    }

    fn url(&self) -> String {
        self.cluster().nodes()[0].url()
    }

    fn session(&self) -> SessionBuilder {
        Session::cluster_builder(self.cluster().urls()).expect("URLs")
    }

    async fn connection(&self) -> MultiplexedConnection {
        self.cluster().nodes()[0].connection().await
    }

    async fn run(&self, words: &[&str]) {
        for node in self.cluster().nodes() {
            run(node, words).await;
        }
    }

    fn kill(&self) {
        self.cluster().nodes().iter().for_each(Server::kill);
    }

    fn restart(&self) {
        self.kill();
        self.cluster().nodes().iter().for_each(Server::restart);
        aside(|| self.cluster().settled());
    }

    async fn keys(&self) -> Vec<Vec<u8>> {
        self.cluster().keys().await
    }

    async fn channels(&self) -> usize {
        self.cluster().channels().await
    }

    async fn key_events(&self, key: &[u8]) -> KeyEvents {
        let master = self.cluster().master_of(key).await;
        KeyEvents::of(&self.cluster().nodes()[master], key).await
    }
}

impl Watched {
    fn all(&self) -> &Sentinels {
        self.0.as_ref().expect("there until it is dropped")
    }

    /// No scenario fails over: it stays what it was.
    fn master(&self) -> &Server {
        &self.all().servers()[0]
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        WATCHED.lock().expect("no panic inside").extend(self.0.take());
    }
}

impl Site for Watched {
    type Connection = MultiplexedConnection;

    async fn start() -> Self {
        let used = WATCHED.lock().expect("no panic inside").pop();
        Self(Some(aside(|| async {
            let all = match used {
                Some(all) => all,
                None => patient(Sentinels::start().await).await,
            };
            revive(all.servers()).await;
            all.settled().await;
            assert_eq!(all.master().await, 0, "no scenario fails over");
            clean(&all.servers()[..1]).await;
            all
        })))
    }

    fn url(&self) -> String {
        self.master().url()
    }

    fn session(&self) -> SessionBuilder {
        Session::sentinel_builder(self.all().urls(), self.all().service()).expect("URLs")
    }

    async fn connection(&self) -> MultiplexedConnection {
        self.master().connection().await
    }

    async fn run(&self, words: &[&str]) {
        run(self.master(), words).await;
    }

    fn kill(&self) {
        self.all().servers().iter().for_each(Server::kill);
    }

    fn restart(&self) {
        self.kill();
        self.all().servers().iter().for_each(Server::restart);
        aside(|| self.all().settled());
    }

    async fn keys(&self) -> Vec<Vec<u8>> {
        self.master().keys().await
    }

    async fn channels(&self) -> usize {
        let mut asking = redis::cmd("PUBSUB");
        asking.arg("CHANNELS");
        let mut connection = self.master().connection().await;
        let channels: Vec<String> = asking.query_async(&mut connection).await.expect("CHANNELS");
        channels.iter().filter(|channel| !channel.starts_with("__sentinel__")).count()
    }

    async fn key_events(&self, key: &[u8]) -> KeyEvents {
        KeyEvents::of(self.master(), key).await
    }
}

/// No scenario is about a failover. What they do to a master (pause it, cut its connections, kill it), and a machine that
/// stands still for a second, would be one for sentinels that count it as failed so soon.
async fn patient(all: Sentinels) -> Sentinels {
    for sentinel in all.sentinels() {
        let set = ["SENTINEL", "SET", all.service(), "down-after-milliseconds", "60000"];
        run(sentinel, &set).await;
    }
    all
}

/// A scenario that failed may have left servers dead or paused.
async fn revive(servers: &[Server]) {
    for server in servers {
        if !server.is_running() {
            server.restart();
        }
        run(server, &["CLIENT", "UNPAUSE"]).await;
    }
}

async fn clean(masters: &[Server]) {
    for master in masters {
        run(master, &["ACL", "SETUSER", "default", "+@all"]).await;
        run(master, &["CONFIG", "SET", "notify-keyspace-events", ""]).await;
        run(master, &["FLUSHALL"]).await;
    }
}

async fn run(server: &Server, words: &[&str]) {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    let done = command.exec_async(&mut server.connection().await).await;
    done.unwrap_or_else(|error| panic!("{words:?}: {error}"));
}

/// To the end, on a thread and a runtime of its own: who waits here cannot be asked to come back.
fn aside<T: Send, F: Future<Output = T>>(task: impl FnOnce() -> F + Send) -> T {
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(task())
    };
    std::thread::scope(|scope| scope.spawn(run).join()).expect("no panic inside")
}
