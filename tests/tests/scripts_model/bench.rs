//! The real side: one server for all cases, its clock in the test's hands, inboxes with real subscribers.

use std::collections::HashMap;
use std::time::Duration;

use leasehold_lua::wire::Push as Message;
use leasehold_lua::{
    Acquisition, Call, Keys, Mode, ObjectName, Reply, Settings, Terms, fair, mutex,
};
use leasehold_tests::Server;
use redis::{Connection, ConnectionLike, Pipeline, Value};

use super::answer::{Answer, Snapshot};
use super::decode;
use super::reference::{CHECK_MS, GRANT_MS, INBOXES, KEYS, Key, Push};
use super::request::{Request, World, channel, note, number_of, owner_name, uuid};

const PATIENCE: Duration = Duration::from_secs(20);
/// Answers of the probe that follow its first clock and the markers: the keys, their ends, their number, a clock.
const PROBED: usize = 5 + 5 + 1 + 1;

/// A text of a script that a mutant replaces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    pub(crate) from: &'static str,
    pub(crate) to: &'static str,
}

const SMALL_BOUNDS: [Change; 2] = [
    Change { from: "local MOST_DEAD, MOST_GRANTS = 32", to: "local MOST_DEAD, MOST_GRANTS = 2" },
    Change { from: "local MOST_ENTRIES = 64", to: "local MOST_ENTRIES = 2" },
];

/// The text that runs for each script and its digest, by the script's name.
type Sources = HashMap<&'static str, [String; 2]>;

pub(crate) struct Bench {
    server: Server,
    commands: Connection,
    inboxes: Connection,
    subscribed: [bool; INBOXES],
    sources: [Sources; 2],
    keys: Keys,
    small_bounds: bool,
    cases: u64,
    markers: u64,
}

/// What one step did at the server.
#[derive(Debug)]
pub(crate) struct Seen {
    /// Server time before, after the call, and after the probe.
    pub(crate) before_us: u64,
    pub(crate) called_us: u64,
    pub(crate) probed_us: u64,
    pub(crate) answer: Option<(Answer, Reply)>,
    /// The moment that the script read, where the answer or a push says it.
    pub(crate) at_us: Option<u64>,
    pub(crate) pushes: Vec<(usize, Push)>,
    pub(crate) snapshot: Snapshot,
    /// Whether each key has an end; a key that is not there has.
    pub(crate) all_end: bool,
    /// Keys that exist beside ours.
    pub(crate) strangers: u64,
}

impl Bench {
    /// A server whose scripts are the real ones, or real ones with one change.
    pub(crate) fn start(mutation: Option<Change>) -> Self {
        let server = Server::builder().clock_shim().start();
        let client = redis::Client::open(server.url()).expect("a URL");
        let connection = || {
            let connection = client.get_connection().expect("a server that answers");
            connection.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            connection
        };
        let (commands, inboxes) = (connection(), connection());
        let mut bench = Self {
            server,
            commands,
            inboxes,
            subscribed: [false; INBOXES],
            sources: [Sources::new(), Sources::new()],
            keys: keys_of(0),
            small_bounds: false,
            cases: 0,
            markers: 0,
        };
        bench.change(mutation);
        bench
    }

    /// From now on the scripts are the real ones with this change, or without any.
    pub(crate) fn change(&mut self, mutation: Option<Change>) {
        let mutation: Vec<_> = mutation.into_iter().collect();
        self.sources = [sources(&mutation), sources(&[&mutation[..], &SMALL_BOUNDS].concat())];
    }

    /// An empty server and a name of its own.
    pub(crate) fn begin(&mut self, world: &World) {
        self.cases += 1;
        self.keys = keys_of(self.cases);
        self.small_bounds = world.small_bounds;
        redis::cmd("FLUSHALL").exec(&mut self.commands).expect("FLUSHALL");
        for inbox in 0..INBOXES {
            self.set_inbox(inbox, true);
        }
    }

    pub(crate) fn now_us(&mut self) -> u64 {
        let time = self.commands.req_command(&redis::cmd("TIME")).expect("TIME");
        decode::time(&time)
    }

    pub(crate) fn shift_clock(&self, ms: i64) {
        let by = Duration::from_millis(ms.unsigned_abs());
        if ms < 0 { self.server.clock().back(by) } else { self.server.clock().forward(by) }
    }

    /// A process comes, or goes away without a word.
    pub(crate) fn set_inbox(&mut self, inbox: usize, alive: bool) {
        if self.subscribed[inbox] == alive {
            return;
        }
        let verb = if alive { "SUBSCRIBE" } else { "UNSUBSCRIBE" };
        let command = redis::cmd(verb).arg(channel(inbox)).get_packed_command();
        self.inboxes.send_packed_command(&command).expect("a connection");
        self.inboxes.recv_response().expect("a confirmation");
        self.subscribed[inbox] = alive;
    }

    pub(crate) fn lose(&mut self, key: Key) {
        let name = self.key(key).to_vec();
        redis::cmd("DEL").arg(name).exec(&mut self.commands).expect("DEL");
    }

    pub(crate) fn flush_scripts(&mut self) {
        redis::cmd("SCRIPT").arg("FLUSH").exec(&mut self.commands).expect("SCRIPT FLUSH");
    }

    /// Sends the request, if there is one, and looks at all that it changed.
    pub(crate) fn send(
        &mut self,
        world: &World,
        request: Option<&Request>,
    ) -> Result<Seen, String> {
        let call = request.map(|request| self.call(world, request));
        let mut replies = self.round(call.as_ref(), "EVALSHA");
        let unknown = |value: &Value| matches!(value, Value::ServerError(error) if error.code() == "NOSCRIPT");
        if call.is_some() && unknown(&replies[1]) {
            drop(self.messages());
            replies = self.round(call.as_ref(), "EVAL");
        }
        let (mut at_us, pushes) = decode::pushes(self.messages());
        let answer = match request {
            None => None,
            Some(request) => {
                let reply = decode::reply(replies[1].clone())?;
                let (answer, now_us) = decode::answer(request, &reply)?;
                at_us = now_us.or(at_us);
                Some((answer, reply))
            }
        };
        let calls = usize::from(call.is_some());
        let probe = replies.split_off(replies.len() - PROBED);
        let (before_us, called_us) = (decode::time(&replies[0]), decode::time(&replies[1 + calls]));
        let probed_us = decode::time(&probe[PROBED - 1]);
        let ttls: Vec<i64> = probe[5..10].iter().map(decode::int).collect();
        let existing = ttls.iter().filter(|ttl| **ttl != -2).count() as u64;
        let mut snapshot = decode::snapshot(world, &probe[..5], called_us / 1_000)?;
        for (end, ttl) in snapshot.ends_ms.iter_mut().zip(&ttls) {
            *end = if *ttl > 0 { probed_us / 1_000 + ttl.unsigned_abs() } else { 0 };
        }
        Ok(Seen {
            before_us,
            called_us,
            probed_us,
            answer,
            at_us,
            pushes,
            snapshot,
            all_end: !ttls.contains(&-1),
            strangers: decode::int(&probe[10]).unsigned_abs() - existing,
        })
    }

    /// One round trip: clock, call, clock, a marker to each inbox, the probe.
    fn round(&mut self, call: Option<&Call>, verb: &str) -> Vec<Value> {
        let mut pipe = redis::pipe();
        pipe.cmd("TIME");
        if let Some(call) = call {
            self.add_call(&mut pipe, call, verb);
        }
        pipe.cmd("TIME");
        self.markers += 1;
        for inbox in (0..INBOXES).filter(|inbox| self.subscribed[*inbox]) {
            pipe.cmd("PUBLISH").arg(channel(inbox)).arg(format!("marker {}", self.markers));
        }
        pipe.cmd("HGETALL").arg(self.key(Key::Holds));
        pipe.cmd("ZRANGE").arg(self.key(Key::Queue)).arg(0).arg(-1).arg("WITHSCORES");
        pipe.cmd("HGETALL").arg(self.key(Key::Timeouts));
        pipe.cmd("GET").arg(self.key(Key::Token));
        pipe.cmd("ZRANGE").arg(self.key(Key::Gone)).arg(0).arg(-1).arg("WITHSCORES");
        for key in KEYS {
            pipe.cmd("PTTL").arg(self.key(key));
        }
        pipe.cmd("DBSIZE").cmd("TIME");
        let packed = pipe.get_packed_pipeline();
        self.commands.req_packed_commands(&packed, 0, pipe.len()).expect("answers")
    }

    fn add_call(&self, pipe: &mut Pipeline, call: &Call, verb: &str) {
        let [text, digest] = &self.sources[usize::from(self.small_bounds)][call.script.name()];
        pipe.cmd(verb).arg(if verb == "EVAL" { text } else { digest }).arg(call.keys.len());
        for part in call.keys.iter().map(|key| &key[..]).chain(call.args.iter().map(|arg| &arg[..]))
        {
            pipe.arg(part);
        }
    }

    /// What arrived at each inbox before its newest marker.
    fn messages(&mut self) -> Vec<(usize, Message)> {
        let marker = format!("marker {}", self.markers);
        let mut open = self.subscribed.iter().filter(|alive| **alive).count();
        let mut arrived = Vec::new();
        while open > 0 {
            let message = self.inboxes.recv_response().expect("a message");
            let (name, payload) = decode::message(message);
            if payload == marker.as_bytes() {
                open -= 1;
            } else if !payload.starts_with(b"marker ") {
                let inbox = (0..INBOXES).find(|inbox| channel(*inbox) == name).expect("an inbox");
                arrived.push((inbox, Message::decode(&payload).expect("a push")));
            }
        }
        arrived
    }

    fn key(&self, key: Key) -> &[u8] {
        match key {
            Key::Holds => &self.keys.holds,
            Key::Queue => &self.keys.queue,
            Key::Timeouts => &self.keys.timeouts,
            Key::Token => &self.keys.token,
            Key::Gone => &self.keys.gone,
        }
    }

    fn call(&self, world: &World, request: &Request) -> Call {
        let terms = Terms {
            wait_ms: world.wait_ms,
            check_ms: CHECK_MS,
            grant_ms: GRANT_MS,
            fence_ms: world.fence_ms,
            floor: request.floor(),
        };
        let text = |id: usize, owner: usize| (world.id(id), owner_name(owner), note(id));
        let own = |id: usize| text(id, world.acquisitions[id].owner);
        let (keys, verbs, none) = (&self.keys, &mutex::VERBS, Settings::default());
        match request {
            Request::Acquire { id, queues, max_waiters, .. } => {
                let mode = match queues {
                    true => Mode::Wait { max_waiters: *max_waiters },
                    false => Mode::Try,
                };
                verbs.acquire(keys, &none, acquisition(world, *id, &own(*id)), mode, terms)
            }
            Request::Check { waiting, .. } => {
                let texts: Vec<_> =
                    waiting.iter().map(|(id, ticket)| (*id, own(*id), *ticket)).collect();
                let waiting =
                    texts.iter().map(|(id, text, ticket)| (acquisition(world, *id, text), *ticket));
                verbs.check(keys, &none, waiting, terms)
            }
            Request::Renew { elements } => {
                let mut calls =
                    elements.iter().map(|(id, ms)| verbs.renew(keys, &world.id(*id), *ms));
                let mut call = calls.next().expect("at least one");
                calls.for_each(|other| call.join(other));
                call
            }
            Request::Release { id, late, at_least_ms, .. } => {
                verbs.release(keys, &world.id(*id), *late, *at_least_ms, terms)
            }
            Request::Adopt { id, owner } => {
                mutex::adopt(keys, acquisition(world, *id, &text(*id, *owner)))
            }
            Request::Force { token, .. } => mutex::force_release(keys, *token, terms),
            Request::Cancel { ticket, id, .. } => fair::cancel(keys, *ticket, &uuid(*id), terms),
            Request::Inspect => mutex::inspect(keys),
            Request::Queue { most } => mutex::queue(keys, *most),
        }
    }
}

/// The texts of all scripts after these changes; each change must find its text.
fn sources(changes: &[Change]) -> Sources {
    let scripts = [&mutex::scripts()[..], &fair::scripts()].concat();
    let texts = scripts.iter().map(|script| (script.name(), script.source().to_owned()));
    let mut all: HashMap<_, _> = texts.collect();
    for Change { from, to } in changes {
        let found = all.values().any(|text| text.contains(from));
        assert!(found, "no script holds {from:?}");
        all.values_mut().for_each(|text| *text = text.replace(from, to));
    }
    let digest = |text: &str| redis::Script::new(text).get_hash().to_owned();
    all.into_iter().map(|(name, text)| (name, [text.clone(), digest(&text)])).collect()
}

fn keys_of(case: u64) -> Keys {
    let name = format!("case {case}");
    Keys::new(ObjectName { prefix: b"", kind: "mutex", group: None, name: name.as_bytes() })
}

fn acquisition<'a>(
    world: &World,
    id: usize,
    (bytes, owner, note): &'a (Vec<u8>, String, String),
) -> Acquisition<'a> {
    debug_assert_eq!(number_of(note), id);
    let lease_ms = world.acquisitions[id].lease_ms;
    Acquisition { id: bytes, owner, note: note.as_bytes(), lease_ms }
}
