//! Runs cases on the server and in the model at once, and compares them after every step.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use proptest_state_machine::ReferenceStateMachine;

use super::answer::Snapshot;
use super::bench::{Bench, Seen};
use super::claims::Claims;
use super::generator::Generator;
use super::reference::Key;
use super::request::{Action, Request, Scene, Step};

/// Steps of a case.
pub(crate) const STEPS: usize = 50;
/// Between two readings of the server's clock, and between its clock and its ends of keys.
const ROUNDING_MS: u64 = 3;

/// What became of some cases.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) cases: u32,
    pub(crate) steps: usize,
    /// Cases that were left because the machine stalled across a deadline.
    pub(crate) left: u32,
}

/// A failed case.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) seed: u64,
    pub(crate) why: String,
    pub(crate) steps: String,
}

/// Runs this many cases, each from a seed of its own, up to the first that fails.
pub(crate) fn run(
    bench: &mut Bench,
    first_seed: u64,
    cases: u32,
    shrink: bool,
) -> (Tally, Option<Failure>) {
    let mut tally = Tally::default();
    for case in 0..cases {
        let seed = first_seed.wrapping_add(case.into());
        if let Some(failure) = run_case(bench, seed, shrink, &mut tally) {
            return (tally, Some(failure));
        }
    }
    (tally, None)
}

fn run_case(bench: &mut Bench, seed: u64, shrink: bool, tally: &mut Tally) -> Option<Failure> {
    let config = Config {
        cases: 1,
        failure_persistence: None,
        max_shrink_iters: if shrink { 4_000 } else { 0 },
        max_shrink_time: 60_000,
        ..Config::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let strategy = Generator::sequential_strategy(STEPS);
    tally.cases += 1;
    // The strategy's runner wants to share the test between calls that it never makes at once.
    let shared = std::cell::RefCell::new((bench, &mut *tally));
    let outcome = TestRunner::new_with_rng(config, rng).run(&strategy, |(scene, steps, seen)| {
        let (bench, tally) = &mut *shared.borrow_mut();
        let case =
            || Case::begin(bench, scene).run(&steps, seen.as_deref().filter(|_| shrink), tally);
        let verdict = catch_unwind(AssertUnwindSafe(case));
        let verdict = verdict.unwrap_or_else(|_| Err("the test itself panicked".to_owned()));
        verdict.map_err(TestCaseError::fail)
    });
    match outcome {
        Ok(()) => None,
        Err(TestError::Fail(why, (scene, steps, _))) => Some(Failure {
            seed,
            why: why.message().to_owned(),
            steps: lines(
                [&scene.reference.world as &dyn Debug]
                    .into_iter()
                    .chain(steps.iter().map(|step| step as &dyn Debug)),
            ),
        }),
        Err(TestError::Abort(why)) => panic!("seed {seed}: no case was made: {why}"),
    }
}

fn lines<'a>(all: impl Iterator<Item = &'a dyn Debug>) -> String {
    all.map(|one| format!("  {one:?}\n")).collect()
}

/// One case: the server, the model beside it, and what clients were told.
struct Case<'a> {
    bench: &'a mut Bench,
    scene: Scene,
    claims: Claims,
    /// Queue and timeouts may differ: one of them was lost alone, or settle met its bound with the last waiter.
    orphans: bool,
    /// The longest call so far: what was aligned with the server then is known no better.
    longest_ms: u64,
}

/// The machine stalled across a deadline: what is right now depends on when exactly a script ran.
#[derive(Debug)]
enum Stop {
    Stalled,
    Wrong(String),
}

impl From<String> for Stop {
    fn from(why: String) -> Self {
        Self::Wrong(why)
    }
}

impl<'a> Case<'a> {
    fn begin(bench: &'a mut Bench, generated: Scene) -> Self {
        let world = generated.reference.world;
        bench.begin(&world);
        let scene = Scene::new(world, bench.now_us());
        Self { bench, scene, claims: Claims::default(), orphans: false, longest_ms: 0 }
    }

    fn run(
        &mut self,
        steps: &[Step],
        seen: Option<&AtomicUsize>,
        tally: &mut Tally,
    ) -> Result<(), String> {
        for (index, step) in steps.iter().enumerate() {
            if let Some(seen) = seen {
                seen.fetch_add(1, Ordering::SeqCst);
            }
            tally.steps += 1;
            match self.step(step) {
                Ok(()) => {}
                Err(Stop::Stalled) => {
                    tally.left += 1;
                    return Ok(());
                }
                Err(Stop::Wrong(why)) => return Err(format!("{why} [step {index}: {step:?}]")),
            }
        }
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<(), Stop> {
        let now_us = self.clear_clock();
        self.scene.reference.at(now_us);
        self.claims.at(now_us / 1_000);
        if self.scene.reference.snapshot().token.is_none() {
            self.claims.token_forgotten(now_us);
        }
        match self.scene.action(step, now_us) {
            Action::Send(request) => return self.send(&request),
            Action::Clock(ms) => {
                self.bench.shift_clock(ms);
                let now_us = self.clear_clock();
                self.claims.at(now_us / 1_000);
                if ms < 0 {
                    self.claims.clock_went_back();
                }
            }
            Action::Inbox { inbox, alive } => {
                self.bench.set_inbox(inbox, alive);
                self.scene.reference.inboxes[inbox] = alive;
            }
            Action::Lose(key) => {
                self.bench.lose(key);
                self.scene.reference.lose(key);
                self.claims.lost(key);
                self.orphans |= matches!(key, Key::Queue | Key::Timeouts);
            }
            Action::FlushScripts => self.bench.flush_scripts(),
        }
        let seen = self.bench.send(&self.scene.reference.world, None)?;
        self.stalled(&seen)?;
        self.scene.reference.at(seen.before_us);
        self.compare(&seen)
    }

    /// Moves the clock on until nothing ends by itself within the next call.
    fn clear_clock(&mut self) -> u64 {
        let now_us = self.bench.now_us();
        let ms = self.scene.clearance_ms(now_us / 1_000);
        if ms == 0 {
            return now_us;
        }
        self.bench.shift_clock(ms.cast_signed());
        self.bench.now_us()
    }

    fn stalled(&self, seen: &Seen) -> Result<(), Stop> {
        let around = seen.before_us / 1_000 - ROUNDING_MS..seen.probed_us / 1_000 + ROUNDING_MS;
        match self.scene.reference.deadlines_ms().iter().any(|one| around.contains(one)) {
            true => Err(Stop::Stalled),
            false => Ok(()),
        }
    }

    fn send(&mut self, request: &Request) -> Result<(), Stop> {
        let world = self.scene.reference.world.clone();
        let seen = self.bench.send(&world, Some(request))?;
        self.stalled(&seen)?;
        let at_us = self.moment(request, &seen);
        if !(seen.before_us..=seen.called_us).contains(&at_us) {
            return Err(format!("clock: {at_us} in {request:?} is not the server's").into());
        }
        let slack_ms = slack_ms(&seen);
        self.claims.hear(&world, request, &seen, at_us, slack_ms)?;
        self.invariants(&seen)?;
        let expected = self.scene.reference.answer(request, at_us);
        let mut pushes = self.scene.reference.pushes.clone();
        pushes.sort();
        if let Some((answer, _)) = &seen.answer
            && !expected.agrees(answer, slack_ms)
        {
            let why = format!("reply: model {expected:?}, server {answer:?} to {request:?}");
            return Err(why.into());
        }
        if pushes != seen.pushes {
            return Err(format!("pushes: model {pushes:?}, server {:?}", seen.pushes).into());
        }
        self.compare(&seen)?;
        self.scene.learn(request);
        Ok(())
    }

    /// The moment that the script read from the clock. Where nothing says it, a token minted from the clock does.
    fn moment(&self, request: &Request, seen: &Seen) -> u64 {
        if let Some(said) = seen.at_us {
            return said;
        }
        let mut guess = self.scene.reference.clone();
        drop(guess.answer(request, seen.before_us));
        let (guessed, real) = (guess.snapshot().token, seen.snapshot.token);
        let later = real.zip(guessed).and_then(|(real, guessed)| real.checked_sub(guessed));
        let at_us = seen.before_us + later.unwrap_or(0);
        if at_us <= seen.called_us { at_us } else { seen.before_us }
    }

    /// What must be true of the keys after any script, whatever the model says.
    fn invariants(&self, seen: &Seen) -> Result<(), String> {
        let (keys, now_ms) = (&seen.snapshot, seen.called_us / 1_000);
        if !seen.all_end || seen.strangers > 0 {
            return Err(format!("I17: a key without end, or {} strangers", seen.strangers));
        }
        let slack_ms = slack_ms(seen);
        let latest = keys.entries.values().map(|entry| entry.deadline_ms).max().unwrap_or(0);
        if keys.cooling.is_none() && keys.ends_ms[0].abs_diff(latest) > slack_ms {
            let ends_ms = keys.ends_ms[0];
            return Err(format!("I17: holds end at {ends_ms}, the latest entry at {latest}"));
        }
        self.ends_in_time(keys, now_ms + slack_ms)?;
        let ids: Vec<_> = keys.timeouts.keys().copied().collect();
        if !self.orphans && ids != sorted_ids(keys) {
            return Err(format!("I10: queue {:?}, timeouts {:?}", keys.queue, keys.timeouts));
        }
        self.nobody_is_forgotten(seen, now_ms)
    }

    /// I17: no key lives longer than the longest thing that it may hold.
    fn ends_in_time(&self, keys: &Snapshot, now_ms: u64) -> Result<(), String> {
        let world = &self.scene.reference.world;
        let back_ms = 50 * 3_000; // all the steps back that a case can have
        let longest = [u64::MAX, world.wait_ms, world.wait_ms, world.fence_ms, 60_000];
        for (key, longest) in longest.into_iter().enumerate().skip(1) {
            if keys.ends_ms[key] > now_ms + longest + back_ms {
                return Err(format!("I17: key {key} ends at {}", keys.ends_ms[key]));
            }
        }
        Ok(())
    }

    /// I21, where the script settled and did not ask to be called again.
    fn nobody_is_forgotten(&self, seen: &Seen, now_ms: u64) -> Result<(), String> {
        let keys = &seen.snapshot;
        let settled = seen.answer.as_ref().is_some_and(|(answer, _)| answer.again == Some(false));
        let Some((_, head)) = keys.queue.first().filter(|_| settled) else { return Ok(()) };
        if keys.owner.is_none() {
            return Err(format!("I21: {head} waits for a free lock"));
        }
        match keys.timeouts.get(head) {
            Some(deadline) if *deadline > now_ms => Ok(()),
            deadline => Err(format!("I21: the head {head} is dead since {deadline:?}")),
        }
    }

    fn compare(&mut self, seen: &Seen) -> Result<(), Stop> {
        let expected = self.scene.reference.snapshot();
        // Of an empty queue the last ticket may stay behind: where settle met its bound with the last waiter.
        let idle = seen.snapshot.queue.is_empty() && seen.snapshot.timeouts.is_empty();
        let orphans = self.orphans || idle;
        let slack_ms = slack_ms(seen) + self.longest_ms;
        self.longest_ms = self.longest_ms.max(duration_ms(seen));
        if let Some(why) = expected.difference(&seen.snapshot, slack_ms, orphans) {
            return Err(format!("keys: {why}").into());
        }
        self.scene.reference.align(&seen.snapshot, orphans);
        // Whatever was left behind may outlive the queue, until both agree again, in their ends too.
        let keys = &seen.snapshot;
        let left_behind = idle && keys.ends_ms[2] > 0;
        let same_ids = keys.timeouts.keys().copied().eq(sorted_ids(keys));
        let same_ends = keys.ends_ms[1].abs_diff(keys.ends_ms[2]) <= slack_ms;
        self.orphans = left_behind || (self.orphans && !(same_ids && same_ends));
        Ok(())
    }
}

/// How far apart two readings of one moment may be.
fn slack_ms(seen: &Seen) -> u64 {
    duration_ms(seen) + ROUNDING_MS
}

fn duration_ms(seen: &Seen) -> u64 {
    (seen.probed_us - seen.before_us) / 1_000
}

fn sorted_ids(keys: &Snapshot) -> Vec<usize> {
    let mut ids: Vec<_> = keys.queue.iter().map(|(_, id)| *id).collect();
    ids.sort_unstable();
    ids
}
