//! A lane: what calls travel on, to one server or to each the node of its key.

use std::time::Duration;

use futures_util::future::BoxFuture;
use leasehold_lua::{Call, Reply};
use tokio::runtime;

use super::address::Place;
use super::cluster::Routes;
use super::failure::Failure;
use super::wire::{Way, Wire};

/// Calls over multiplexed connections; nothing outside this module knows how many servers there are.
#[derive(Debug)]
pub(crate) struct Lane(pub(super) Kind);

/// What a call answered, and how many replicas have what it wrote.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) reply: Reply,
    pub(crate) replicas: u64,
}

#[derive(Debug)]
pub(super) enum Kind {
    One(Box<Wire>),
    Many(Routes),
}

impl Lane {
    /// Makes the connections that there are not.
    pub(crate) async fn open(&self) -> Result<(), Failure> {
        match &self.0 {
            Kind::One(wire) => wire.open().await,
            Kind::Many(routes) => routes.open().await,
        }
    }

    /// Sends a call once. One round trip; two after the server forgot the script, or where its key has moved.
    ///
    /// In a box without its type: the futures of callers stay small, and not so deep that the compiler gives up on theirs.
    pub(crate) fn call<'a>(
        &'a self,
        call: &'a Call,
        within: Duration,
    ) -> BoxFuture<'a, Result<Reply, Failure>> {
        match &self.0 {
            Kind::One(wire) => Box::pin(wire.call(call, within, Way::Straight)),
            Kind::Many(routes) => Box::pin(routes.call(call, within)),
        }
    }

    /// Sends a call once over the connection that this runtime has, so that it does not overtake what was sent on it
    /// before. `None`: there is none.
    pub(crate) fn call_behind<'a>(
        &'a self,
        home: Option<runtime::Id>,
        call: &'a Call,
        within: Duration,
    ) -> BoxFuture<'a, Option<Result<Reply, Failure>>> {
        match &self.0 {
            Kind::One(wire) => Box::pin(wire.call_behind(home, call, within)),
            Kind::Many(routes) => Box::pin(routes.call_behind(home, call, within)),
        }
    }

    /// Where grants are published, and an inbox must listen therefore: each master. In a cluster the answer of a node,
    /// if nobody was asked just now.
    pub(crate) async fn places(&self) -> Result<Vec<Place>, Failure> {
        let Kind::Many(routes) = &self.0 else { return Ok(vec![Place::default()]) };
        routes.read_slots(true).await?;
        let masters = routes.cluster().masters();
        Ok(masters.into_iter().map(|node| Place(Some(node))).collect())
    }

    /// Makes the connection to a place if there is none.
    pub(crate) async fn open_at(&self, place: &Place) -> Result<(), Failure> {
        self.at(place, async |wire| wire.open().await).await
    }

    /// Sends a command that is no script to a place; one round trip.
    pub(crate) async fn command(&self, place: &Place, words: &[&[u8]]) -> Result<Reply, Failure> {
        self.at(place, async |wire| wire.command(words).await).await
    }

    /// Sends these calls to a place, and waits there until so many replicas have what they wrote, no longer than so. Each
    /// call's answer. Two round trips; nobody else may use the lane meanwhile, because its connection stands still.
    pub(crate) async fn written(
        &self,
        place: &Place,
        calls: &[Call],
        replicas: u32,
        within: Duration,
    ) -> Result<Vec<Result<Written, Failure>>, Failure> {
        match (&self.0, &place.0) {
            (Kind::One(wire), _) => {
                let (answers, replicas) =
                    wire.written(calls, Way::Straight, replicas, within).await?;
                let written = |reply| Written { reply, replicas };
                Ok(answers.into_iter().map(|answer| answer.map(written)).collect())
            }
            (Kind::Many(routes), Some(node)) => routes.written(node, calls, replicas, within).await,
            (Kind::Many(routes), None) => Err(routes.nobody_has_it()),
        }
    }

    /// Publishes a message at a place, and answers how many received it there; one round trip.
    pub(crate) async fn publish(
        &self,
        place: &Place,
        channel: &[u8],
        message: &str,
    ) -> Result<i64, Failure> {
        match self.command(place, &[b"PUBLISH", channel, message.as_bytes()]).await? {
            Reply::Int(receivers) => Ok(receivers),
            Reply::Nil | Reply::Bytes(_) | Reply::List(_) => Ok(0),
        }
    }

    /// The next calls to a place make connections.
    pub(crate) fn reopen(&self, place: &Place) {
        match (&self.0, &place.0) {
            (Kind::One(wire), _) => wire.reopen(),
            (Kind::Many(routes), Some(node)) => {
                if let Ok(wire) = routes.wire(node) {
                    wire.reopen();
                }
            }
            (Kind::Many(_), None) => {}
        }
    }

    async fn at<T>(
        &self,
        place: &Place,
        task: impl AsyncFnOnce(&Wire) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        match (&self.0, &place.0) {
            (Kind::One(wire), _) => task(wire).await,
            (Kind::Many(routes), Some(node)) => {
                let wire = routes.wire(node)?;
                task(&wire).await
            }
            (Kind::Many(_), None) => Err(Failure::no_master("which node was not said")),
        }
    }
}
