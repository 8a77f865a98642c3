//! A Redis Cluster on this machine: three masters that share the slots, keep nothing, and end with this program.

use std::fmt;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use leasehold::redis::aio::MultiplexedConnection;
use leasehold::redis::{self, AsyncConnectionConfig, Client, FromRedisValue};
use leasehold_examples::Failure;
use tempfile::TempDir;
use tokio::process::{Child, Command};

/// The masters.
pub(crate) const NODES: usize = 3;
const SLOTS: usize = 16_384;
/// How long anything may take on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);
/// What runs from PATH, unless `REDIS_SERVER_BIN` names another.
const SERVERS: [&str; 2] = ["redis-server", "valkey-server"];

/// Dropped, it is killed.
pub(crate) struct Cluster {
    nodes: Vec<Node>,
    // Last, so that the folder outlives the processes.
    _folder: TempDir,
}

struct Node {
    port: u16,
    connection: MultiplexedConnection,
    process: Process,
}

/// A server. The keeper ends first: it must not kill a stranger that gets the server's id later.
struct Process {
    keeper: Child,
    server: Child,
}

/// A key, and where it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    /// The node, from 1.
    pub(crate) node: usize,
    pub(crate) slot: u16,
    pub(crate) name: String,
}

impl Cluster {
    /// Starts its servers, which are no cluster yet.
    pub(crate) async fn start() -> Result<Self, Failure> {
        let folder = tempfile::tempdir()?;
        let mut nodes = Vec::new();
        for number in 0..NODES {
            nodes.push(Node::start(&folder.path().join(number.to_string())).await?);
        }
        Ok(Self { nodes, _folder: folder })
    }

    /// Makes them one, and returns when every node serves its slots and knows the others: after some seconds.
    pub(crate) async fn form(&self) -> Result<(), Failure> {
        for (number, node) in self.nodes.iter().enumerate() {
            let [first, last] = range(number).map(|slot| slot.to_string());
            node.ask::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]).await?;
            node.ask::<()>(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]).await?;
            let first = self.nodes[0].port.to_string();
            node.ask::<()>(&["CLUSTER", "MEET", "127.0.0.1", &first]).await?;
        }
        self.is_up().await
    }

    async fn is_up(&self) -> Result<(), Failure> {
        let known = format!("cluster_known_nodes:{NODES}");
        let facts = ["cluster_state:ok", "cluster_slots_ok:16384", known.as_str()];
        let began = Instant::now();
        for node in &self.nodes {
            loop {
                let info: String = node.ask(&["CLUSTER", "INFO"]).await?;
                if facts.iter().all(|fact| info.contains(fact)) {
                    break;
                }
                if began.elapsed() > PATIENCE {
                    return Err(format!("the cluster is not up after {PATIENCE:?}: {info}").into());
                }
                tokio::time::sleep(LOOK).await;
            }
        }
        Ok(())
    }

    /// Ends it.
    pub(crate) async fn stop(mut self) -> Result<(), Failure> {
        for Node { process, .. } in &mut self.nodes {
            process.keeper.kill().await?;
            // It keeps nothing, so it need not end in good order.
            process.server.kill().await?;
        }
        Ok(())
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Node::url).collect()
    }

    /// All keys of all nodes, and how long they last.
    pub(crate) async fn keys(&self) -> Result<Vec<(Key, Duration)>, Failure> {
        let mut keys = Vec::new();
        for (number, node) in self.nodes.iter().enumerate() {
            for name in node.ask::<Vec<String>>(&["KEYS", "*"]).await? {
                let slot = node.ask(&["CLUSTER", "KEYSLOT", &name]).await?;
                // Negative, if it has ended meanwhile, or would never end.
                let ms: i64 = node.ask(&["PTTL", &name]).await?;
                let left = Duration::from_millis(u64::try_from(ms).unwrap_or_default());
                keys.push((Key { node: number + 1, slot, name }, left));
            }
        }
        keys.sort();
        Ok(keys)
    }

    /// How many scripts have run so far.
    pub(crate) async fn scripts(&self) -> Result<u64, Failure> {
        let mut sum = 0;
        for node in &self.nodes {
            let stats: String = node.ask(&["INFO", "commandstats"]).await?;
            for command in ["evalsha", "eval"] {
                let begins = format!("cmdstat_{command}:");
                let line = stats.lines().find_map(|line| line.strip_prefix(begins.as_str()));
                let of = |field| line.map_or(Ok(0), |line| number_of(line, field));
                // Failed: the node did not know the script yet, and was sent its text.
                sum += of("calls")? - of("failed_calls")?;
            }
        }
        Ok(sum)
    }
}

/// `calls=12,usec=34,…`
fn number_of(line: &str, field: &str) -> Result<u64, Failure> {
    let fields = line.trim_end().split(',').filter_map(|pair| pair.split_once('='));
    let found = fields.into_iter().find_map(|(name, value)| (name == field).then_some(value));
    Ok(found.ok_or_else(|| format!("no {field} in {line}"))?.parse()?)
}

/// The first and the last slot of a node.
fn range(node: usize) -> [usize; 2] {
    [SLOTS * node / NODES, SLOTS * (node + 1) / NODES - 1]
}

impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, node) in self.nodes.iter().enumerate() {
            let end = if number > 0 { "\n" } else { "" };
            let ([first, last], port) = (range(number), node.port);
            write!(
                f,
                "{end}  node {} at 127.0.0.1:{port} has slots {first} to {last}",
                number + 1
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}, slot {:>5}: {}", self.node, self.slot, self.name)
    }
}

impl Node {
    /// On a free port; should another process take it meanwhile, on another.
    async fn start(folder: &Path) -> Result<Self, Failure> {
        std::fs::create_dir(folder)?;
        let log = folder.join("log");
        let mut said = String::new();
        for _ in 0..20 {
            let port = free_port();
            let mut process = Process::start(port, folder, &log)?;
            if let Some(connection) = process.answers(port).await? {
                return Ok(Self { port, connection, process });
            }
            said = std::fs::read_to_string(&log).unwrap_or_default();
            if !said.contains("in use") {
                break;
            }
        }
        Err(format!("a Redis server does not start:\n{said}").into())
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    async fn ask<T: FromRedisValue>(&self, words: &[&str]) -> Result<T, Failure> {
        ask(&mut self.connection.clone(), words).await
    }
}

async fn ask<T: FromRedisValue>(
    connection: &mut MultiplexedConnection,
    words: &[&str],
) -> Result<T, Failure> {
    Ok(redis::cmd(words[0]).arg(&words[1..]).query_async(connection).await?)
}

impl Process {
    fn start(port: u16, folder: &Path, log: &Path) -> Result<Self, Failure> {
        let output = File::create(log)?;
        let binary = binary();
        let server = Command::new(&binary)
            .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
            .args(["--save", "", "--appendonly", "no", "--cluster-enabled", "yes", "--dir"])
            .arg(folder)
            .stdin(Stdio::null())
            .stderr(output.try_clone()?)
            .stdout(output)
            // Ctrl-C in a terminal is for this program, which still needs its servers to end in good order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| no_server(&binary, &error))?;
        let id = server.id().ok_or("it has ended already")?;
        Ok(Self { keeper: keeper_of(id, folder)?, server })
    }

    /// A connection, when it answers; `None` if it has ended.
    async fn answers(&mut self, port: u16) -> Result<Option<MultiplexedConnection>, Failure> {
        let client = Client::open((Ipv4Addr::LOCALHOST.to_string(), port))?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE));
        // Its own id: a stranger could have the port.
        let is_its_own = format!("process_id:{}\r", self.server.id().unwrap_or_default());
        let began = Instant::now();
        while self.server.try_wait()?.is_none() {
            let connected = client.get_multiplexed_async_connection_with_config(&config).await;
            if let Ok(mut connection) = connected
                && let Ok(info) = ask::<String>(&mut connection, &["INFO", "server"]).await
                && info.contains(&is_its_own)
            {
                return Ok(Some(connection));
            }
            if began.elapsed() > PATIENCE {
                return Err(format!("a Redis server does not answer after {PATIENCE:?}").into());
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(None)
    }
}

/// Kills the server and removes its folder when this program is gone, whatever ended it: it waits on a pipe that only this
/// program holds open.
fn keeper_of(server: u32, folder: &Path) -> io::Result<Child> {
    Command::new("sh")
        .args(["-c", "read -r _; kill -KILL \"$1\"; rm -rf \"$2\"", "keeper"])
        .arg(server.to_string())
        .arg(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
}

fn binary() -> PathBuf {
    if let Some(binary) = std::env::var_os("REDIS_SERVER_BIN") {
        return binary.into();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<_> = std::env::split_paths(&path).collect();
    let places = SERVERS.iter().flat_map(|name| folders.iter().map(move |at| at.join(name)));
    places.into_iter().find(|file| file.is_file()).unwrap_or_else(|| SERVERS[0].into())
}

fn no_server(binary: &Path, error: &io::Error) -> Failure {
    format!(
        "{} does not start as a Redis server: {error}. Run this by scripts/with-redis --find, which finds one",
        binary.display()
    )
    .into()
}

/// Below the range of outgoing connections (from 32768), and so that the port of the cluster bus, 10 000 higher, is too.
fn free_port() -> u16 {
    loop {
        let random = RandomState::new().hash_one(std::process::id()) % 10_000;
        let port = 10_000 + u16::try_from(random).expect("below 10 000");
        let is_free = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
        if is_free(port) && is_free(port + 10_000) {
            return port;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_has_one_node() {
        let mut next = 0;
        for [first, last] in (0..NODES).map(range) {
            assert!(first == next && last > first);
            next = last + 1;
        }
        assert_eq!(next, SLOTS);
    }

    #[test]
    fn the_numbers_of_a_command_are_read_by_name() {
        let line = "calls=12,usec=34,usec_per_call=2.8,rejected_calls=1,failed_calls=3\r";
        assert_eq!(number_of(line, "calls").unwrap(), 12);
        assert_eq!(number_of(line, "failed_calls").unwrap(), 3);
        assert!(number_of(line, "hits").is_err());
    }
}
