//! A cluster: which node has which slot, shared by all lanes of a session.
//!
//! The client library's own cluster connection is not used. It sends a call again by itself after a lost reply, and then
//! nobody can tell whether "not held" is the answer to the first copy (I7), nor mark a late cancel; with its resends
//! turned off it does not follow a slot that moves either.

mod routes;
mod slots;

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::ConnectionInfo;
use tokio::sync::Notify;

pub(super) use routes::Routes;
pub(super) use slots::slot_of;

use super::address::{Node, at, is_encrypted, split};
use crate::clock::{Moment, now};
use slots::Slots;

/// However many calls fail, the nodes are not asked more often who has which slot.
const BETWEEN_READINGS: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct Cluster {
    /// How to talk to a node, apart from its address.
    template: ConnectionInfo,
    seeds: Vec<Node>,
    state: Mutex<State>,
    /// Told when something may have changed.
    news: Notify,
}

#[derive(Debug)]
struct State {
    slots: Slots,
    known: bool,
    /// When something last failed that a change would explain, if that was after the last reading began.
    doubted: Option<Moment>,
    asked: Option<Moment>,
    changed: Moment,
    /// Nodes that did not answer last time: others are asked first.
    silent: HashSet<Node>,
    /// Whom to ask first: another each time, so that one that knows nothing new does not stay in the way.
    turn: usize,
}

impl Cluster {
    pub(super) fn new(template: ConnectionInfo, seeds: Vec<Node>) -> Self {
        let state = State {
            slots: Slots::unknown(),
            known: false,
            doubted: None,
            asked: None,
            changed: now(),
            silent: HashSet::new(),
            turn: 0,
        };
        Self { template, seeds, state: Mutex::new(state), news: Notify::new() }
    }

    /// How to reach a node; none for what is no address.
    pub(super) fn client_of(&self, node: &str) -> Option<redis::Client> {
        let (host, port) = split(node)?;
        redis::Client::open(at(&self.template, host, port)).ok()
    }

    pub(super) fn is_encrypted(&self) -> bool {
        is_encrypted(&self.template)
    }

    pub(super) fn owner(&self, slot: u16) -> Option<Node> {
        self.state().slots.owner(slot).cloned()
    }

    pub(super) fn masters(&self) -> Vec<Node> {
        self.state().slots.masters()
    }

    /// Whether nothing moved since then: a reading of a node's clock is that of the node whose it is said to be.
    pub(super) fn settled_since(&self, moment: Moment) -> bool {
        self.state().changed < moment
    }

    /// Resolves when something may have changed.
    pub(super) async fn news(&self) {
        self.news.notified().await;
    }

    /// Something failed that a change would explain.
    pub(super) fn doubt(&self) {
        self.state().doubted = Some(now());
        self.news.notify_one();
    }

    /// Whether the nodes are to be asked now, by whoever asks this; `anyway`: also if nothing is in doubt.
    fn reading_is_due(&self, anyway: bool) -> bool {
        let mut state = self.state();
        let rested = state.asked.is_none_or(|asked| asked.plus(BETWEEN_READINGS).passed());
        let due = !state.known || ((anyway || state.doubted.is_some()) && rested);
        if due {
            state.asked = Some(now());
        }
        due
    }

    /// A node has answered who has which slot; it was asked at `asked`, so what is in doubt since then stays so.
    fn learn(&self, slots: Slots, asked: Moment) {
        let mut state = self.state();
        let before = state.slots.masters();
        let moved = (0..16_384).any(|slot| state.slots.owner(slot) != slots.owner(slot));
        if moved {
            state.changed = now();
        }
        let news = slots.masters() != before;
        state.slots = slots;
        state.known = true;
        state.doubted = state.doubted.filter(|doubted| *doubted >= asked);
        drop(state);
        if news {
            self.news.notify_one();
        }
    }

    fn moved(&self, slot: u16, to: &Node) {
        let mut state = self.state();
        if state.slots.owner(slot) == Some(to) {
            return;
        }
        state.slots.set_owner(slot, to);
        state.changed = now();
        state.doubted = Some(state.changed);
        drop(state);
        self.news.notify_one();
    }

    /// A call was answered by a node that does not have its slot yet.
    fn moving(&self) {
        self.state().changed = now();
    }

    fn is_silent(&self, node: &Node, silent: bool) {
        let mut state = self.state();
        if silent {
            state.silent.insert(node.clone());
        } else if !state.silent.is_empty() {
            state.silent.remove(node);
        }
    }

    /// Whom to ask who has which slot, the likeliest to answer first.
    fn to_ask(&self) -> Vec<Node> {
        let mut state = self.state();
        let mut nodes = state.slots.masters();
        for seed in &self.seeds {
            if !nodes.contains(seed) {
                nodes.push(seed.clone());
            }
        }
        state.turn = state.turn.wrapping_add(1);
        if !nodes.is_empty() {
            let by = state.turn % nodes.len();
            nodes.rotate_left(by);
        }
        nodes.sort_by_key(|node| state.silent.contains(node));
        nodes
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use leasehold_lua::Reply;
    use redis::IntoConnectionInfo;

    use super::*;

    fn all_at(port: i64) -> Slots {
        let node = Reply::List(vec![Reply::Bytes("10.0.0.1".into()), Reply::Int(port)]);
        let range = Reply::List(vec![Reply::Int(0), Reply::Int(16_383), node]);
        Slots::read(&Reply::List(vec![range]), &Node::from("10.0.0.1:1")).expect("a map")
    }

    #[test]
    fn what_fails_while_a_node_is_asked_stays_in_doubt() {
        let template = "redis://10.0.0.1:7".into_connection_info().expect("an address");
        let cluster = Cluster::new(template, Vec::new());
        let asked = now();
        cluster.learn(all_at(7), asked);
        assert_eq!(cluster.state().doubted, None, "the control: nothing is in doubt");
        // A node says where a slot is while another answers as it was before.
        let asked = now();
        cluster.moved(0, &Node::from("10.0.0.1:8"));
        cluster.learn(all_at(7), asked);
        assert!(cluster.reading_is_due(false));
        let asked = now();
        cluster.learn(all_at(8), asked);
        assert_eq!(cluster.state().doubted, None);
    }
}
