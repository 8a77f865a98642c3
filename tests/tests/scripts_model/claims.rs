//! What the clients were promised: invariants that need no model of the server.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_lua::Reply;
use leasehold_lua::mutex::AdoptReply;
use leasehold_lua::reply::{AcquireReply, CheckAnswer, CheckReply, ForceReply, RenewReply};

use super::keys::Key;
use super::pushes::Push;
use super::request::{Request, World};

#[derive(Clone, Copy, Debug)]
struct Claim {
    owner: usize,
    token: u64,
    until_ms: u64,
}

/// The holds that clients count on, by the server's clock.
#[derive(Clone, Debug, Default)]
pub(crate) struct Claims {
    live: BTreeMap<usize, Claim>,
    /// Claims that ended by time while the server kept the entry for other entries' sake. Only a clock that goes back
    /// can bring them to life again (protocol trap 28), and only in the same hold.
    ended: BTreeMap<usize, Claim>,
    went_back: bool,
    tokens: BTreeSet<u64>,
    /// The token key is lost, or was forgotten while tokens ran ahead of the clock: they may start again.
    tokens_lost: bool,
}

impl Claims {
    pub(crate) fn lost(&mut self, key: Key) {
        match key {
            Key::Holds => self.end_all(|_| true),
            Key::Token => self.tokens_lost = true,
            Key::Queue | Key::Timeouts | Key::Gone | Key::Notes => {}
        }
    }

    /// The clock shows `now_ms`. What has ended stays ended when the clock goes back: a client's own clock does not.
    pub(crate) fn at(&mut self, now_ms: u64) {
        let over = self.live.iter().filter(|(_, claim)| claim.until_ms <= now_ms);
        self.ended.extend(over);
        self.live.retain(|_, claim| claim.until_ms > now_ms);
    }

    pub(crate) fn clock_went_back(&mut self) {
        self.went_back = true;
    }

    fn end_all(&mut self, which: impl Fn(&Claim) -> bool) {
        self.live.retain(|_, claim| !which(claim));
        self.ended.retain(|_, claim| !which(claim));
    }

    fn end(&mut self, id: usize) {
        self.live.remove(&id);
        self.ended.remove(&id);
    }

    /// The token key has ended. Tokens that ran ahead of the clock (by a client's floor) are then remembered by clients
    /// alone, and these here forget.
    pub(crate) fn token_forgotten(&mut self, now_us: u64) {
        self.tokens_lost |= self.tokens.last().is_some_and(|last| *last > now_us);
    }

    /// Takes in what a request's answer and the pushes said, and checks I1, I4 and I5.
    pub(crate) fn hear(
        &mut self,
        world: &World,
        request: &Request,
        heard: (&Reply, &[(usize, Push)]),
        now_ms: u64,
        slack_ms: u64,
    ) -> Result<(), String> {
        self.at(now_ms);
        let owner = |id: usize| world.acquisitions[id].owner;
        let (reply, pushes) = heard;
        let mut granted = self.answered(world, request, reply, now_ms, slack_ms)?;
        for (_, push) in pushes {
            match push {
                Push::Granted { id, token, lease_ms } => {
                    granted.push((*id, owner(*id), *token, *lease_ms));
                }
                Push::Forced { id } | Push::Adopted { id } => self.end(*id),
                // It waited: nothing was promised.
                Push::Cancelled { .. } => {}
                Push::Refused { .. } => return Err("an exclusive lock refused a waiter".to_owned()),
            }
        }
        // Grants of one script are made in the order of their tokens.
        granted.sort_by_key(|(_, _, token, _)| *token);
        for (id, owner, token, left_ms) in granted {
            self.grant(token)?;
            self.live.insert(id, Claim { owner, token, until_ms: now_ms + left_ms });
        }
        self.one_holder()?;
        Ok(())
    }

    /// Acquisition, owner, token and remaining time of what the answer says is held.
    fn answered(
        &mut self,
        world: &World,
        request: &Request,
        reply: &Reply,
        now_ms: u64,
        slack_ms: u64,
    ) -> Result<Vec<(usize, usize, u64, u64)>, String> {
        let unreadable = |error: leasehold_lua::DecodeError| error.to_string();
        let owner = |id: usize| world.acquisitions[id].owner;
        match request {
            Request::Acquire { id, .. } => {
                match AcquireReply::decode(reply).map_err(unreadable)? {
                    AcquireReply::Taken { token, left_ms, .. } => {
                        Ok(vec![(*id, self.owner_of(token, owner(*id)), token, left_ms)])
                    }
                    AcquireReply::Queued { .. }
                    | AcquireReply::Busy { .. }
                    | AcquireReply::Saturated { .. }
                    | AcquireReply::Cancelled
                    | AcquireReply::NeverFits
                    | AcquireReply::LimitDiffers { .. }
                    | AcquireReply::TooManyEntries => {
                        self.not_destroyed(*id, now_ms, slack_ms).map(|()| vec![])
                    }
                }
            }
            Request::Check { waiting, .. } => {
                let answers = CheckReply::decode(reply).map_err(unreadable)?.answers;
                let mut taken = Vec::new();
                for ((id, _), answer) in waiting.iter().zip(answers) {
                    if let CheckAnswer::Taken { token, left_ms } = answer {
                        taken.push((*id, self.owner_of(token, owner(*id)), token, left_ms));
                    }
                }
                Ok(taken)
            }
            Request::Renew { elements } => {
                let (_, answers) = RenewReply::decode(reply).map_err(unreadable)?;
                for ((id, _), answer) in elements.iter().zip(answers) {
                    if let RenewReply::Renewed { left_ms } = answer {
                        // I4: what nobody was granted cannot be renewed; a grant to a dead inbox was taken back.
                        let revived = self.ended.get(id).filter(|_| self.went_back);
                        let claim = self.live.get(id).or(revived).copied();
                        let mut claim =
                            claim.ok_or_else(|| format!("I4: renewed {id}, not held"))?;
                        claim.until_ms = claim.until_ms.max(now_ms + left_ms);
                        self.live.insert(*id, claim);
                    } else {
                        self.not_destroyed(*id, now_ms, slack_ms)?;
                    }
                }
                Ok(vec![])
            }
            Request::Release { id, .. } => {
                self.end(*id);
                Ok(vec![])
            }
            Request::Adopt { id, owner } => {
                if let AdoptReply::Adopted { token, left_ms, .. } =
                    AdoptReply::decode(reply).map_err(unreadable)?
                {
                    // A resend of an adoption finds itself and says nothing about others.
                    if !self.live.contains_key(id) {
                        self.end_all(|claim| claim.token == token);
                    }
                    return Ok(vec![(*id, self.owner_of(token, *owner), token, left_ms)]);
                }
                Ok(vec![])
            }
            Request::Force { token, .. } => {
                if ForceReply::decode(reply).map_err(unreadable)?.ended {
                    self.end_all(|claim| claim.token == *token);
                }
                Ok(vec![])
            }
            Request::Cancel { .. } | Request::Inspect | Request::Queue { .. } => Ok(vec![]),
        }
    }

    /// The owner of a hold that is known by its token (an adopted one belongs to whom it was taken from).
    fn owner_of(&self, token: u64, otherwise: usize) -> usize {
        let known = self.live.values().find(|claim| claim.token == token);
        known.map_or(otherwise, |claim| claim.owner)
    }

    /// I8: "not held" is said of a hold only when its promised time is over.
    fn not_destroyed(&self, id: usize, now_ms: u64, slack_ms: u64) -> Result<(), String> {
        match self.live.get(&id) {
            Some(claim) if claim.until_ms > now_ms + slack_ms => {
                Err(format!("I8: {id} is not held any more, promised until {}", claim.until_ms))
            }
            Some(_) | None => Ok(()),
        }
    }

    fn grant(&mut self, token: u64) -> Result<(), String> {
        if self.tokens_lost {
            self.tokens.clear();
            self.tokens_lost = false;
        }
        let last = self.tokens.last().copied().unwrap_or(0);
        if token < last && !self.tokens.contains(&token) {
            return Err(format!("I5: token {token} granted after {last}"));
        }
        self.tokens.insert(token);
        Ok(())
    }

    fn one_holder(&self) -> Result<(), String> {
        let holders: BTreeSet<_> =
            self.live.values().map(|claim| (claim.owner, claim.token)).collect();
        if holders.len() > 1 {
            return Err(format!("I1: holders at once: {:?}", self.live));
        }
        Ok(())
    }
}
