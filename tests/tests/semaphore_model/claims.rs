//! What the clients were told: invariants that need no model of the server.

use std::collections::BTreeMap;

use leasehold_lua::Reply;
use leasehold_lua::mutex::AdoptReply;
use leasehold_lua::reply::{AcquireReply, CheckAnswer, CheckReply, RenewReply};
use leasehold_lua::semaphore::{ManyReply, MergeReply, SplitReply, adopted_weight};

use super::keys::{Found, Key};
use super::pushes::Push;
use super::request::{Named, Request, World};

#[derive(Clone, Copy, Debug)]
struct Claim {
    weight: u32,
    until_ms: u64,
    owner: usize,
}

/// The permits that clients count on, by the server's clock.
#[derive(Clone, Debug, Default)]
pub(crate) struct Claims {
    live: BTreeMap<usize, Claim>,
    /// They ended by time, or with their owner; only a clock that goes back can bring them to life again (protocol trap
    /// 28).
    ended: BTreeMap<usize, Claim>,
    /// The clock went back, or notes were lost: what was believed to have ended may be held still.
    unsure: bool,
}

impl Claims {
    pub(crate) fn lost(&mut self, key: Key) {
        if key == Key::Holds {
            self.live.clear();
            self.ended.clear();
        }
        // Which holds an owner has is known from their notes alone.
        self.unsure |= key == Key::Notes;
    }

    /// The clock shows `now_ms`. What has ended stays ended when the clock goes back: a client's own clock does not.
    pub(crate) fn at(&mut self, now_ms: u64) {
        let over = self.live.iter().filter(|(_, claim)| claim.until_ms <= now_ms);
        self.ended.extend(over);
        self.live.retain(|_, claim| claim.until_ms > now_ms);
    }

    pub(crate) fn clock_went_back(&mut self) {
        self.unsure = true;
    }

    fn end(&mut self, id: usize) {
        self.live.remove(&id);
        self.ended.remove(&id);
    }

    /// Takes in what the pushes and the answer said, and checks I4 and I8.
    pub(crate) fn hear(
        &mut self,
        world: &World,
        request: &Request,
        heard: (&Reply, &[(usize, Push)]),
        now_ms: u64,
        slack_ms: u64,
    ) -> Result<(), String> {
        self.at(now_ms);
        let mut granted = Vec::new();
        for (_, push) in heard.1 {
            match push {
                Push::Granted { id, token: 0, lease_ms } => granted.push((*id, *lease_ms)),
                Push::Forced { id } | Push::Adopted { id } => self.end(*id),
                Push::Refused { .. } => {}
                Push::Granted { .. } | Push::Cancelled { .. } => {
                    return Err(format!("nobody sends {push:?} here"));
                }
            }
        }
        self.answered(world, request, heard.0, (now_ms, slack_ms), &mut granted)?;
        for (id, left_ms) in granted {
            let until_ms = now_ms + left_ms;
            if let Some(claim) = self.live.get_mut(&id) {
                claim.until_ms = claim.until_ms.max(until_ms);
                continue;
            }
            // Taken anew, or brought to life again by a clock that went back: nobody is told which.
            let before = self.ended.remove(&id).filter(|_| self.unsure);
            let (weight, owner) = (world.weight(id), world.acquisitions[id].owner);
            let weight = before.map_or(weight, |claim| claim.weight.min(weight));
            let owner = before.map_or(owner, |claim| claim.owner);
            self.live.insert(id, Claim { weight, until_ms, owner });
        }
        Ok(())
    }

    /// I14, as clients see it: what they count on is in the sum that the server keeps.
    pub(crate) fn fit(&self, found: &Found) -> Result<(), String> {
        let sum: u32 = self.live.values().map(|claim| claim.weight).sum();
        let used = found.holds.get("#u").copied().unwrap_or(0);
        match u64::from(sum) > used {
            true => Err(format!("I14: clients count on {sum}, used are {used}: {:?}", self.live)),
            false => Ok(()),
        }
    }

    fn answered(
        &mut self,
        world: &World,
        request: &Request,
        reply: &Reply,
        (now_ms, slack_ms): (u64, u64),
        granted: &mut Vec<(usize, u64)>,
    ) -> Result<(), String> {
        let unreadable = |error: leasehold_lua::DecodeError| error.to_string();
        match request {
            Request::Acquire { id, .. } => match AcquireReply::decode(reply).map_err(unreadable)? {
                AcquireReply::Taken { left_ms, .. } => granted.push((*id, left_ms)),
                AcquireReply::Queued { .. }
                | AcquireReply::Busy { .. }
                | AcquireReply::Saturated { .. }
                | AcquireReply::Cancelled
                | AcquireReply::NeverFits
                | AcquireReply::LimitDiffers { .. }
                | AcquireReply::TooManyEntries => self.not_destroyed(*id, now_ms, slack_ms)?,
            },
            Request::Check { waiting, .. } => {
                let answers = CheckReply::decode(reply).map_err(unreadable)?.answers;
                for ((id, _), answer) in waiting.iter().zip(answers) {
                    match answer {
                        CheckAnswer::Taken { left_ms, .. } => granted.push((*id, left_ms)),
                        CheckAnswer::Queued { .. }
                        | CheckAnswer::Cancelled
                        | CheckAnswer::NeverFits
                        | CheckAnswer::TooManyEntries => {
                            self.not_destroyed(*id, now_ms, slack_ms)?
                        }
                    }
                }
            }
            Request::Renew { elements } => {
                let (_, answers) = RenewReply::decode(reply).map_err(unreadable)?;
                for ((id, _), answer) in elements.iter().zip(answers) {
                    match answer {
                        RenewReply::Renewed { left_ms } => self.renewed(*id, now_ms + left_ms)?,
                        RenewReply::NotHeld { .. } | RenewReply::Refused { .. } => {
                            self.not_destroyed(*id, now_ms, slack_ms)?;
                        }
                    }
                }
            }
            Request::Release { id, .. } => self.end(*id),
            Request::ReleaseMany { elements } => {
                let answers = ManyReply::decode(reply).map_err(unreadable)?.answers;
                let ended = elements.iter().zip(answers).filter(|(_, answer)| answer.is_ok());
                ended.for_each(|((named, ..), _)| self.end_named(*named));
            }
            Request::Split { old, id } => {
                let said = SplitReply::decode(reply).map_err(unreadable)?;
                if let SplitReply::Split { left_ms } = said {
                    self.split(world, *old, *id, now_ms + left_ms);
                }
            }
            Request::Merge { kept, merged } => {
                let said = MergeReply::decode(reply).map_err(unreadable)?;
                if let MergeReply::Merged { left_ms, .. } = said {
                    self.merge(*kept, *merged, now_ms + left_ms);
                }
            }
            Request::Adopt { id, owner } => {
                let said = AdoptReply::decode(reply).map_err(unreadable)?;
                if let AdoptReply::Adopted { left_ms, .. } = said {
                    let weight = adopted_weight(reply).ok_or("no weight")?;
                    self.adopt(*id, *owner, weight, now_ms + left_ms);
                }
            }
            // A hold and its cool-down are one, whichever was named.
            Request::Force { members } => members.iter().for_each(|member| self.end(member.id)),
            Request::SetLimit { .. } | Request::Inspect { .. } | Request::Queue { .. } => {}
        }
        Ok(())
    }

    /// I4: what nobody was granted cannot be renewed; a grant to a dead inbox was taken back.
    fn renewed(&mut self, id: usize, until_ms: u64) -> Result<(), String> {
        let revived = self.ended.get(&id).filter(|_| self.unsure);
        let claim = self.live.get(&id).or(revived).copied();
        let claim = claim.ok_or_else(|| format!("I4: renewed {id}, not held"))?;
        let until_ms = claim.until_ms.max(until_ms);
        self.ended.remove(&id);
        self.live.insert(id, Claim { until_ms, ..claim });
        Ok(())
    }

    fn end_named(&mut self, named: Named) {
        match named {
            Named::Id(id) => self.end(id),
            Named::Owner(owner) => {
                self.ended.extend(self.live.iter().filter(|(_, claim)| claim.owner == owner));
                self.live.retain(|_, claim| claim.owner != owner);
            }
        }
    }

    fn split(&mut self, world: &World, old: usize, id: usize, until_ms: u64) {
        if self.live.contains_key(&id) {
            return;
        }
        let (weight, owner) = (world.weight(id), world.acquisitions[id].owner);
        for known in [&mut self.live, &mut self.ended] {
            if let Some(claim) = known.get_mut(&old) {
                claim.weight = claim.weight.saturating_sub(weight);
            }
        }
        // Split off now, or before and brought to life again.
        let before = self.ended.remove(&id).filter(|_| self.unsure);
        let weight = before.map_or(weight, |claim| claim.weight.min(weight));
        self.live.insert(id, Claim { weight, until_ms, owner });
    }

    fn merge(&mut self, kept: usize, merged: usize, until_ms: u64) {
        let other = self.live.remove(&merged);
        self.ended.remove(&merged);
        if let Some(claim) = self.live.get_mut(&kept) {
            claim.weight += other.map_or(0, |other| other.weight);
            claim.until_ms = claim.until_ms.max(until_ms);
        }
    }

    fn adopt(&mut self, id: usize, owner: usize, weight: u32, until_ms: u64) {
        if !self.live.contains_key(&id) {
            self.end_named(Named::Owner(owner));
            self.live.insert(id, Claim { weight, until_ms, owner });
        }
    }

    /// I8: "not held" is said of a permit only when its promised time is over.
    fn not_destroyed(&self, id: usize, now_ms: u64, slack_ms: u64) -> Result<(), String> {
        match self.live.get(&id) {
            Some(claim) if claim.until_ms > now_ms + slack_ms => {
                Err(format!("I8: {id} is not held any more, promised until {}", claim.until_ms))
            }
            Some(_) | None => Ok(()),
        }
    }
}
