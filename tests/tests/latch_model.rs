//! The latch's scripts on a real server against a model of the protocol, step by step: replies, pushes, keys and the
//! invariants I6, I15, I17 and I18.
//!
//! A failure names its seed; `LEASEHOLD_SEED=<seed> cargo test -p leasehold-tests --test latch_model` runs that case
//! first. The steps keep clear of deadlines, so nothing here depends on how fast the machine is.

#[path = "models/bench.rs"]
mod bench;
#[path = "latch_model/claims.rs"]
mod claims;
#[path = "models/ending.rs"]
mod ending;
#[path = "models/events.rs"]
mod events;
#[path = "latch_model/generator.rs"]
mod generator;
#[path = "latch_model/keys.rs"]
mod keys;
#[path = "latch_model/model.rs"]
mod model;
#[path = "latch_model/mutants.rs"]
mod mutants;
#[path = "latch_model/reference.rs"]
mod reference;
#[path = "models/runner.rs"]
mod runner;
#[path = "models/values.rs"]
mod values;

use bench::{Bench, Change, Setup};
use model::LatchModel;
use mutants::MUTANTS;

/// In full 2 560 cases of 50 steps, else a tenth.
const CASES: u32 = 2_560;
/// A mutant must be caught within so many cases.
const MUTANT_CASES: usize = 1_024;

/// So small that a case reaches them.
const SMALL_BOUNDS: &[Change] = &[
    Change { from: "local MOST_TOLD = 100", to: "local MOST_TOLD = 2" },
    Change { from: "local MOST_SWEPT = 8", to: "local MOST_SWEPT = 2" },
];

fn bench() -> Bench {
    let scripts = leasehold_lua::latch::scripts().to_vec();
    Bench::start(Setup { kind: "latch", scripts, small_bounds: SMALL_BOUNDS })
}

/// Mutants are tried on these cases first: together they catch all of them.
const FIRST: &[usize] = &[0, 5, 2, 3, 8, 10, 17, 20, 57, 119, 122];

#[test]
fn scripts_do_what_the_model_does() {
    runner::agree::<LatchModel>(&mut bench(), leasehold_tests::rounds(CASES));
}

/// The negative control: every mutant of the scripts is told from the real ones.
#[test]
fn every_mutant_of_the_scripts_is_caught() {
    let survivors = runner::survivors::<LatchModel>(bench, MUTANTS, MUTANT_CASES, FIRST);
    assert!(survivors.is_empty(), "not caught: {survivors:?}");
}
