//! The scripts of mutex and fair lock on a real server against a model of the protocol, step by step: replies, pushes,
//! keys and the invariants I1, I4, I5, I6, I8, I10, I17 and I21.
//!
//! A failure names its seed; `LEASEHOLD_SEED=<seed> cargo test -p leasehold-tests --test scripts_model` runs that case
//! first. The model's clock is the server's: each answer or push says when its script ran, and the steps keep clear of
//! deadlines, so nothing here depends on how fast the machine is.

#[path = "models/answer.rs"]
mod answer;
#[path = "models/bench.rs"]
mod bench;
#[path = "scripts_model/claims.rs"]
mod claims;
#[path = "models/clients.rs"]
mod clients;
#[path = "scripts_model/decode.rs"]
mod decode;
#[path = "models/ending.rs"]
mod ending;
#[path = "models/events.rs"]
mod events;
#[path = "scripts_model/generator.rs"]
mod generator;
#[path = "models/gone.rs"]
mod gone;
#[path = "models/keys.rs"]
mod keys;
#[path = "scripts_model/model.rs"]
mod model;
#[path = "scripts_model/mutants.rs"]
mod mutants;
#[path = "models/names.rs"]
mod names;
#[path = "models/promises.rs"]
mod promises;
#[path = "models/pushes.rs"]
mod pushes;
#[path = "scripts_model/reference.rs"]
mod reference;
#[path = "models/replies.rs"]
mod replies;
#[path = "scripts_model/request.rs"]
mod request;
#[path = "models/runner.rs"]
mod runner;
#[path = "models/serving.rs"]
mod serving;
#[path = "scripts_model/snapshot.rs"]
mod snapshot;
#[path = "models/tokens.rs"]
mod tokens;
#[path = "models/values.rs"]
mod values;
#[path = "models/verdict.rs"]
mod verdict;
#[path = "models/waiters.rs"]
mod waiters;
#[path = "models/world.rs"]
mod world;

use std::collections::BTreeMap;

use bench::{Bench, Change, Setup};
use leasehold_lua::{fair, mutex};
use model::Exclusive;
use mutants::MUTANTS;

/// The key of the holds is a hash.
type Holds = BTreeMap<String, String>;

/// In full 2 560 cases of 50 steps, else a tenth.
const CASES: u32 = 2_560;
/// A mutant must be caught within so many cases.
const MUTANT_CASES: usize = 1_024;

/// As the generator's small bounds are.
const SMALL_BOUNDS: &[Change] = &[
    Change { from: "local MOST_DEAD, MOST_GRANTS = 32", to: "local MOST_DEAD, MOST_GRANTS = 2" },
    Change { from: "local MOST_ENTRIES = 64", to: "local MOST_ENTRIES = 2" },
];

fn bench() -> Bench {
    let scripts = [&mutex::scripts()[..], &fair::scripts()].concat();
    Bench::start(Setup { kind: "mutex", scripts, small_bounds: SMALL_BOUNDS })
}

/// Mutants are tried on these cases first: together they catch all of them.
const FIRST: &[usize] = &[0, 3, 5, 9, 19, 6, 7, 8, 14, 16, 21, 28, 37, 43, 108, 215, 314, 431];

#[test]
fn scripts_do_what_the_model_does() {
    runner::agree::<Exclusive>(&mut bench(), leasehold_tests::rounds(CASES));
}

/// The negative control: every mutant of the scripts is told from the real ones.
#[test]
fn every_mutant_of_the_scripts_is_caught() {
    let survivors = runner::survivors::<Exclusive>(bench, MUTANTS, MUTANT_CASES, FIRST);
    assert!(survivors.is_empty(), "not caught: {survivors:?}");
}
