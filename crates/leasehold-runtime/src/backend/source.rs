//! Where a lane's connection comes from: the session's own, or what the user gave for commands.

use std::sync::{Mutex, PoisonError};

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Cmd, Pipeline, RedisFuture, Value};

use super::address::Node;
use super::failure::Failure;
use super::target::Target;
use super::wire::{Timeouts, config};

/// What carries acquires and releases instead of a connection of the session's own: see
/// [`SessionBuilder::commands`](crate::SessionBuilder::commands).
#[derive(Debug)]
pub struct Commands(Given);

#[derive(Debug)]
enum Given {
    Connection(Connection),
    #[cfg(feature = "deadpool")]
    Pool(deadpool_redis::Pool),
}

impl From<MultiplexedConnection> for Commands {
    fn from(connection: MultiplexedConnection) -> Self {
        Self(Given::Connection(Connection::Multiplexed(connection)))
    }
}

#[cfg(feature = "connection-manager")]
impl From<redis::aio::ConnectionManager> for Commands {
    fn from(manager: redis::aio::ConnectionManager) -> Self {
        Self(Given::Connection(Connection::Manager(manager)))
    }
}

#[cfg(feature = "deadpool")]
impl From<deadpool_redis::Pool> for Commands {
    fn from(pool: deadpool_redis::Pool) -> Self {
        Self(Given::Pool(pool))
    }
}

/// A connection of whatever kind; clones share it.
#[derive(Clone)]
pub(super) enum Connection {
    Multiplexed(MultiplexedConnection),
    #[cfg(feature = "connection-manager")]
    Manager(redis::aio::ConnectionManager),
    /// One object of a pool, checked out as long as the connection is in use: a checkout costs a round trip, so there
    /// is none per command.
    #[cfg(feature = "deadpool")]
    Pooled(
        MultiplexedConnection,
        #[expect(dead_code, reason = "held, not read")] std::sync::Arc<deadpool_redis::Connection>,
    ),
}

impl Connection {
    /// A broken link heals by itself at the next command.
    pub(super) fn heals(&self) -> bool {
        match self {
            #[cfg(feature = "connection-manager")]
            Self::Manager(_) => true,
            #[cfg(feature = "deadpool")]
            Self::Pooled(..) => false,
            Self::Multiplexed(_) => false,
        }
    }

    fn inner(&mut self) -> &mut (dyn ConnectionLike + Send) {
        match self {
            Self::Multiplexed(connection) => connection,
            #[cfg(feature = "connection-manager")]
            Self::Manager(manager) => manager,
            #[cfg(feature = "deadpool")]
            Self::Pooled(connection, _) => connection,
        }
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Connection(..)")
    }
}

impl ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        self.inner().req_packed_command(cmd)
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.inner().req_packed_commands(pipeline, offset, count)
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::Multiplexed(connection) => connection.get_db(),
            #[cfg(feature = "connection-manager")]
            Self::Manager(manager) => manager.get_db(),
            #[cfg(feature = "deadpool")]
            Self::Pooled(connection, _) => connection.get_db(),
        }
    }
}

/// A connection that a source has made.
pub(super) struct Made {
    pub(super) connection: Connection,
    /// By the user: then it serves every runtime.
    pub(super) given: bool,
    /// To which server, where that may change.
    pub(super) node: Option<Node>,
}

/// Makes a lane's connections. A connection that was given is used until it is spent, then the session makes its own;
/// a pool is asked again.
#[derive(Debug)]
pub(super) struct Source {
    target: Target,
    given: Mutex<Option<Connection>>,
    #[cfg(feature = "deadpool")]
    pool: Option<deadpool_redis::Pool>,
}

impl Source {
    pub(super) fn new(target: Target, commands: Option<Commands>) -> Self {
        let mut source = Self {
            target,
            given: Mutex::new(None),
            #[cfg(feature = "deadpool")]
            pool: None,
        };
        match commands.map(|commands| commands.0) {
            Some(Given::Connection(connection)) => source.given = Mutex::new(Some(connection)),
            #[cfg(feature = "deadpool")]
            Some(Given::Pool(pool)) => source.pool = Some(pool),
            None => {}
        }
        source
    }

    /// Whether a connection that it made leads where it should.
    pub(super) fn is_still_at(&self, node: Option<&Node>) -> bool {
        self.target.is_still_at(node)
    }

    /// What was given at first, else what the pool gives, else one of its own.
    pub(super) async fn connect(&self, timeouts: Timeouts) -> Result<Made, Failure> {
        let given = self.given.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(given) = given {
            return Ok(Made { connection: given, given: true, node: None });
        }
        #[cfg(feature = "deadpool")]
        if let Some(pool) = &self.pool {
            let connection = check_out(pool, timeouts).await?;
            return Ok(Made { connection, given: true, node: None });
        }
        let (made, node) = self.target.connect(&config(timeouts), timeouts).await?;
        Ok(Made { connection: Connection::Multiplexed(made), given: false, node })
    }
}

#[cfg(feature = "deadpool")]
async fn check_out(pool: &deadpool_redis::Pool, timeouts: Timeouts) -> Result<Connection, Failure> {
    use deadpool_redis::PoolError;
    match tokio::time::timeout(timeouts.connect, pool.get()).await {
        Ok(Ok(object)) => {
            let connection: MultiplexedConnection = (*object).clone();
            Ok(Connection::Pooled(connection, std::sync::Arc::new(object)))
        }
        Ok(Err(PoolError::Backend(error))) => Err(Failure::connecting(error)),
        Ok(Err(PoolError::Timeout(_))) | Err(_) => {
            Err(Failure::pool("no connection of the pool became free", true))
        }
        Ok(Err(PoolError::Closed)) => Err(Failure::pool("the pool is closed", false)),
        Ok(Err(error @ (PoolError::NoRuntimeSpecified | PoolError::PostCreateHook(_)))) => {
            Err(Failure::pool(&error.to_string(), false))
        }
    }
}
