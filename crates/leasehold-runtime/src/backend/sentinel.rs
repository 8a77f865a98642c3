//! A master that sentinels watch: they are asked for its address whenever a connection is made, and the server that they
//! name is asked whether it is one, because for a moment after a failover they still name the old one.

use std::future::Future;
use std::sync::{Mutex, PoisonError};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ConnectionInfo, RedisResult, Value};

use super::address::at;
use super::failure::Failure;
use super::wire::{Timeouts, config};

#[derive(Debug)]
pub(crate) struct Sentinels {
    /// The one that answered last comes first.
    sentinels: Mutex<Vec<Client>>,
    /// How to talk to the master, apart from its address.
    master: ConnectionInfo,
    service: String,
}

impl Sentinels {
    pub(super) fn new(sentinels: Vec<Client>, master: ConnectionInfo, service: String) -> Self {
        Self { sentinels: Mutex::new(sentinels), master, service }
    }

    /// A connection to a server that says that it is the master.
    pub(super) async fn connect(
        &self,
        config: &AsyncConnectionConfig,
        timeouts: Timeouts,
    ) -> Result<MultiplexedConnection, Failure> {
        let mut last = Failure::no_master("no sentinel knows a master of this name");
        let sentinels = self.sentinels().clone();
        for (place, sentinel) in sentinels.iter().enumerate() {
            match self.through(sentinel, config, timeouts).await {
                Ok(Some(connection)) => {
                    self.prefer(place);
                    return Ok(connection);
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
    ) -> Result<Option<MultiplexedConnection>, Failure> {
        let Some((host, port)) = within(timeouts, self.ask(sentinel, timeouts)).await? else {
            return Ok(None);
        };
        let client = Client::open(at(&self.master, &host, port)).map_err(Failure::connecting)?;
        let opening = client.get_multiplexed_async_connection_with_config(config);
        let mut connection = within(timeouts, opening).await?;
        match within(timeouts, redis::cmd("ROLE").query_async::<Value>(&mut connection)).await {
            Ok(role) if !is_master(&role) => {
                Err(Failure::no_master("the server that the sentinels name is no master"))
            }
            // No right to ask: what is no master will say so at the first write.
            Ok(_) => Ok(Some(connection)),
            Err(failure) if !failure.transient => Ok(Some(connection)),
            Err(failure) => Err(failure),
        }
    }

    async fn ask(
        &self,
        sentinel: &Client,
        timeouts: Timeouts,
    ) -> RedisResult<Option<(String, u16)>> {
        let config = config(timeouts);
        let mut connection = sentinel.get_multiplexed_async_connection_with_config(&config).await?;
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.service);
        question.query_async(&mut connection).await
    }

    fn prefer(&self, place: usize) {
        let mut sentinels = self.sentinels();
        if place < sentinels.len() {
            sentinels[..=place].rotate_right(1);
        }
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
