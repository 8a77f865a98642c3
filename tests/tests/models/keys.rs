//! The keys of an object that can be waited for, as the server has them.

use std::collections::BTreeMap;

use leasehold_lua::Keys;
use redis::{Cmd, Value};

use super::Holds;
use super::values::{latin, pairs, scores, text, texts};

/// A key of the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Holds,
    Queue,
    Timeouts,
    Token,
    Gone,
    Notes,
}

/// In the order of [`Found::ends_ms`].
pub(crate) const KEYS: [Key; 6] =
    [Key::Holds, Key::Queue, Key::Timeouts, Key::Token, Key::Gone, Key::Notes];

impl Key {
    pub(crate) fn name(self, keys: &Keys) -> &[u8] {
        match self {
            Self::Holds => &keys.holds,
            Self::Queue => &keys.queue,
            Self::Timeouts => &keys.timeouts,
            Self::Token => &keys.token,
            Self::Gone => &keys.gone,
            Self::Notes => &keys.notes,
        }
    }

    /// What shows all that it holds.
    pub(crate) fn ask(self, keys: &Keys) -> Cmd {
        let name = self.name(keys);
        match self {
            Self::Holds => Holds::ask(name),
            Self::Timeouts | Self::Notes => ask_hash(name),
            Self::Queue | Self::Gone => ask_zset(name),
            Self::Token => redis::cmd("GET").arg(name).clone(),
        }
    }
}

fn ask_hash(key: &[u8]) -> Cmd {
    redis::cmd("HGETALL").arg(key).clone()
}

fn ask_zset(key: &[u8]) -> Cmd {
    redis::cmd("ZRANGE").arg(key).arg(0).arg(-1).arg("WITHSCORES").clone()
}

/// What the key of the holds is: [`Holds`], which the suite says.
pub(crate) trait HoldsKey: Sized {
    fn ask(key: &[u8]) -> Cmd;
    fn read(value: &Value) -> Result<Self, String>;
}

/// Of a kind with one hold: a hash.
impl HoldsKey for BTreeMap<String, String> {
    fn ask(key: &[u8]) -> Cmd {
        ask_hash(key)
    }

    fn read(value: &Value) -> Result<Self, String> {
        Ok(texts(value))
    }
}

/// Of a kind with many: a zset.
impl HoldsKey for BTreeMap<String, u64> {
    fn ask(key: &[u8]) -> Cmd {
        ask_zset(key)
    }

    fn read(value: &Value) -> Result<Self, String> {
        Ok(scores(value)?.into_iter().collect())
    }
}

/// What the keys hold, as it stands there, and when each ends (0: there is none).
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    pub(crate) holds: Holds,
    pub(crate) queue: Vec<(u64, String)>,
    pub(crate) timeouts: BTreeMap<String, String>,
    pub(crate) token: Option<u64>,
    pub(crate) gone: BTreeMap<String, u64>,
    pub(crate) notes: BTreeMap<String, Vec<u8>>,
    pub(crate) ends_ms: [u64; KEYS.len()],
}

impl Found {
    /// From the answers to [`Key::ask`] of all keys.
    pub(crate) fn read(values: &[Value], ends_ms: [u64; KEYS.len()]) -> Result<Self, String> {
        let token = (values[3] != Value::Nil).then(|| text(&values[3]));
        let token = token.map(|token| token.parse().map_err(|_| format!("token {token}")));
        Ok(Self {
            holds: Holds::read(&values[0])?,
            queue: scores(&values[1])?.into_iter().map(|(id, ticket)| (ticket, id)).collect(),
            timeouts: texts(&values[2]),
            token: token.transpose()?,
            gone: scores(&values[4])?.into_iter().collect(),
            notes: pairs(&values[5]).into_iter().map(|(id, it)| (latin(&id), it)).collect(),
            ends_ms,
        })
    }
}
