//! The model beside the server: what is compared after every step, and what must be true of the keys whatever the model
//! says.

use leasehold_lua::{Call, Keys};

use super::bench::Seen;
use super::claims::{Claims, Heard};
use super::decode;
use super::keys::Key;
use super::reference::{Member, Reference};
use super::request::{Request, Scene, Step};
use super::runner::{Action, Model};
use super::snapshot::Snapshot;

#[derive(Clone, Debug)]
pub(crate) struct ReadWrite {
    pub(crate) scene: Scene,
    claims: Claims,
    /// Queue and timeouts may differ: one of them was lost alone, or settle met its bound with the last waiter.
    orphans: bool,
    /// Notes were lost under holds that still live, or end before these.
    notes_lost: bool,
}

impl ReadWrite {
    pub(crate) fn new(scene: Scene) -> Self {
        Self { scene, claims: Claims::default(), orphans: false, notes_lost: false }
    }

    fn reference(&mut self) -> &mut Reference {
        &mut self.scene.reference
    }
}

impl Model for ReadWrite {
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
        if self.reference().last_token().is_none() {
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
                self.notes_lost |= matches!(key, Key::Notes);
            }
        }
    }

    fn call(&self, keys: &Keys, request: &Request) -> Call {
        request.call(&self.scene.reference.world, keys)
    }

    fn see(&mut self, request: Option<&Request>, seen: &Seen, slack_ms: u64) -> Result<(), String> {
        let snapshot = decode::snapshot(&self.scene.reference.world, &seen.found)?;
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
        let last_token = snapshot.token.unwrap_or(0);
        let (holds, notes, pushed) = (&snapshot.holds, &snapshot.notes, &pushes);
        let heard = Heard {
            request,
            reply,
            pushes: pushed,
            last_token,
            forgotten: self.scene.reference.last_token().is_none(),
            holds,
            notes,
            now_ms,
            slack_ms,
        };
        self.claims.hear(&self.scene.reference.world, &heard)?;
        self.invariants(&snapshot, now_ms, slack_ms)?;
        if answer.again == Some(false) && !matches!(request, Request::Force { .. }) {
            self.nobody_is_forgotten(&snapshot, now_ms)?;
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

impl ReadWrite {
    /// The moment that the script read from the clock. Where nothing says it, a token minted from the clock does, or a
    /// cool-down that counts from it.
    fn moment(&self, request: &Request, seen: &Seen, found: &Snapshot) -> u64 {
        let mut guess = self.scene.reference.clone();
        drop(guess.answer(request, seen.before_us));
        let later = found.token.zip(guess.last_token());
        let later = later.and_then(|(real, guessed)| real.checked_sub(guessed));
        let ends = guess.snapshot().holds;
        let counts_from_now = |(member, end): (&Member, &u64)| match member {
            Member::Cooling(_) => end.checked_sub(*ends.get(member)?).filter(|later| *later > 0),
            Member::Id(_) | Member::Writing => None,
        };
        let longer_ms = found.holds.iter().find_map(counts_from_now);
        let at_us = match longer_ms {
            Some(ms) => (seen.before_us / 1_000 + ms) * 1_000,
            None => seen.before_us + later.unwrap_or(0),
        };
        if at_us <= seen.called_us { at_us } else { seen.before_us }
    }

    fn invariants(&self, keys: &Snapshot, now_ms: u64, slack_ms: u64) -> Result<(), String> {
        let live = |member: &Member| keys.holds.get(member).is_some_and(|end| *end > now_ms);
        let ids: Vec<_> = keys.holds.keys().filter(|member| live(member)).copied().collect();
        let latest = ids.iter().map(|member| keys.holds[member]).max().unwrap_or(0);
        if keys.ends_ms[0] + slack_ms < latest {
            let ends_ms = keys.ends_ms[0];
            return Err(format!("I17: holds end at {ends_ms}, the latest of them at {latest}"));
        }
        self.no_stranger_beside_a_writer(keys, &ids)?;
        if !self.notes_lost {
            let holds: Vec<_> = ids.iter().filter(|member| **member != Member::Writing).collect();
            if let Some(without) = holds.iter().find(|member| !keys.notes.contains_key(member)) {
                return Err(format!("{without:?} has no note"));
            }
            let latest = holds.iter().map(|member| keys.holds[member]).max().unwrap_or(0);
            if !keys.notes.is_empty() && keys.ends_ms[5] + slack_ms < latest {
                return Err(format!("notes end at {}, holds at {latest}", keys.ends_ms[5]));
            }
        }
        self.ends_in_time(keys, now_ms + slack_ms)?;
        if !self.orphans && !keys.timeouts.keys().copied().eq(keys.waiting()) {
            return Err(format!("I10: queue {:?}, timeouts {:?}", keys.queue, keys.timeouts));
        }
        Ok(())
    }

    /// I13, as the server has it: a writer and somebody else's hold are never there together, and the mark that keeps
    /// readers out lasts as long as each writer.
    fn no_stranger_beside_a_writer(&self, keys: &Snapshot, live: &[Member]) -> Result<(), String> {
        let world = &self.scene.reference.world;
        let ids = live.iter().filter_map(|member| match member {
            Member::Id(id) => Some(*id),
            Member::Writing | Member::Cooling(_) => None,
        });
        let owner = |id: usize| keys.notes.get(&Member::Id(id)).and_then(|note| note.owner);
        let marked = keys.holds.get(&Member::Writing).copied().unwrap_or(0);
        let keeps_out = |member: &&Member| match member {
            Member::Id(id) | Member::Cooling(id) => world.writes(*id),
            Member::Writing => false,
        };
        if let Some(writer) = live.iter().filter(keeps_out).find(|one| marked < keys.holds[*one]) {
            return Err(format!("I13: {writer:?} writes, readers are kept out until {marked}"));
        }
        for writer in ids.clone().filter(|id| world.writes(*id)) {
            let stranger = ids.clone().find(|id| match (owner(writer), owner(*id)) {
                (Some(writes), Some(other)) => writes != other,
                (None, _) | (_, None) => false,
            });
            if let Some(stranger) = stranger {
                return Err(format!("I13: {writer} writes and {stranger} holds"));
            }
        }
        Ok(())
    }

    /// I17: no key lives longer than the longest thing that it may hold.
    fn ends_in_time(&self, keys: &Snapshot, now_ms: u64) -> Result<(), String> {
        let world = &self.scene.reference.world;
        let back_ms = 50 * 3_000; // all the steps back that a case can have
        let held = 40_000; // the longest lease and renewal
        let longest = [held, world.wait_ms, world.wait_ms, world.fence_ms, 60_000, held];
        for (key, longest) in longest.into_iter().enumerate() {
            if keys.ends_ms[key] > now_ms + longest + back_ms {
                return Err(format!("I17: key {key} ends at {}", keys.ends_ms[key]));
            }
        }
        Ok(())
    }

    /// I21, where the script settled and did not ask to be called again: see [`Model::see`].
    fn nobody_is_forgotten(&self, keys: &Snapshot, now_ms: u64) -> Result<(), String> {
        let Some((_, head)) = keys.queue.first() else { return Ok(()) };
        let world = &self.scene.reference.world;
        let mut live = keys.holds.iter().filter(|(_, end)| **end > now_ms);
        let fits = match world.writes(*head) {
            true => live.next().is_none(),
            false => live.all(|(member, _)| *member != Member::Writing),
        };
        if fits {
            return Err(format!("I21: {head} waits though it fits"));
        }
        match keys.timeouts.get(head) {
            Some(deadline) if *deadline > now_ms => Ok(()),
            deadline => Err(format!("I21: the head {head} is dead since {deadline:?}")),
        }
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
        // What has ended counts too: a clock that goes back brings it to life.
        // What has ended counts too: a clock that goes back brings it to life, and of two keys only the one that lasts longer.
        let mut holds = keys.holds.keys().filter(|member| **member != Member::Writing);
        let without = holds.any(|member| !keys.notes.contains_key(member));
        self.notes_lost &= without || keys.ends_ms[5] + slack_ms < keys.ends_ms[0];
        Ok(())
    }
}
