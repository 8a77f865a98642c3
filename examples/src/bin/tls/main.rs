//! A lock on a server that speaks TLS only and shows a certificate of a private authority.
//! `scripts/with-redis cargo run -p leasehold-examples --bin tls`
//!
//! It makes an authority and a server of its own (`server.rs`; with-redis finds the program for it), and shows what a service
//! does: install a crypto provider, make a client that trusts the authority, open the session with that. A lock is then
//! handed from one process's session to another's by a push, over TLS. A client that trusts another authority is refused
//! before it has sent its password, and so is one without TLS.
//!
//! With `--other-authority` the service itself trusts the wrong one: nothing works, and it says why.

mod server;

use std::process::ExitCode;
use std::time::Duration;

use leasehold::redis::{Client, TlsCertificates};
use leasehold::{ConfigError, Mutex, Options, Session, SessionBuilder};
use leasehold_examples::Failure;
use leasehold_examples::program::{exit, until_interrupted, verdict, with_causes, with_session};
use server::{Authority, Server};

const USAGE: &str = "usage: tls [--other-authority]";

#[tokio::main]
async fn main() -> ExitCode {
    exit("tls", until_interrupted(run()).await)
}

async fn run() -> Result<(), Failure> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let other = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => false,
        ["--other-authority"] => true,
        _ => return Err(USAGE.into()),
    };
    // Once a process, before its first session: rustls comes without any cryptography.
    let provider = rustls::crypto::ring::default_provider();
    provider.install_default().map_err(|_| "another provider is installed")?;

    let (authority, stranger) = (Authority::new()?, Authority::new()?);
    let server = Server::start(&authority).await?;
    println!("a server at port {} speaks TLS and nothing else", server.port());
    let trusted = if other { &stranger } else { &authority };
    work(&server, trusted).await?;
    verdict(&refusals(&server, &stranger).await?)
}

/// **The part to copy from.** The host of the address is what the certificate must be for.
fn session(server: &Server, root_pem: &str) -> Result<SessionBuilder, Failure> {
    let certificates = TlsCertificates { client_tls: None, root_cert: Some(root_pem.into()) };
    let client = Client::build_with_tls(server.url(), certificates)?;
    Ok(Session::builder_for(&client)?)
}

/// Two sessions, as of two processes: the second waits until the first releases.
async fn work(server: &Server, trusted: &Authority) -> Result<(), Failure> {
    let root = trusted.root_pem();
    with_session(session(server, root)?, async |one| {
        let held = mutex(one)?.acquire().await?;
        println!("the first holds it under token {}", held.fencing_token());
        with_session(session(server, root)?, async |two| {
            let second = mutex(two)?;
            let release = async {
                while waiters_of(&second).await? == 0 {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                held.release().await.map_err(Failure::from)
            };
            let acquire = async { second.acquire().await.map_err(Failure::from) };
            let (next, ()) = tokio::try_join!(acquire, release)?;
            let pushed = two.statistics().pushed_grants;
            println!("the second got it under token {}, by {pushed} push", next.fencing_token());
            Ok(next.release().await?)
        })
        .await
    })
    .await
}

fn mutex(session: &Session) -> Result<Mutex, ConfigError> {
    Mutex::new(session, "invoice:42", Options::default().label("tls"))
}

/// How many wait for it.
async fn waiters_of(mutex: &Mutex) -> Result<usize, Failure> {
    Ok(mutex.queue().await?.waiters.len())
}

/// Who must not get in; the faults are those that do.
async fn refusals(server: &Server, stranger: &Authority) -> Result<Vec<String>, Failure> {
    let plain = server.url().replace("rediss:", "redis:");
    let wrong = [
        ("whoever trusts another authority", session(server, stranger.root_pem())?),
        ("whoever speaks no TLS", Session::builder(&plain)?),
    ];
    let mut faults = Vec::new();
    for (who, builder) in wrong {
        match builder.connect().await {
            Ok(_) => faults.push(format!("{who} was let in")),
            Err(error) => println!("refused, {who}: {}", with_causes(&error)),
        }
    }
    Ok(faults)
}
