//! The model beside the server: what is compared after every step, and what must be true of the keys whatever the model
//! says.

use leasehold_lua::{Call, Keys};

use super::bench::Seen;
use super::claims::{Claims, Heard};
use super::decode;
use super::keys::Key;
use super::pushes;
use super::reference::{Member, Reference};
use super::request::{Request, Scene, Step};
use super::runner::{Action, Model};
use super::snapshot::Snapshot;
use super::tokens::minted_us;
use super::verdict::{differ, ends_in_time, of_the_call, same_answer};
use super::waiters::Orphans;

#[derive(Clone, Debug)]
pub(crate) struct ReadWrite {
    pub(crate) scene: Scene,
    claims: Claims,
    orphans: Orphans,
    /// Notes were lost under holds that still live, or end before these.
    notes_lost: bool,
}

impl ReadWrite {
    pub(crate) fn new(scene: Scene) -> Self {
        Self { scene, claims: Claims::default(), orphans: Orphans::default(), notes_lost: false }
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

    fn now_us(&self) -> u64 {
        self.scene.reference.now_us
    }

    fn deadlines_ms(&self) -> Vec<u64> {
        self.scene.reference.deadlines_ms()
    }

    fn at(&mut self, now_us: u64) {
        self.reference().at(now_us);
        self.claims.at(now_us / 1_000);
        if self.reference().token.of.is_none() {
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
                self.notes_lost |= matches!(key, Key::Notes);
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
        let snapshot = decode::snapshot(&self.scene.reference.world, &seen.found)?;
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
        let last_token = snapshot.token.unwrap_or(0);
        let told = self.scene.reference.after(request, at_us).inboxes.told(&pushed);
        let heard = Heard {
            request,
            reply,
            pushes: &told,
            last_token,
            forgotten: self.scene.reference.token.of.is_none(),
            holds: &snapshot.holds,
            notes: &snapshot.notes,
            now_ms,
            slack_ms,
        };
        self.claims.hear(&self.scene.reference.world, &heard)?;
        self.invariants(&snapshot, now_ms, slack_ms)?;
        if answer.again == Some(false) && !matches!(request, Request::Force { .. }) {
            self.nobody_is_forgotten(&snapshot, now_ms)?;
        }
        let expected = self.reference().answer(request, at_us);
        same_answer(&expected, &answer, slack_ms, request)?;
        differ("pushes", &self.reference().inboxes.pushed(), &pushed)?;
        self.compare(&snapshot, slack_ms)?;
        self.scene.learn(request);
        Ok(())
    }
}

impl ReadWrite {
    /// The moment that the script read from the clock. Where nothing says it, a token minted from the clock does, or a
    /// cool-down or a grant without a message that counts from it.
    fn moment(&self, request: &Request, seen: &Seen, found: &Snapshot) -> u64 {
        let guess = self.scene.reference.after(request, seen.before_us);
        let minted_us = minted_us(found.token, guess.token.of, seen);
        let ends = guess.snapshot().holds;
        let counts_from_now = |(member, end): (&Member, &u64)| {
            end.checked_sub(*ends.get(member)?).filter(|later| *later > 0)
        };
        let longer_ms = found.holds.iter().find_map(counts_from_now);
        let later_us = longer_ms.map(|ms| (seen.before_us / 1_000 + ms) * 1_000);
        let at_us = minted_us.or(later_us).filter(|at_us| *at_us <= seen.called_us);
        at_us.unwrap_or(seen.before_us)
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
        let world = &self.scene.reference.world;
        let held_ms = 40_000; // the longest lease and renewal
        let longest_ms = [
            (Key::Holds, held_ms),
            (Key::Queue, world.wait_ms),
            (Key::Timeouts, world.wait_ms),
            (Key::Token, world.fence_ms),
            (Key::Gone, 60_000),
            (Key::Notes, held_ms),
        ];
        ends_in_time(&keys.ends_ms, now_ms + slack_ms, &longest_ms)?;
        self.orphans.checked(&keys.waiters)
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

    /// I21, where the script settled and did not ask to be called again: see [`Model::see`].
    fn nobody_is_forgotten(&self, keys: &Snapshot, now_ms: u64) -> Result<(), String> {
        let Some(head) = keys.waiters.head() else { return Ok(()) };
        let world = &self.scene.reference.world;
        let mut live = keys.holds.iter().filter(|(_, end)| **end > now_ms);
        let fits = match world.writes(head) {
            true => live.next().is_none(),
            false => live.all(|(member, _)| *member != Member::Writing),
        };
        if fits {
            return Err(format!("I21: {head} waits though it fits"));
        }
        keys.waiters.head_lives(now_ms)
    }

    fn compare(&mut self, keys: &Snapshot, slack_ms: u64) -> Result<(), String> {
        let expected = self.scene.reference.snapshot();
        let orphans = self.orphans.may_be_in(&keys.waiters);
        let same = expected.compare(keys, slack_ms, orphans);
        same.map_err(|why| format!("keys: {why}"))?;
        self.reference().align(keys, orphans);
        self.orphans.seen(&keys.waiters, slack_ms);
        // What has ended counts too: a clock that goes back brings it to life, and of two keys only the one that lasts longer.
        let mut holds = keys.holds.keys().filter(|member| **member != Member::Writing);
        let without = holds.any(|member| !keys.notes.contains_key(member));
        self.notes_lost &= without || keys.ends_ms[5] + slack_ms < keys.ends_ms[0];
        Ok(())
    }
}
