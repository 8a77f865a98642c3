//! The scripts of mutex and fair lock on a real server against a model of the protocol, step by step: replies, pushes,
//! keys and the invariants I1, I4, I5, I6, I8, I10, I17 and I21.
//!
//! A failure names its seed; `LEASEHOLD_SEED=<seed> cargo test -p leasehold-tests --test scripts_model` runs that case
//! first. The model's clock is the server's: each answer or push says when its script ran, and the steps keep clear of
//! deadlines, so nothing here depends on how fast the machine is.

#[path = "scripts_model/answer.rs"]
mod answer;
#[path = "scripts_model/bench.rs"]
mod bench;
#[path = "scripts_model/claims.rs"]
mod claims;
#[path = "scripts_model/decode.rs"]
mod decode;
#[path = "scripts_model/generator.rs"]
mod generator;
#[path = "scripts_model/mutants.rs"]
mod mutants;
#[path = "scripts_model/reference.rs"]
mod reference;
#[path = "scripts_model/request.rs"]
mod request;
#[path = "scripts_model/runner.rs"]
mod runner;

use bench::Bench;
use mutants::MUTANTS;
use runner::run;

/// In full 2 560 cases of 50 steps, else a tenth.
const CASES: u32 = 2_560;
/// A mutant must be caught within so many cases, counted from one seed that is always the same.
const MUTANT_CASES: u32 = 1_024;
const MUTANT_SEED: u64 = 1;

/// The seed of the first case: given, or a new one each run.
fn seed() -> u64 {
    match std::env::var("LEASEHOLD_SEED") {
        Ok(seed) => seed.parse().expect("LEASEHOLD_SEED is a number"),
        Err(_) => uuid::Uuid::new_v4().as_u64_pair().0,
    }
}

#[test]
fn scripts_do_what_the_model_does() {
    let cases = leasehold_tests::rounds(CASES);
    let (tally, failure) = run(&mut Bench::start(None), seed(), cases, true);
    if let Some(failure) = failure {
        panic!("seed {}: {}\n{}", failure.seed, failure.why, failure.steps);
    }
    println!("{tally:?}");
    assert_eq!(tally.cases, cases);
    assert!(tally.left * 20 <= cases, "too many cases left: {tally:?}");
}

/// The negative control: every mutant of the scripts is told from the real ones.
#[test]
fn every_mutant_of_the_scripts_is_caught() {
    let mut bench = Bench::start(None);
    let mut survivors = Vec::new();
    for mutant in MUTANTS {
        bench.change(Some(mutant.change));
        match run(&mut bench, MUTANT_SEED, MUTANT_CASES, false) {
            (tally, Some(failure)) => {
                let why = failure.why.chars().take(150).collect::<String>();
                println!("{} (case {}): {why}", mutant.name, tally.cases);
            }
            (_, None) => survivors.push(mutant.name),
        }
    }
    assert!(survivors.is_empty(), "not caught: {survivors:?}");
}
