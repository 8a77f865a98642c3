//! Each primitive on a Redis Cluster of its own: three masters on this machine, which this program starts and ends.
//! `scripts/with-redis --find cargo run -p leasehold-examples --bin cluster_tour`
//!
//! At each stop this process takes an object, another one waits for it, and the release hands it over by a push from the
//! node that has it. Printed are the object's key, its slot and node, as the cluster tells them, the fencing tokens of both
//! holds, and how long the hand-over took. All keys of a name share a slot, so any name works; two names that are to be
//! taken by one script are put on one slot with `Name::in_group`. In the end: what stays on the nodes.
//!
//! The quorum lock is not on the tour. It wants servers that share nothing, and the masters of one cluster do: who has
//! which slot, and who replaces whom.
//!
//! What to copy: `objects.rs`. Only the constructor of the session differs from what one server needs. The exit status says
//! whether the tour went so; `--one-node` shows what becomes of a session that takes a node for the whole: some names
//! work, the others are refused, and the status is 1.

mod cluster;
mod objects;
mod one_node;
mod tour;
mod verdict;
mod visitor;

use std::process::ExitCode;

use leasehold::Session;
use leasehold_examples::program::{self, exit, until_interrupted, with_session};
use leasehold_examples::{Failure, crew};

use crate::cluster::Cluster;
use crate::tour::Tour;

const USAGE: &str = "usage: cluster_tour [--one-node]";
const VISITOR: &str = "visitor";

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let words: Vec<_> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        // The program starts itself again as the process that waits.
        [VISITOR, nodes @ ..] => visitor::run(nodes).await,
        [] => with_cluster(cluster_tour).await,
        ["--one-node"] => with_cluster(one_node::run).await,
        _ => Err(USAGE.into()),
    };
    exit("cluster_tour", done)
}

/// Works with a cluster, and ends it whatever comes of the work.
async fn with_cluster(
    work: impl AsyncFnOnce(&Cluster) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let cluster = until_interrupted(Cluster::start()).await?;
    let done = until_interrupted(async {
        println!("a cluster of {} masters is formed:\n{cluster}\n", cluster::NODES);
        cluster.form().await
    });
    let done = match done.await {
        Ok(()) => Box::pin(work(&cluster)).await,
        Err(failure) => Err(failure),
    };
    cluster.stop().await?;
    done
}

async fn cluster_tour(cluster: &Cluster) -> Result<(), Failure> {
    let stops = with_session(Session::cluster_builder(cluster.urls())?, async |session| {
        crew::with_crew(async |crew| {
            let tour = Tour::start(crew, cluster, session)?;
            until_interrupted(tour.run()).await
        })
        .await
    })
    .await?;
    println!("quorum lock: not here, it wants servers that share nothing\n");
    let stays = cluster.keys().await?;
    println!("what stays, both sessions being shut down:");
    for (key, left) in &stays {
        println!("  {key}, for {} min", left.as_secs().div_ceil(60));
    }
    println!();
    program::verdict(&verdict::faults(&stops, stays.iter().map(|(key, _)| key)))?;
    println!("Each was at the node of its slot, and was handed over from there.");
    Ok(())
}
