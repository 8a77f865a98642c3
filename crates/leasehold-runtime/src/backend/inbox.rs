//! The inbox: the one subscription of a session, on a connection of its own.

use std::sync::Arc;

use leasehold_lua::wire::Push;
use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, PushInfo, PushKind};

use super::failure::Failure;
use super::target::Target;
use super::wire::{Timeouts, config};

/// What comes out of an inbox.
#[derive(Debug)]
pub(crate) enum InboxEvent {
    /// A message of ours.
    Push(Push),
    /// The connection ended; messages are being lost until the next [`Inbox::open`].
    Down,
}

/// A subscription to one channel. It lives as long as what [`open`](Self::open) gave.
#[derive(Debug)]
pub(crate) struct Inbox {
    target: Target,
    channel: Arc<[u8]>,
    timeouts: Timeouts,
}

impl Inbox {
    pub(super) fn new(target: Target, channel: &[u8], timeouts: Timeouts) -> Self {
        Self { target, channel: channel.into(), timeouts }
    }

    /// Connects and subscribes; the subscription is confirmed when this returns. `deliver` runs inside the connection's
    /// driver, so that a push costs no further hop; it must not block.
    pub(crate) async fn open(
        &self,
        deliver: impl Fn(InboxEvent) + Send + Sync + 'static,
    ) -> Result<Subscription, Failure> {
        let channel = self.channel.clone();
        let receive = move |info: PushInfo| {
            if let Some(event) = read(info, &channel) {
                deliver(event);
            }
            Ok::<_, std::convert::Infallible>(())
        };
        let config = config(self.timeouts).set_push_sender(receive);
        let opening = async {
            let (mut connection, _) = self.target.connect(&config, self.timeouts).await?;
            connection.subscribe(&*self.channel).await.map_err(Failure::connecting)?;
            Ok(Subscription { _connection: connection })
        };
        let opened =
            tokio::time::timeout(self.timeouts.connect + self.timeouts.response, opening).await;
        opened.unwrap_or_else(|_| Err(Failure::connecting_timed_out()))
    }
}

/// An open subscription; dropping it closes its connection.
#[derive(Debug)]
pub(crate) struct Subscription {
    _connection: MultiplexedConnection,
}

/// Anybody may publish to the channel: what is not ours is passed over.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the client's enum is open; what is not named is treated alike"
)]
fn read(info: PushInfo, channel: &[u8]) -> Option<InboxEvent> {
    match info.kind {
        PushKind::Disconnection => Some(InboxEvent::Down),
        PushKind::Message => {
            let mut data = info.data.into_iter();
            let from = Vec::<u8>::from_redis_value(data.next()?).ok()?;
            let payload = Vec::<u8>::from_redis_value(data.next()?).ok()?;
            (from == channel).then(|| Push::decode(&payload).ok()).flatten().map(InboxEvent::Push)
        }
        _ => None,
    }
}
