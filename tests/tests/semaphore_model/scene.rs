//! The model beside the server: what a step means, and what must be the same after it.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_lua::{Call, Keys};

use super::bench::{INBOXES, Seen};
use super::claims::Claims;
use super::decode;
use super::keys::{Found, KEYS, Key};
use super::reference::Reference;
use super::request::{Member, Named, Request, World};
use super::runner::{Action, CLEAR_AFTER_MS, Model};

/// The ticket that a check brings.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ticket {
    Known,
    Tail,
    Future,
}

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
    Forward {
        ms: u64,
    },
    /// To just behind the end of the first or the last of the present permits.
    PastHold {
        last: bool,
    },
    Back {
        ms: u64,
    },
    Inbox {
        inbox: usize,
        alive: bool,
    },
    Lose {
        key: Key,
    },
    FlushScripts,
}

/// The reference model and what its clients know.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    pub(crate) reference: Reference,
    pub(crate) sent: BTreeSet<usize>,
    tickets: Vec<u64>,
    history: Vec<Request>,
    claims: Claims,
    /// Queue and timeouts may differ: one of them was lost alone, or settle met its bound with the last waiter.
    orphans: bool,
}

impl Scene {
    pub(crate) fn new(world: World, now_us: u64) -> Self {
        let tickets = vec![0; world.acquisitions.len()];
        Self {
            reference: Reference::new(world, now_us),
            sent: BTreeSet::new(),
            tickets,
            history: Vec::new(),
            claims: Claims::default(),
            orphans: false,
        }
    }

    fn request(&self, step: &Step, now_us: u64) -> Option<Request> {
        let leases = &self.reference.world.acquisitions;
        Some(match step.clone() {
            Step::Acquire { id, queues, max_waiters, limit, strict } => {
                Request::Acquire { id, queues, max_waiters, limit, strict }
            }
            Step::Check { waiting, limit } => {
                let ticket = |(id, ticket)| match ticket {
                    Ticket::Known => (id, self.tickets[id]),
                    Ticket::Tail => (id, 0),
                    Ticket::Future => (id, now_us + 60_000_000),
                };
                Request::Check { waiting: waiting.into_iter().map(ticket).collect(), limit }
            }
            Step::Renew { elements } => {
                let lease =
                    |(id, other): (usize, Option<u64>)| (id, other.unwrap_or(leases[id].lease_ms));
                Request::Renew { elements: elements.into_iter().map(lease).collect() }
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
            Step::Forward { .. }
            | Step::PastHold { .. }
            | Step::Back { .. }
            | Step::Inbox { .. }
            | Step::Lose { .. }
            | Step::FlushScripts => return None,
        })
    }

    fn what_happens(&self, step: &Step, now_us: u64) -> Action<Request> {
        match *step {
            Step::Forward { ms } => Action::Clock(ms.cast_signed()),
            Step::PastHold { last } => {
                let live = self.reference.live();
                let member = if last { live.last() } else { live.first() };
                let end = member.map_or(0, |member| self.reference.ends_at(*member));
                let ms = (end + 2 * CLEAR_AFTER_MS).saturating_sub(now_us / 1_000);
                Action::Clock(ms.cast_signed())
            }
            Step::Back { ms } => Action::Clock(-ms.cast_signed()),
            Step::Inbox { inbox, alive } => Action::Inbox { inbox: inbox % INBOXES, alive },
            Step::Lose { key } => Action::Lose(key),
            Step::FlushScripts => Action::FlushScripts,
            Step::Acquire { .. }
            | Step::Check { .. }
            | Step::Renew { .. }
            | Step::Release { .. }
            | Step::ReleaseMany { .. }
            | Step::SetLimit { .. }
            | Step::Split { .. }
            | Step::Merge { .. }
            | Step::Adopt { .. }
            | Step::Force { .. }
            | Step::Inspect { .. }
            | Step::Queue { .. }
            | Step::Resend { .. } => unreachable!("these are requests"),
        }
    }

    /// Keeps what the clients of a request learnt from its answer.
    pub(crate) fn learn(&mut self, request: &Request) {
        for id in request.ids() {
            self.sent.insert(id);
            if let Some(ticket) = self.reference.ticket(id) {
                self.tickets[id] = ticket;
            }
        }
        self.history.push(request.clone());
    }

    /// What must be true of the keys after any script, whatever the model says.
    fn invariants(&self, request: &Request, seen: &Seen, settled: bool) -> Result<(), String> {
        let (found, now_ms) = (&seen.found, seen.called_us / 1_000);
        if found.token.is_some() {
            return Err("permits have no fencing token".to_owned());
        }
        let sum = self.sum_of_weights(found)?;
        let (used, limit) = (number(found, "#u"), number(found, "#l"));
        if sum != used {
            return Err(format!("#u: {used} used, the weights are {sum}: {:?}", found.holds));
        }
        let before = decode::expected(&self.reference).holds;
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
        self.ends_in_time(found, now_ms)?;
        let waiting: BTreeSet<_> = found.queue.iter().map(|(_, id)| id).collect();
        let timed: BTreeSet<_> = found.timeouts.keys().filter(|id| *id != "#").collect();
        if !self.orphans && waiting != timed {
            return Err(format!("I10: queue {waiting:?}, timeouts {timed:?}"));
        }
        match settled {
            true => nobody_is_forgotten(found, now_ms, used, limit),
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

    /// I17: no helper key lives longer than the longest thing that it may hold.
    fn ends_in_time(&self, found: &Found, now_ms: u64) -> Result<(), String> {
        let back_ms = 50 * 3_000; // all the steps back that a case can have
        for (key, longest) in [(1, self.reference.world.wait_ms), (2, 10_000), (4, 60_000)] {
            if found.ends_ms[key] > now_ms + longest + back_ms {
                return Err(format!("I17: {:?} ends at {}", KEYS[key], found.ends_ms[key]));
            }
        }
        Ok(())
    }

    /// The moment that the script read from the clock, where nothing says it but a cool-down that counts from it.
    fn moment(&self, request: &Request, seen: &Seen) -> u64 {
        let mut guess = self.reference.clone();
        drop(guess.answer(request, seen.before_us));
        let ends = decode::expected(&guess).holds;
        let counts_from_now = |(name, end): (&String, &u64)| {
            let guessed = ends.get(name).filter(|_| name.starts_with('-'))?;
            end.checked_sub(*guessed).filter(|later| *later > 0)
        };
        let later_ms = seen.found.holds.iter().find_map(counts_from_now);
        let at_us = later_ms.map(|ms| (seen.before_us / 1_000 + ms) * 1_000);
        at_us.filter(|at_us| *at_us <= seen.called_us).unwrap_or(seen.before_us)
    }

    fn compare(&mut self, found: &Found, slack_ms: u64) -> Result<(), String> {
        let ours = decode::expected(&self.reference);
        // Of an empty queue the last ticket may stay behind: where settle met its bound with the last waiter.
        let idle = found.queue.is_empty() && found.timeouts.keys().all(|id| id == "#");
        let orphans = self.orphans || idle;
        differ("holds", &ours.holds, &found.holds)?;
        differ("notes", &readable(&ours), &readable(found))?;
        differ("queue", &ours.queue, &found.queue)?;
        let of_queue = |all: &Found| -> Vec<_> {
            all.queue.iter().map(|(_, id)| all.timeouts.get(id).cloned()).collect()
        };
        differ("deadlines of waiters", &of_queue(&ours), &of_queue(found))?;
        if !orphans {
            differ("timeouts", &ours.timeouts, &found.timeouts)?;
        }
        differ("gone", &ours.gone.keys().collect::<Vec<_>>(), &found.gone.keys().collect())?;
        for (mark, until) in &ours.gone {
            near(&format!("until of {mark}"), *until, found.gone[mark], slack_ms)?;
        }
        for (at, key) in KEYS.iter().enumerate() {
            let unsure = match key {
                Key::Timeouts => orphans,
                Key::Holds | Key::Notes => self.reference.unsure_of_ends,
                Key::Queue | Key::Token | Key::Gone => false,
            };
            if !unsure {
                let what = format!("end of {key:?}");
                near(&what, ours.ends_ms[at], found.ends_ms[at], slack_ms)?;
            }
        }
        self.align(found, orphans);
        // Whatever was left behind may outlive the queue, until both agree again, in their ends too.
        let waiting: BTreeSet<_> = found.queue.iter().map(|(_, id)| id).collect();
        let same = found.timeouts.keys().filter(|id| *id != "#").eq(waiting);
        let same_ends = found.ends_ms[1].abs_diff(found.ends_ms[2]) <= slack_ms;
        let left_behind = idle && found.ends_ms[2] > 0;
        self.orphans = left_behind || (self.orphans && !(same && same_ends));
        Ok(())
    }

    /// Takes over what was compared with a margin, so that margins do not add up; after the queue was lost alone, also
    /// the orphans that it left (they do no harm, and end with their key).
    fn align(&mut self, found: &Found, orphans: bool) {
        let reference = &mut self.reference;
        let world = reference.world.clone();
        for (mark, until) in &mut reference.gone.of {
            *until = found.gone[&decode::mark_name(&world, *mark)];
        }
        reference.holds.ends_ms = found.ends_ms[0];
        reference.gone.ends_ms = found.ends_ms[4];
        reference.notes.ends_ms = found.ends_ms[5];
        if orphans {
            let by_id = |(id, value): (&String, &String)| {
                let deadline = value.split('|').next().and_then(|ms| ms.parse().ok());
                Some((super::names::number_of(id), deadline?))
            };
            let ids = found.timeouts.iter().filter(|(id, _)| *id != "#");
            reference.timeouts.of = ids.filter_map(by_id).collect();
            reference.timeouts.ends_ms = found.ends_ms[2];
            let last = found.timeouts.get("#").and_then(|last| last.parse().ok());
            reference.last_ticket = last.unwrap_or(0);
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

/// I21, where the script settled and did not ask to be called again: see [`Model::see`].
fn nobody_is_forgotten(found: &Found, now_ms: u64, used: u64, limit: u64) -> Result<(), String> {
    let Some((_, head)) = found.queue.first() else { return Ok(()) };
    let deadline = found.timeouts.get(head).and_then(|value| value.split('|').next()?.parse().ok());
    if deadline.is_none_or(|deadline: u64| deadline <= now_ms) {
        return Err(format!("I21: the head {head} is dead since {deadline:?}"));
    }
    let weight = share(head);
    // Without a limit (its key was lost) nobody knows; the next acquire or check brings it back.
    if limit > 0 && (weight > limit || used + weight <= limit) {
        return Err(format!("I21: {head} waits, {used} of {limit} are used"));
    }
    Ok(())
}

fn readable(found: &Found) -> BTreeMap<String, String> {
    let text =
        |(name, value): (&String, &Vec<u8>)| (name.clone(), value.escape_ascii().to_string());
    found.notes.iter().map(text).collect()
}

fn differ<T: std::fmt::Debug + PartialEq>(what: &str, ours: &T, real: &T) -> Result<(), String> {
    match ours == real {
        true => Ok(()),
        false => Err(format!("{what}: model {ours:?}, server {real:?}")),
    }
}

fn near(what: &str, ours: u64, real: u64, slack_ms: u64) -> Result<(), String> {
    match ours.abs_diff(real) <= slack_ms {
        true => Ok(()),
        false => Err(format!("{what}: model {ours}, server {real}")),
    }
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

    fn deadlines_ms(&self) -> Vec<u64> {
        self.reference.deadlines_ms()
    }

    fn at(&mut self, now_us: u64) {
        self.reference.at(now_us);
        self.claims.at(now_us / 1_000);
    }

    fn action(&self, step: &Step, now_us: u64) -> Action<Request> {
        match self.request(step, now_us) {
            Some(request) => Action::Send(request),
            None => self.what_happens(step, now_us),
        }
    }

    fn suffer(&mut self, action: &Action<Request>) {
        match action {
            Action::Clock(ms) if *ms < 0 => self.claims.clock_went_back(),
            Action::Inbox { inbox, alive } => self.reference.inboxes[*inbox] = *alive,
            Action::Lose(key) => {
                self.reference.lose(*key);
                self.claims.lost(*key);
                self.orphans |= matches!(key, Key::Queue | Key::Timeouts);
            }
            Action::Clock(_) | Action::Send(_) | Action::FlushScripts => {}
        }
    }

    fn call(&self, keys: &Keys, request: &Request) -> Call {
        request.call(&self.reference.world, keys)
    }

    fn see(&mut self, request: Option<&Request>, seen: &Seen, slack_ms: u64) -> Result<(), String> {
        let Some((request, reply)) = request.zip(seen.reply.as_ref()) else {
            self.at(seen.before_us);
            return self.compare(&seen.found, slack_ms);
        };
        let (pushed_us, pushes) = decode::pushes(&seen.pushes);
        let (answer, said_us) = decode::answer(request, reply)?;
        let at_us = said_us.or(pushed_us).unwrap_or_else(|| self.moment(request, seen));
        if !(seen.before_us..=seen.called_us).contains(&at_us) {
            return Err(format!("clock: {at_us} in {request:?} is not the server's"));
        }
        self.at(at_us);
        self.invariants(request, seen, answer.again == Some(false) && settles(request))?;
        let world = self.reference.world.clone();
        self.claims.hear(&world, request, (reply, &pushes), at_us / 1_000, slack_ms)?;
        self.claims.fit(&seen.found)?;
        let done = self.reference.answer(request, at_us);
        if !done.answer.agrees(&answer, slack_ms) {
            let why = format!("reply: model {:?}, server {answer:?} to {request:?}", done.answer);
            return Err(why);
        }
        differ("pushes", &done.pushes, &pushes)?;
        self.compare(&seen.found, slack_ms)?;
        self.learn(request);
        Ok(())
    }
}

/// An inspection clears away, but grants to nobody.
fn settles(request: &Request) -> bool {
    !matches!(request, Request::Inspect { .. })
}
