//! A certificate authority, and a server on this machine with a certificate of it. Both end with the program.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use leasehold_examples::Failure;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;
use tokio::process::{Child, Command};

/// How long a start may take on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(20);
/// What runs from PATH, unless `REDIS_SERVER_BIN` names another.
const SERVERS: [&str; 2] = ["redis-server", "valkey-server"];

/// Issues certificates. A company has one for its own servers, which no system trusts by itself.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    root: String,
}

impl Authority {
    pub(crate) fn new() -> Result<Self, Failure> {
        let key = KeyPair::generate()?;
        let mut about = CertificateParams::new([])?;
        about.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = about.self_signed(&key)?.pem();
        Ok(Self { issuer: Issuer::new(about, key), root })
    }

    /// What clients need in order to trust it.
    pub(crate) fn root_pem(&self) -> &str {
        &self.root
    }

    /// Writes certificate and key of a server at this host into a folder.
    fn issue(&self, host: &str, folder: &Path) -> Result<(), Failure> {
        let key = KeyPair::generate()?;
        let about = CertificateParams::new([host.to_owned()])?;
        let certificate = about.signed_by(&key, &self.issuer)?;
        std::fs::write(folder.join("ca.pem"), &self.root)?;
        std::fs::write(folder.join("server.pem"), certificate.pem())?;
        Ok(std::fs::write(folder.join("server.key"), key.serialize_pem())?)
    }
}

/// Dropped, it is killed.
pub(crate) struct Server {
    port: u16,
    _keeper: Child,
    _server: Child,
    // Last, so that the folder outlives the process.
    folder: TempDir,
}

impl Server {
    /// Starts it, and returns when it listens.
    pub(crate) async fn start(authority: &Authority) -> Result<Self, Failure> {
        let folder = tempfile::tempdir()?;
        authority.issue("127.0.0.1", folder.path())?;
        let port = free_port()?;
        let server = command(port, folder.path())?.kill_on_drop(true).spawn()?;
        let keeper = keeper_of(&server)?;
        let server = Self { port, _keeper: keeper, _server: server, folder };
        server.listens().await?;
        Ok(server)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("rediss://:secret@127.0.0.1:{}/", self.port)
    }

    async fn listens(&self) -> Result<(), Failure> {
        let (log, began) = (self.folder.path().join("log"), Instant::now());
        loop {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            if said.contains("Ready to accept connections") {
                return Ok(());
            }
            if began.elapsed() > PATIENCE || said.contains("FATAL") || said.contains("in use") {
                return Err(format!("the server did not start: {said}").into());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

fn command(port: u16, folder: &Path) -> Result<Command, Failure> {
    let log = std::fs::File::create(folder.join("log"))?;
    let mut command = Command::new(binary()?);
    command
        .args(["--bind", "127.0.0.1", "--port", "0", "--tls-port", &port.to_string()])
        .args(["--requirepass", "secret", "--save", "", "--appendonly", "no", "--dir"])
        .arg(folder)
        .args(["--tls-ca-cert-file", "ca.pem", "--tls-cert-file", "server.pem"])
        .args(["--tls-key-file", "server.key", "--tls-auth-clients", "no"])
        .current_dir(folder)
        .stdin(Stdio::null())
        .stderr(log.try_clone()?)
        .stdout(log);
    Ok(command)
}

fn binary() -> Result<PathBuf, Failure> {
    if let Some(named) = std::env::var_os("REDIS_SERVER_BIN") {
        return Ok(named.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path)
        .flat_map(|folder| SERVERS.map(|name| folder.join(name)))
        .find(|place| place.is_file());
    places.ok_or_else(|| "no Redis server found: run this by scripts/with-redis".into())
}

/// Kills the server when this process is gone, whatever ended it: only this process holds its input open.
fn keeper_of(server: &Child) -> Result<Child, Failure> {
    let server = server.id().ok_or("the server ended at once")?;
    let mut keeper = Command::new("sh");
    keeper.args(["-c", "read -r _; kill -KILL \"$1\"", "keeper", &server.to_string()]);
    keeper.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(keeper.kill_on_drop(true).spawn()?)
}

/// Another process could take it before the server does; then the server says so.
fn free_port() -> Result<u16, Failure> {
    Ok(std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}
