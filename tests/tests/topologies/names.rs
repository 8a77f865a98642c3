//! Names that have a hash tag of their own, or look like one.

use std::collections::HashSet;

use leasehold_mutex::Options;
use leasehold_tests::rwlock::{keys, lock, waiter};
use leasehold_tests::scene::SOON;
use tokio::task::JoinSet;

use super::{cluster, family, session};

/// CONFORMANCE 68 on a cluster, and its n) for every primitive: ten tasks read ten times each; a writer reads too while
/// another waits, and all keys of it are at one node; and whatever else there is works under such a name.
#[tokio::test]
async fn c68_names_with_a_hash_tag_work_on_every_master() {
    let cluster = cluster().await;
    let session = session(cluster).await;
    let mut masters = HashSet::new();
    for name in ["{tag}", "a{tag}b", "x{}y", "}{", "{{c}}", "{a}{b}", "d}{", "{}"] {
        masters.insert(cluster.master_of(&keys(name).holds).await);
        let lock = lock(&session, name, Options::default());
        let mut tasks = JoinSet::new();
        for _ in 0..10 {
            let view = lock.read();
            tasks.spawn(async move {
                for _ in 0..10 {
                    view.acquire().await.expect("a hold").release().await.expect("still held");
                }
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
        let writing = lock.write().acquire().await.unwrap();
        let reading = lock.read().by(writing.owner()).acquire().await.unwrap();
        let waiting = waiter(&lock, lock.write(), 1).await;
        let holds = keys(name).holds.escape_ascii().to_string();
        let mut found = Vec::new();
        for node in cluster.nodes() {
            let keys = node.keys().await.into_iter().map(|key| key.escape_ascii().to_string());
            found.extend(keys.filter(|key| key.starts_with(&holds)).map(|key| (node.addr(), key)));
        }
        assert!(found.len() >= 5, "holds, notes, queue, timeouts, token: {found:?}");
        assert!(found.iter().all(|(node, _)| *node == found[0].0), "one slot: {found:?}");
        reading.release().await.unwrap();
        writing.release().await.unwrap();
        waiting.await.unwrap().0.release().await.unwrap();
        family::every_primitive(&session, name).await;
    }
    assert_eq!(masters.len(), 3, "the control: every master has had some of them");
    session.shutdown(SOON).await.unwrap();
}
