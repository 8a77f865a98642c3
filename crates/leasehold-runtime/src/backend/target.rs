//! Where a connection leads: to one address, or to whatever server the sentinels call the master.

use std::sync::Arc;

use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;

use super::failure::Failure;
use super::sentinel::Sentinels;
use super::wire::Timeouts;

#[derive(Debug, Clone)]
pub(super) enum Target {
    Fixed(redis::Client),
    Watched(Arc<Sentinels>),
}

impl Target {
    /// A connection to it, with the options of whoever asks.
    pub(super) async fn connect(
        &self,
        config: &AsyncConnectionConfig,
        timeouts: Timeouts,
    ) -> Result<MultiplexedConnection, Failure> {
        match self {
            Self::Fixed(client) => client
                .get_multiplexed_async_connection_with_config(config)
                .await
                .map_err(Failure::connecting),
            Self::Watched(sentinels) => sentinels.connect(config, timeouts).await,
        }
    }
}
