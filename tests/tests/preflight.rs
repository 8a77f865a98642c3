//! Preflight: each property of a server that matters for locks is found, and said in words.

use leasehold_mutex::{Session, Severity, Subject};
use leasehold_tests::{Server, acl, eventually};
use std::time::Duration;

async fn worst_about(server: &Server, subject: Subject) -> (Severity, String) {
    let session = Session::connect(&server.url()).await.expect("a session");
    let found = session.preflight().await.expect("an answer");
    let worst = found.about(subject).max_by_key(|finding| finding.severity).expect("a finding");
    (worst.severity, worst.text.clone())
}

#[tokio::test]
async fn a_plain_master_is_good_but_for_its_persistence() {
    let server = Server::start();
    let session = Session::connect(&server.url()).await.unwrap();
    let found = session.preflight().await.unwrap();
    assert_eq!(found.worst(), Severity::Note, "{found}");
    let noted: Vec<_> = found.findings.iter().filter(|one| one.severity > Severity::Good).collect();
    assert!(noted.len() == 1 && noted[0].subject == Subject::Persistence, "{found}");
    assert_eq!(server.dbsize().await, 0, "nothing is left of it");
}

#[tokio::test]
async fn an_append_only_file_is_good() {
    let server = Server::builder().arg("--appendonly", "yes").start();
    assert_eq!(worst_about(&server, Subject::Persistence).await.0, Severity::Good);
}

#[tokio::test]
async fn b108_an_evicting_policy_is_a_warning() {
    let evicting = Server::builder()
        .arg("--maxmemory", "100mb")
        .arg("--maxmemory-policy", "volatile-lru")
        .start();
    let (severity, text) = worst_about(&evicting, Subject::Eviction).await;
    assert!(severity == Severity::Warning && text.contains("volatile-lru"), "{text}");
    let keeping = Server::builder().arg("--maxmemory", "100mb").start();
    assert_eq!(worst_about(&keeping, Subject::Eviction).await.0, Severity::Good);
}

#[tokio::test]
async fn a_replica_is_a_problem_and_its_master_has_a_note() {
    let (master, replica) = (Server::start(), Server::start());
    let mut connection = replica.connection().await;
    let to = master.addr();
    let () = redis::cmd("REPLICAOF")
        .arg(to.ip().to_string())
        .arg(to.port())
        .query_async(&mut connection)
        .await
        .unwrap();
    assert_eq!(worst_about(&replica, Subject::Role).await.0, Severity::Problem);
    eventually(Duration::from_secs(10), "the master sees its replica", async || {
        worst_about(&master, Subject::Replicas).await.0 == Severity::Note
    })
    .await;
}

#[tokio::test]
async fn a_missing_right_is_a_problem_that_names_the_verb() {
    let server = Server::start();
    let mut admin = server.connection().await;
    let rules = ["on", "nopass", "~*", "&*", "+@all", "-zadd", "-info"];
    let () = redis::cmd("ACL")
        .arg("SETUSER")
        .arg("app")
        .arg(&rules[..])
        .query_async(&mut admin)
        .await
        .unwrap();
    let url = server.url().replace("redis://", "redis://app:any@");
    let session = Session::connect(&url).await.unwrap();
    let found = session.preflight().await.unwrap();
    let texts: Vec<_> = found.about(Subject::Rights).map(|finding| finding.text.clone()).collect();
    assert!(
        texts.iter().any(|text| text.starts_with("waiting") && text.contains("lacks a right")),
        "{texts:?}"
    );
    assert!(found.about(Subject::Server).any(|finding| finding.text.contains("INFO")), "{found}");
}

/// What only some kinds need is not needed by all.
#[tokio::test]
async fn a_right_that_a_mutex_does_not_need_is_a_warning_that_names_the_kinds() {
    let server = Server::start();
    acl::user(&server, "app", "").await;
    let session = Session::connect(&acl::url(&server, "app")).await.unwrap();
    let found = session.preflight().await.unwrap();
    let rights: Vec<_> = found.about(Subject::Rights).collect();
    assert!(rights.iter().all(|finding| finding.severity == Severity::Warning), "{found}");
    for kind in ["a read-write lock's acquire", "a semaphore's acquire"] {
        assert!(rights.iter().any(|finding| finding.text.starts_with(kind)), "{kind}: {found}");
    }
    acl::change(&server, "app", "+@read").await;
    let found = session.preflight().await.unwrap();
    assert!(found.about(Subject::Rights).all(|one| one.severity == Severity::Good), "{found}");
    assert_eq!(server.dbsize().await, 0, "nothing is left of it");
}

#[tokio::test]
async fn a_clock_that_is_far_off_is_noted() {
    let server = Server::builder().clock_shim().start();
    assert_eq!(worst_about(&server, Subject::Clock).await.0, Severity::Good);
    server.clock().forward(Duration::from_secs(600));
    assert_eq!(worst_about(&server, Subject::Clock).await.0, Severity::Note);
}

#[tokio::test]
async fn a_server_that_is_gone_is_an_error() {
    let server = Server::start();
    let session = Session::connect(&server.url()).await.unwrap();
    server.kill();
    assert!(session.preflight().await.is_err());
}
