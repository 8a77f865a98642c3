//! Sessions at a Redis Cluster: every call at the node of its key, every push from there.

use std::collections::HashSet;
use std::time::Duration;

use leasehold_multi_lock::MultiLock;
use leasehold_mutex::{
    BackendErrorKind, ConfigError, Guard, LostReason, Mutex, Name, Options, ReleaseError, Session,
    Severity, Subject,
};
use leasehold_tests::scene::{SOON, Told, keys, mutex};
use leasehold_tests::topology::Cluster;
use leasehold_tests::{Pick, Server, acl, eventually};
use tokio::sync::OnceCell;

const SECOND: Duration = Duration::from_secs(1);

/// One for all tests here; whoever breaks nodes starts his own.
async fn cluster() -> &'static Cluster {
    static ONE: OnceCell<Cluster> = OnceCell::const_new();
    ONE.get_or_init(|| Cluster::start(3, 0)).await
}

async fn session(cluster: &Cluster) -> Session {
    // One address is enough: the others are found.
    let builder = Session::cluster_builder(&cluster.urls()[..1]).expect("a URL");
    builder.connect().await.expect("a session")
}

async fn queued(lock: &Mutex, waiters: u64) {
    let fact = async || lock.queue().await.is_ok_and(|queue| queue.length == waiters);
    eventually(SOON, "they queue", fact).await;
}

/// How often any node refused with this word.
async fn refused(cluster: &Cluster, word: &str) -> u64 {
    let mut sum = 0;
    for node in cluster.nodes() {
        let mut connection = node.connection().await;
        let info: String =
            redis::cmd("INFO").arg("errorstats").query_async(&mut connection).await.expect("INFO");
        let begins = format!("errorstat_{word}:count=");
        let count = info.lines().find_map(|line| line.strip_prefix(&begins));
        sum += count.map_or(0, |count| count.trim().parse().expect("a number"));
    }
    sum
}

/// Names that mean something to a cluster, to Lua, to a shell, or to nobody.
fn odd_names() -> Vec<Vec<u8>> {
    let seeds: [&[u8]; 20] = [
        b"{}",
        b"{",
        b"}",
        b"}{",
        b"{}{a}",
        b"{{a}}",
        b"a{b}c",
        b"a{b",
        b"a}b",
        b":",
        b"=",
        b"%",
        b"%7B",
        b"\0",
        b"\r\n",
        b" ",
        "\u{e4}\u{1f512}".as_bytes(),
        b"\xff\xfe",
        b"lh1:mutex:{a}",
        b":queue",
    ];
    let mut names: Vec<Vec<u8>> = Vec::new();
    for number in 0..50_u32 {
        names.extend(seeds.iter().map(|seed| {
            let digits = number.to_string().into_bytes();
            match number {
                0 => seed.to_vec(),
                1..=24 => [*seed, &digits].concat(),
                25..=47 => [&digits[..], seed].concat(),
                48 => seed.iter().copied().cycle().take(512).collect(),
                _ => [*seed, &vec![b'x'; 512 - seed.len()]].concat(),
            }
        }));
    }
    names.into_iter().collect::<HashSet<_>>().into_iter().collect()
}

/// I17. No CROSSSLOT, no key of another node's (the server refuses both), and nobody is sent on: the
/// client knows the slots.
#[tokio::test]
async fn a_thousand_odd_names_stay_in_their_slots() {
    let cluster = Cluster::start(3, 0).await;
    let session = session(&cluster).await;
    let names = odd_names();
    assert!(names.len() > 950, "{}", names.len());
    let mut held = Vec::new();
    for name in &names {
        let lock = Mutex::new(&session, Name::new(name), Options::default()).expect("legal");
        let guard = lock.try_acquire().await.unwrap_or_else(|error| panic!("{name:?}: {error}"));
        held.push(guard.expect("nobody has it: distinct names are distinct locks"));
    }
    for number in 0..50 {
        let name = Name::in_group("{odd}%", format!("{{{number}}}"));
        let lock = Mutex::new(&session, name, Options::default()).expect("legal");
        held.push(lock.try_acquire().await.unwrap().expect("nobody has it"));
    }
    let mut sizes = Vec::new();
    for master in cluster.masters().await {
        sizes.push(master.dbsize().await);
    }
    assert!(sizes.iter().all(|size| *size > 300), "spread over all: {sizes:?}");
    for guard in held {
        guard.release().await.unwrap();
    }
    for word in ["MOVED", "CROSSSLOT", "ASK", "TRYAGAIN"] {
        assert_eq!(refused(&cluster, word).await, 0, "{word}");
    }
    session.shutdown(SOON).await.unwrap();
}

/// Else the zeros above could come from looking at the wrong place.
#[tokio::test]
async fn control_a_refusal_is_seen() {
    let cluster = Cluster::start(3, 0).await;
    let mut connection = cluster.nodes()[0].connection().await;
    for words in [["DEL", "a", "b"], ["DEL", "c", "d"]] {
        let answer: redis::RedisResult<u32> =
            redis::cmd(words[0]).arg(&words[1..]).query_async(&mut connection).await;
        answer.unwrap_err();
    }
    assert_eq!(refused(&cluster, "CROSSSLOT").await, 2);
}

/// A push from each node: its own subscription there counts.
#[tokio::test]
async fn locks_on_every_master_are_handed_over_by_a_push() {
    let cluster = cluster().await;
    let (one, two) = (session(cluster).await, session(cluster).await);
    for name in cluster.one_a_master("push").await {
        let before = two.statistics().pushed_grants;
        let guard = mutex(&one, &name, Options::default()).acquire().await.unwrap();
        let second = mutex(&two, &name, Options::default());
        let waiting = tokio::spawn(async move { second.acquire().await });
        queued(&mutex(&one, &name, Options::default()), 1).await;
        guard.release().await.unwrap();
        let next = waiting.await.unwrap().unwrap();
        // A copy comes from every node; one counts.
        assert_eq!(two.statistics().pushed_grants, before + 1);
        next.release().await.unwrap();
    }
    one.shutdown(SOON).await.unwrap();
    two.shutdown(SOON).await.unwrap();
}

/// B103, on every node by itself.
#[tokio::test]
async fn scripts_that_a_node_forgot_are_told_it_again() {
    let cluster = cluster().await;
    let session = session(cluster).await;
    for name in cluster.one_a_master("scripts").await {
        for node in cluster.nodes() {
            let mut flush = redis::cmd("SCRIPT");
            flush.arg("FLUSH").exec_async(&mut node.connection().await).await.unwrap();
        }
        let lock = mutex(&session, &name, Options::default());
        let guard = lock.acquire().await.unwrap();
        guard.extend(40 * SECOND).await.unwrap();
        assert!(lock.is_locked().await.unwrap());
        guard.release().await.unwrap();
    }
    session.shutdown(SOON).await.unwrap();
}

/// Each by itself: one call cannot renew what lives in two slots.
#[tokio::test]
async fn leases_in_many_slots_are_renewed_at_once() {
    let cluster = cluster().await;
    let session = session(cluster).await;
    let lease = SECOND * 3 / 2;
    let mut held: Vec<Guard> = Vec::new();
    for number in 0..100 {
        let lock = mutex(&session, &format!("renewed-{number}"), Options::default().lease(lease));
        held.push(lock.acquire().await.unwrap());
    }
    tokio::time::sleep(lease * 2).await;
    for guard in held {
        assert!(guard.is_held());
        guard.release().await.unwrap();
    }
    session.shutdown(SOON).await.unwrap();
}

/// A slot moves while nobody looks: the first call is sent on, the next goes straight.
#[tokio::test]
async fn a_slot_that_moved_is_followed() {
    let cluster = Cluster::start(3, 0).await;
    let (one, two) = (session(&cluster).await, session(&cluster).await);
    let lock = mutex(&one, "a", Options::default());
    let guard = lock.acquire().await.unwrap();
    let token = guard.fencing_token();
    let slot = cluster.slot_of(&keys("a").holds).await;
    let from = cluster.owner_of(slot).await.unwrap();
    let to = (from + 1) % 3;
    cluster.begin_to_move(slot, to).await;
    cluster.finish_to_move(slot, to).await;
    guard.extend(40 * SECOND).await.unwrap();
    assert_eq!(refused(&cluster, "MOVED").await, 1, "sent on once");
    guard.extend(50 * SECOND).await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(refused(&cluster, "MOVED").await, 1, "and then no more");
    let next = mutex(&two, "a", Options::default()).acquire().await.unwrap();
    assert!(next.fencing_token() > token);
    next.release().await.unwrap();
    assert_eq!(cluster.nodes()[from].keys().await, [[0; 0]; 0], "nothing is left behind");
    one.shutdown(SOON).await.unwrap();
    two.shutdown(SOON).await.unwrap();
}

/// Redis Cluster refuses what names several keys of a slot that is on its way. A wait that is longer
/// is granted afterwards; a shorter one ends with that error; and it is not sent in a circle.
#[tokio::test]
async fn a_slot_on_its_way_makes_calls_wait() {
    let cluster = Cluster::start(3, 0).await;
    let session = session(&cluster).await;
    let held = mutex(&session, "a", Options::default()).acquire().await.unwrap();
    let slot = cluster.slot_of(&keys("a").holds).await;
    let to = (cluster.owner_of(slot).await.unwrap() + 1) % 3;
    cluster.begin_to_move(slot, to).await;
    let lock = mutex(&session, "a", Options::default().max_wait(SOON));
    let short = lock.acquire_within(SECOND / 2).await.unwrap_err();
    assert!(short.to_string().contains("TRYAGAIN") || format!("{short:?}").contains("TRYAGAIN"));
    let waiting = tokio::spawn(async move { lock.acquire().await });
    assert!(refused(&cluster, "TRYAGAIN").await > 0);
    cluster.finish_to_move(slot, to).await;
    held.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    session.shutdown(SOON).await.unwrap();
}

/// B102. Members of several slots are taken one by one, those of a group by one script.
#[tokio::test]
async fn b102_members_of_a_multi_lock_may_live_on_several_masters() {
    let cluster = Cluster::start(3, 0).await;
    let session = session(&cluster).await;
    let names = cluster.one_a_master("member").await;
    let locks: Vec<_> =
        names.iter().map(|name| mutex(&session, name, Options::default())).collect();
    let all = MultiLock::all(&locks);
    let guard = all.acquire().await.unwrap();
    assert_eq!(guard.tokens().count(), 3);
    for lock in &locks {
        assert!(lock.try_acquire().await.unwrap().is_none(), "it is held");
    }
    guard.release().await.unwrap();
    let held = locks[2].acquire().await.unwrap();
    assert!(all.try_acquire().await.unwrap().is_none());
    held.release().await.unwrap();
    let in_group = |name: &str| {
        Mutex::new(&session, Name::in_group("accounts", name), Options::default()).expect("legal")
    };
    let pair = MultiLock::of(&in_group("1")).and(&in_group("2"));
    pair.acquire().await.unwrap().release().await.unwrap(); // the script is known
    for node in cluster.nodes() {
        node.reset_stats().await;
    }
    let guard = pair.acquire().await.unwrap();
    let mut calls = 0;
    for node in cluster.nodes() {
        calls += node.command_calls().await.of(&["evalsha", "eval"]);
    }
    assert_eq!(calls, 1, "one script took both");
    guard.release().await.unwrap();
    assert_eq!(refused(&cluster, "CROSSSLOT").await, 0);
    session.shutdown(SOON).await.unwrap();
}

/// I6, I7. The reply of every third script is lost, whatever it was: a call that is sent again never
/// counts twice, and no verdict is a guess.
#[tokio::test]
async fn lost_replies_count_nothing_twice() {
    let cluster = Cluster::start(3, 0).await;
    let proxies = cluster.behind_proxies().await;
    let told = Told::default();
    let builder = Session::cluster_builder([proxies[0].url()]).unwrap();
    let session = told.by(builder).connect().await.unwrap();
    for proxy in &proxies {
        proxy.cut_after_request(Pick::every(3).containing("EVALSHA"));
    }
    let (mut unknown, mut cut) = (0, 0);
    for number in 0..200 {
        let lock = mutex(&session, &format!("lost-{number}"), Options::default());
        let guard = lock.acquire().await.unwrap();
        let entries = lock.holder().await.unwrap().expect("it is held").entries;
        assert_eq!(entries, 1, "no copy counted");
        match guard.release().await {
            Ok(()) => {}
            Err(ReleaseError::Unknown { .. }) => unknown += 1,
            Err(other) => panic!("nobody took it away: {other}"),
        }
        assert!(lock.acquire_within(SECOND).await.unwrap().release().await.is_ok_or_unknown());
    }
    for proxy in &proxies {
        proxy.cut_after_request(Pick::none());
        cut += proxy.connections();
    }
    println!("{cut} connections, {unknown} releases of 200 without a sure verdict");
    assert!(cut > 200, "replies were lost");
    assert_eq!(told.count(leasehold_tests::scene::lost), 0);
    session.shutdown(SOON).await.unwrap();
}

trait Verdict {
    fn is_ok_or_unknown(&self) -> bool;
}

impl Verdict for Result<(), ReleaseError> {
    fn is_ok_or_unknown(&self) -> bool {
        matches!(self, Ok(()) | Err(ReleaseError::Unknown { .. }))
    }
}

#[tokio::test]
async fn an_operator_ends_a_hold_on_any_master() {
    let cluster = cluster().await;
    let (one, two) = (session(cluster).await, session(cluster).await);
    for name in cluster.one_a_master("forced").await {
        let guard = mutex(&one, &name, Options::default()).acquire().await.unwrap();
        let operator = mutex(&two, &name, Options::default());
        assert!(operator.force_release().await.unwrap().is_some());
        let why = tokio::time::timeout(SOON, guard.lost()).await.expect("it is told");
        assert_eq!(why, LostReason::ForceReleased);
    }
    one.shutdown(SOON).await.unwrap();
    two.shutdown(SOON).await.unwrap();
}

#[tokio::test]
async fn one_node_that_answers_is_enough_and_what_leads_nowhere_is_told() {
    let none: [&str; 0] = [];
    assert!(matches!(Session::cluster_builder(none), Err(ConfigError::Url)));
    assert!(matches!(Session::cluster_builder(["unix:///tmp/a"]), Err(ConfigError::Url)));
    let alone = Server::start();
    let refused = Session::cluster_builder([alone.url()]).unwrap().connect().await;
    let Err(ConfigError::Connect(error)) = refused else { panic!("{refused:?}") };
    assert!(error.to_string().contains("cluster support disabled"), "{error}");
    let dead = alone.url();
    alone.kill();
    let cluster = cluster().await;
    let urls = [dead, cluster.urls()[1].clone()];
    let session = Session::cluster_builder(urls).unwrap().connect().await.unwrap();
    mutex(&session, "seeds", Options::default()).acquire().await.unwrap().release().await.unwrap();
    let given = cluster.nodes()[0].connection().await;
    let refused = Session::cluster_builder(cluster.urls()).unwrap().commands(given).connect().await;
    assert!(matches!(refused, Err(ConfigError::SessionOption { option: "commands", .. })));
    session.shutdown(SOON).await.unwrap();
}

#[tokio::test]
async fn a_preflight_looks_at_every_master() {
    let cluster = cluster().await;
    let session = session(cluster).await;
    let found = session.preflight().await.unwrap();
    for subject in [Subject::Server, Subject::Role, Subject::Rights, Subject::Messages] {
        let about: Vec<_> = found.about(subject).collect();
        assert_eq!(about.len(), 3, "{found}");
        for (node, finding) in cluster.nodes().iter().zip(about) {
            assert!(finding.text.starts_with(&format!("{}: ", node.addr())), "{finding}");
            assert_eq!(finding.severity, Severity::Good, "{finding}");
        }
    }
    session.shutdown(SOON).await.unwrap();
}

/// B109 and the README's rule: a cluster takes one right more.
#[tokio::test]
async fn a_user_of_a_cluster_needs_to_know_the_slots() {
    let cluster = Cluster::start(3, 0).await;
    for node in cluster.nodes() {
        acl::user(node, "locker", "").await;
    }
    let urls = || cluster.nodes().iter().map(|node| acl::url(node, "locker"));
    let refused = Session::cluster_builder(urls()).unwrap().connect().await;
    let Err(ConfigError::Connect(error)) = refused else { panic!("{refused:?}") };
    assert_eq!(error.kind(), BackendErrorKind::NoPermission);
    for node in cluster.nodes() {
        acl::change(node, "locker", "+cluster|slots").await;
    }
    let one = Session::cluster_builder(urls()).unwrap().connect().await.unwrap();
    for name in cluster.one_a_master("rights").await {
        let lock = mutex(&one, &name, Options::default());
        let guard = lock.acquire().await.unwrap();
        let second = lock.clone();
        let waiting = tokio::spawn(async move { second.acquire().await });
        queued(&lock, 1).await;
        guard.release().await.unwrap();
        waiting.await.unwrap().unwrap().release().await.unwrap();
    }
    one.shutdown(SOON).await.unwrap();
}

/// I20.
#[tokio::test]
async fn a_shutdown_leaves_nothing_on_any_node() {
    let cluster = Cluster::start(3, 0).await;
    let session = session(&cluster).await;
    let mut held = Vec::new();
    for name in cluster.one_a_master("left").await {
        held.push(mutex(&session, &name, Options::default()).acquire().await.unwrap());
    }
    assert_eq!(cluster.channels().await, 1);
    session.shutdown(SOON).await.unwrap();
    let left = async || cluster.keys().await.iter().all(|key| key.ends_with(b":token"));
    eventually(SOON, "only tokens are left", left).await;
    eventually(SOON, "no channel is left", async || cluster.channels().await == 0).await;
    drop(held);
}
