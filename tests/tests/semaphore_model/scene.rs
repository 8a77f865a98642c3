//! The model beside the server: what a step means, and what must be the same after it.

use std::collections::BTreeMap;

use leasehold_lua::{Call, Keys};

use super::bench::Seen;
use super::claims::Claims;
use super::clients::{Clients, Ticket, past};
use super::decode;
use super::events::Event;
use super::keys::{Found, Key};
use super::pushes;
use super::reference::Reference;
use super::request::{Member, Named, Request, World};
use super::runner::{Action, Model};
use super::verdict::{differ, ends_in_time, of_the_call, same_answer, same_ends, same_marks};
use super::waiters::{Orphans, Waiters};

/// One step of a case; what it means depends on what happened before.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Acquire {
        id: usize,
        queues: bool,
        max_waiters: Option<u32>,
        limit: u32,
        strict: bool,
    },
    Check {
        waiting: Vec<(usize, Ticket)>,
        deaf: bool,
        limit: u32,
    },
    Renew {
        elements: Vec<(usize, Option<u64>)>,
    },
    Release {
        id: usize,
        late: bool,
        at_least_ms: u64,
    },
    ReleaseMany {
        elements: Vec<(Named, bool, u64)>,
    },
    SetLimit {
        limit: u32,
    },
    Split {
        old: usize,
        id: usize,
    },
    Merge {
        kept: usize,
        merged: usize,
    },
    Adopt {
        id: usize,
        owner: usize,
    },
    Force {
        member: Member,
        with_all: bool,
    },
    Inspect {
        most: u32,
    },
    Queue {
        most: u32,
    },
    /// An earlier call once more, as a lost reply or a slow network makes it.
    Resend {
        back: usize,
    },
    /// To just behind the end of the first or the last of the present permits.
    PastHold {
        last: bool,
    },
    Event(Event),
}

/// The reference model and what its clients know.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    pub(crate) reference: Reference,
    pub(crate) clients: Clients,
    history: Vec<Request>,
    claims: Claims,
    orphans: Orphans,
}

impl Scene {
    pub(crate) fn new(world: World, now_us: u64) -> Self {
        Self {
            clients: Clients::of(&world.acquisitions),
            reference: Reference::new(world, now_us),
            history: Vec::new(),
            claims: Claims::default(),
            orphans: Orphans::default(),
        }
    }

    fn meant(&self, step: &Step, now_us: u64) -> Action<Request> {
        Action::Send(match step.clone() {
            Step::Acquire { id, queues, max_waiters, limit, strict } => {
                Request::Acquire { id, queues, max_waiters, limit, strict }
            }
            Step::Check { waiting, deaf, limit } => {
                Request::Check { waiting: self.clients.bring(waiting, now_us), deaf, limit }
            }
            Step::Renew { elements } => {
                Request::Renew { elements: self.reference.world.acquisitions.leases(elements) }
            }
            Step::Release { id, late, at_least_ms } => Request::Release { id, late, at_least_ms },
            Step::ReleaseMany { elements } => Request::ReleaseMany { elements },
            Step::SetLimit { limit } => Request::SetLimit { limit },
            Step::Split { old, id } => Request::Split { old, id },
            Step::Merge { kept, merged } => Request::Merge { kept, merged },
            Step::Adopt { id, owner } => Request::Adopt { id, owner },
            Step::Force { member, with_all } => {
                let all = if with_all { self.reference.live() } else { vec![] };
                Request::Force { members: std::iter::once(member).chain(all).collect() }
            }
            Step::Inspect { most } => Request::Inspect { most },
            Step::Queue { most } => Request::Queue { most },
            Step::Resend { back } => {
                let at = self.history.len().checked_sub(back + 1);
                let earlier = at.map(|at| self.history[at].clone());
                earlier.unwrap_or(Request::Inspect { most: 3 })
            }
            Step::PastHold { last } => {
                let live = self.reference.live();
                let member = if last { live.last() } else { live.first() };
                let end = member.map_or(0, |member| self.reference.ends_at(*member));
                return past(end, now_us);
            }
            Step::Event(event) => return event.action(),
        })
    }

    /// Keeps what the clients of a request learnt from its answer.
    pub(crate) fn learn(&mut self, request: &Request) {
        self.clients.learn(request.ids(), &self.reference.waiters);
        self.history.push(request.clone());
    }

    /// What must be true of the keys after any script, whatever the model says.
    fn invariants(
        &self,
        request: &Request,
        (seen, waiters): (&Seen, &Waiters),
        settled: bool,
    ) -> Result<(), String> {
        let (found, now_ms) = (&seen.found, seen.called_us / 1_000);
        if found.token.is_some() {
            return Err("permits have no fencing token".to_owned());
        }
        let sum = self.sum_of_weights(found)?;
        let (used, limit) = (number(found, "#u"), number(found, "#l"));
        if sum != used {
            return Err(format!("#u: {used} used, the weights are {sum}: {:?}", found.holds));
        }
        let before = decode::holds(&self.reference);
        let grown = found.holds.keys().filter(|name| name.starts_with('a'));
        let fresh = grown.filter(|name| !before.contains_key(*name)).count();
        let moved = matches!(request, Request::Split { .. } | Request::Adopt { .. });
        if fresh > 0 && !moved && used > limit {
            return Err(format!("I14: {used} used after a grant, the limit is {limit}"));
        }
        if moved && used != number_in(&before, "#u") {
            return Err(format!("I14: {used} used after what only moves weights"));
        }
        let latest = found.holds.values().copied().max().unwrap_or(0);
        if found.ends_ms[0] + 3 < latest {
            return Err(format!("I17: holds end at {}, one at {latest}", found.ends_ms[0]));
        }
        let wait_ms = self.reference.world.wait_ms;
        let longest_ms = [(Key::Queue, wait_ms), (Key::Timeouts, 10_000), (Key::Gone, 60_000)];
        ends_in_time(&found.ends_ms, now_ms, &longest_ms)?;
        self.orphans.checked(waiters)?;
        match settled {
            true => self.nobody_is_forgotten(waiters, now_ms, used, limit),
            false => Ok(()),
        }
    }

    fn sum_of_weights(&self, found: &Found) -> Result<u64, String> {
        let mut sum = 0;
        for name in found.holds.keys() {
            if let Some(id) = name.strip_prefix('=') {
                if !found.holds.contains_key(id) {
                    return Err(format!("a weight without a permit: {name}"));
                }
            } else if !name.starts_with('#') {
                let changed = found.holds.get(&format!("={name}")).copied();
                sum += changed.unwrap_or(share(name));
            }
        }
        Ok(sum)
    }

    /// I21, where the script settled and did not ask to be called again: see [`Model::see`].
    fn nobody_is_forgotten(
        &self,
        waiters: &Waiters,
        now_ms: u64,
        used: u64,
        limit: u64,
    ) -> Result<(), String> {
        waiters.head_lives(now_ms)?;
        let Some(head) = waiters.head() else { return Ok(()) };
        let weight = u64::from(self.reference.world.weight(head));
        // Without a limit (its key was lost) nobody knows; the next acquire or check brings it back.
        if limit > 0 && (weight > limit || used + weight <= limit) {
            return Err(format!("I21: {head} waits, {used} of {limit} are used"));
        }
        Ok(())
    }

    /// The moment that the script read from the clock, where nothing says it but a cool-down or a grant without a message
    /// that counts from it.
    fn moment(&self, request: &Request, seen: &Seen) -> u64 {
        let guess = self.reference.after(request, seen.before_us);
        let ends = decode::holds(&guess);
        let counts_from_now = |(name, end): (&String, &u64)| {
            // Those that begin otherwise are weights, not times.
            let guessed = ends.get(name).filter(|_| !name.starts_with(['=', '#']))?;
            end.checked_sub(*guessed).filter(|later| *later > 0)
        };
        let later_ms = seen.found.holds.iter().find_map(counts_from_now);
        let at_us = later_ms.map(|ms| (seen.before_us / 1_000 + ms) * 1_000);
        at_us.filter(|at_us| *at_us <= seen.called_us).unwrap_or(seen.before_us)
    }

    fn compare(&mut self, found: &Found, waiters: &Waiters, slack_ms: u64) -> Result<(), String> {
        let reference = &self.reference;
        let orphans = self.orphans.may_be_in(waiters);
        differ("holds", &decode::holds(reference), &found.holds)?;
        differ("notes", &readable(&decode::notes(reference)), &readable(&found.notes))?;
        reference.waiters.compare(waiters, orphans)?;
        same_marks(&decode::gone(reference), &found.gone, slack_ms)?;
        let unsure = |key| match key {
            Key::Timeouts => orphans,
            Key::Holds | Key::Notes => reference.unsure_of_ends,
            Key::Queue | Key::Token | Key::Gone => false,
        };
        same_ends(&reference.ends_ms(), &found.ends_ms, slack_ms, unsure)?;
        self.align(found, waiters, orphans);
        self.orphans.seen(waiters, slack_ms);
        Ok(())
    }

    /// Takes over what was compared with a margin, so that margins do not add up; after the queue was lost alone, also
    /// the orphans that it left.
    fn align(&mut self, found: &Found, waiters: &Waiters, orphans: bool) {
        let reference = &mut self.reference;
        for (mark, until) in &mut reference.gone.of {
            *until = found.gone[&decode::mark_name(&reference.world, *mark)];
        }
        reference.holds.ends_ms = found.ends_ms[0];
        reference.gone.ends_ms = found.ends_ms[4];
        reference.notes.ends_ms = found.ends_ms[5];
        if orphans {
            reference.waiters.align(waiters);
        }
    }
}

fn number(found: &Found, name: &str) -> u64 {
    number_in(&found.holds, name)
}

fn number_in(holds: &BTreeMap<String, u64>, name: &str) -> u64 {
    holds.get(name).copied().unwrap_or(0)
}

/// The weight that an id carries.
fn share(id: &str) -> u64 {
    id.split('|').nth(2).and_then(|share| share.parse().ok()).expect("an id with a weight")
}

fn readable(notes: &BTreeMap<String, Vec<u8>>) -> BTreeMap<String, String> {
    notes.iter().map(|(name, value)| (name.clone(), value.escape_ascii().to_string())).collect()
}

impl Model for Scene {
    type Request = Request;

    fn begin(&self, now_us: u64) -> Self {
        Self::new(self.reference.world.clone(), now_us)
    }

    fn world(&self) -> String {
        format!("{:?}", self.reference.world)
    }

    fn small_bounds(&self) -> bool {
        self.reference.world.small_bounds
    }

    fn now_us(&self) -> u64 {
        self.reference.now_us
    }

    fn deadlines_ms(&self) -> Vec<u64> {
        self.reference.deadlines_ms()
    }

    fn at(&mut self, now_us: u64) {
        self.reference.at(now_us);
        self.claims.at(now_us / 1_000);
    }

    fn action(&self, step: &Step, now_us: u64) -> Action<Request> {
        self.meant(step, now_us)
    }

    fn suffer(&mut self, action: &Action<Request>) {
        match action {
            Action::Clock(ms) if *ms < 0 => self.claims.clock_went_back(),
            Action::Inbox { inbox, alive } => self.reference.inboxes.alive[*inbox] = *alive,
            Action::Lose(key) => {
                self.reference.lose(*key);
                self.claims.lost(*key);
                self.orphans.lost(*key);
            }
            Action::Clock(_) | Action::Send(_) | Action::FlushScripts => {}
        }
    }

    fn call(&self, keys: &Keys, request: &Request) -> Call {
        request.call(&self.reference.world, keys)
    }

    fn assume(&mut self, request: &Request, now_us: u64) {
        drop(self.reference.answer(request, now_us));
        self.learn(request);
    }

    fn see(&mut self, request: Option<&Request>, seen: &Seen, slack_ms: u64) -> Result<(), String> {
        let waiters = Waiters::decode(&self.reference.world.acquisitions, &seen.found)?;
        let Some((request, reply)) = request.zip(seen.reply.as_ref()) else {
            self.at(seen.before_us);
            return self.compare(&seen.found, &waiters, slack_ms);
        };
        let (pushed_us, pushed) = pushes::decode(&seen.pushes);
        let (answer, said_us) = decode::answer(request, reply)?;
        let at_us = said_us.or(pushed_us).unwrap_or_else(|| self.moment(request, seen));
        of_the_call(at_us, seen, request)?;
        self.at(at_us);
        self.invariants(
            request,
            (seen, &waiters),
            answer.again == Some(false) && settles(request),
        )?;
        let world = self.reference.world.clone();
        let told = self.reference.after(request, at_us).inboxes.told(&pushed);
        self.claims.hear(&world, request, (reply, &told), at_us / 1_000, slack_ms)?;
        self.claims.fit(&seen.found)?;
        let expected = self.reference.answer(request, at_us);
        same_answer(&expected, &answer, slack_ms, request)?;
        differ("pushes", &self.reference.inboxes.pushed(), &pushed)?;
        self.compare(&seen.found, &waiters, slack_ms)?;
        self.learn(request);
        Ok(())
    }
}

/// An inspection clears away, but grants to nobody.
fn settles(request: &Request) -> bool {
    !matches!(request, Request::Inspect { .. })
}
