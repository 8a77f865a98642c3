//! The read-write lock's scripts on a real server against a model of the protocol, step by step: replies, pushes, keys
//! and the invariants I4, I5, I6, I8, I10, I13, I17 and I21.
//!
//! A failure names its seed; `LEASEHOLD_SEED=<seed> cargo test -p leasehold-tests --test rwlock_model` runs that case
//! first. The model's clock is the server's: each answer or push says when its script ran, and the steps keep clear of
//! deadlines, so nothing here depends on how fast the machine is.

#[path = "models/answer.rs"]
mod answer;
#[path = "models/bench.rs"]
mod bench;
#[path = "rwlock_model/claims.rs"]
mod claims;
#[path = "models/clients.rs"]
mod clients;
#[path = "rwlock_model/decode.rs"]
mod decode;
#[path = "models/ending.rs"]
mod ending;
#[path = "models/events.rs"]
mod events;
#[path = "rwlock_model/generator.rs"]
mod generator;
#[path = "models/gone.rs"]
mod gone;
#[path = "models/keys.rs"]
mod keys;
#[path = "rwlock_model/model.rs"]
mod model;
#[path = "rwlock_model/mutants.rs"]
mod mutants;
#[path = "models/names.rs"]
mod names;
#[path = "models/promises.rs"]
mod promises;
#[path = "models/pushes.rs"]
mod pushes;
#[path = "rwlock_model/reference.rs"]
mod reference;
#[path = "models/replies.rs"]
mod replies;
#[path = "rwlock_model/request.rs"]
mod request;
#[path = "models/runner.rs"]
mod runner;
#[path = "models/serving.rs"]
mod serving;
#[path = "rwlock_model/snapshot.rs"]
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
use model::ReadWrite;
use mutants::MUTANTS;

/// The key of the holds is a zset.
type Holds = BTreeMap<String, u64>;

/// In full 2 560 cases of 50 steps, else a tenth.
const CASES: u32 = 2_560;
/// A mutant must be caught within so many cases.
const MUTANT_CASES: usize = 1_024;

/// As the generator's small bounds are.
const SMALL_BOUNDS: &[Change] = &[
    Change {
        from: "local MOST_DEAD, MOST_GRANTS = 32, 128",
        to: "local MOST_DEAD, MOST_GRANTS = 2, 2",
    },
    Change {
        from: "MOST_EXPIRED, MOST_ENTRIES = 1000000000, 256, 64",
        to: "MOST_EXPIRED, MOST_ENTRIES = 1000000000, 2, 2",
    },
];

fn bench() -> Bench {
    let mut scripts = leasehold_lua::rwlock::scripts().to_vec();
    // Listing waiters is the same for every kind.
    scripts
        .extend(leasehold_lua::mutex::scripts().into_iter().filter(|s| s.name() == "mutex/queue"));
    Bench::start(Setup { kind: "rwlock", scripts, small_bounds: SMALL_BOUNDS })
}

/// Mutants are tried on these cases first: together they catch all of them.
const FIRST: &[usize] = &[
    0, 310, 12, 3, 273, 15, 44, 1, 5, 10, 50, 82, 88, 135, 7, 9, 11, 13, 17, 18, 22, 53, 61, 63,
    500,
];

#[test]
fn scripts_do_what_the_model_does() {
    runner::agree::<ReadWrite>(&mut bench(), leasehold_tests::rounds(CASES));
}

/// The negative control: every mutant of the scripts is told from the real ones.
#[test]
fn every_mutant_of_the_scripts_is_caught() {
    let survivors = runner::survivors::<ReadWrite>(bench, MUTANTS, MUTANT_CASES, FIRST);
    assert!(survivors.is_empty(), "not caught: {survivors:?}");
}
