//! The one module that touches the Redis client: calls go in as values, replies and failures come out as values.

mod connection;
mod failure;
mod inbox;
mod reply;
mod source;

pub(crate) use connection::{Lane, Timeouts};
pub(crate) use failure::{Failure, caught};
pub(crate) use inbox::{Inbox, InboxEvent, Subscription};
pub use source::Commands;

use crate::error::ConfigError;

/// How a session reaches its server. Made from what the user gave; nothing outside this module knows how many nodes
/// stand behind it.
#[derive(Debug, Clone)]
pub(crate) struct Backend {
    client: redis::Client,
}

impl Backend {
    /// From an address such as `redis://user:password@host:6379/0`. The address is never repeated in an error.
    pub(crate) fn from_url(url: &str) -> Result<Self, ConfigError> {
        let client = redis::Client::open(url).map_err(|_| ConfigError::Url)?;
        Self::from_client(&client)
    }

    /// From a client, whatever protocol and socket settings it has: the session's own connections speak RESP3 (the
    /// inbox needs it), send at once, and notice a dead peer.
    pub(crate) fn from_client(client: &redis::Client) -> Result<Self, ConfigError> {
        let info = connection::tuned(client.get_connection_info().clone());
        let client = redis::Client::open(info).map_err(|_| ConfigError::Url)?;
        Ok(Self { client })
    }

    /// A lane of calls over one connection, of the session's own unless another is given.
    pub(crate) fn lane(&self, commands: Option<Commands>, timeouts: Timeouts) -> Lane {
        Lane::new(source::Source::new(self.client.clone(), commands), timeouts)
    }

    /// Which keys may share one call: equal numbers may. A single server takes any; a cluster will answer by slot.
    #[expect(clippy::unused_self, reason = "a cluster looks at the key")]
    pub(crate) fn batch_of(&self, _key: &[u8]) -> u16 {
        0
    }

    /// The inbox of a session.
    pub(crate) fn inbox(&self, channel: &[u8], timeouts: Timeouts) -> Inbox {
        Inbox::new(self.client.clone(), channel, timeouts)
    }
}

/// The runtime of this task; its connections are its own.
pub(crate) fn here() -> Option<tokio::runtime::Id> {
    tokio::runtime::Handle::try_current().ok().map(|handle| handle.id())
}
