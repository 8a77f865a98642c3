//! A real Redis server of one test.

mod authority;
mod process;

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncCommands, AsyncConnectionConfig, Client, IntoConnectionInfo, TlsCertificates};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::ServerClock;
pub use authority::Authority;
use process::{Launch, Process};

const PATIENCE: Duration = Duration::from_secs(10);

/// In the server's folder.
const SOCKET: &str = "socket";

/// A Redis server on a free port of 127.0.0.1, in a temporary folder, without persistence. It ends
/// with this value, and also when the test's process is killed.
///
/// The binary is `REDIS_SERVER_BIN`, else `redis-server` or `valkey-server` on PATH. `REDIS_URL` is
/// never looked at: a test flushes and freezes its server.
#[derive(Debug)]
pub struct Server {
    launch: Launch,
    password: Option<String>,
    /// How to talk to it, if it speaks TLS.
    certificates: Option<TlsCertificates>,
    clock: Option<ServerClock>,
    process: Mutex<Option<Process>>,
    // Last, so that the folder outlives the process.
    _folder: TempDir,
}

/// What a [`Server`] is started with; see [`Server::builder`].
#[derive(Debug, Default)]
pub struct ServerBuilder {
    arguments: Vec<OsString>,
    password: Option<String>,
    clock_shim: bool,
    sentinel: Option<String>,
    tls: Option<(Authority, String)>,
}

impl Server {
    /// Starts a server with the defaults and returns when it answers.
    #[must_use]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// A server with further arguments, a password or a clock that can be shifted.
    #[must_use]
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// Its URL, with the password if it has one.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_at(self.addr())
    }

    /// The same URL with another address, as a proxy needs it.
    pub(crate) fn url_at(&self, addr: SocketAddr) -> String {
        let scheme = if self.certificates.is_some() { "rediss" } else { "redis" };
        match &self.password {
            Some(password) => format!("{scheme}://:{password}@{addr}/"),
            None => format!("{scheme}://{addr}/"),
        }
    }

    /// The URL of the socket of a server that was started with [`ServerBuilder::socket`].
    #[must_use]
    pub fn socket_url(&self) -> String {
        let socket = self.launch.folder.join(SOCKET);
        let password = self.password.as_ref().map(|word| format!("?pass={word}"));
        format!("redis+unix://{}{}", socket.display(), password.unwrap_or_default())
    }

    /// Its address.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.launch.port).into()
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.with_process(Process::id)
    }

    /// A client that speaks RESP3 and sends without delay; with certificates, if the server wants TLS.
    #[must_use]
    pub fn client(&self) -> Client {
        let url = self.url();
        match &self.certificates {
            Some(certificates) => {
                let client = Client::build_with_tls(url, certificates.clone());
                client_of(client.expect("certificates").get_connection_info().clone())
            }
            None => client_of(url),
        }
    }

    /// A new connection of [`Server::client`]. It waits 10 s for an answer, where a connection of
    /// the client itself gives up after 0.5 s: a loaded machine fails no test.
    pub async fn connection(&self) -> MultiplexedConnection {
        self.try_connection().await.expect("a server that answers")
    }

    /// The same where the server may be gone, or changes its role and closes its connections.
    pub(crate) async fn try_connection(&self) -> redis::RedisResult<MultiplexedConnection> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE));
        self.client().get_multiplexed_async_connection_with_config(&config).await
    }

    /// The clock of a server that was started with [`ServerBuilder::clock_shim`].
    #[must_use]
    pub fn clock(&self) -> &ServerClock {
        self.clock.as_ref().expect("a server started with clock_shim()")
    }

    /// Stops the process (SIGSTOP): connections stay open, nothing is answered.
    pub fn freeze(&self) {
        self.with_process(|process| process.signal(Signal::STOP));
    }

    /// Lets a frozen process go on; it then handles all that has arrived meanwhile.
    pub fn thaw(&self) {
        self.with_process(|process| process.signal(Signal::CONT));
    }

    /// Kills the process (SIGKILL); its data is gone. Does nothing when it is dead already.
    pub fn kill(&self) {
        drop(self.process.lock().expect("no panic inside").take());
    }

    /// Whether it was started and not killed since.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.process.lock().expect("no panic inside").is_some()
    }

    /// Starts an empty server on the same port, after [`Server::kill`] if that was not called.
    pub fn restart(&self) {
        self.kill();
        let process = self.launch.start().unwrap_or_else(|failure| panic!("{failure}"));
        *self.process.lock().expect("no panic inside") = Some(process);
    }

    /// How often each command ran since the start or [`Server::reset_stats`], those inside scripts
    /// and those of this helper's own connections included.
    pub async fn command_calls(&self) -> CommandCalls {
        let info: String = redis::cmd("INFO")
            .arg("commandstats")
            .query_async(&mut self.connection().await)
            .await
            .expect("INFO commandstats");
        CommandCalls::parse(&info)
    }

    /// Sets all statistics back to zero.
    pub async fn reset_stats(&self) {
        self.run(redis::cmd("CONFIG").arg("RESETSTAT")).await;
    }

    /// All keys, sorted.
    pub async fn keys(&self) -> Vec<Vec<u8>> {
        let mut keys: Vec<Vec<u8>> = self.connection().await.keys("*").await.expect("KEYS");
        keys.sort();
        keys
    }

    /// The number of keys.
    pub async fn dbsize(&self) -> u64 {
        let mut connection = self.connection().await;
        redis::cmd("DBSIZE").query_async(&mut connection).await.expect("DBSIZE")
    }

    /// Deletes all keys.
    pub async fn flushall(&self) {
        self.run(&redis::cmd("FLUSHALL")).await;
    }

    async fn run(&self, command: &redis::Cmd) {
        let done = command.exec_async(&mut self.connection().await).await;
        done.unwrap_or_else(|error| panic!("{error}"));
    }

    fn with_process<T>(&self, task: impl FnOnce(&Process) -> T) -> T {
        task(self.process.lock().expect("no panic inside").as_ref().expect("a running server"))
    }
}

/// A client for this address that speaks RESP3 and sends without delay.
pub(crate) fn client_of(address: impl IntoConnectionInfo) -> Client {
    let info = address.into_connection_info().expect("a Redis URL");
    let resp3 = info.redis_settings().clone().set_protocol(redis::ProtocolVersion::RESP3);
    let nodelay = TcpSettings::default().set_nodelay(true);
    Client::open(info.set_redis_settings(resp3).set_tcp_settings(nodelay)).expect("a Redis URL")
}

impl ServerBuilder {
    /// An option of the server with its value, such as `("--maxmemory", "4mb")`.
    #[must_use]
    pub fn arg(mut self, option: &str, value: &str) -> Self {
        self.arguments.extend([option.into(), value.into()]);
        self
    }

    /// Clients must give this password; [`Server::url`] holds it.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self.arg("--requirepass", password)
    }

    /// It listens at a socket of the file system too: see [`Server::socket_url`].
    #[must_use]
    pub fn socket(self) -> Self {
        self.arg("--unixsocket", SOCKET)
    }

    /// It speaks TLS and nothing else, and shows a certificate of this authority for its address. Clients
    /// may show one, and must if `--tls-auth-clients yes` is given.
    #[must_use]
    pub fn tls(self, authority: &Authority) -> Self {
        self.tls_as(authority, "127.0.0.1")
    }

    /// The same with a certificate for this name.
    #[must_use]
    pub fn tls_as(mut self, authority: &Authority, name: &str) -> Self {
        self.tls = Some((authority.clone(), name.to_owned()));
        let clients = !self.arguments.iter().any(|argument| argument == "--tls-auth-clients");
        if clients { self.arg("--tls-auth-clients", "optional") } else { self }
    }

    /// A replica of the server at this port of 127.0.0.1.
    #[must_use]
    pub fn replica_of(mut self, port: &str) -> Self {
        self.arguments.extend(["--replicaof", "127.0.0.1", port].map(OsString::from));
        self
    }

    /// A sentinel, which begins with these lines of configuration.
    #[must_use]
    pub(crate) fn sentinel(mut self, configuration: String) -> Self {
        self.sentinel = Some(configuration);
        self
    }

    /// Puts the server's clock in the test's hands: see [`Server::clock`]. Linux only; needs `cc`.
    #[must_use]
    pub fn clock_shim(mut self) -> Self {
        self.clock_shim = true;
        self
    }

    /// Starts the server and returns when it answers.
    #[must_use]
    pub fn start(self) -> Server {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let folder_of_tls =
            |(authority, name): &(Authority, String)| authority.equip(name, folder.path());
        let files = self.tls.as_ref().map(folder_of_tls).unwrap_or_default();
        let binary = server_binary();
        let clock = self.clock_shim.then(|| ServerClock::build_in(folder.path(), &binary));
        let mut launch = Launch {
            binary,
            port: 0,
            folder: folder.path().to_owned(),
            first: self.sentinel.map(|lines| kept(folder.path(), &lines)).unwrap_or_default(),
            tls: self.tls.is_some(),
            arguments: self.arguments.into_iter().chain(options(files)).collect(),
            environment: clock.as_ref().map(ServerClock::environment).unwrap_or_default(),
        };
        let process = launch.start_on_a_free_port();
        let process = Mutex::new(Some(process));
        let certificates = self.tls.map(|(authority, _)| authority.certificates());
        Server { launch, password: self.password, certificates, clock, process, _folder: folder }
    }
}

fn options(files: Vec<(&'static str, PathBuf)>) -> impl Iterator<Item = OsString> {
    files.into_iter().flat_map(|(option, file)| [option.into(), file.into()])
}

fn kept(folder: &Path, configuration: &str) -> Vec<OsString> {
    let file = folder.join("sentinel.conf");
    std::fs::write(&file, configuration).expect("a folder of our own");
    vec![file.into(), "--sentinel".into()]
}

fn server_binary() -> PathBuf {
    if let Some(binary) = std::env::var_os("REDIS_SERVER_BIN") {
        return binary.into();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path)
        .flat_map(|folder| ["redis-server", "valkey-server"].map(|name| folder.join(name)));
    places.into_iter().find(|place| place.is_file()).unwrap_or_else(|| {
        panic!(
            "no Redis server found: run scripts/test, which installs one, or install it yourself \
             (apt-get install redis-server, dnf install valkey, brew install redis)"
        )
    })
}

/// How often each command ran.
#[derive(Clone, Debug)]
pub struct CommandCalls(Vec<(String, u64)>);

impl CommandCalls {
    /// The calls of all these commands together; names in lower case, a subcommand as
    /// `script|load`.
    #[must_use]
    pub fn of(&self, names: &[&str]) -> u64 {
        let wanted = self.0.iter().filter(|(name, _)| names.contains(&name.as_str()));
        wanted.map(|(_, calls)| calls).sum()
    }

    /// Lines are `cmdstat_<name>:calls=<n>,usec=…`.
    fn parse(info: &str) -> Self {
        let counts = info.lines().filter_map(|line| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
        });
        Self(counts.collect())
    }
}
