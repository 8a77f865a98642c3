//! TLS with certificates of one's own, and sockets of the file system.

use std::error::Error;
use std::process::Command;
use std::time::Duration;

use leasehold_multi_lock::{QuorumLock, QuorumOptions};
use leasehold_mutex::{
    AcquireError, BackendErrorKind, ConfigError, Event, Options, Session, SessionBuilder,
};
use leasehold_tests::rig::{Watch, kill_connections};
use leasehold_tests::scene::{SOON, Told, inboxes, keys_left, mutex, queued};
use leasehold_tests::topology::{Cluster, Sentinels};
use leasehold_tests::{Authority, Server, eventually};

const MS: Duration = Duration::from_millis(1);

async fn opened(builder: Result<SessionBuilder, ConfigError>) -> Session {
    builder.expect("an address").connect().await.expect("a session")
}

/// What opening it fails with: its kind, and all that it says.
async fn refused(builder: Result<SessionBuilder, ConfigError>) -> (BackendErrorKind, String) {
    let failed = builder.expect("an address").connect().await;
    let Err(ConfigError::Connect(error)) = failed else { panic!("{failed:?}") };
    let mut said = format!("{error} {error:?}");
    let mut cause = error.source();
    while let Some(error) = cause {
        said.push_str(&format!(" {error} {error:?}"));
        cause = error.source();
    }
    (error.kind(), said)
}

/// What a service does with a mutex all day: held beyond its lease, handed over by a push, also after the inbox was lost.
async fn work(server: &Server, address: impl Fn() -> SessionBuilder) {
    let told = Told::default();
    let one = opened(Ok(address())).await;
    let two = told.by(address()).connect().await.expect("a session");
    let options = Options::default().lease(600 * MS);
    for pushed in 1..=2 {
        let held = mutex(&one, "a", options.clone()).acquire().await.expect("a hold");
        let renewed = one.statistics().renewals + 4; // 200 ms apart
        let waiting = mutex(&two, "a", Options::default());
        let waiting = tokio::spawn(async move { waiting.acquire().await });
        queued(server, "a", 1).await;
        let in_time = async || one.statistics().renewals >= renewed;
        eventually(SOON, "it is renewed beyond its lease", in_time).await;
        assert!(held.is_held());
        held.release().await.expect("it was held");
        let next = waiting.await.expect("no panic inside").expect("a hold");
        next.release().await.expect("it was held");
        assert_eq!(two.statistics().pushed_grants, pushed, "by its inbox, not by its check");
        let closed = kill_connections(server, "pubsub").await;
        assert_eq!(closed, 2, "an inbox each");
        let down = |event: &Event| matches!(event, Event::InboxDown);
        let up = |event: &Event| matches!(event, Event::InboxUp);
        let again = usize::try_from(pushed).expect("small");
        let back = async || told.count(down) == again && told.count(up) == again;
        eventually(SOON, "it notices and subscribes again", back).await;
        eventually(SOON, "both do", async || inboxes(server).await == 2).await;
    }
    one.shutdown(SOON).await.expect("in time");
    two.shutdown(SOON).await.expect("in time");
    assert_eq!(keys_left(server).await, [""; 0], "I20");
}

#[tokio::test]
async fn a_mutex_works_over_tls() {
    let authority = Authority::new();
    let server = Server::builder().password("hush").tls(&authority).start();
    let client = authority.client(&server.url());
    work(&server, || Session::builder_for(&client).unwrap()).await;
}

#[tokio::test]
async fn a_mutex_works_over_a_socket_of_the_file_system() {
    let server = Server::builder().password("hush").socket().start();
    work(&server, || Session::builder(&server.socket_url()).unwrap()).await;
    // Nobody came by the port but this test.
    let other = opened(Session::builder(&server.socket_url())).await;
    let clients: String =
        redis::cmd("CLIENT").arg("LIST").query_async(&mut server.connection().await).await.unwrap();
    assert_eq!(clients.matches("socket:0 laddr").count(), 3, "{clients}");
    other.shutdown(SOON).await.unwrap();
}

/// A connection of the user's carries the commands, over TLS as well.
#[tokio::test]
async fn commands_are_given_a_connection_with_tls() {
    let authority = Authority::new();
    let server = Server::builder().tls(&authority).start();
    let client = authority.client(&server.url());
    let given = client.get_multiplexed_async_connection().await.unwrap();
    let session = opened(Session::builder_for(&client).map(|it| it.commands(given))).await;
    mutex(&session, "a", Options::default()).acquire().await.unwrap().release().await.unwrap();
    session.shutdown(SOON).await.unwrap();
}

/// Only the greeting: neither user nor password, and nothing of it in the error (I19).
#[tokio::test]
async fn a_server_of_another_authority_is_refused_before_anything_is_sent() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let server = Server::builder().password("hush").tls(&authority).start();
    let builders = [
        ("another authority", Session::builder_for(&stranger.client(&server.url()))),
        ("the roots of the system", Session::builder(&server.url())),
    ];
    for (roots, builder) in builders {
        server.reset_stats().await;
        let (kind, said) = refused(builder).await;
        assert_eq!(kind, BackendErrorKind::Tls, "{roots}: {said}");
        assert!(said.contains("invalid peer certificate"), "{roots}: {said}");
        assert!(!said.contains("hush"), "{roots}: {said}");
        // The one greeting is that of the question itself.
        let greeted = server.command_calls().await.of(&["hello", "auth"]);
        assert_eq!(greeted, 1, "{roots}");
    }
    server.reset_stats().await;
    let session = opened(Session::builder_for(&authority.client(&server.url()))).await;
    assert_eq!(server.command_calls().await.of(&["hello", "auth"]), 4, "three connections");
    session.shutdown(SOON).await.unwrap();
}

#[tokio::test]
async fn a_certificate_is_for_the_host_of_the_address() {
    let authority = Authority::new();
    let server = Server::builder().tls_as(&authority, "localhost").start();
    let (kind, said) = refused(Session::builder_for(&authority.client(&server.url()))).await;
    assert_eq!(kind, BackendErrorKind::Tls, "{said}");
    assert!(said.contains("not valid for name"), "{said}");
    let by_name = server.url().replace("127.0.0.1", "localhost");
    let session = opened(Session::builder_for(&authority.client(&by_name))).await;
    session.shutdown(SOON).await.unwrap();
}

#[tokio::test]
async fn a_certificate_of_the_clients_own_is_shown() {
    let authority = Authority::new();
    let server = Server::builder().arg("--tls-auth-clients", "yes").tls(&authority).start();
    let (kind, said) = refused(Session::builder_for(&authority.client(&server.url()))).await;
    assert_eq!(kind, BackendErrorKind::Tls, "{said}");
    assert!(said.contains("CertificateRequired"), "{said}");
    let known = authority.known_client(&server.url());
    let session = opened(Session::builder_for(&known)).await;
    mutex(&session, "a", Options::default()).acquire().await.unwrap().release().await.unwrap();
    session.shutdown(SOON).await.unwrap();
}

/// The one second that a connection may take is the bound.
#[tokio::test]
async fn tls_on_one_side_only_ends_in_time_and_says_so() {
    let authority = Authority::new();
    let (encrypted, plain) = (Server::builder().tls(&authority).start(), Server::start());
    let sessions = [
        Session::builder(&encrypted.url().replace("rediss:", "redis:")),
        Session::builder_for(&authority.client(&plain.url().replace("redis:", "rediss:"))),
    ];
    for builder in sessions {
        let began = Watch::start();
        let (kind, said) = refused(builder).await;
        assert_eq!(kind, BackendErrorKind::Unreachable, "{said}");
        assert!(said.contains("does that port") && said.contains("TLS"), "{said}");
        assert!(began.awake() < SOON / 2, "{:?}", began.awake());
    }
}

/// Another process, because a provider is the process's, and the tests here have one.
#[test]
fn without_a_crypto_provider_a_session_is_refused_and_told_why() {
    const INSIDE: &str = "LEASEHOLD_WITHOUT_PROVIDER";
    if std::env::var_os(INSIDE).is_none() {
        let name = "without_a_crypto_provider_a_session_is_refused_and_told_why";
        let mut again = Command::new(std::env::current_exe().unwrap());
        let ended = again.args(["--exact", name, "--nocapture"]).env(INSIDE, "1").output().unwrap();
        let said = String::from_utf8_lossy(&ended.stdout);
        assert!(ended.status.success() && said.contains("refused, then opened"), "{ended:?}");
        return;
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let nowhere = "rediss://127.0.0.1:1/";
        for builder in [
            Session::builder(nowhere),
            Session::cluster_builder([nowhere]),
            Session::sentinel_builder([nowhere], "orders"),
            Session::sentinel_builder(["redis://127.0.0.1:1/"], "rediss://orders/"),
        ] {
            let failed = builder.unwrap().connect().await;
            assert!(matches!(failed, Err(ConfigError::NoCryptoProvider)), "{failed:?}");
        }
        let (kind, _) = refused(Session::builder("redis://127.0.0.1:1/")).await;
        assert_eq!(kind, BackendErrorKind::Unreachable, "without TLS nothing is missing");
        let authority = Authority::new(); // Installs one.
        let server = Server::builder().tls(&authority).start();
        let session = opened(Session::builder_for(&authority.client(&server.url()))).await;
        session.shutdown(SOON).await.unwrap();
        println!("refused, then opened");
    });
}

#[tokio::test]
async fn a_cluster_with_tls_is_found_from_one_node_and_hands_over_at_each() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let cluster = Cluster::start_with_tls(3, &authority).await;
    let seed = &cluster.urls()[0];
    let node = authority.client(seed);
    let (one, two) = (
        opened(Session::cluster_builder_for([&node])).await,
        opened(Session::cluster_builder_for([&node])).await,
    );
    for (pushed, name) in ["a", "b", "c"].into_iter().enumerate() {
        let held = mutex(&one, name, Options::default()).acquire().await.unwrap();
        let waiting = mutex(&two, name, Options::default());
        let waiting = tokio::spawn(async move { waiting.acquire().await });
        let queue = leasehold_tests::scene::keys(name).queue;
        let there = async || cluster.keys().await.iter().any(|key| **key == *queue);
        eventually(SOON, "it queues", there).await;
        held.release().await.unwrap();
        waiting.await.unwrap().unwrap().release().await.unwrap();
        assert_eq!(two.statistics().pushed_grants, pushed as u64 + 1);
    }
    for node in cluster.nodes() {
        assert_eq!(node.dbsize().await, 1, "a token at each: the names are of three masters");
    }
    for builder in
        [Session::cluster_builder_for([&stranger.client(seed)]), Session::cluster_builder([seed])]
    {
        let (kind, said) = refused(builder).await;
        assert_eq!(kind, BackendErrorKind::Tls, "{said}");
    }
    one.shutdown(SOON).await.unwrap();
    two.shutdown(SOON).await.unwrap();
}

#[tokio::test]
async fn sentinels_with_tls_lead_to_a_master_with_tls() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let all = Sentinels::start_with_tls(&authority).await;
    let name = format!("rediss://{}/", all.service());
    let asked = |trusted: &Authority| trusted.client(&all.urls()[0]);
    let builder = Session::sentinel_builder_for([&asked(&authority)], &authority.client(&name));
    let session = opened(builder).await;
    let held = mutex(&session, "a", Options::default()).acquire().await.unwrap();
    assert_eq!(all.servers()[0].dbsize().await, 2, "the hold and its token");
    held.release().await.unwrap();
    session.shutdown(SOON).await.unwrap();
    for (sentinel, master) in [(&stranger, &authority), (&authority, &stranger)] {
        let builder = Session::sentinel_builder_for([&asked(sentinel)], &master.client(&name));
        let (kind, said) = refused(builder).await;
        assert_eq!(kind, BackendErrorKind::Tls, "{said}");
    }
}

#[tokio::test]
async fn two_ways_to_one_server_are_found_out_by_a_quorum_lock() {
    let (server, other) = (Server::builder().socket().start(), Server::start());
    let mut sessions = Vec::new();
    for url in [server.url(), other.url(), server.socket_url()] {
        sessions.push(opened(Session::builder(&url)).await);
    }
    let lock = QuorumLock::new(&sessions, "a", QuorumOptions::default()).unwrap();
    let taken = lock.try_acquire().await;
    let same = ConfigError::SameServer { first: 0, second: 2 };
    let Err(AcquireError::Config(told)) = taken else { panic!("{taken:?}") };
    assert_eq!(told.to_string(), same.to_string());
    for session in sessions {
        session.shutdown(SOON).await.unwrap();
    }
}

#[tokio::test]
async fn a_socket_that_is_not_there_is_told_and_nodes_have_none() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("redis+unix://{}/none", folder.path().display());
    let (kind, said) = refused(Session::builder(&url)).await;
    assert_eq!(kind, BackendErrorKind::Unreachable, "{said}");
    assert!(said.contains("No such file"), "{said}");
    let socket = redis::Client::open(&*url).unwrap();
    let plain = redis::Client::open("redis://orders/").unwrap();
    for builder in [
        Session::cluster_builder([&url]),
        Session::cluster_builder(["redis://127.0.0.1/", &url]),
        Session::cluster_builder_for([&socket]),
        Session::sentinel_builder([&url], "orders"),
        Session::sentinel_builder(["redis://127.0.0.1/"], &url),
        Session::sentinel_builder_for([&socket], &plain),
        Session::sentinel_builder_for([&plain], &socket),
    ] {
        assert!(matches!(builder, Err(ConfigError::Url)), "{builder:?}");
    }
}
