//! Where a connection leads: to one address, or to whatever server the sentinels call the master.

use std::sync::Arc;

use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;

use super::address::Node;
use super::failure::Failure;
use super::sentinel::Sentinels;
use super::wire::Timeouts;

#[derive(Debug, Clone)]
pub(super) enum Target {
    Fixed(Arc<redis::Client>),
    Watched(Arc<Sentinels>),
}

impl Target {
    /// A connection to it, with the options of whoever asks; and to which server, where that may change.
    pub(super) async fn connect(
        &self,
        config: &AsyncConnectionConfig,
        timeouts: Timeouts,
    ) -> Result<(MultiplexedConnection, Option<Node>), Failure> {
        match self {
            Self::Fixed(client) => {
                let made = client.get_multiplexed_async_connection_with_config(config).await;
                let failed = |error| Failure::connecting_to(client.get_connection_info(), error);
                made.map(|made| (made, None)).map_err(failed)
            }
            Self::Watched(sentinels) => {
                let (made, node) = Box::pin(sentinels.connect(config, timeouts)).await?;
                Ok((made, Some(node)))
            }
        }
    }

    /// Whether a connection to this server leads where it should.
    pub(super) fn is_still_at(&self, node: Option<&Node>) -> bool {
        match (self, node) {
            (Self::Watched(sentinels), Some(node)) => sentinels.is_current(node),
            (Self::Watched(_) | Self::Fixed(_), _) => true,
        }
    }
}
