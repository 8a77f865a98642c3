//! The semaphore's scripts on a real server against a model of the protocol, step by step: replies, pushes, keys and the
//! invariants I4, I8, I10, I14, I17 and I21; and that the sum that the server keeps is the sum of the weights.
//!
//! A failure names its seed; `LEASEHOLD_SEED=<seed> cargo test -p leasehold-tests --test semaphore_model` runs that case
//! first. The model's clock is the server's: each answer or push says when its script ran, and the steps keep clear of
//! deadlines, so nothing here depends on how fast the machine is.

#[path = "models/answer.rs"]
mod answer;
#[path = "models/bench.rs"]
mod bench;
#[path = "semaphore_model/claims.rs"]
mod claims;
#[path = "models/clients.rs"]
mod clients;
#[path = "semaphore_model/decode.rs"]
mod decode;
#[path = "models/ending.rs"]
mod ending;
#[path = "models/events.rs"]
mod events;
#[path = "semaphore_model/generator.rs"]
mod generator;
#[path = "models/gone.rs"]
mod gone;
#[path = "models/keys.rs"]
mod keys;
#[path = "semaphore_model/mutants.rs"]
mod mutants;
#[path = "models/names.rs"]
mod names;
#[path = "models/promises.rs"]
mod promises;
#[path = "models/pushes.rs"]
mod pushes;
#[path = "semaphore_model/reference.rs"]
mod reference;
#[path = "models/replies.rs"]
mod replies;
#[path = "semaphore_model/request.rs"]
mod request;
#[path = "models/runner.rs"]
mod runner;
#[path = "semaphore_model/scene.rs"]
mod scene;
#[path = "models/serving.rs"]
mod serving;
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
use leasehold_lua::semaphore;
use scene::Scene;

/// The key of the holds is a zset.
type Holds = BTreeMap<String, u64>;

/// In full 2 560 cases of 50 steps, else a tenth.
const CASES: u32 = 2_560;
/// A mutant must be caught within so many cases, counted from one seed that is always the same.
const MUTANT_CASES: usize = 1_024;

const SMALL_BOUNDS: &[Change] = &[
    Change {
        from: "local MOST_DEAD, MOST_GRANTS = 32, 128",
        to: "local MOST_DEAD, MOST_GRANTS = 2, 2",
    },
    Change {
        from: "local LOWEST, MOST_EXPIRED, MOST_ENTRIES = 1000000000, 256, 64",
        to: "local LOWEST, MOST_EXPIRED, MOST_ENTRIES = 1000000000, 2, 64",
    },
];

fn bench() -> Bench {
    let scripts = [&semaphore::scripts()[..], &[queue_script()]].concat();
    Bench::start(Setup { kind: "semaphore", scripts, small_bounds: SMALL_BOUNDS })
}

/// Who waits is listed by a script of all kinds.
fn queue_script() -> &'static leasehold_lua::Script {
    let scripts = leasehold_lua::mutex::scripts();
    scripts.into_iter().find(|script| script.name() == "mutex/queue").expect("a script")
}

/// Mutants are tried on these cases first: together they catch all of them.
const FIRST: &[usize] =
    &[1, 3, 4, 9, 2, 13, 0, 5, 7, 8, 43, 84, 6, 15, 18, 19, 36, 69, 76, 96, 135, 196, 266];

#[test]
fn scripts_do_what_the_model_does() {
    runner::agree::<Scene>(&mut bench(), leasehold_tests::rounds(CASES));
}

/// The negative control: every mutant of the scripts is told from the real ones.
#[test]
fn every_mutant_of_the_scripts_is_caught() {
    let survivors = runner::survivors::<Scene>(bench, &mutants::mutants(), MUTANT_CASES, FIRST);
    assert!(survivors.is_empty(), "not caught: {survivors:?}");
}
