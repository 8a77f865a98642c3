//! Several locks as one on a cluster whose nodes stand behind proxies: the link to one master breaks.

use leasehold_multi_lock::{AcquireError, BackendErrorKind, MultiGuard, MultiLock};
use leasehold_mutex::{Mutex, Name, Options, ReleaseError, Session};
use leasehold_tests::scene::{SOON, entries, hash_of, mutex};
use leasehold_tests::topology::Cluster;
use leasehold_tests::{FaultProxy, Pick, Server, eventually};

use super::{MS, SECOND, ends_clean, left};

struct Broken {
    cluster: Cluster,
    proxies: Vec<FaultProxy>,
    session: Session,
    /// In the global order, each with the number of its node.
    members: Vec<(String, usize)>,
    all: MultiLock,
}

impl Broken {
    async fn start() -> Self {
        let cluster = Cluster::start(3, 0).await;
        let names = cluster.one_a_master("broken").await.into_iter();
        let mut members: Vec<_> = names.zip(0..).collect();
        members.sort();
        let proxies = cluster.behind_proxies().await;
        let builder = Session::cluster_builder([proxies[0].url()]).expect("a URL");
        let session = builder.response_timeout(500 * MS).connect().await.expect("a session");
        let lock = |(name, _): &(String, usize)| mutex(&session, name, Options::default());
        let locks: Vec<Mutex> = members.iter().map(lock).collect();
        let all = MultiLock::all(&locks);
        let broken = Self { cluster, proxies, session, members, all };
        broken.taken().await.release().await.expect("held"); // The scripts are known.
        broken
    }

    async fn taken(&self) -> MultiGuard {
        self.all.acquire_within(2 * SOON).await.expect("held")
    }

    fn name(&self, place: usize) -> Name {
        Name::new(&self.members[place].0)
    }

    fn proxy(&self, place: usize) -> &FaultProxy {
        &self.proxies[self.members[place].1]
    }

    fn node(&self, place: usize) -> &Server {
        &self.cluster.nodes()[self.members[place].1]
    }

    async fn ends_clean(&self) {
        ends_clean(&self.cluster, "{broken-", &[&self.session]).await;
    }
}

/// I6, I16. Cut behind the call that takes a member, at each master in turn: it is asked again, and each is held once.
#[tokio::test]
async fn a_link_cut_while_a_member_is_taken_is_outlasted() {
    let broken = Broken::start().await;
    for place in 0..3 {
        let before = broken.proxy(place).connections();
        broken.proxy(place).cut_after_request(Pick::next(1).containing(hash_of("acquire")));
        let guard = broken.taken().await;
        assert!(broken.proxy(place).connections() > before, "the control: a link was cut");
        assert_eq!(guard.tokens().count(), 3);
        for (name, node) in &broken.members {
            let mut connection = broken.cluster.nodes()[*node].connection().await;
            assert_eq!(entries(&mut connection, name).await.len(), 1, "held once");
        }
        guard.release().await.expect("held until its release");
        broken.ends_clean().await;
    }
}

/// I9, I16. One master answers nobody: an error in time, the others are free before it answers again, and what it was sent
/// leaves nothing there.
#[tokio::test]
async fn a_master_that_is_cut_off_leaves_the_others_free() {
    let broken = Broken::start().await;
    for place in [2, 0] {
        broken.proxy(place).black_hole(true);
        match broken.all.acquire_within(SECOND).await {
            Err(AcquireError::Backend(error)) => {
                assert_eq!(error.kind(), BackendErrorKind::Unreachable);
            }
            other => panic!("{other:?}"),
        }
        for other in (0..3).filter(|other| *other != place) {
            let (name, node) = &broken.members[other];
            let mut connection = broken.cluster.nodes()[*node].connection().await;
            let free = async || entries(&mut connection, name).await.is_empty();
            eventually(SOON, "given back", free).await;
        }
        broken.proxy(place).black_hole(false);
        broken.ends_clean().await;
    }
    broken.taken().await.release().await.expect("all is well again");
}

/// I7. A release says of each member what came of it, and frees those that it can reach.
#[tokio::test]
async fn a_release_with_one_master_cut_off_reports_each_member() {
    let broken = Broken::start().await;
    for place in 0..3 {
        let guard = broken.taken().await;
        assert_eq!(left(&broken.cluster, "{broken-").await.len(), 3, "the control: it is seen");
        broken.proxy(place).black_hole(true);
        let error = guard.release().await.unwrap_err();
        let told: Vec<_> =
            error.members.iter().map(|(name, told)| (name.clone(), told.is_ok())).collect();
        let expected: Vec<_> = (0..3).map(|at| (broken.name(at), at != place)).collect();
        assert_eq!(told, expected);
        let failed: Vec<_> = error.failed().map(|(_, error)| error).collect();
        assert!(
            matches!(failed[..], [ReleaseError::Backend { .. } | ReleaseError::Unknown { .. }]),
            "{error}"
        );
        let rest = left(&broken.cluster, "{broken-").await;
        assert!(rest.len() <= 1, "the others are free: {rest:?}");
        broken.proxy(place).black_hole(false);
        // The session goes on with what nobody answered.
        broken.ends_clean().await;
        assert_eq!(broken.node(place).dbsize().await, 1, "the memory of the token");
    }
}
