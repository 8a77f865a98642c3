//! Calls to a cluster: each goes to the node that has its key's slot.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_lua::{Call, Reply};
use tokio::runtime;

use super::slots::Slots;
use super::{Cluster, slot_of};
use crate::backend::address::{Node, join, split};
use crate::backend::failure::{Failure, Redirect};
use crate::backend::lane::Written;
use crate::backend::source::Source;
use crate::backend::target::Target;
use crate::backend::wire::{Timeouts, Way, Wire};
use crate::clock::now;
use crate::error::BackendErrorKind;

/// A call that is sent on more often than this is on its way in a circle.
const MOST_HOPS: usize = 5;

/// A wire to each node, made when it is first needed.
#[derive(Debug)]
pub(in crate::backend) struct Routes {
    cluster: Arc<Cluster>,
    timeouts: Timeouts,
    wires: Mutex<HashMap<Node, Arc<Wire>>>,
}

impl Routes {
    pub(in crate::backend) fn new(cluster: Arc<Cluster>, timeouts: Timeouts) -> Self {
        Self { cluster, timeouts, wires: Mutex::default() }
    }

    /// Finds out who has which slot, if that is not known or is in doubt; `anyway`: also if it is not.
    pub(in crate::backend) async fn read_slots(&self, anyway: bool) -> Result<(), Failure> {
        if !self.cluster.reading_is_due(anyway) {
            return Ok(());
        }
        let mut last = Failure::no_master("no node of the cluster is known");
        for node in self.cluster.to_ask() {
            let asked = now();
            match self.ask(&node).await {
                Ok(slots) => {
                    self.cluster.learn(slots, asked);
                    return Ok(());
                }
                Err(failure) => last = failure,
            }
        }
        Err(last)
    }

    async fn ask(&self, node: &Node) -> Result<Slots, Failure> {
        let asking = async { self.wire(node)?.command(&[b"CLUSTER", b"SLOTS"]).await };
        let answer = tokio::time::timeout(self.timeouts.connect, asking).await;
        let answer = answer.unwrap_or_else(|_| Err(Failure::connecting_timed_out()));
        self.cluster.is_silent(node, answer.is_err());
        let slots = Slots::read(&answer?, node);
        let slots = slots.filter(|slots| !slots.masters().is_empty());
        slots.ok_or_else(|| Failure::no_master("the node knows of no slots"))
    }

    /// Connects to every master.
    pub(in crate::backend) async fn open(&self) -> Result<(), Failure> {
        self.read_slots(false).await?;
        for node in self.cluster.masters() {
            self.wire(&node)?.open().await?;
        }
        Ok(())
    }

    /// Sends a call to the node of its key, and on to another where one says so: what is sent on has surely not run.
    pub(in crate::backend) async fn call(
        &self,
        call: &Call,
        within: Duration,
    ) -> Result<Reply, Failure> {
        let until = now().plus(within.min(self.timeouts.response));
        // What is known is tried if nobody knows better.
        let read = tokio::time::timeout(until.left(), self.read_slots(false)).await;
        // No time is left: what is sent now would not be heard of, and leave a doubt whether it ran.
        let read = read.map_err(|_| Failure::connecting_timed_out())?;
        let slot = slot_of(key_of(call));
        let Some(mut node) = self.cluster.owner(slot) else {
            return Err(read.err().unwrap_or_else(|| self.nobody_has_it()));
        };
        let mut way = Way::Straight;
        let mut hops = 1;
        loop {
            let failure = match self.wire(&node)?.call(call, until.left(), way).await {
                Ok(reply) => {
                    if way == Way::Asking {
                        self.cluster.moving();
                    }
                    self.cluster.is_silent(&node, false);
                    return Ok(reply);
                }
                Err(failure) => failure,
            };
            let redirect = failure.redirect.clone().filter(|_| hops < MOST_HOPS);
            (node, way) = match redirect {
                Some(Redirect::Moved(to)) => {
                    let to = named(&to, &node);
                    self.cluster.moved(slot, &to);
                    (to, Way::Straight)
                }
                Some(Redirect::Ask(to)) => (named(&to, &node), Way::Asking),
                None => {
                    self.failed(&node, &failure);
                    return Err(failure);
                }
            };
            hops += 1;
        }
    }

    /// Sends calls to a node and waits there for so many of its replicas. What belongs to another node by now fails, and
    /// goes there with those that wait for that one when it is tried again; what is on its way to it goes there at once.
    pub(in crate::backend) async fn written(
        &self,
        node: &Node,
        calls: &[Call],
        replicas: u32,
        within: Duration,
    ) -> Result<Vec<Result<Written, Failure>>, Failure> {
        let answer = self.wire(node)?.written(calls, Way::Straight, replicas, within).await;
        let (answers, have) = answer.inspect_err(|failure| self.failed(node, failure))?;
        let mut written = Vec::with_capacity(answers.len());
        for (call, answer) in calls.iter().zip(answers) {
            let failure = match answer {
                Ok(reply) => {
                    written.push(Ok(Written { reply, replicas: have }));
                    continue;
                }
                Err(failure) => failure,
            };
            written.push(match &failure.redirect {
                Some(Redirect::Ask(to)) => {
                    self.written_at(&named(to, node), call, replicas, within).await
                }
                Some(Redirect::Moved(to)) => {
                    self.cluster.moved(slot_of(key_of(call)), &named(to, node));
                    Err(failure)
                }
                None => {
                    self.failed(node, &failure);
                    Err(failure)
                }
            });
        }
        Ok(written)
    }

    async fn written_at(
        &self,
        to: &Node,
        call: &Call,
        replicas: u32,
        within: Duration,
    ) -> Result<Written, Failure> {
        let calls = std::slice::from_ref(call);
        let wire = self.wire(to)?;
        let (answers, replicas) = wire.written(calls, Way::Asking, replicas, within).await?;
        let answer = answers.into_iter().next();
        let reply = answer.unwrap_or_else(|| Err(Failure::timed_out()))?;
        Ok(Written { reply, replicas })
    }

    /// Over the connection that this runtime has to the node of the key, wherever that sends it on to.
    pub(in crate::backend) async fn call_behind(
        &self,
        home: Option<runtime::Id>,
        call: &Call,
        within: Duration,
    ) -> Option<Result<Reply, Failure>> {
        let node = self.cluster.owner(slot_of(key_of(call)))?;
        let wire = self.wire(&node).ok()?;
        wire.call_behind(home, call, within).await
    }

    pub(in crate::backend) fn wire(&self, node: &Node) -> Result<Arc<Wire>, Failure> {
        let mut wires = self.wires.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(wire) = wires.get(node) {
            return Ok(wire.clone());
        }
        let client = self.cluster.client_of(node);
        let client = client.ok_or_else(|| Failure::no_master("a node without an address"))?;
        // Those of nodes that left are dropped when one comes.
        let masters = self.cluster.masters();
        wires.retain(|node, _| masters.contains(node));
        let wire =
            Arc::new(Wire::new(Source::new(Target::Fixed(client.into()), None), self.timeouts));
        wires.insert(node.clone(), wire.clone());
        Ok(wire)
    }

    pub(in crate::backend) fn cluster(&self) -> &Arc<Cluster> {
        &self.cluster
    }

    /// A node that is gone, was demoted, or lost sight of the others: somebody else may have its slots.
    fn failed(&self, node: &Node, failure: &Failure) {
        let unreachable = failure.error.kind() == BackendErrorKind::Unreachable;
        self.cluster.is_silent(node, unreachable);
        if unreachable || failure.transient {
            self.cluster.doubt();
        }
    }

    pub(in crate::backend) fn nobody_has_it(&self) -> Failure {
        self.cluster.doubt();
        Failure::no_master("no node has the slot of the key")
    }
}

fn key_of(call: &Call) -> &[u8] {
    call.keys.first().map_or(&[], |key| key)
}

/// A redirection without a host means that of the node that says so.
fn named(to: &str, by: &Node) -> Node {
    match (split(to), split(by)) {
        (Some(("", port)), Some((host, _))) => join(host, port),
        _ => to.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirection_without_a_host_stays_at_the_host_that_gave_it() {
        let by: Node = "10.0.0.1:7000".into();
        assert_eq!(&*named(":7001", &by), "10.0.0.1:7001");
        assert_eq!(&*named("10.0.0.2:7001", &by), "10.0.0.2:7001");
        let by: Node = "::1:7000".into();
        assert_eq!(&*named(":7001", &by), "::1:7001");
        assert_eq!(&*named("::2:7001", &by), "::2:7001");
    }
}
