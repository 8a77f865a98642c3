//! A user of a cluster with the rights that the README prints, and no other.

use leasehold_mutex::{AcquireError, BackendErrorKind, Options, Session};
use leasehold_tests::scene::SOON;
use leasehold_tests::topology::Cluster;
use leasehold_tests::{acl, permits, rwlock};

use super::{cluster, family};

/// What stands behind `ACL SETUSER app`, and the right that a cluster takes beside it.
fn readme_rule() -> Vec<String> {
    let readme = include_str!("../../../README.md");
    let (_, from) = readme.split_once("ACL SETUSER app ").expect("the rule is printed");
    let (rule, _) = from.split_once("```").expect("the end of the block");
    let beside = "Rights beside those above: `+cluster|slots` for a cluster";
    assert!(readme.contains(beside), "and what a cluster takes");
    rule.split_whitespace().chain(["+cluster|slots"]).map(str::to_owned).collect()
}

async fn session_of(cluster: &Cluster, user: &str) -> Session {
    let at = |node| format!("redis://{user}:password@{node}/");
    let urls = cluster.nodes().iter().map(|node| at(node.addr()));
    let builder = Session::cluster_builder(urls).expect("URLs").prefix("app:");
    builder.connect().await.expect("a session")
}

/// Makes this user at every node.
async fn allow(cluster: &Cluster, user: &str) {
    for node in cluster.nodes() {
        let mut command = redis::cmd("ACL");
        command.arg("SETUSER").arg(user).arg(readme_rule());
        command.exec_async(&mut node.connection().await).await.expect("a legal rule");
    }
}

async fn refused(cluster: &Cluster, user: &str) -> Vec<String> {
    let mut refused = Vec::new();
    for node in cluster.nodes() {
        refused.extend(acl::refused(node, user).await);
    }
    refused
}

/// B111, B112 on a cluster: every primitive at every master, and no node has refused anything.
#[tokio::test]
async fn b112_the_rights_of_the_readme_are_enough_for_every_primitive() {
    let cluster = cluster().await;
    allow(cluster, "app").await;
    let session = session_of(cluster, "app").await;
    let names = cluster.one_a_master("rights").await;
    for name in &names {
        family::every_primitive(&session, name).await;
    }
    family::several(&session, &names).await;
    session.shutdown(SOON).await.unwrap();
    assert_eq!(refused(cluster, "app").await, Vec::<String>::new());
}

/// Else the empty logs above could come from a user who may do anything, or from logs that nobody writes.
#[tokio::test]
async fn control_one_right_less_is_told_and_seen_in_the_logs() {
    let cluster = cluster().await;
    allow(cluster, "less").await;
    let session = session_of(cluster, "less").await;
    for node in cluster.nodes() {
        acl::change(node, "less", "-zmscore").await;
    }
    let lock = rwlock::lock(&session, "less", Options::default());
    let reading = lock.read().acquire().await.map(|_| "a hold");
    let permits = permits::semaphore(&session, "less", 3, Options::default());
    let permit = permits.acquire().await.map(|_| "a hold");
    let refusals = [reading, permit].map(|taken| match taken {
        Err(AcquireError::Backend(error)) => Some(error.kind()),
        _ => None,
    });
    assert!(refusals.contains(&Some(BackendErrorKind::NoPermission)), "{refusals:?}");
    assert!(refused(cluster, "less").await.iter().any(|line| line.contains("zmscore")));
    session.shutdown(SOON).await.ok();
}
