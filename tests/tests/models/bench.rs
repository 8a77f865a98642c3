//! The real side: one server for all cases, its clock in the test's hands, inboxes with real subscribers. It knows keys
//! and calls, not what they mean.

use std::collections::HashMap;
use std::time::Duration;

use leasehold_lua::wire::Push;
use leasehold_lua::{Call, Keys, ObjectName, Reply, Script};
use leasehold_tests::Server;
use redis::{Connection, ConnectionLike, Pipeline, Value};

use super::keys::{Found, KEYS, Key};
use super::values::{bytes, int, text, time};

/// How many inboxes (processes) there are.
pub(crate) const INBOXES: usize = 3;
const PATIENCE: Duration = Duration::from_secs(20);

/// A text of the scripts that is replaced by another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    pub(crate) from: &'static str,
    pub(crate) to: &'static str,
}

/// Whose scripts are tried.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// The kind in the keys.
    pub(crate) kind: &'static str,
    pub(crate) scripts: Vec<&'static Script>,
    /// Makes the scripts' bounds so small that a case reaches them.
    pub(crate) small_bounds: &'static [Change],
}

/// What one step did at the server.
#[derive(Debug)]
pub(crate) struct Seen {
    /// Server time before, after the call, and after the probe.
    pub(crate) before_us: u64,
    pub(crate) called_us: u64,
    pub(crate) probed_us: u64,
    pub(crate) reply: Option<Reply>,
    pub(crate) pushes: Vec<(usize, Push)>,
    pub(crate) found: Found,
    /// A key without an end.
    pub(crate) endless: Option<Key>,
    /// Keys that exist beside ours.
    pub(crate) strangers: u64,
}

/// The text that runs for each script and its digest, by the script's name.
type Sources = HashMap<&'static str, [String; 2]>;

pub(crate) struct Bench {
    setup: Setup,
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

/// A prefix of a user's may hold a bar.
pub(crate) fn channel(inbox: usize) -> String {
    format!("inbox|{inbox}")
}

impl Bench {
    /// A server with the real scripts.
    pub(crate) fn start(setup: Setup) -> Self {
        let server = Server::builder().clock_shim().start();
        let client = redis::Client::open(server.url()).expect("a URL");
        let connection = || {
            let connection = client.get_connection().expect("a server that answers");
            connection.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            connection
        };
        let (commands, inboxes) = (connection(), connection());
        let mut bench = Self {
            keys: keys_of(setup.kind, 0),
            setup,
            server,
            commands,
            inboxes,
            subscribed: [false; INBOXES],
            sources: [Sources::new(), Sources::new()],
            small_bounds: false,
            cases: 0,
            markers: 0,
        };
        bench.change(&[]);
        bench
    }

    /// From now on the scripts are the real ones with these changes.
    pub(crate) fn change(&mut self, changes: &[Change]) {
        let small = [changes, self.setup.small_bounds].concat();
        self.sources = [self.setup.sources(changes), self.setup.sources(&small)];
    }

    /// An empty server and a name of its own.
    pub(crate) fn begin(&mut self, small_bounds: bool) {
        self.cases += 1;
        self.keys = keys_of(self.setup.kind, self.cases);
        self.small_bounds = small_bounds;
        redis::cmd("FLUSHALL").exec(&mut self.commands).expect("FLUSHALL");
        for inbox in 0..INBOXES {
            self.set_inbox(inbox, true);
        }
    }

    pub(crate) fn keys(&self) -> &Keys {
        &self.keys
    }

    pub(crate) fn now_us(&mut self) -> u64 {
        time(&self.commands.req_command(&redis::cmd("TIME")).expect("TIME"))
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
        redis::cmd("DEL").arg(key.name(&self.keys)).exec(&mut self.commands).expect("DEL");
    }

    pub(crate) fn flush_scripts(&mut self) {
        redis::cmd("SCRIPT").arg("FLUSH").exec(&mut self.commands).expect("SCRIPT FLUSH");
    }

    /// Sends the call, if there is one, and looks at all that it changed.
    pub(crate) fn send(&mut self, call: Option<&Call>) -> Result<Seen, String> {
        let mut replies = self.round(call, "EVALSHA");
        let unknown = |value: &Value| matches!(value, Value::ServerError(error) if error.code() == "NOSCRIPT");
        if call.is_some() && unknown(&replies[1]) {
            drop(self.messages());
            replies = self.round(call, "EVAL");
        }
        let pushes = self.messages();
        let calls = usize::from(call.is_some());
        let reply = call.map(|_| reply(replies[1].clone())).transpose()?;
        let probe = replies.split_off(replies.len() - 2 * KEYS.len() - 2);
        let (before_us, called_us) = (time(&replies[0]), time(&replies[1 + calls]));
        let probed_us = time(&probe[2 * KEYS.len() + 1]);
        let ttls: Vec<i64> = probe[KEYS.len()..2 * KEYS.len()].iter().map(int).collect();
        let existing = ttls.iter().filter(|ttl| **ttl != -2).count() as u64;
        let ends = |at: usize| match ttls[at] {
            ttl if ttl > 0 => probed_us / 1_000 + ttl.unsigned_abs(),
            _ => 0,
        };
        let found = Found::read(&probe, std::array::from_fn(ends))?;
        Ok(Seen {
            before_us,
            called_us,
            probed_us,
            reply,
            pushes,
            found,
            endless: ttls.iter().position(|ttl| *ttl == -1).map(|at| KEYS[at]),
            strangers: int(&probe[2 * KEYS.len()]).unsigned_abs() - existing,
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
        for key in KEYS {
            pipe.add_command(key.ask(&self.keys));
        }
        for key in KEYS {
            pipe.cmd("PTTL").arg(key.name(&self.keys));
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
    fn messages(&mut self) -> Vec<(usize, Push)> {
        let marker = format!("marker {}", self.markers);
        let mut open = self.subscribed.iter().filter(|alive| **alive).count();
        let mut arrived = Vec::new();
        while open > 0 {
            let (name, payload) = message(self.inboxes.recv_response().expect("a message"));
            if payload == marker.as_bytes() {
                open -= 1;
            } else if !payload.starts_with(b"marker ") {
                let inbox = (0..INBOXES).find(|inbox| channel(*inbox) == name).expect("an inbox");
                arrived.push((inbox, Push::decode(&payload).expect("a push")));
            }
        }
        arrived
    }
}

impl Setup {
    /// The texts of all scripts after these changes; each change must find its text.
    fn sources(&self, changes: &[Change]) -> Sources {
        let texts = self.scripts.iter().map(|script| (script.name(), script.source().to_owned()));
        let mut all: HashMap<_, _> = texts.collect();
        for Change { from, to } in changes {
            let found = all.values().any(|text| text.contains(from));
            assert!(found, "no script holds {from:?}");
            all.values_mut().for_each(|text| *text = text.replace(from, to));
        }
        let digest = |text: &str| redis::Script::new(text).get_hash().to_owned();
        all.into_iter().map(|(name, text)| (name, [text.clone(), digest(&text)])).collect()
    }
}

fn keys_of(kind: &str, case: u64) -> Keys {
    let name = format!("case {case}");
    Keys::new(ObjectName { prefix: b"", kind, group: None, name: name.as_bytes() })
}

/// Channel and payload.
fn message(value: Value) -> (String, Vec<u8>) {
    let Value::Array(parts) = value else { panic!("not a message: {value:?}") };
    match &parts[..] {
        [kind, channel, payload] if text(kind) == "message" => (text(channel), bytes(payload)),
        _ => panic!("not a message: {parts:?}"),
    }
}

/// A script's reply; a script that failed is a violation, not a panic.
#[expect(clippy::wildcard_enum_match_arm, reason = "the client's enum is open")]
fn reply(value: Value) -> Result<Reply, String> {
    Ok(match value {
        Value::Nil => Reply::Nil,
        Value::Int(number) => Reply::Int(number),
        Value::BulkString(bytes) => Reply::Bytes(bytes),
        Value::Array(values) => {
            Reply::List(values.into_iter().map(reply).collect::<Result<_, _>>()?)
        }
        Value::ServerError(error) => return Err(format!("script failed: {error:?}")),
        other => return Err(format!("script answered {other:?}")),
    })
}
