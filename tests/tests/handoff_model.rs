//! A state-space model of the hand-off: every order in which calls, answers and pushes of three clients can arrive,
//! with every fault at every moment, searched breadth first.
//!
//! # What is modelled
//! * The server: who holds, the queue (by tickets, each waiter alive or past its deadline), `:gone`, which inboxes it
//!   counts, and the scripts acquire (waiting), check, release = cancel and renew (to confirm a grant), each atomic.
//! * Three clients (in some cases four), each a process with one acquisition: where it stands in the registry, what it
//!   doubts, which calls are unanswered, and thereby whether its end is `late`.
//! * One network without any order. A call that its client gave up stays in it and may arrive at any time, after the
//!   id was forgotten too. A check, which serves as the sign of life, may be sent at any moment of the waiting.
//! * Time as an order of events: a lease ends at the client before it ends at the server or together with it, a waiter's
//!   deadline passes, an answer comes too late to be of use. Whoever hears of a hold that has ended sees that by its
//!   deadline. What dies leaves its hold and its place to their ends, without counting as a fault.
//! * The kinds: exclusive (mutex, fair lock; an operator may take waiters out), readers and writers, permits with
//!   weights (an operator may lower and raise the limit, and who never fits is refused).
//!
//! # What must hold
//! No two clients say "held" that exclude each other (I1). Who says so is held by the server (I2). The server keeps
//! nothing of an id that its process has forgotten and of which nothing is on its way (I9). After a script that settles
//! the queue is empty, or its head is alive and does not fit (I21), so no quiet state has a head that fits unless time
//! alone has passed since. From every state there is a way without further faults to one where everybody was served
//! (I11).
//!
//! # What is not modelled
//! Durations: that a way exists says nothing about how long it takes, nor that nobody is passed by on it. Tokens.
//! Re-entry, adoption, the cool-down, a release by force, upgrades, split permits, `try`, a full queue. The bounds of a script
//! (`again`) and those of `:gone` (60 s, 10 000 ids). An end that is given up once the lease it was to end has run out.
//! Several waiters of one process in one check. The watchdog: a hold lasts until its lease is made to end. Loss of
//! keys, fail-over, clocks that step, a cluster that sends again on its own. A waiter that comes back finds its newest
//! place, also where it knows an older one only.
//!
//! Each fault stands for itself in a case of its own; then any two together (`scripts/test --soak`: any three). Clients
//! of one role are alike, and states that differ in their names only are one.

#[path = "handoff_model/case.rs"]
mod case;
#[path = "handoff_model/client.rs"]
mod client;
#[path = "handoff_model/search.rs"]
mod search;
#[path = "handoff_model/server.rs"]
mod server;
#[path = "handoff_model/state.rs"]
mod state;
#[path = "handoff_model/steps.rs"]
mod steps;

use case::{ALL_FAULTS, Case, Fault, Kind, Mechanism, READER, WRITER};
use search::{ALL, Found, Outcome, Violation, search};
use state::NOBODY;

const EXCLUSIVE: Case = Case::new(Kind::Exclusive, [1, 1, 1, NOBODY]);
const READ_WRITE: Case = Case::new(Kind::ReadWrite, [READER, WRITER, READER, NOBODY]);
/// The same graph as readers and a writer, from other rules.
const ONE_TWO_ONE: Case = Case::new(Kind::Semaphore { limit: 2, lower: 1 }, [1, 2, 1, NOBODY]);
const TWO_TWO_ONE: Case = Case::new(Kind::Semaphore { limit: 3, lower: 1 }, [2, 2, 1, NOBODY]);

fn soak() -> bool {
    leasehold_tests::rounds(10) == 10
}

/// Searches everything, and fails with the shortest way to what must not be.
fn stands(name: &str, case: Case) -> Outcome {
    let outcome = search(&case, ALL);
    let Outcome { states, steps, served, .. } = outcome;
    if let Some(Found { violation, words, .. }) = &outcome.found {
        panic!("{name}: {violation:?} after\n{words}");
    }
    assert!(served > 0, "{name}: nothing was searched");
    println!("{name}: {states} states, {steps} steps, {served} ends");
    outcome
}

/// Each kind of fault, up to three times, as a case of its own.
fn stands_every_kind_of_fault(name: &str, case: Case) {
    let without = stands(&format!("{name}, no fault"), case).states;
    let kinds: [&'static [Fault]; 9] = [
        &[Fault::Crash],
        &[Fault::LostPush],
        &[Fault::InboxDown],
        &[Fault::Resend],
        &[Fault::Cancel],
        &[Fault::Purge],
        &[Fault::Expiry],
        &[Fault::Limit],
        &[Fault::Removal],
    ];
    for kind in kinds.into_iter().filter(|kind| kind[0].concerns(case.kind)) {
        let with = stands(&format!("{name}, {kind:?} up to 3 times"), case.faults(3, kind)).states;
        assert!(with > without, "{name}: {kind:?} does not happen");
    }
}

fn stands_faults_together(name: &str, case: Case) {
    let most = if soak() { 3 } else { 2 };
    stands(&format!("{name}, any {most} faults"), case.faults(most, ALL_FAULTS));
}

#[test]
fn an_exclusive_lock_stands_every_kind_of_fault() {
    stands_every_kind_of_fault("exclusive", EXCLUSIVE);
}

#[test]
fn a_read_write_lock_stands_every_kind_of_fault() {
    stands_every_kind_of_fault("read-write", READ_WRITE);
}

#[test]
fn a_semaphore_stands_every_kind_of_fault() {
    stands_every_kind_of_fault("semaphore of 3, weights 2 2 1", TWO_TWO_ONE);
}

#[test]
fn an_exclusive_lock_stands_faults_together() {
    stands_faults_together("exclusive", EXCLUSIVE);
}

#[test]
fn a_read_write_lock_stands_faults_together() {
    stands_faults_together("read-write", READ_WRITE);
}

#[test]
fn a_semaphore_stands_faults_together() {
    stands_faults_together("semaphore of 3, weights 2 2 1", TWO_TWO_ONE);
}

/// Their pushed grants are confirmed by a renewal before they are handed out.
#[test]
fn fixed_leases_stand_faults() {
    let fixed = EXCLUSIVE.fixed();
    stands_every_kind_of_fault("exclusive, fixed leases", fixed);
    stands("exclusive, fixed leases, any 2 faults", fixed.faults(2, ALL_FAULTS));
    stands("read-write, fixed leases, any fault", READ_WRITE.fixed().faults(1, ALL_FAULTS));
    stands("semaphore, fixed leases, any fault", TWO_TWO_ONE.fixed().faults(1, ALL_FAULTS));
}

#[test]
fn four_clients_stand_any_fault() {
    let exclusive = Case::new(Kind::Exclusive, [1; 4]);
    stands("exclusive, 4 clients, any fault", exclusive.faults(1, ALL_FAULTS));
    let read_write = Case::new(Kind::ReadWrite, [READER, WRITER, READER, WRITER]);
    stands("read-write, 4 clients, any fault", read_write.faults(1, ALL_FAULTS));
    if soak() {
        stands("exclusive, 4 clients, any 2 faults", exclusive.faults(2, ALL_FAULTS));
    }
}

/// Two rules, one graph: a mistake in either would tell.
#[test]
fn a_writer_is_a_permit_as_heavy_as_all_readers() {
    let faults = |case: Case| case.faults(2, &[Fault::Cancel, Fault::Expiry]);
    let read_write = stands("read-write, r w r", faults(READ_WRITE));
    let semaphore = stands("semaphore of 2, weights 1 2 1", faults(ONE_TWO_ONE));
    let counts = |outcome: &Outcome| (outcome.states, outcome.steps, outcome.served);
    assert_eq!(counts(&read_write), counts(&semaphore));
}

/// Fails unless the search finds this, and answers how.
fn caught(name: &str, case: Case, violation: Violation) -> Found {
    let outcome = search(&case, &[violation]);
    let Some(found) = outcome.found else {
        panic!("{name}: no {violation:?} in {} states", outcome.states);
    };
    println!("{name}: {violation:?} in {} steps ({} states)", found.steps, outcome.states);
    found
}

const NO_FAULT: &[Fault] = &[];

/// What is taken out, the faults with which that shows, and what comes of it.
type Control = (&'static [Mechanism], Case, &'static [Fault], Violation);

const CONTROLS: &[Control] = &[
    (&[Mechanism::Check], EXCLUSIVE, &[Fault::LostPush], Violation::Stuck),
    (&[Mechanism::Check], READ_WRITE, &[Fault::Crash], Violation::Stuck),
    (&[Mechanism::Reentry], EXCLUSIVE, &[Fault::InboxDown], Violation::Stuck),
    (&[Mechanism::Reentry], EXCLUSIVE, &[Fault::Purge], Violation::Stuck),
    (&[Mechanism::Gone], EXCLUSIVE, &[Fault::Cancel], Violation::Ghost),
    (&[Mechanism::Gone], READ_WRITE, &[Fault::Resend], Violation::Ghost),
    // A push may end the waiting while a check is under way; the release that follows can overtake it.
    (&[Mechanism::Gone], EXCLUSIVE, NO_FAULT, Violation::Ghost),
    (&[Mechanism::LateByCheck], EXCLUSIVE, NO_FAULT, Violation::Ghost),
    (&[Mechanism::LateByResend], EXCLUSIVE, &[Fault::Resend], Violation::Ghost),
    (&[Mechanism::RegistryRule], EXCLUSIVE, NO_FAULT, Violation::TwoHolders),
    (&[Mechanism::RegistryRule], READ_WRITE, NO_FAULT, Violation::TwoHolders),
    (&[Mechanism::RegistryRule], TWO_TWO_ONE, NO_FAULT, Violation::HeldButGone),
    (&[Mechanism::SettleOnRelease], EXCLUSIVE, NO_FAULT, Violation::HeadFits),
    (&[Mechanism::SettleOnLeave], READ_WRITE, &[Fault::Cancel], Violation::HeadFits),
    (&[Mechanism::SettleOnLeave], TWO_TWO_ONE, &[Fault::Cancel], Violation::HeadFits),
    (&[Mechanism::DeadSkipped], EXCLUSIVE, &[Fault::Crash], Violation::Stuck),
    (&[Mechanism::Deadline], EXCLUSIVE, &[Fault::Expiry], Violation::HeldButGone),
    (&[Mechanism::Deadline], READ_WRITE, &[Fault::Expiry], Violation::TwoHolders),
    (&[Mechanism::RefusalEnded], TWO_TWO_ONE, &[Fault::Limit], Violation::Ghost),
];

/// The negative control: each mechanism is needed.
#[test]
fn each_mechanism_taken_out_is_caught() {
    for (without, case, faults, violation) in CONTROLS {
        let name = format!("{:?} without {without:?}, faults {faults:?}", case.kind);
        caught(&name, case.faults(2, faults).without(without), *violation);
    }
}

/// A release that follows a push for a held id makes two holders even without a check, if grants are published to their
/// callers: 8 steps of an ordinary day (trap 1). The registry's rule alone is enough against it, so the other half of the
/// defence is told apart only when that one is gone.
#[test]
fn a_grant_published_to_its_caller_is_harmless_only_by_the_registry() {
    use Mechanism::{CallerQuiet, Check, RegistryRule};
    let loud = EXCLUSIVE.faults(2, ALL_FAULTS).without(&[CallerQuiet]);
    stands("exclusive, grants published to callers, any 2 faults", loud);
    let quiet = EXCLUSIVE.without(&[RegistryRule, Check]);
    stands("exclusive, the registry's rule broken, no check, no fault", quiet);
    let both = EXCLUSIVE.without(&[CallerQuiet, RegistryRule, Check]);
    caught("exclusive, both taken out, no check", both, Violation::TwoHolders);
}

/// A grant to an inbox that nobody has open could stand until its lease ends: taking it back at once saves that time, and
/// nothing here counts time. In the same way a queued waiter of a mutex may leave without a settle as long as no lease
/// has ended unseen; where several hold it may not (see the controls).
#[test]
fn what_only_saves_time_is_not_missed() {
    let standing = EXCLUSIVE.faults(2, ALL_FAULTS).without(&[Mechanism::CountZero]);
    stands("exclusive, a grant that nobody heard stands, any 2 faults", standing);
    let leaving = EXCLUSIVE.faults(3, &[Fault::Cancel]).without(&[Mechanism::SettleOnLeave]);
    stands("exclusive, leaving does not settle, cancels", leaving);
}

#[test]
fn a_violation_is_told_as_the_shortest_way_to_it() {
    let case = EXCLUSIVE.faults(1, &[Fault::Expiry]).without(&[Mechanism::Deadline]);
    let found = caught("no deadlines", case, Violation::HeldButGone);
    let expected = [
        "sends its acquire",
        "its acquire reaches the server",
        "its lease ends at the server",
        "hears the answer to its acquire",
    ];
    assert_eq!(found.steps, expected.len(), "{}", found.words);
    for (line, step) in found.words.lines().zip(expected) {
        assert!(line.contains(step), "{line}");
    }
}
