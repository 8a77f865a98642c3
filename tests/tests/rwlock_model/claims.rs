//! What the clients were promised.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_lua::Reply;
use leasehold_lua::mutex::AdoptReply;
use leasehold_lua::reply::{AcquireReply, CheckAnswer, CheckReply, ExchangeReply, RenewReply};

use super::keys::Key;
use super::promises::Promises;
use super::pushes::Push;
use super::reference::{Member, Note};
use super::request::{Request, World};
use super::tokens::Given;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    owner: usize,
    writes: bool,
    token: u64,
    pub(crate) until_ms: u64,
}

/// A hold that an answer or a push tells of.
#[derive(Clone, Copy, Debug)]
struct Grant {
    id: usize,
    /// As the server noted it.
    owner: Option<usize>,
    token: u64,
    left_ms: u64,
    /// Of an adoption: a hold that it replaces had this token.
    inherited: bool,
}

/// What is there to hear, and when it was said.
pub(crate) struct Heard<'a> {
    pub(crate) request: &'a Request,
    pub(crate) reply: &'a Reply,
    pub(crate) pushes: &'a [(usize, Push)],
    /// The last token after it, as the server has it.
    pub(crate) last_token: u64,
    /// Before it the server had none: whoever is granted before a writer is has nothing to be given.
    pub(crate) forgotten: bool,
    /// Which holds there are, and what the server noted of each.
    pub(crate) holds: &'a BTreeMap<Member, u64>,
    pub(crate) notes: &'a BTreeMap<Member, Note>,
    pub(crate) now_ms: u64,
    pub(crate) slack_ms: u64,
}

impl Heard<'_> {
    /// An exchanged or adopted hold is another's than its acquisition would be.
    fn granted(&self, id: usize, token: u64, left_ms: u64) -> Grant {
        let owner = self.notes.get(&Member::Id(id)).and_then(|note| note.owner);
        Grant { id, owner, token, left_ms, inherited: false }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Claims {
    holds: Promises,
    /// Those of writers.
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

    /// Takes in what a request's answer and the pushes said, and checks I13, I4, I5 and I8.
    pub(crate) fn hear(&mut self, world: &World, heard: &Heard<'_>) -> Result<(), String> {
        self.at(heard.now_ms);
        let mut granted = self.answered(world, heard)?;
        for (_, push) in heard.pushes {
            match push {
                Push::Granted { id, token, lease_ms } => {
                    granted.push(heard.granted(*id, *token, *lease_ms));
                }
                Push::Forced { .. } => {}
                Push::Adopted { id } => self.holds.end(*id),
                Push::Cancelled { .. } | Push::Refused { .. } => {
                    return Err(format!("nobody sends {push:?} here"));
                }
            }
        }
        // Grants of one script are made in the order of their tokens.
        granted.sort_by_key(|grant| grant.token);
        for grant in granted {
            let Grant { id, owner, token, left_ms, .. } = grant;
            let writes = world.writes(id);
            let known = self.holds.claim(id).map(|claim| claim.owner);
            let owner = owner.or(known).unwrap_or(world.acquisitions[id].owner);
            self.token(&grant, writes, heard)?;
            let until_ms = heard.now_ms + left_ms;
            self.holds.live.insert(id, Claim { owner, writes, token, until_ms });
        }
        self.no_stranger_beside_a_writer()
    }

    fn answered(&mut self, world: &World, heard: &Heard<'_>) -> Result<Vec<Grant>, String> {
        let unreadable = |error: leasehold_lua::DecodeError| error.to_string();
        let reply = heard.reply;
        match heard.request {
            Request::Acquire { id, .. } => {
                let said = AcquireReply::decode(reply).map_err(unreadable)?;
                let AcquireReply::Taken { token, left_ms, .. } = said else {
                    return self.not_destroyed(*id, heard).map(|()| vec![]);
                };
                Ok(vec![heard.granted(*id, token, left_ms)])
            }
            Request::Check { waiting, .. } => {
                let answers = CheckReply::decode(reply).map_err(unreadable)?.answers;
                let mut granted = vec![];
                for ((id, _), answer) in waiting.iter().zip(answers) {
                    match answer {
                        CheckAnswer::Taken { token, left_ms } => {
                            granted.push(heard.granted(*id, token, left_ms));
                        }
                        CheckAnswer::Queued { .. }
                        | CheckAnswer::Cancelled
                        | CheckAnswer::NeverFits
                        | CheckAnswer::TooManyEntries => self.not_destroyed(*id, heard)?,
                    }
                }
                Ok(granted)
            }
            Request::Renew { elements } => {
                let (_, answers) = RenewReply::decode(reply).map_err(unreadable)?;
                for ((id, _), answer) in elements.iter().zip(answers) {
                    self.renewed(*id, &answer, heard)?;
                }
                Ok(vec![])
            }
            Request::Release { id, .. } => {
                self.holds.end(*id);
                Ok(vec![])
            }
            Request::Exchange { old, id, .. } => self.exchanged(*old, *id, heard),
            Request::Adopt { id, owner, .. } => self.adopted(world, *id, *owner, heard),
            Request::Force { members, .. } => {
                for member in members {
                    // A hold and its cool-down are one, whichever was named.
                    if let Member::Id(id) | Member::Cooling(id) = member {
                        self.holds.end(*id);
                    }
                }
                Ok(vec![])
            }
            Request::Inspect | Request::Queue { .. } => Ok(vec![]),
        }
    }

    fn exchanged(
        &mut self,
        old: usize,
        id: usize,
        heard: &Heard<'_>,
    ) -> Result<Vec<Grant>, String> {
        let said = ExchangeReply::decode(heard.reply).map_err(|error| error.to_string())?;
        match said {
            ExchangeReply::Done { token, left_ms, .. } => {
                // A resend finds itself and says nothing about the old one.
                if !self.holds.live.contains_key(&id) {
                    self.holds.end(old);
                }
                Ok(vec![heard.granted(id, token, left_ms)])
            }
            ExchangeReply::NotHeld { .. } => self.not_destroyed(old, heard).map(|()| vec![]),
            ExchangeReply::Refused { .. } | ExchangeReply::Cancelled => Ok(vec![]),
        }
    }

    fn adopted(
        &mut self,
        world: &World,
        id: usize,
        owner: usize,
        heard: &Heard<'_>,
    ) -> Result<Vec<Grant>, String> {
        let said = AdoptReply::decode(heard.reply).map_err(|error| error.to_string())?;
        let AdoptReply::Adopted { token, left_ms, .. } = said else { return Ok(vec![]) };
        let mut adopted = heard.granted(id, token, left_ms);
        // A resend of an adoption finds itself and says nothing about others.
        if !self.holds.live.contains_key(&id) {
            let side = world.writes(id);
            // Where the notes were lost, some of them may stand beside the adopted one.
            let taken = |id: usize, claim: &Claim| {
                let stays = heard.holds.contains_key(&Member::Id(id));
                claim.owner == owner && claim.writes == side && !stays
            };
            adopted.inherited =
                self.holds.live.iter().any(|(id, claim)| taken(*id, claim) && claim.token == token);
            self.holds.end_all(taken);
        }
        Ok(vec![adopted])
    }

    fn renewed(&mut self, id: usize, answer: &RenewReply, heard: &Heard<'_>) -> Result<(), String> {
        let RenewReply::Renewed { left_ms } = answer else { return self.not_destroyed(id, heard) };
        self.holds.renewed(id, heard.now_ms + left_ms)
    }

    fn not_destroyed(&self, id: usize, heard: &Heard<'_>) -> Result<(), String> {
        self.holds.not_destroyed(id, heard.now_ms, heard.slack_ms)
    }

    /// I5: writers' tokens increase; a reader is given the last of them.
    fn token(&mut self, grant: &Grant, writes: bool, heard: &Heard<'_>) -> Result<(), String> {
        let Grant { id, token, .. } = *grant;
        let last = self.tokens.last();
        let known = self.holds.claim(id).map(|claim| claim.token);
        if !writes {
            // Where the server has forgotten the last token it can only say what it noted; a noted one may be larger than
            // what it began with again.
            let (first, server) = (known.is_none(), heard.last_token);
            let forgotten = heard.forgotten || server == 0;
            let noted = grant.inherited || known == Some(token);
            let wrong = token > server && !noted || first && token < last;
            return match wrong && !forgotten {
                true => Err(format!("I5: a reader with token {token} after {last}")),
                false => Ok(()),
            };
        }
        self.tokens.granted(token)
    }

    /// I13.
    fn no_stranger_beside_a_writer(&self) -> Result<(), String> {
        let owners: BTreeSet<_> = self.holds.live.values().map(|claim| claim.owner).collect();
        if self.holds.live.values().any(|claim| claim.writes) && owners.len() > 1 {
            return Err(format!("I13: holders at once: {:?}", self.holds.live));
        }
        Ok(())
    }
}
