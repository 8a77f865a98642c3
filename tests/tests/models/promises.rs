//! What clients count on, by the server's clock: invariants that need no model of the server.

use std::collections::BTreeMap;

use super::claims::Claim;

/// By acquisition, each a [`Claim`], which the suite says.
#[derive(Clone, Debug, Default)]
pub(crate) struct Promises {
    pub(crate) live: BTreeMap<usize, Claim>,
    /// They ended by time (while the server did not clear them away), or with their owner. Only a clock that goes back
    /// can bring them to life again (protocol trap 28).
    pub(crate) ended: BTreeMap<usize, Claim>,
    /// The clock went back, or more is lost: what was believed to have ended may be held still.
    pub(crate) unsure: bool,
}

impl Promises {
    /// The clock shows `now_ms`. What has ended stays ended when the clock goes back: a client's own clock does not.
    pub(crate) fn at(&mut self, now_ms: u64) {
        let over = self.live.iter().filter(|(_, claim)| claim.until_ms <= now_ms);
        self.ended.extend(over);
        self.live.retain(|_, claim| claim.until_ms > now_ms);
    }

    pub(crate) fn end(&mut self, id: usize) {
        self.live.remove(&id);
        self.ended.remove(&id);
    }

    pub(crate) fn end_all(&mut self, which: impl Fn(usize, &Claim) -> bool) {
        self.live.retain(|id, claim| !which(*id, claim));
        self.ended.retain(|id, claim| !which(*id, claim));
    }

    /// The claim on a hold that may be there.
    pub(crate) fn claim(&self, id: usize) -> Option<Claim> {
        let revived = self.ended.get(&id).filter(|_| self.unsure);
        self.live.get(&id).or(revived).copied()
    }

    /// I4: what nobody was granted cannot be renewed; a grant to a dead inbox was taken back.
    pub(crate) fn renewed(&mut self, id: usize, until_ms: u64) -> Result<(), String> {
        let mut claim = self.claim(id).ok_or_else(|| format!("I4: renewed {id}, not held"))?;
        claim.until_ms = claim.until_ms.max(until_ms);
        self.ended.remove(&id);
        self.live.insert(id, claim);
        Ok(())
    }

    /// I8: "not held" is said of a hold only when its promised time is over.
    pub(crate) fn not_destroyed(
        &self,
        id: usize,
        now_ms: u64,
        slack_ms: u64,
    ) -> Result<(), String> {
        match self.live.get(&id) {
            Some(claim) if claim.until_ms > now_ms + slack_ms => {
                Err(format!("I8: {id} is not held any more, promised until {}", claim.until_ms))
            }
            Some(_) | None => Ok(()),
        }
    }
}
