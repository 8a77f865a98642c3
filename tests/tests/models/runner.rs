//! Runs cases on the server and in a model at once; the model compares after every step.

use std::cmp::Reverse;
use std::fmt::{Debug, Display, Formatter};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use leasehold_lua::{Call, Keys};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use proptest_state_machine::ReferenceStateMachine;

use super::bench::{Bench, Change, Seen};
use super::keys::Key;

/// Steps of a case.
pub(crate) const STEPS: usize = 50;
/// Between two readings of the server's clock, and between its clock and its ends of keys.
const ROUNDING_MS: u64 = 3;
/// No request runs so shortly before a deadline: more than a call takes on a loaded machine.
const CLEAR_BEFORE_MS: u64 = 300;
/// No request runs so shortly after one: the server's own clock of expiry may be a little behind.
pub(crate) const CLEAR_AFTER_MS: u64 = 10;

/// Where the virtual clock of the generators starts.
pub(crate) const START_US: u64 = 1_700_000_000_000_000;
/// What a step takes on it.
const STEP_US: u64 = 1_000;

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
    /// What the clock showed last.
    fn now_us(&self) -> u64;
    /// Every moment at which an answer changes by itself.
    fn deadlines_ms(&self) -> Vec<u64>;
    /// The clock shows this: what has ended is gone.
    fn at(&mut self, now_us: u64);
    fn action(&self, step: &Self::Transition, now_us: u64) -> Action<Self::Request>;
    /// Any action but a request, done to the model too.
    fn suffer(&mut self, action: &Action<Self::Request>);
    fn call(&self, keys: &Keys, request: &Self::Request) -> Call;
    /// Does what a server whose clock shows this must.
    fn assume(&mut self, request: &Self::Request, now_us: u64);

    /// A step on the generator's clock.
    fn step(mut self, step: &Self::Transition) -> Self {
        let now_us = self.now_us() + STEP_US;
        let now_us = now_us + clearance_ms(self.deadlines_ms(), now_us / 1_000) * 1_000;
        self.at(now_us);
        match self.action(step, now_us) {
            Action::Send(request) => self.assume(&request, now_us),
            Action::Clock(ms) => self.at(now_us.saturating_add_signed(ms * 1_000)),
            action @ (Action::Inbox { .. } | Action::Lose(_) | Action::FlushScripts) => {
                self.suffer(&action);
            }
        }
        self
    }

    /// Does what the server did (nothing, without a request) and compares: answer, pushes, keys, invariants. Times may
    /// differ by `slack_ms`.
    ///
    /// I21 is asserted of scripts that settle and say that they are through. An acquire that answers before it settles
    /// (held, cancelled, never fits, too many entries, another limit) is none of them, and nobody stays behind for it:
    /// * It enqueued nobody and ended nothing that time had not ended. So a head that fits after it did so before, by time
    ///   alone, and each waiter asks again when the next hold ends, a second later at the most (I11). A limit that it
    ///   brought back was lost with its key: waiters ask within that second then.
    /// * It may be the repeat that an `again` asked for. But what made its answer early (a grant, a cancel, a lower limit)
    ///   came from a script that settled after that `again` was said, and told its own caller if it met the bound too.
    ///
    /// The hand-off model has these answers as they are, searches every order, and finds nobody stuck.
    fn see(
        &mut self,
        request: Option<&Self::Request>,
        seen: &Seen,
        slack_ms: u64,
    ) -> Result<(), String>;
}

/// How far the clock must go on so that nothing ends by itself while a request runs.
fn clearance_ms(mut deadlines_ms: Vec<u64>, now_ms: u64) -> u64 {
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
    let (tally, failure) = run::<M>(bench, seed(), cases);
    if let Some(failure) = failure {
        panic!("seed {}: {}\n{}", failure.seed, failure.why, failure.steps);
    }
    println!("{tally:?}");
    assert_eq!(tally.cases, cases);
    assert!(tally.left * 20 <= cases, "too many cases left: {tally:?}");
}

/// The negative control: those of the mutants that are not told from the real scripts within so many cases, counted from
/// one seed that is always the same.
///
/// The cases are made once for all mutants. `first` are tried first, and those that caught a mutant before: any one is
/// enough, and a mutant survives only all of them. Two servers are at work, each with mutants of its own.
///
/// What is printed last is a good `first`. After a change of a generator it may be worth less; it then costs time, and
/// nothing else.
pub(crate) fn survivors<M>(
    start: impl Fn() -> Bench + Sync,
    mutants: &[Mutant],
    cases: usize,
    first: &[usize],
) -> Vec<&'static str>
where
    M: Model + Send + Sync,
    M::Transition: Send + Sync,
{
    let hunt = Hunt::<M>::new(cases, first);
    let (next, survivors) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        let mut bench = start();
        while let Some(mutant) = mutants.get(next.fetch_add(1, Ordering::SeqCst)) {
            bench.change(mutant.changes);
            if !hunt.catches(&mut bench, mutant.name) {
                survivors.lock().expect("no panic inside").push(mutant.name);
            }
        }
    };
    std::thread::scope(|scope| {
        let both = [scope.spawn(work), scope.spawn(work)];
        for worker in both {
            worker.join().expect("it does not panic");
        }
    });
    println!("{hunt}");
    survivors.into_inner().expect("no panic inside")
}

/// A case as it was made: where it begins, and its steps.
type Made<M> = (M, Vec<<M as ReferenceStateMachine>::Transition>);

/// The cases that mutants are tried on, made as far as they are needed, and how many mutants each has caught.
struct Hunt<M: Model> {
    cases: Vec<OnceLock<Made<M>>>,
    first: Vec<usize>,
    caught: Vec<AtomicUsize>,
    tried: AtomicUsize,
}

impl<M: Model> Display for Hunt<M> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let caught = |case: &usize| self.caught[*case].load(Ordering::SeqCst);
        let mut good: Vec<usize> = (0..self.cases.len()).filter(|case| caught(case) > 0).collect();
        good.sort_by_key(|case| Reverse(caught(case)));
        write!(f, "tried {}; caught by {good:?}", self.tried.load(Ordering::SeqCst))
    }
}

impl<M: Model> Hunt<M> {
    fn new(cases: usize, first: &[usize]) -> Self {
        Self {
            cases: (0..cases).map(|_| OnceLock::new()).collect(),
            first: first.to_vec(),
            caught: (0..cases).map(|_| AtomicUsize::new(0)).collect(),
            tried: AtomicUsize::new(0),
        }
    }

    fn catches(&self, bench: &mut Bench, name: &str) -> bool {
        let mut order: Vec<usize> = (0..self.cases.len()).collect();
        order.sort_by_cached_key(|case| {
            let caught = self.caught[*case].load(Ordering::SeqCst);
            let first = self.first.iter().position(|first| first == case);
            (Reverse(caught), first.unwrap_or(usize::MAX))
        });
        for (tried, case) in order.into_iter().enumerate() {
            self.tried.fetch_add(1, Ordering::SeqCst);
            let (model, steps) = self.cases[case].get_or_init(|| made(case as u64 + 1));
            if let Err(why) = Case::begin(bench, model).play(steps, None, &mut Tally::default()) {
                self.caught[case].fetch_add(1, Ordering::SeqCst);
                let why = why.chars().take(150).collect::<String>();
                println!("{name} (case {case}, tried {}): {why}", tried + 1);
                return true;
            }
        }
        false
    }
}

fn made<M: Model>(seed: u64) -> Made<M> {
    let mut runner = TestRunner::new_with_rng(Config::default(), rng(seed));
    let case = M::sequential_strategy(STEPS).new_tree(&mut runner).expect("a case").current();
    (case.0, case.1)
}

fn rng(seed: u64) -> TestRng {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    TestRng::from_seed(RngAlgorithm::ChaCha, &bytes)
}

/// Runs this many cases, each from a seed of its own, up to the first that fails.
pub(crate) fn run<M: Model>(
    bench: &mut Bench,
    first_seed: u64,
    cases: u32,
) -> (Tally, Option<Failure>) {
    let mut tally = Tally::default();
    for case in 0..cases {
        let seed = first_seed.wrapping_add(case.into());
        if let Some(failure) = run_case::<M>(bench, seed, &mut tally) {
            return (tally, Some(failure));
        }
    }
    (tally, None)
}

fn run_case<M: Model>(bench: &mut Bench, seed: u64, tally: &mut Tally) -> Option<Failure> {
    let config = Config {
        cases: 1,
        failure_persistence: None,
        max_shrink_iters: 4_000,
        max_shrink_time: 60_000,
        ..Config::default()
    };
    let rng = rng(seed);
    let strategy = M::sequential_strategy(STEPS);
    tally.cases += 1;
    // The strategy's runner wants to share the test between calls that it never makes at once.
    let shared = std::cell::RefCell::new((bench, &mut *tally));
    let outcome = TestRunner::new_with_rng(config, rng).run(&strategy, |(model, steps, seen)| {
        let (bench, tally) = &mut *shared.borrow_mut();
        let seen = seen.as_deref();
        Case::begin(bench, &model).play(&steps, seen, tally).map_err(TestCaseError::fail)
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

    /// As [`run`](Self::run); what the test itself does not stand is a violation too.
    fn play(
        mut self,
        steps: &[M::Transition],
        seen: Option<&AtomicUsize>,
        tally: &mut Tally,
    ) -> Result<(), String> {
        let verdict = catch_unwind(AssertUnwindSafe(|| self.run(steps, seen, tally)));
        verdict.unwrap_or_else(|_| Err("the test itself panicked".to_owned()))
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
        // What the call itself began may have ended before it was looked at.
        if seen.probed_us - seen.before_us > CLEAR_BEFORE_MS * 1_000 {
            return Err(Stop::Stalled);
        }
        let around = seen.before_us / 1_000 - ROUNDING_MS..seen.probed_us / 1_000 + ROUNDING_MS;
        match self.model.deadlines_ms().iter().any(|one| around.contains(one)) {
            true => Err(Stop::Stalled),
            false => Ok(()),
        }
    }
}
