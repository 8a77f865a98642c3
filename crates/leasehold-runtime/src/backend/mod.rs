//! The one module that touches the Redis client: calls go in as values, replies and failures come out as values.

mod address;
mod cluster;
mod failure;
mod inbox;
mod lane;
mod reply;
mod sentinel;
mod source;
mod target;
mod tls;
mod wire;

use std::sync::Arc;

pub(crate) use address::Place;
pub(crate) use failure::{Failure, caught};
pub(crate) use inbox::{Inbox, InboxEvent, Subscription};
pub(crate) use lane::{Lane, Written};
pub use source::Commands;
pub(crate) use wire::Timeouts;

use crate::clock::Moment;
use crate::error::ConfigError;
use cluster::Cluster;
use sentinel::Sentinels;
use target::Target;

/// How a session reaches its servers. Made from what the user gave; nothing outside this module knows how many nodes
/// stand behind it, but for the [places](Lane::places) where an inbox listens.
#[derive(Debug, Clone)]
pub(crate) enum Backend {
    Fixed(Arc<redis::Client>),
    Watched(Arc<Sentinels>),
    Cluster(Arc<Cluster>),
}

impl Backend {
    /// From an address such as `redis://user:password@host:6379/0`. The address is never repeated in an error.
    pub(crate) fn from_url(url: &str) -> Result<Self, ConfigError> {
        client(url).map(|client| Self::Fixed(client.into()))
    }

    /// From a client, whatever protocol and socket settings it has: the session's own connections speak RESP3 (the
    /// inbox needs it), send at once, and notice a dead peer.
    pub(crate) fn from_client(client: &redis::Client) -> Result<Self, ConfigError> {
        retuned(client).map(|client| Self::Fixed(client.into()))
    }

    /// From the addresses of some nodes of a cluster. User, password and encryption of the first are those of every node.
    pub(crate) fn from_nodes<U: AsRef<str>>(
        urls: impl IntoIterator<Item = U>,
    ) -> Result<Self, ConfigError> {
        Self::cluster(&all(urls, |url| client(url.as_ref()))?)
    }

    /// The same by clients, which know certificates too.
    pub(crate) fn from_node_clients<'a>(
        clients: impl IntoIterator<Item = &'a redis::Client>,
    ) -> Result<Self, ConfigError> {
        Self::cluster(&all(clients, retuned)?)
    }

    fn cluster(clients: &[redis::Client]) -> Result<Self, ConfigError> {
        let infos = || clients.iter().map(redis::Client::get_connection_info);
        let seeds: Option<Vec<_>> = infos().map(address::node_of).collect();
        let template = infos().next().ok_or(ConfigError::Url)?.clone();
        let cluster = Cluster::new(template, seeds.ok_or(ConfigError::Url)?);
        Ok(Self::Cluster(Arc::new(cluster)))
    }

    /// From the addresses of sentinels and the name of what they watch; or an address with that name for a host, if the
    /// master wants a user and a password, or another database.
    pub(crate) fn from_sentinels<U: AsRef<str>>(
        urls: impl IntoIterator<Item = U>,
        service: &str,
    ) -> Result<Self, ConfigError> {
        let clients = all(urls, |url| client(url.as_ref()))?;
        if service.contains("://") {
            Self::watched(clients, &client(service)?, None)
        } else {
            Self::watched(clients, &client("redis://master/")?, Some(service))
        }
    }

    /// The same by clients, which know certificates too; the host of the last is the name of what they watch.
    pub(crate) fn from_sentinel_clients<'a>(
        clients: impl IntoIterator<Item = &'a redis::Client>,
        master: &redis::Client,
    ) -> Result<Self, ConfigError> {
        Self::watched(all(clients, retuned)?, &retuned(master)?, None)
    }

    fn watched(
        sentinels: Vec<redis::Client>,
        master: &redis::Client,
        service: Option<&str>,
    ) -> Result<Self, ConfigError> {
        let master = master.get_connection_info().clone();
        let named = address::node_of(&master).ok_or(ConfigError::Url)?;
        let host = address::split(&named).ok_or(ConfigError::Url)?.0;
        let service = service.unwrap_or(host).to_owned();
        let socket =
            |sentinel: &redis::Client| address::node_of(sentinel.get_connection_info()).is_none();
        if sentinels.is_empty() || service.is_empty() || sentinels.iter().any(socket) {
            return Err(ConfigError::Url);
        }
        Ok(Self::Watched(Arc::new(Sentinels::new(sentinels, master, service))))
    }

    /// Whether its connections can be made at all in this process.
    ///
    /// # Errors
    /// [`ConfigError::NoCryptoProvider`]
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let encrypted = match self {
            Self::Fixed(client) => address::is_encrypted(client.get_connection_info()),
            Self::Watched(sentinels) => sentinels.is_encrypted(),
            Self::Cluster(cluster) => cluster.is_encrypted(),
        };
        if encrypted && !tls::has_provider() {
            return Err(ConfigError::NoCryptoProvider);
        }
        Ok(())
    }

    /// Whether it is one server at one address: a connection of the user's can stand for one of the session's.
    pub(crate) fn is_one_server(&self) -> bool {
        matches!(self, Self::Fixed(_))
    }

    /// Whether sentinels say which server it is.
    pub(crate) fn is_watched(&self) -> bool {
        matches!(self, Self::Watched(_))
    }

    /// A lane of calls over one connection a server, of the session's own unless another is given.
    pub(crate) fn lane(&self, commands: Option<Commands>, timeouts: Timeouts) -> Lane {
        let one = |target| {
            let source = source::Source::new(target, commands);
            lane::Kind::One(Box::new(wire::Wire::new(source, timeouts)))
        };
        Lane(match self {
            Self::Fixed(client) => one(Target::Fixed(client.clone())),
            Self::Watched(sentinels) => one(Target::Watched(sentinels.clone())),
            Self::Cluster(cluster) => {
                lane::Kind::Many(cluster::Routes::new(cluster.clone(), timeouts))
            }
        })
    }

    /// Which keys may share one call: equal numbers may. One server takes any; in a cluster it is the slot.
    pub(crate) fn batch_of(&self, key: &[u8]) -> u16 {
        if let Self::Cluster(_) = self { cluster::slot_of(key) } else { 0 }
    }

    /// Where a key lives, as far as is known; its clock is the one that the key's leases go by.
    pub(crate) fn place_of(&self, key: &[u8]) -> Place {
        match self {
            Self::Cluster(cluster) => Place(cluster.owner(cluster::slot_of(key))),
            Self::Fixed(_) | Self::Watched(_) => Place::default(),
        }
    }

    /// Whether [`place_of`](Self::place_of) has given the same answers since then.
    pub(crate) fn settled_since(&self, moment: Moment) -> bool {
        match self {
            Self::Cluster(cluster) => cluster.settled_since(moment),
            Self::Fixed(_) | Self::Watched(_) => true,
        }
    }

    /// Resolves when there may be other places than before.
    pub(crate) async fn places_changed(&self) {
        match self {
            Self::Cluster(cluster) => cluster.news().await,
            Self::Fixed(_) | Self::Watched(_) => std::future::pending().await,
        }
    }

    /// Resolves when the server at a place is another than now.
    pub(crate) async fn master_changed(&self, timeouts: Timeouts) {
        match self {
            Self::Watched(sentinels) => sentinels.changed(timeouts).await,
            Self::Fixed(_) | Self::Cluster(_) => std::future::pending().await,
        }
    }

    /// A link broke: there may be other places than before.
    pub(crate) fn doubt_places(&self) {
        if let Self::Cluster(cluster) = self {
            cluster.doubt();
        }
    }

    /// The inbox of a session at a place.
    pub(crate) fn inbox(&self, place: &Place, channel: &[u8], timeouts: Timeouts) -> Option<Inbox> {
        let target = match self {
            Self::Fixed(client) => Target::Fixed(client.clone()),
            Self::Watched(sentinels) => Target::Watched(sentinels.clone()),
            Self::Cluster(cluster) => Target::Fixed(cluster.client_of(place.0.as_deref()?)?.into()),
        };
        Some(Inbox::new(target, channel, timeouts))
    }
}

fn client(url: &str) -> Result<redis::Client, ConfigError> {
    let client = redis::Client::open(url).map_err(|_| ConfigError::Url)?;
    retuned(&client)
}

fn retuned(client: &redis::Client) -> Result<redis::Client, ConfigError> {
    let info = wire::tuned(client.get_connection_info().clone());
    redis::Client::open(info).map_err(|_| ConfigError::Url)
}

fn all<T>(
    given: impl IntoIterator<Item = T>,
    client: impl Fn(T) -> Result<redis::Client, ConfigError>,
) -> Result<Vec<redis::Client>, ConfigError> {
    given.into_iter().map(client).collect()
}

/// The runtime of this task; its connections are its own.
pub(crate) fn here() -> Option<tokio::runtime::Id> {
    tokio::runtime::Handle::try_current().ok().map(|handle| handle.id())
}
