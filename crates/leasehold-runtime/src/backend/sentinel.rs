//! A master that sentinels watch: they are asked for its address whenever a connection is made, and the server that they
//! name is asked whether it is one, because for a moment after a failover they still name the old one.

use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ConnectionInfo, RedisResult, Value};

use super::address::{Node, at, is_encrypted, join};
use super::failure::Failure;
use super::wire::{Timeouts, config};

/// The sentinels are asked so often whether the master is another. After a failover that somebody ordered, the old one
/// stays up and takes writes, which are lost, for eight seconds and more: nothing else tells.
const LOOK: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Sentinels {
    /// The one that answered last comes first.
    sentinels: Mutex<Vec<Client>>,
    /// How to talk to the master, apart from its address.
    master: ConnectionInfo,
    service: String,
    /// The server that counts; connections to another are spent. None while nobody knows.
    current: Mutex<Option<Node>>,
}

impl Sentinels {
    pub(super) fn new(sentinels: Vec<Client>, master: ConnectionInfo, service: String) -> Self {
        let sentinels = Mutex::new(sentinels);
        Self { sentinels, master, service, current: Mutex::default() }
    }

    /// The master, or a sentinel.
    pub(super) fn is_encrypted(&self) -> bool {
        let asked = self.sentinels();
        is_encrypted(&self.master) || asked.iter().any(|it| is_encrypted(it.get_connection_info()))
    }

    /// A connection to a server that says that it is the master.
    pub(super) async fn connect(
        &self,
        config: &AsyncConnectionConfig,
        timeouts: Timeouts,
    ) -> Result<(MultiplexedConnection, Node), Failure> {
        let mut last = Failure::no_master("no sentinel knows a master of this name");
        let sentinels = self.sentinels().clone();
        for (place, sentinel) in sentinels.iter().enumerate() {
            match self.through(sentinel, config, timeouts).await {
                Ok(Some((connection, node))) => {
                    self.prefer(place);
                    *self.current() = Some(node.clone());
                    return Ok((connection, node));
                }
                Ok(None) => {}
                Err(failure) => last = failure,
            }
        }
        Err(last)
    }

    /// `None`: this sentinel knows no master of that name.
    async fn through(
        &self,
        sentinel: &Client,
        config: &AsyncConnectionConfig,
        timeouts: Timeouts,
    ) -> Result<Option<(MultiplexedConnection, Node)>, Failure> {
        let Some((host, port)) = within(timeouts, self.ask(sentinel, timeouts)).await? else {
            return Ok(None);
        };
        let node = join(&host, port);
        let client = Client::open(at(&self.master, &host, port)).map_err(Failure::connecting)?;
        let opening = client.get_multiplexed_async_connection_with_config(config);
        let mut connection = within(timeouts, opening).await?;
        match within(timeouts, redis::cmd("ROLE").query_async::<Value>(&mut connection)).await {
            Ok(role) if !is_master(&role) => {
                Err(Failure::no_master("the server that the sentinels name is no master"))
            }
            // No right to ask: what is no master will say so at the first write.
            Ok(_) => Ok(Some((connection, node))),
            Err(failure) if !failure.transient => Ok(Some((connection, node))),
            Err(failure) => Err(failure),
        }
    }

    /// Whether a connection to this server is one to the master.
    pub(super) fn is_current(&self, node: &Node) -> bool {
        self.current().as_ref() == Some(node)
    }

    /// Resolves when the master is another server than at first, or the sentinels name another. Then nobody counts
    /// until a connection is made.
    pub(super) async fn changed(&self, timeouts: Timeouts) {
        let first = self.current().clone();
        let mut link = None;
        loop {
            tokio::time::sleep(LOOK).await;
            let named = self.named(&mut link, timeouts).await;
            let mut current = self.current();
            if *current != first {
                return;
            }
            if named.is_some() && named != first {
                *current = None;
                return;
            }
        }
    }

    /// Whom a sentinel names, over a link that is kept while it works.
    async fn named(
        &self,
        link: &mut Option<MultiplexedConnection>,
        timeouts: Timeouts,
    ) -> Option<Node> {
        if link.is_none() {
            let sentinels = self.sentinels().clone();
            for sentinel in &sentinels {
                let config = config(timeouts);
                let opening = sentinel.get_multiplexed_async_connection_with_config(&config);
                if let Ok(made) = within(timeouts, opening).await {
                    *link = Some(made);
                    break;
                }
            }
        }
        let asked = within(timeouts, self.ask_over(link.as_mut()?)).await;
        if asked.is_err() {
            *link = None;
        }
        asked.ok()?.map(|(host, port)| join(&host, port))
    }

    async fn ask(
        &self,
        sentinel: &Client,
        timeouts: Timeouts,
    ) -> RedisResult<Option<(String, u16)>> {
        let config = config(timeouts);
        let mut connection = sentinel.get_multiplexed_async_connection_with_config(&config).await?;
        self.ask_over(&mut connection).await
    }

    async fn ask_over(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> RedisResult<Option<(String, u16)>> {
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.service);
        question.query_async(connection).await
    }

    fn prefer(&self, place: usize) {
        let mut sentinels = self.sentinels();
        if place < sentinels.len() {
            sentinels[..=place].rotate_right(1);
        }
    }

    fn current(&self) -> std::sync::MutexGuard<'_, Option<Node>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sentinels(&self) -> std::sync::MutexGuard<'_, Vec<Client>> {
        self.sentinels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn within<T>(
    timeouts: Timeouts,
    asking: impl Future<Output = RedisResult<T>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(timeouts.connect, asking).await {
        Ok(answer) => answer.map_err(Failure::connecting),
        Err(_) => Err(Failure::connecting_timed_out()),
    }
}

fn is_master(role: &Value) -> bool {
    let Value::Array(parts) = role else { return false };
    matches!(parts.first(), Some(Value::BulkString(word)) if word == b"master")
}
