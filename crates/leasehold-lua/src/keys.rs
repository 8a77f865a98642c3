//! Where things are: `<prefix>lh1:<kind>:{<name>}`, or `…:{<group>}=<name>` for a name in a group.
//!
//! `lh1` is the version of this layout. `: = { } %` are escaped in name and group, so distinct (kind, group, name) give
//! distinct keys, and the first `{…}` of a key is always the whole name or group: all keys of one object share a slot.

use std::sync::Arc;

/// Layout version; it changes with any change of keys, values or replies.
pub const LAYOUT: &str = "lh1";

/// The name of one object, before it becomes keys.
#[derive(Debug, Clone, Copy)]
pub struct ObjectName<'a> {
    /// Put in front of every key and channel; holds no braces.
    pub prefix: &'a [u8],
    /// The primitive: part of the key, so a mutex and a semaphore of one name are two objects.
    pub kind: &'a str,
    /// Objects of one group share a slot.
    pub group: Option<&'a [u8]>,
    /// Any bytes.
    pub name: &'a [u8],
}

impl ObjectName<'_> {
    /// Its first key, which the others begin with.
    fn key(&self) -> Vec<u8> {
        let mut base = self.prefix.to_vec();
        base.extend_from_slice(format!("{LAYOUT}:{}:{{", self.kind).as_bytes());
        match self.group {
            Some(group) => {
                escape(group, &mut base);
                base.extend_from_slice(b"}=");
                escape(self.name, &mut base);
            }
            None => {
                escape(self.name, &mut base);
                base.push(b'}');
            }
        }
        base
    }
}

/// The keys of one object.
#[derive(Debug, Clone)]
pub struct Keys {
    /// The holds.
    pub holds: Arc<[u8]>,
    /// Who waits, by ticket.
    pub queue: Arc<[u8]>,
    /// Until when each waiter counts as alive, and who it is.
    pub timeouts: Arc<[u8]>,
    /// The last fencing token.
    pub token: Arc<[u8]>,
    /// Acquisitions that ended while a command of theirs was under way.
    pub gone: Arc<[u8]>,
    /// Who holds, where many may.
    pub notes: Arc<[u8]>,
}

impl Keys {
    /// The keys of an object.
    pub fn new(object: ObjectName<'_>) -> Self {
        let base = object.key();
        let with = |suffix: &str| [&base, suffix.as_bytes()].concat().into();
        Self {
            holds: with(""),
            queue: with(":queue"),
            timeouts: with(":timeout"),
            token: with(":token"),
            gone: with(":gone"),
            notes: with(":notes"),
        }
    }

    /// Those of a lock that one holder has to itself, in the order of the scripts' headers.
    pub(crate) fn exclusive(&self) -> Vec<Arc<[u8]>> {
        [&self.holds, &self.queue, &self.timeouts, &self.token, &self.gone].map(Arc::clone).into()
    }

    /// All of them, in the order of the scripts' headers.
    pub(crate) fn all(&self) -> Vec<Arc<[u8]>> {
        [&self.holds, &self.queue, &self.timeouts, &self.token, &self.gone, &self.notes]
            .map(Arc::clone)
            .into()
    }

    /// Those of permits, which have no token, in the order of the scripts' headers.
    pub(crate) fn permits(&self) -> Vec<Arc<[u8]>> {
        [&self.holds, &self.queue, &self.timeouts, &self.gone, &self.notes].map(Arc::clone).into()
    }
}

/// The keys of one latch.
#[derive(Debug, Clone)]
pub struct LatchKeys {
    /// Generation and count.
    pub latch: Arc<[u8]>,
    /// Who has counted down.
    pub ids: Arc<[u8]>,
    /// Which processes wait.
    pub waiters: Arc<[u8]>,
}

impl LatchKeys {
    /// The keys of a latch.
    pub fn new(object: ObjectName<'_>) -> Self {
        let base = object.key();
        let with = |suffix: &str| [&base, suffix.as_bytes()].concat().into();
        Self { latch: with(""), ids: with(":ids"), waiters: with(":waiters") }
    }

    /// Those that say how it is, in the order of the scripts' headers.
    pub(crate) fn state(&self) -> Vec<Arc<[u8]>> {
        [&self.latch, &self.ids].map(Arc::clone).into()
    }

    /// All of them, in the order of the scripts' headers.
    pub(crate) fn all(&self) -> Vec<Arc<[u8]>> {
        [&self.latch, &self.ids, &self.waiters].map(Arc::clone).into()
    }
}

/// The channel that the pushes to one process arrive on.
pub fn inbox_channel(prefix: &[u8], id: &str) -> Vec<u8> {
    [prefix, format!("{LAYOUT}:inbox:{id}").as_bytes()].concat()
}

fn escape(raw: &[u8], out: &mut Vec<u8>) {
    for &byte in raw {
        match byte {
            b':' | b'=' | b'{' | b'}' | b'%' => {
                out.extend_from_slice(format!("%{byte:02X}").as_bytes())
            }
            plain => out.push(plain),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(group: Option<&[u8]>, name: &[u8]) -> Keys {
        Keys::new(ObjectName { prefix: b"app:", kind: "mutex", group, name })
    }

    fn hash_tag(key: &[u8]) -> &[u8] {
        let open = key.iter().position(|&b| b == b'{').expect("a tag opens");
        let close = key[open..].iter().position(|&b| b == b'}').expect("a tag closes") + open;
        &key[open + 1..close]
    }

    #[test]
    fn keys_are_as_the_readme_prints_them() {
        assert_eq!(&*keys(None, b"orders").queue, b"app:lh1:mutex:{orders}:queue");
        assert_eq!(&*keys(Some(b"shop"), b"orders").token, b"app:lh1:mutex:{shop}=orders:token");
    }

    #[test]
    fn the_keys_of_a_latch_share_a_hash_tag() {
        let object = ObjectName { prefix: b"app:", kind: "latch", group: None, name: b"{x}:y" };
        let keys = LatchKeys::new(object);
        assert_eq!(&*keys.waiters, b"app:lh1:latch:{%7Bx%7D%3Ay}:waiters");
        assert!(keys.all().iter().all(|key| hash_tag(key) == hash_tag(&keys.latch)));
    }

    #[test]
    fn names_that_look_alike_stay_apart() {
        let alike: [(Option<&[u8]>, &[u8]); 8] = [
            (None, b"a"),
            (None, b"a:queue"),
            (None, b"a}:queue"),
            (None, b"a%3Aqueue"),
            (None, b"a=b"),
            (Some(b"a"), b"b"),
            (Some(b"a}=b"), b""),
            (None, b"{a}"),
        ];
        let mut all: Vec<_> =
            alike.iter().flat_map(|(group, name)| keys(*group, name).all()).collect();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), alike.len() * 6);
    }

    #[test]
    fn the_keys_of_an_object_share_a_hash_tag() {
        for name in [&b"{}"[..], b"}{", b"}", b"\0\xff", "ключ{x}".as_bytes()] {
            let tags: Vec<_> =
                keys(None, name).all().iter().map(|key| hash_tag(key).to_vec()).collect();
            assert!(tags.iter().all(|tag| *tag == tags[0] && !tag.is_empty()), "{name:?}");
        }
        assert_eq!(hash_tag(&keys(Some(b"g"), b"a").holds), hash_tag(&keys(Some(b"g"), b"b").gone));
    }
}
