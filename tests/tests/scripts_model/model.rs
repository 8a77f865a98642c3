//! The model beside the server: what is compared after every step, and what must be true of the keys whatever the model
//! says.

use leasehold_lua::{Call, Keys};

use super::bench::Seen;
use super::claims::Claims;
use super::decode;
use super::keys::Key;
use super::reference::Reference;
use super::request::{Request, Scene, Step};
use super::runner::{Action, Model};
use super::snapshot::Snapshot;

#[derive(Clone, Debug)]
pub(crate) struct Exclusive {
    pub(crate) scene: Scene,
    claims: Claims,
    /// Queue and timeouts may differ: one of them was lost alone, or settle met its bound with the last waiter.
    orphans: bool,
}

impl Exclusive {
    pub(crate) fn new(scene: Scene) -> Self {
        Self { scene, claims: Claims::default(), orphans: false }
    }

    fn reference(&mut self) -> &mut Reference {
        &mut self.scene.reference
    }
}

impl Model for Exclusive {
    type Request = Request;

    fn begin(&self, now_us: u64) -> Self {
        Self::new(Scene::new(self.scene.reference.world.clone(), now_us))
    }

    fn world(&self) -> String {
        format!("{:?}", self.scene.reference.world)
    }

    fn small_bounds(&self) -> bool {
        self.scene.reference.world.small_bounds
    }

    fn deadlines_ms(&self) -> Vec<u64> {
        self.scene.reference.deadlines_ms()
    }

    fn at(&mut self, now_us: u64) {
        self.reference().at(now_us);
        self.claims.at(now_us / 1_000);
        if self.scene.reference.last_token().is_none() {
            self.claims.token_forgotten(now_us);
        }
    }

    fn action(&self, step: &Step, now_us: u64) -> Action<Request> {
        self.scene.action(step, now_us)
    }

    fn suffer(&mut self, action: &Action<Request>) {
        match action {
            Action::Send(_) | Action::FlushScripts => {}
            Action::Clock(ms) if *ms < 0 => self.claims.clock_went_back(),
            Action::Clock(_) => {}
            Action::Inbox { inbox, alive } => self.reference().inboxes[*inbox] = *alive,
            Action::Lose(key) => {
                self.reference().lose(*key);
                self.claims.lost(*key);
                self.orphans |= matches!(key, Key::Queue | Key::Timeouts);
            }
        }
    }

    fn call(&self, keys: &Keys, request: &Request) -> Call {
        request.call(&self.scene.reference.world, keys)
    }

    fn see(&mut self, request: Option<&Request>, seen: &Seen, slack_ms: u64) -> Result<(), String> {
        let world = &self.scene.reference.world;
        let snapshot = decode::snapshot(world, &seen.found, seen.called_us / 1_000)?;
        let Some((request, reply)) = request.zip(seen.reply.as_ref()) else {
            self.reference().at(seen.before_us);
            return self.compare(&snapshot, slack_ms);
        };
        let (answer, said_us) = decode::answer(request, reply)?;
        let (pushed_us, pushes) = decode::pushes(&seen.pushes);
        let said_us = said_us.or(pushed_us);
        let at_us = said_us.unwrap_or_else(|| self.moment(request, seen, &snapshot));
        if !(seen.before_us..=seen.called_us).contains(&at_us) {
            return Err(format!("clock: {at_us} in {request:?} is not the server's"));
        }
        let now_ms = at_us / 1_000;
        self.claims.hear(world, request, (reply, &pushes), now_ms, slack_ms)?;
        self.invariants(&snapshot, now_ms, slack_ms)?;
        if answer.again == Some(false) {
            nobody_is_forgotten(&snapshot, now_ms)?;
        }
        let expected = self.reference().answer(request, at_us);
        let mut expected_pushes = self.reference().pushes.clone();
        expected_pushes.sort();
        if !expected.agrees(&answer, slack_ms) {
            let why = format!("reply: model {expected:?}, server {answer:?} to {request:?}");
            return Err(why);
        }
        if expected_pushes != pushes {
            return Err(format!("pushes: model {expected_pushes:?}, server {pushes:?}"));
        }
        self.compare(&snapshot, slack_ms)?;
        self.scene.learn(request);
        Ok(())
    }
}

impl Exclusive {
    /// The moment that the script read from the clock. Where nothing says it, a token minted from the clock does.
    fn moment(&self, request: &Request, seen: &Seen, found: &Snapshot) -> u64 {
        let mut guess = self.scene.reference.clone();
        drop(guess.answer(request, seen.before_us));
        let later = found.token.zip(guess.last_token());
        let later = later.and_then(|(real, guessed)| real.checked_sub(guessed));
        let at_us = seen.before_us + later.unwrap_or(0);
        if at_us <= seen.called_us { at_us } else { seen.before_us }
    }

    fn invariants(&self, keys: &Snapshot, now_ms: u64, slack_ms: u64) -> Result<(), String> {
        let latest = keys.entries.values().map(|entry| entry.deadline_ms).max().unwrap_or(0);
        if keys.cooling.is_none() && keys.ends_ms[0].abs_diff(latest) > slack_ms {
            let ends_ms = keys.ends_ms[0];
            return Err(format!("I17: holds end at {ends_ms}, the latest entry at {latest}"));
        }
        self.ends_in_time(keys, now_ms + slack_ms)?;
        if !self.orphans && !keys.timeouts.keys().copied().eq(keys.waiting()) {
            return Err(format!("I10: queue {:?}, timeouts {:?}", keys.queue, keys.timeouts));
        }
        Ok(())
    }

    /// I17: no key lives longer than the longest thing that it may hold.
    fn ends_in_time(&self, keys: &Snapshot, now_ms: u64) -> Result<(), String> {
        let world = &self.scene.reference.world;
        let back_ms = 50 * 3_000; // all the steps back that a case can have
        let longest = [40_000, world.wait_ms, world.wait_ms, world.fence_ms, 60_000, 0];
        for (key, longest) in longest.into_iter().enumerate() {
            if keys.ends_ms[key] > now_ms + longest + back_ms {
                return Err(format!("I17: key {key} ends at {}", keys.ends_ms[key]));
            }
        }
        Ok(())
    }

    fn compare(&mut self, keys: &Snapshot, slack_ms: u64) -> Result<(), String> {
        let expected = self.scene.reference.snapshot();
        // Of an empty queue the last ticket may stay behind: where settle met its bound with the last waiter.
        let idle = keys.queue.is_empty() && keys.timeouts.is_empty();
        let orphans = self.orphans || idle;
        if let Some(why) = expected.difference(keys, slack_ms, orphans) {
            return Err(format!("keys: {why}"));
        }
        self.reference().align(keys, orphans);
        // Whatever was left behind may outlive the queue, until both agree again, in their ends too.
        let left_behind = idle && keys.ends_ms[2] > 0;
        let same_ids = keys.timeouts.keys().copied().eq(keys.waiting());
        let same_ends = keys.ends_ms[1].abs_diff(keys.ends_ms[2]) <= slack_ms;
        self.orphans = left_behind || (self.orphans && !(same_ids && same_ends));
        Ok(())
    }
}

/// I21, where the script settled and did not ask to be called again: see [`Model::see`].
fn nobody_is_forgotten(keys: &Snapshot, now_ms: u64) -> Result<(), String> {
    let Some((_, head)) = keys.queue.first() else { return Ok(()) };
    if keys.owner.is_none() {
        return Err(format!("I21: {head} waits for a free lock"));
    }
    match keys.timeouts.get(head) {
        Some(deadline) if *deadline > now_ms => Ok(()),
        deadline => Err(format!("I21: the head {head} is dead since {deadline:?}")),
    }
}
