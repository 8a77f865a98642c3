//! The model beside the server: what is compared after every step, and what must be true of the keys whatever the model
//! says.

use leasehold_lua::{Call, Keys};

use super::bench::Seen;
use super::claims::Claims;
use super::decode;
use super::keys::Key;
use super::pushes;
use super::reference::{Entry, Reference};
use super::request::{Request, Scene, Step};
use super::runner::{Action, Model};
use super::snapshot::Snapshot;
use super::tokens::minted_us;
use super::verdict::{differ, ends_in_time, of_the_call, same_answer};
use super::waiters::Orphans;

#[derive(Clone, Debug)]
pub(crate) struct Exclusive {
    pub(crate) scene: Scene,
    claims: Claims,
    orphans: Orphans,
}

impl Exclusive {
    pub(crate) fn new(scene: Scene) -> Self {
        Self { scene, claims: Claims::default(), orphans: Orphans::default() }
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

    fn now_us(&self) -> u64 {
        self.scene.reference.now_us
    }

    fn deadlines_ms(&self) -> Vec<u64> {
        self.scene.reference.deadlines_ms()
    }

    fn at(&mut self, now_us: u64) {
        self.reference().at(now_us);
        self.claims.at(now_us / 1_000);
        if self.scene.reference.token.of.is_none() {
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
            Action::Inbox { inbox, alive } => self.reference().inboxes.alive[*inbox] = *alive,
            Action::Lose(key) => {
                self.reference().lose(*key);
                self.claims.lost(*key);
                self.orphans.lost(*key);
            }
        }
    }

    fn call(&self, keys: &Keys, request: &Request) -> Call {
        request.call(&self.scene.reference.world, keys)
    }

    fn assume(&mut self, request: &Request, now_us: u64) {
        drop(self.reference().answer(request, now_us));
        self.scene.learn(request);
    }

    fn see(&mut self, request: Option<&Request>, seen: &Seen, slack_ms: u64) -> Result<(), String> {
        let world = &self.scene.reference.world;
        let snapshot = decode::snapshot(world, &seen.found, seen.called_us / 1_000)?;
        let Some((request, reply)) = request.zip(seen.reply.as_ref()) else {
            self.reference().at(seen.before_us);
            return self.compare(&snapshot, slack_ms);
        };
        let (answer, said_us) = decode::answer(request, reply)?;
        let (pushed_us, pushed) = pushes::decode(&seen.pushes);
        let said_us = said_us.or(pushed_us);
        let at_us = said_us.unwrap_or_else(|| self.moment(request, seen, &snapshot));
        of_the_call(at_us, seen, request)?;
        let now_ms = at_us / 1_000;
        let told = self.scene.reference.after(request, at_us).inboxes.told(&pushed);
        self.claims.hear(world, request, (reply, &told), now_ms, slack_ms)?;
        self.invariants(&snapshot, now_ms, slack_ms)?;
        if answer.again == Some(false) {
            nobody_is_forgotten(&snapshot, now_ms)?;
        }
        let expected = self.reference().answer(request, at_us);
        same_answer(&expected, &answer, slack_ms, request)?;
        differ("pushes", &self.reference().inboxes.pushed(), &pushed)?;
        self.compare(&snapshot, slack_ms)?;
        self.scene.learn(request);
        Ok(())
    }
}

impl Exclusive {
    /// The moment that the script read from the clock. Where nothing says it, a token minted from the clock does, or a
    /// grant without a message that counts from it.
    fn moment(&self, request: &Request, seen: &Seen, found: &Snapshot) -> u64 {
        let guess = self.scene.reference.after(request, seen.before_us);
        let minted_us = minted_us(found.token, guess.token.of, seen);
        let entries = guess.snapshot().entries;
        let counts_from_now = |(id, entry): (&usize, &Entry)| {
            let guessed = entries.get(id)?.deadline_ms;
            entry.deadline_ms.checked_sub(guessed).filter(|later| *later > 0)
        };
        let later_ms = found.entries.iter().find_map(counts_from_now);
        let later_us = later_ms.map(|ms| (seen.before_us / 1_000 + ms) * 1_000);
        let at_us = minted_us.or(later_us).filter(|at_us| *at_us <= seen.called_us);
        at_us.unwrap_or(seen.before_us)
    }

    fn invariants(&self, keys: &Snapshot, now_ms: u64, slack_ms: u64) -> Result<(), String> {
        let latest = keys.entries.values().map(|entry| entry.deadline_ms).max().unwrap_or(0);
        if keys.cooling.is_none() && keys.ends_ms[0].abs_diff(latest) > slack_ms {
            let ends_ms = keys.ends_ms[0];
            return Err(format!("I17: holds end at {ends_ms}, the latest entry at {latest}"));
        }
        let world = &self.scene.reference.world;
        let longest_ms = [
            (Key::Holds, 40_000),
            (Key::Queue, world.wait_ms),
            (Key::Timeouts, world.wait_ms),
            (Key::Token, world.fence_ms),
            (Key::Gone, 60_000),
            (Key::Notes, 0),
        ];
        ends_in_time(&keys.ends_ms, now_ms + slack_ms, &longest_ms)?;
        self.orphans.checked(&keys.waiters)
    }

    fn compare(&mut self, keys: &Snapshot, slack_ms: u64) -> Result<(), String> {
        let expected = self.scene.reference.snapshot();
        let orphans = self.orphans.may_be_in(&keys.waiters);
        let same = expected.compare(keys, slack_ms, orphans);
        same.map_err(|why| format!("keys: {why}"))?;
        self.reference().align(keys, orphans);
        self.orphans.seen(&keys.waiters, slack_ms);
        Ok(())
    }
}

/// I21, where the script settled and did not ask to be called again: see [`Model::see`].
fn nobody_is_forgotten(keys: &Snapshot, now_ms: u64) -> Result<(), String> {
    let Some(head) = keys.waiters.head() else { return Ok(()) };
    if keys.owner.is_none() {
        return Err(format!("I21: {head} waits for a free lock"));
    }
    keys.waiters.head_lives(now_ms)
}
