//! Slots: which key has which, and which node has which.

use leasehold_lua::Reply;

use crate::backend::address::{Node, join, split};

/// How many slots a cluster has.
const SLOTS: usize = 16_384;

/// No node has it, as far as is known.
const NOBODY: u16 = u16::MAX;

/// The slot of a key: CRC16 of its hash tag if it has one that is not empty, else of the whole.
pub(in crate::backend) fn slot_of(key: &[u8]) -> u16 {
    // 16 384 divides 65 536, so the rest fits.
    crc16(tag_of(key)) % 16_384
}

fn tag_of(key: &[u8]) -> &[u8] {
    let tagged = key.iter().position(|byte| *byte == b'{').and_then(|begin| {
        let inside = &key[begin + 1..];
        inside.iter().position(|byte| *byte == b'}').map(|end| &inside[..end])
    });
    tagged.filter(|tag| !tag.is_empty()).unwrap_or(key)
}

/// XMODEM, as the cluster specification has it.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |sum, byte| (sum << 8) ^ TABLE[usize::from((sum >> 8) ^ u16::from(*byte))])
}

const TABLE: [u16; 256] = table();

const fn table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut row = 0;
    while row < 256 {
        #[expect(clippy::cast_possible_truncation, reason = "below 256")]
        let mut sum = (row as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            sum = if sum & 0x8000 == 0 { sum << 1 } else { (sum << 1) ^ 0x1021 };
            bit += 1;
        }
        table[row] = sum;
        row += 1;
    }
    table
}

/// Which node has which slot, as somebody said last.
#[derive(Debug, Clone)]
pub(super) struct Slots {
    nodes: Vec<Node>,
    owners: Vec<u16>,
}

impl Slots {
    pub(super) fn unknown() -> Self {
        Self { nodes: Vec::new(), owners: vec![NOBODY; SLOTS] }
    }

    /// From the answer of a node to `CLUSTER SLOTS`; `None` if it is none. A node that does not know its own host is where
    /// it was asked.
    pub(super) fn read(answer: &Reply, asked: &str) -> Option<Self> {
        let Reply::List(ranges) = answer else { return None };
        let mut slots = Self::unknown();
        for range in ranges {
            let Reply::List(parts) = range else { return None };
            let [Reply::Int(first), Reply::Int(last), Reply::List(master), ..] = parts.as_slice()
            else {
                return None;
            };
            let range = usize::try_from(*first).ok()?..=usize::try_from(*last).ok()?;
            let number = slots.number(&node(master, asked)?);
            slots.owners.get_mut(range)?.fill(number);
        }
        Some(slots)
    }

    pub(super) fn owner(&self, slot: u16) -> Option<&Node> {
        self.nodes.get(usize::from(*self.owners.get(usize::from(slot))?))
    }

    pub(super) fn set_owner(&mut self, slot: u16, node: &Node) {
        let number = self.number(node);
        if let Some(owner) = self.owners.get_mut(usize::from(slot)) {
            *owner = number;
        }
    }

    /// Every node that has a slot, each once, in the order of its first.
    pub(super) fn masters(&self) -> Vec<Node> {
        let mut seen = vec![false; self.nodes.len()];
        let mut masters = Vec::with_capacity(self.nodes.len());
        for owner in &self.owners {
            let owner = usize::from(*owner);
            if let (Some(seen @ false), Some(node)) = (seen.get_mut(owner), self.nodes.get(owner)) {
                *seen = true;
                masters.push(node.clone());
            }
        }
        masters
    }

    fn number(&mut self, node: &Node) -> u16 {
        let known = self.nodes.iter().position(|known| known == node);
        let number = known.unwrap_or_else(|| {
            self.nodes.push(node.clone());
            self.nodes.len() - 1
        });
        u16::try_from(number).unwrap_or(NOBODY)
    }
}

fn node(parts: &[Reply], asked: &str) -> Option<Node> {
    let [host, Reply::Int(port), ..] = parts else { return None };
    let host = match host {
        Reply::Bytes(host) if !host.is_empty() && host != b"?" => {
            String::from_utf8(host.clone()).ok()?
        }
        Reply::Bytes(_) | Reply::Nil => split(asked)?.0.to_owned(),
        Reply::Int(_) | Reply::List(_) => return None,
    };
    Some(join(&host, u16::try_from(*port).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Reply {
        Reply::Bytes(text.into())
    }

    fn range(first: i64, last: i64, host: Reply, port: i64) -> Reply {
        let replica = Reply::List(vec![text("10.0.0.9"), Reply::Int(9), text("id")]);
        let master = Reply::List(vec![host, Reply::Int(port), text("id"), Reply::List(vec![])]);
        Reply::List(vec![Reply::Int(first), Reply::Int(last), master, replica])
    }

    /// Values of `CLUSTER KEYSLOT`.
    #[test]
    fn keys_have_the_slots_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(slot_of(b"foo"), 12_182);
        assert_eq!(slot_of(b"a{foo}b"), 12_182);
        assert_eq!(slot_of(b"{}foo"), crc16(b"{}foo") % 16_384, "an empty tag is none");
        assert_eq!(slot_of(b"{{foo}}"), crc16(b"{foo") % 16_384);
        assert_eq!(slot_of(b""), 0);
    }

    #[test]
    fn a_map_is_read_and_corrected() {
        let answer = Reply::List(vec![
            range(0, 8_191, text("10.0.0.1"), 7),
            range(8_192, 16_383, text(""), 8),
        ]);
        let mut slots = Slots::read(&answer, "10.0.0.2:1").unwrap();
        assert_eq!(&**slots.owner(0).unwrap(), "10.0.0.1:7");
        assert_eq!(&**slots.owner(16_383).unwrap(), "10.0.0.2:8");
        assert_eq!(slots.masters().len(), 2);
        let third: Node = "10.0.0.3:7".into();
        slots.set_owner(5, &third);
        assert_eq!(slots.owner(5), Some(&third));
        assert_eq!(slots.masters().len(), 3);
        assert!(Slots::unknown().owner(5).is_none());
    }

    #[test]
    fn what_is_no_map_is_none() {
        assert!(Slots::read(&Reply::Nil, "a:1").is_none());
        let beyond = Reply::List(vec![range(0, 16_384, text("10.0.0.1"), 7)]);
        assert!(Slots::read(&beyond, "a:1").is_none());
        assert!(Slots::read(&Reply::List(vec![Reply::Int(1)]), "a:1").is_none());
    }
}
