//! Servers that work as one: a [`Cluster`], and a master with its replicas and [`Sentinels`].

mod cluster;
mod sentinels;

use std::time::Duration;

pub use cluster::Cluster;
pub use sentinels::Sentinels;

use crate::{Server, eventually};

/// What forming, resynchronising or failing over may take on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// After so long without an answer a node counts as failed.
pub const NODE_TIMEOUT: Duration = Duration::from_secs(1);

/// Sends a node a command of these words.
async fn tell(node: &Server, words: &[&str]) {
    let asked = ask::<redis::Value>(node, words).await;
    asked.unwrap_or_else(|error| panic!("{words:?}: {error}"));
}

async fn ask<T: redis::FromRedisValue>(node: &Server, words: &[&str]) -> redis::RedisResult<T> {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    command.query_async(&mut node.try_connection().await?).await
}

/// Whether `INFO replication` has this line.
async fn says(node: &Server, line: &str) -> bool {
    let info: String = ask(node, &["INFO", "replication"]).await.unwrap_or_default();
    info.lines().any(|said| said.trim_end() == line)
}

/// Waits until these replicas have all that their master has. A failover of one that has not loses all, or does not
/// happen.
async fn in_step(replicas: impl IntoIterator<Item = &Server>) {
    for replica in replicas {
        let up = async || says(replica, "master_link_status:up").await;
        eventually(PATIENCE, "a replica is in step", up).await;
    }
}
