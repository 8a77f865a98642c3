//! Grants that wait for replicas, on a cluster: each at the master of its slot, wherever that is by now.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use leasehold_mutex::{AcquireError, Options};
use leasehold_tests::eventually;
use leasehold_tests::scene::{SOON, keys, mutex};
use leasehold_tests::topology::Cluster;
use tokio::task::JoinSet;

use super::{SECOND, session};

/// The last part is the control: who asks for two of one replica is refused at each master.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_are_waited_for_where_the_slot_is() {
    let cluster = Cluster::start(3, 1).await;
    let session = session(&cluster).await;
    let names = cluster.one_a_master("replicated").await;
    let options = |count| Options::default().max_wait(SOON).wait_replicas(count, SOON);
    let (stop, taken) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let mut tasks = JoinSet::new();
    for name in names.iter().chain(&names) {
        let lock = mutex(&session, name, options(1));
        let (stop, taken) = (stop.clone(), taken.clone());
        tasks.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                lock.acquire().await?.release().await.expect("it was held");
                taken.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<_, AcquireError>(())
        });
    }
    let grows = async || {
        let before = taken.load(Ordering::Relaxed);
        let more = async || taken.load(Ordering::Relaxed) > before + 20;
        eventually(SOON, "grants go on", more).await;
    };
    grows().await;
    for name in &names {
        let slot = cluster.slot_of(&keys(name).holds).await;
        let to = (cluster.owner_of(slot).await.expect("an owner") + 1) % 3;
        cluster.begin_to_move(slot, to).await;
        cluster.finish_to_move(slot, to).await;
        grows().await;
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no panic inside").expect("no error is met");
    }
    let two = Options::default().wait_replicas(2, SECOND / 2);
    for name in &names {
        let refused = mutex(&session, name, two.clone()).acquire().await.unwrap_err();
        let few = matches!(refused, AcquireError::NotReplicated { wanted: 2, acknowledged: 1 });
        assert!(few, "{refused:?}");
    }
    session.shutdown(SOON).await.unwrap();
}
