//! One server, a few objects of each kind, and calls that take several of them.

use leasehold_lua::multi::{self, MultiReply};
use leasehold_lua::{
    Acquisition, Call, Keys, Mode, ObjectName, Reply, Settings, Share, Terms, Verbs, fair, mutex,
    rwlock, semaphore, wire,
};
use leasehold_tests::Server;
use redis::{Commands, Connection, Value};

/// Their numbers are their places here.
pub(crate) const OBJECTS: [(&str, &str); 6] = [
    ("mutex", "m"),
    ("mutex", "n"),
    ("fair", "f"),
    ("rwlock", "r"),
    ("semaphore", "s"),
    ("semaphore", "t"),
];

pub(crate) const TERMS: Terms =
    Terms { wait_ms: 10_000, check_ms: 1_000, grant_ms: 2_000, fence_ms: 3_600_000, floor: 0 };

pub(crate) fn verbs(object: usize) -> &'static Verbs {
    match OBJECTS[object].0 {
        "mutex" => &mutex::VERBS,
        "fair" => &fair::VERBS,
        "rwlock" => &rwlock::VERBS,
        _ => &semaphore::VERBS,
    }
}

pub(crate) fn keys(object: usize) -> Keys {
    let (kind, name) = OBJECTS[object];
    Keys::new(ObjectName { prefix: b"", kind, group: None, name: name.as_bytes() })
}

/// One object, as one acquisition asks for it.
#[derive(Clone, Debug)]
pub(crate) struct Element {
    pub(crate) object: usize,
    pub(crate) id: String,
    pub(crate) owner: String,
    pub(crate) lease_ms: u64,
    pub(crate) share: Share,
    pub(crate) limit: u32,
    pub(crate) strict: bool,
}

impl Element {
    pub(crate) fn new(
        object: usize,
        number: u64,
        owner: &str,
        lease_ms: u64,
        share: Share,
    ) -> Self {
        let id = wire::acquisition_id(&format!("u{number}"), lease_ms, share, b"nobody");
        let id = String::from_utf8(id).expect("text");
        let owner = if owner.is_empty() { id.replace('|', "-") } else { owner.to_owned() };
        Self { object, id, owner, lease_ms, share, limit: 3, strict: false }
    }

    pub(crate) fn is_permit(&self) -> bool {
        OBJECTS[self.object].0 == "semaphore"
    }

    fn settings(&self) -> Settings {
        if self.is_permit() {
            semaphore::settings(self.limit, self.strict)
        } else {
            Settings::default()
        }
    }

    fn acquisition(&self) -> Acquisition<'_> {
        Acquisition {
            id: self.id.as_bytes(),
            owner: &self.owner,
            note: b"note",
            lease_ms: self.lease_ms,
        }
    }
}

/// The call that takes all of them.
pub(crate) fn call(elements: &[Element], floor: u64) -> Call {
    let parts: Vec<_> = elements.iter().map(|it| (keys(it.object), it.settings())).collect();
    let elements: Vec<_> = elements
        .iter()
        .zip(&parts)
        .map(|(it, (keys, settings))| multi::Element {
            verbs: verbs(it.object),
            keys,
            acquisition: it.acquisition(),
            settings,
        })
        .collect();
    multi::acquire(&elements, Terms { floor, ..TERMS })
}

pub(crate) fn try_one(it: &Element) -> Call {
    verbs(it.object).acquire(&keys(it.object), &it.settings(), it.acquisition(), Mode::Try, TERMS)
}

pub(crate) fn wait_for(it: &Element) -> Call {
    let mode = Mode::Wait { max_waiters: None };
    verbs(it.object).acquire(&keys(it.object), &it.settings(), it.acquisition(), mode, TERMS)
}

pub(crate) fn release(it: &Element, late: bool, at_least_ms: u64) -> Call {
    verbs(it.object).release(&keys(it.object), it.id.as_bytes(), late, at_least_ms, TERMS)
}

pub(crate) struct Bench {
    pub(crate) server: Server,
    pub(crate) connection: Connection,
    /// What runs instead of the script that takes several.
    source: String,
}

impl Bench {
    pub(crate) fn start() -> Self {
        Self::at(Server::builder().clock_shim().start())
    }

    pub(crate) fn at(server: Server) -> Self {
        let client = redis::Client::open(server.url()).expect("a URL");
        let connection = client.get_connection().expect("a server that answers");
        let source = multi::scripts()[0].source().to_owned();
        Self { server, connection, source }
    }

    /// From now on the script is another: each change must find its text.
    pub(crate) fn change(&mut self, from: &str, to: &str) {
        let source = multi::scripts()[0].source();
        assert!(source.contains(from), "the script does not hold {from:?}");
        self.source = source.replacen(from, to, 1);
    }

    pub(crate) fn send(&mut self, call: &Call) -> Result<Reply, redis::RedisError> {
        let several = call.script.name() == multi::scripts()[0].name();
        let source = if several { &self.source } else { call.script.source() };
        let mut command = redis::cmd("EVAL");
        command.arg(source).arg(call.keys.len());
        for part in call.keys.iter().map(|key| &key[..]).chain(call.args.iter().map(|arg| &arg[..]))
        {
            command.arg(part);
        }
        command.query::<Value>(&mut self.connection).map(reply)
    }

    pub(crate) fn take(&mut self, elements: &[Element]) -> MultiReply {
        self.take_above(elements, 0)
    }

    pub(crate) fn take_above(&mut self, elements: &[Element], floor: u64) -> MultiReply {
        let reply = self.send(&call(elements, floor)).expect("an answer");
        MultiReply::decode(&reply).expect("a reply of this layout")
    }

    pub(crate) fn now_us(&mut self) -> u64 {
        let (seconds, micros): (u64, u64) =
            redis::cmd("TIME").query(&mut self.connection).expect("TIME");
        seconds * 1_000_000 + micros
    }

    /// The ids that the keys of this object hold, live or not, sorted; those that cool down left out.
    pub(crate) fn ids(&mut self, object: usize) -> Vec<String> {
        let holds = keys(object).holds;
        let members: Vec<String> = if OBJECTS[object].0 == "mutex" || OBJECTS[object].0 == "fair" {
            self.connection.hkeys(&holds[..]).expect("HKEYS")
        } else {
            self.connection.zrange(&holds[..], 0, -1).expect("ZRANGE")
        };
        let mut ids: Vec<_> =
            members.into_iter().filter(|member| member.starts_with('u')).collect();
        ids.sort();
        ids
    }

    /// The server's limit, and what it says is used.
    pub(crate) fn limit_and_used(&mut self, object: usize) -> (Option<u32>, u32) {
        if OBJECTS[object].0 != "semaphore" {
            return (None, 0);
        }
        let holds = keys(object).holds;
        let limit: Option<f64> = self.connection.zscore(&holds[..], "#l").expect("ZSCORE");
        let used: Option<f64> = self.connection.zscore(&holds[..], "#u").expect("ZSCORE");
        let whole = |number: f64| format!("{number:.0}").parse().expect("a number");
        (limit.map(whole), used.map_or(0, whole))
    }

    /// A key without an end.
    pub(crate) fn endless(&mut self) -> Option<String> {
        let keys: Vec<String> = self.connection.keys("*").expect("KEYS");
        keys.into_iter().find(|key| self.connection.pttl::<_, i64>(key).expect("PTTL") == -1)
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the client's enum is open")]
fn reply(value: Value) -> Reply {
    match value {
        Value::Nil => Reply::Nil,
        Value::Int(number) => Reply::Int(number),
        Value::BulkString(bytes) => Reply::Bytes(bytes),
        Value::Array(values) => Reply::List(values.into_iter().map(reply).collect()),
        other => panic!("a script answered {other:?}"),
    }
}
