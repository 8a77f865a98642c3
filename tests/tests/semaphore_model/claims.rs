//! What the clients were told.

use leasehold_lua::Reply;
use leasehold_lua::mutex::AdoptReply;
use leasehold_lua::reply::{AcquireReply, CheckAnswer, CheckReply, RenewReply};
use leasehold_lua::semaphore::{ManyReply, MergeReply, SplitReply, adopted_weight};

use super::keys::{Found, Key};
use super::promises::Promises;
use super::pushes::Push;
use super::request::{Named, Request, World};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    weight: u32,
    pub(crate) until_ms: u64,
    owner: usize,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Claims {
    permits: Promises,
}

impl Claims {
    pub(crate) fn lost(&mut self, key: Key) {
        if key == Key::Holds {
            self.permits.end_all(|_, _| true);
        }
        // Which holds an owner has is known from their notes alone.
        self.permits.unsure |= key == Key::Notes;
    }

    pub(crate) fn at(&mut self, now_ms: u64) {
        self.permits.at(now_ms);
    }

    pub(crate) fn clock_went_back(&mut self) {
        self.permits.unsure = true;
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
                Push::Forced { id } | Push::Adopted { id } => self.permits.end(*id),
                Push::Refused { .. } => {}
                Push::Granted { .. } | Push::Cancelled { .. } => {
                    return Err(format!("nobody sends {push:?} here"));
                }
            }
        }
        self.answered(world, request, heard.0, (now_ms, slack_ms), &mut granted)?;
        for (id, left_ms) in granted {
            let until_ms = now_ms + left_ms;
            if let Some(claim) = self.permits.live.get_mut(&id) {
                claim.until_ms = claim.until_ms.max(until_ms);
                continue;
            }
            // Taken anew, or brought to life again by a clock that went back: nobody is told which.
            let before = self.permits.ended.remove(&id).filter(|_| self.permits.unsure);
            let (weight, owner) = (world.weight(id), world.acquisitions[id].owner);
            let weight = before.map_or(weight, |claim| claim.weight.min(weight));
            let owner = before.map_or(owner, |claim| claim.owner);
            self.permits.live.insert(id, Claim { weight, until_ms, owner });
        }
        Ok(())
    }

    /// I14, as clients see it: what they count on is in the sum that the server keeps.
    pub(crate) fn fit(&self, found: &Found) -> Result<(), String> {
        let sum: u32 = self.permits.live.values().map(|claim| claim.weight).sum();
        let used = found.holds.get("#u").copied().unwrap_or(0);
        match u64::from(sum) > used {
            true => Err(format!(
                "I14: clients count on {sum}, used are {used}: {:?}",
                self.permits.live
            )),
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
            Request::Acquire { id, .. } => {
                let said = AcquireReply::decode(reply).map_err(unreadable)?;
                let AcquireReply::Taken { left_ms, .. } = said else {
                    return self.permits.not_destroyed(*id, now_ms, slack_ms);
                };
                granted.push((*id, left_ms));
            }
            Request::Check { waiting, .. } => {
                let answers = CheckReply::decode(reply).map_err(unreadable)?.answers;
                for ((id, _), answer) in waiting.iter().zip(answers) {
                    match answer {
                        CheckAnswer::Taken { left_ms, .. } => granted.push((*id, left_ms)),
                        CheckAnswer::Queued { .. }
                        | CheckAnswer::Cancelled
                        | CheckAnswer::NeverFits
                        | CheckAnswer::TooManyEntries => {
                            self.permits.not_destroyed(*id, now_ms, slack_ms)?
                        }
                    }
                }
            }
            Request::Renew { elements } => {
                let (_, answers) = RenewReply::decode(reply).map_err(unreadable)?;
                for ((id, _), answer) in elements.iter().zip(answers) {
                    match answer {
                        RenewReply::Renewed { left_ms } => {
                            self.permits.renewed(*id, now_ms + left_ms)?
                        }
                        RenewReply::NotHeld { .. } | RenewReply::Refused { .. } => {
                            self.permits.not_destroyed(*id, now_ms, slack_ms)?;
                        }
                    }
                }
            }
            Request::Release { id, .. } => self.permits.end(*id),
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
            Request::Force { members } => {
                members.iter().for_each(|member| self.permits.end(member.id))
            }
            Request::SetLimit { .. } | Request::Inspect { .. } | Request::Queue { .. } => {}
        }
        Ok(())
    }

    fn end_named(&mut self, named: Named) {
        match named {
            Named::Id(id) => self.permits.end(id),
            Named::Owner(owner) => {
                self.permits
                    .ended
                    .extend(self.permits.live.iter().filter(|(_, claim)| claim.owner == owner));
                self.permits.live.retain(|_, claim| claim.owner != owner);
            }
        }
    }

    fn split(&mut self, world: &World, old: usize, id: usize, until_ms: u64) {
        if self.permits.live.contains_key(&id) {
            return;
        }
        let (weight, owner) = (world.weight(id), world.acquisitions[id].owner);
        for known in [&mut self.permits.live, &mut self.permits.ended] {
            if let Some(claim) = known.get_mut(&old) {
                claim.weight = claim.weight.saturating_sub(weight);
            }
        }
        // Split off now, or before and brought to life again.
        let before = self.permits.ended.remove(&id).filter(|_| self.permits.unsure);
        let weight = before.map_or(weight, |claim| claim.weight.min(weight));
        self.permits.live.insert(id, Claim { weight, until_ms, owner });
    }

    fn merge(&mut self, kept: usize, merged: usize, until_ms: u64) {
        let other = self.permits.live.remove(&merged);
        self.permits.ended.remove(&merged);
        if let Some(claim) = self.permits.live.get_mut(&kept) {
            claim.weight += other.map_or(0, |other| other.weight);
            claim.until_ms = claim.until_ms.max(until_ms);
        }
    }

    fn adopt(&mut self, id: usize, owner: usize, weight: u32, until_ms: u64) {
        if !self.permits.live.contains_key(&id) {
            self.end_named(Named::Owner(owner));
            self.permits.live.insert(id, Claim { weight, until_ms, owner });
        }
    }
}
