//! Runs cases on the server and in a model at once; the model compares after every step.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use leasehold_lua::{Call, Keys};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use proptest_state_machine::ReferenceStateMachine;

use super::bench::{Bench, Change, Key, Seen};

/// Steps of a case.
pub(crate) const STEPS: usize = 50;
/// Between two readings of the server's clock, and between its clock and its ends of keys.
const ROUNDING_MS: u64 = 3;
/// No request runs so shortly before a deadline: more than a call takes on a loaded machine.
const CLEAR_BEFORE_MS: u64 = 300;
/// No request runs so shortly after one: the server's own clock of expiry may be a little behind.
pub(crate) const CLEAR_AFTER_MS: u64 = 10;

/// What a step is, once it is known what happened before.
#[derive(Clone, Debug)]
pub(crate) enum Action<Request> {
    Send(Request),
    /// Milliseconds.
    Clock(i64),
    Inbox {
        inbox: usize,
        alive: bool,
    },
    Lose(Key),
    FlushScripts,
}

/// The model of one kind: its keys, and what its clients were told. It also chooses the steps of a case, on a clock that
/// is not real.
pub(crate) trait Model:
    ReferenceStateMachine<State = Self> + Clone + Debug + 'static
{
    type Request: Clone + Debug;

    /// Before the first step, when the server's clock shows this.
    fn begin(&self, now_us: u64) -> Self;
    /// What does not change in a case, for a failure's report.
    fn world(&self) -> String;
    /// The scripts' bounds are so small that a case reaches them.
    fn small_bounds(&self) -> bool;
    /// Every moment at which an answer changes by itself.
    fn deadlines_ms(&self) -> Vec<u64>;
    /// The clock shows this: what has ended is gone.
    fn at(&mut self, now_us: u64);
    fn action(&self, step: &Self::Transition, now_us: u64) -> Action<Self::Request>;
    /// Any action but a request, done to the model too.
    fn suffer(&mut self, action: &Action<Self::Request>);
    fn call(&self, keys: &Keys, request: &Self::Request) -> Call;
    /// Does what the server did (nothing, without a request) and compares: answer, pushes, keys, invariants. Times may
    /// differ by `slack_ms`.
    fn see(
        &mut self,
        request: Option<&Self::Request>,
        seen: &Seen,
        slack_ms: u64,
    ) -> Result<(), String>;
}

/// How far the clock must go on so that nothing ends by itself while a request runs.
pub(crate) fn clearance_ms(mut deadlines_ms: Vec<u64>, now_ms: u64) -> u64 {
    deadlines_ms.sort_unstable();
    let mut clear = now_ms;
    for deadline in deadlines_ms {
        if deadline + CLEAR_AFTER_MS > clear && deadline < clear + CLEAR_BEFORE_MS {
            clear = deadline + CLEAR_AFTER_MS;
        }
    }
    clear - now_ms
}

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

/// A mistake in the scripts, and how it is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mutant {
    pub(crate) name: &'static str,
    pub(crate) changes: &'static [Change],
}

/// The seed of the first case: given, or a new one each run.
pub(crate) fn seed() -> u64 {
    match std::env::var("LEASEHOLD_SEED") {
        Ok(seed) => seed.parse().expect("LEASEHOLD_SEED is a number"),
        Err(_) => uuid::Uuid::new_v4().as_u64_pair().0,
    }
}

/// Runs this many cases of the real scripts; a failure names its seed, and the shortest steps that were found.
pub(crate) fn agree<M: Model>(bench: &mut Bench, cases: u32) {
    let (tally, failure) = run::<M>(bench, seed(), cases, true);
    if let Some(failure) = failure {
        panic!("seed {}: {}\n{}", failure.seed, failure.why, failure.steps);
    }
    println!("{tally:?}");
    assert_eq!(tally.cases, cases);
    assert!(tally.left * 20 <= cases, "too many cases left: {tally:?}");
}

/// The negative control: those of the mutants that are not told from the real scripts within so many cases, counted from
/// one seed that is always the same.
pub(crate) fn survivors<M: Model>(
    bench: &mut Bench,
    mutants: &[Mutant],
    cases: u32,
) -> Vec<&'static str> {
    let mut survivors = Vec::new();
    for mutant in mutants {
        bench.change(mutant.changes);
        match run::<M>(bench, 1, cases, false) {
            (tally, Some(failure)) => {
                let why = failure.why.chars().take(150).collect::<String>();
                println!("{} (case {}): {why}", mutant.name, tally.cases);
            }
            (_, None) => survivors.push(mutant.name),
        }
    }
    bench.change(&[]);
    survivors
}

/// Runs this many cases, each from a seed of its own, up to the first that fails.
pub(crate) fn run<M: Model>(
    bench: &mut Bench,
    first_seed: u64,
    cases: u32,
    shrink: bool,
) -> (Tally, Option<Failure>) {
    let mut tally = Tally::default();
    for case in 0..cases {
        let seed = first_seed.wrapping_add(case.into());
        if let Some(failure) = run_case::<M>(bench, seed, shrink, &mut tally) {
            return (tally, Some(failure));
        }
    }
    (tally, None)
}

fn run_case<M: Model>(
    bench: &mut Bench,
    seed: u64,
    shrink: bool,
    tally: &mut Tally,
) -> Option<Failure> {
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
    let strategy = M::sequential_strategy(STEPS);
    tally.cases += 1;
    // The strategy's runner wants to share the test between calls that it never makes at once.
    let shared = std::cell::RefCell::new((bench, &mut *tally));
    let outcome = TestRunner::new_with_rng(config, rng).run(&strategy, |(model, steps, seen)| {
        let (bench, tally) = &mut *shared.borrow_mut();
        let case =
            || Case::begin(bench, &model).run(&steps, seen.as_deref().filter(|_| shrink), tally);
        let verdict = catch_unwind(AssertUnwindSafe(case));
        let verdict = verdict.unwrap_or_else(|_| Err("the test itself panicked".to_owned()));
        verdict.map_err(TestCaseError::fail)
    });
    match outcome {
        Ok(()) => None,
        Err(TestError::Fail(why, (model, steps, _))) => Some(Failure {
            seed,
            why: why.message().to_owned(),
            steps: std::iter::once(model.world())
                .chain(steps.iter().map(|step| format!("{step:?}")))
                .map(|line| format!("  {line}\n"))
                .collect(),
        }),
        Err(TestError::Abort(why)) => panic!("seed {seed}: no case was made: {why}"),
    }
}

/// One case: the server, and the model beside it.
struct Case<'a, M> {
    bench: &'a mut Bench,
    model: M,
    /// The longest call so far: what was aligned with the server then is known no better.
    longest_ms: u64,
}

#[derive(Debug)]
enum Stop {
    /// The machine stalled across a deadline: what is right now depends on when exactly a script ran.
    Stalled,
    Wrong(String),
}

impl From<String> for Stop {
    fn from(why: String) -> Self {
        Self::Wrong(why)
    }
}

impl<'a, M: Model> Case<'a, M> {
    fn begin(bench: &'a mut Bench, generated: &M) -> Self {
        bench.begin(generated.small_bounds());
        let model = generated.begin(bench.now_us());
        Self { bench, model, longest_ms: 0 }
    }

    fn run(
        &mut self,
        steps: &[M::Transition],
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

    fn step(&mut self, step: &M::Transition) -> Result<(), Stop> {
        let now_us = self.clear_clock();
        self.model.at(now_us);
        let action = self.model.action(step, now_us);
        let request = match &action {
            Action::Send(request) => Some(request),
            Action::Clock(ms) => {
                self.bench.shift_clock(*ms);
                let now_us = self.clear_clock();
                self.model.at(now_us);
                None
            }
            Action::Inbox { inbox, alive } => {
                self.bench.set_inbox(*inbox, *alive);
                None
            }
            Action::Lose(key) => {
                self.bench.lose(*key);
                None
            }
            Action::FlushScripts => {
                self.bench.flush_scripts();
                None
            }
        };
        if request.is_none() {
            self.model.suffer(&action);
        }
        let call = request.map(|request| self.model.call(self.bench.keys(), request));
        let seen = self.bench.send(call.as_ref())?;
        self.stalled(&seen)?;
        if seen.endless.is_some() || seen.strangers > 0 {
            let why =
                format!("I17: {:?} has no end, or {} strangers", seen.endless, seen.strangers);
            return Err(why.into());
        }
        let took_ms = (seen.probed_us - seen.before_us) / 1_000;
        self.model.see(request, &seen, took_ms + self.longest_ms + ROUNDING_MS)?;
        self.longest_ms = self.longest_ms.max(took_ms);
        Ok(())
    }

    /// Moves the clock on until nothing ends by itself within the next call.
    fn clear_clock(&mut self) -> u64 {
        let now_us = self.bench.now_us();
        let ms = clearance_ms(self.model.deadlines_ms(), now_us / 1_000);
        if ms == 0 {
            return now_us;
        }
        self.bench.shift_clock(ms.cast_signed());
        self.bench.now_us()
    }

    fn stalled(&self, seen: &Seen) -> Result<(), Stop> {
        let around = seen.before_us / 1_000 - ROUNDING_MS..seen.probed_us / 1_000 + ROUNDING_MS;
        match self.model.deadlines_ms().iter().any(|one| around.contains(one)) {
            true => Err(Stop::Stalled),
            false => Ok(()),
        }
    }
}
