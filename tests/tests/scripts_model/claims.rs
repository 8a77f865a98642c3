//! What the clients were promised.

use std::collections::BTreeSet;

use leasehold_lua::Reply;
use leasehold_lua::mutex::AdoptReply;
use leasehold_lua::reply::{AcquireReply, CheckAnswer, CheckReply, ForceReply, RenewReply};

use super::keys::Key;
use super::promises::Promises;
use super::pushes::Push;
use super::request::{Request, World};
use super::tokens::Given;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    owner: usize,
    token: u64,
    pub(crate) until_ms: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Claims {
    holds: Promises,
    tokens: Given,
}

impl Claims {
    pub(crate) fn lost(&mut self, key: Key) {
        match key {
            Key::Holds => self.holds.end_all(|_, _| true),
            Key::Token => self.tokens.lost(),
            Key::Queue | Key::Timeouts | Key::Gone | Key::Notes => {}
        }
    }

    pub(crate) fn at(&mut self, now_ms: u64) {
        self.holds.at(now_ms);
    }

    pub(crate) fn clock_went_back(&mut self) {
        self.holds.unsure = true;
    }

    pub(crate) fn token_forgotten(&mut self, now_us: u64) {
        self.tokens.forgotten(now_us);
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
                Push::Forced { id } | Push::Adopted { id } => self.holds.end(*id),
                // It waited: nothing was promised.
                Push::Cancelled { .. } => {}
                Push::Refused { .. } => return Err("an exclusive lock refused a waiter".to_owned()),
            }
        }
        // Grants of one script are made in the order of their tokens.
        granted.sort_by_key(|(_, _, token, _)| *token);
        for (id, owner, token, left_ms) in granted {
            self.tokens.granted(token)?;
            self.holds.live.insert(id, Claim { owner, token, until_ms: now_ms + left_ms });
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
                        self.holds.not_destroyed(*id, now_ms, slack_ms).map(|()| vec![])
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
                        self.holds.renewed(*id, now_ms + left_ms)?;
                    } else {
                        self.holds.not_destroyed(*id, now_ms, slack_ms)?;
                    }
                }
                Ok(vec![])
            }
            Request::Release { id, .. } => {
                self.holds.end(*id);
                Ok(vec![])
            }
            Request::Adopt { id, owner } => {
                if let AdoptReply::Adopted { token, left_ms, .. } =
                    AdoptReply::decode(reply).map_err(unreadable)?
                {
                    // A resend of an adoption finds itself, also where a clock that went back has brought it to life
                    // again, and says nothing about others.
                    if self.holds.claim(*id).is_none_or(|claim| claim.token != token) {
                        self.holds.end_all(|_, claim| claim.token == token);
                    }
                    return Ok(vec![(*id, self.owner_of(token, *owner), token, left_ms)]);
                }
                Ok(vec![])
            }
            Request::Force { token, .. } => {
                if ForceReply::decode(reply).map_err(unreadable)?.ended {
                    self.holds.end_all(|_, claim| claim.token == *token);
                }
                Ok(vec![])
            }
            Request::Cancel { .. } | Request::Inspect | Request::Queue { .. } => Ok(vec![]),
        }
    }

    /// The owner of a hold that is known by its token (an adopted one belongs to whom it was taken from).
    fn owner_of(&self, token: u64, otherwise: usize) -> usize {
        let known = self.holds.live.values().find(|claim| claim.token == token);
        known.map_or(otherwise, |claim| claim.owner)
    }

    fn one_holder(&self) -> Result<(), String> {
        let holders: BTreeSet<_> =
            self.holds.live.values().map(|claim| (claim.owner, claim.token)).collect();
        if holders.len() > 1 {
            return Err(format!("I1: holders at once: {:?}", self.holds.live));
        }
        Ok(())
    }
}
