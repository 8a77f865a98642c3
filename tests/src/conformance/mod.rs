//! One conformance suite over anything that can be held.
//!
//! Each scenario is a line of a list of behaviours that the test suite of Redisson (Java), the
//! reference of this field, pins; its number is that list's. A scenario is a function over a
//! [`Holdable`] (what is taken) and a [`Site`] (where its server comes from), so the next primitive,
//! or the next topology, runs all of them unchanged:
//!
//! ```text
//! leasehold_tests::conformance!(Standalone, Mutex: held, exclusive, reentrant, fifo);
//! ```
//!
//! expands to one test a scenario. The parts: [`held`] for everything that can be held; [`crowd`]
//! for the same under load; [`exclusive`] for what shuts everybody else out, and [`exclusive_crowd`];
//! [`reentrant`] for what an owner enters again; [`fifo`] for what promises the order of arrival.
//! After each scenario the rig shuts its sessions down and looks that nothing is left (I17, I20).
//!
//! A topology takes seconds to start and a scenario mostly waits, so where topologies are the site, all scenarios of a kind
//! are one test that runs several at a time ([`side_by_side`]), over one type for all kinds ([`AnyKind`]).
//!
//! A scenario that fails while the whole machine stood still is run again, and says so: see [`check`].
//!
//! # How the words of those lines are read here
//!
//! | there | here |
//! | --- | --- |
//! | task, thread | whoever has the guard, or an explicit `Owner`; a task or a thread is never an owner |
//! | client | a session |
//! | second handle | a second value of the same name in the same session |
//! | ownership error | `ReleaseError::Lost`, with the reason |
//! | false of a take | `Ok(None)` of a try, `AcquireError::TimedOut` of a wait |
//! | interrupt | a future that is dropped; or one that is left alone and polled again later |
//! | lease without watchdog | `Options::fixed` |
//! | keyspace listener | the server's own keyspace notifications |
//!
//! # Lines that differ on purpose, or have no counterpart
//!
//! | line | difference | reason |
//! | --- | --- | --- |
//! | 4, 5 | there is no `is_held` and no count per task: a guard says whether *it* holds, the server who does and how often | a task is not an owner |
//! | 7 | nobody can release what he has no guard of; the error is that of a guard whose hold was lost or adopted elsewhere | the type system refuses the rest |
//! | 13 | no wait can be made uninterruptible against its own caller: dropping the future always ends it | every future of Rust can be dropped; a wait that is kept goes on at its place |
//! | 17 | a take that waits goes on asking until its wait ends, then it is `Backend(Unreachable)` | a failover shorter than the wait costs no error |
//! | 22, 23 | no pool of subscriptions and no limit of it: one inbox for all names and waiters | the limit is what breaks there (250 waiters a process) |
//! | 25 | no listener in the API: loss is told by the guard and as an event | the server's notifications need its configuration changed; they work where it is |
//! | 26 | the inner semaphore is a second object of the same kind | the suite knows one kind at a time |
//! | 28 | the error is told before the release too: `lost()` resolves | losing silently is impossible |
//! | 31, 32 | for the read-write lock | two kinds in one scenario |
//! | 37, 38, 40 | no waiter's deadline depends on another's, so there is nothing to add up, and nothing falls when the head leaves | I12: k dead waiters cost one deadline |
//! | 46, 50 | no scenario of their own: the fair lock runs this suite | |
//! | 113 | 10 ms doubling to 200 ms, jittered downward by up to a quarter, and only while the inbox is down; there is no constant variant and nothing to choose | waiters are woken by messages, the check is the safety net |
//!
//! # Negative control
//!
//! [`broken`] has two locks that are wrong: one that ignores everybody, and the `SET NX` that many
//! write themselves. The suite of the mutex asserts that scenarios fail on them, and with the words
//! of the fact that is broken.

mod any;
pub mod broken;
pub mod crowd;
pub mod exclusive;
pub mod exclusive_crowd;
mod fair_lock;
pub mod fifo;
pub mod held;
mod holdable;
mod list;
mod mutex;
pub mod reentrant;
mod rig;
mod run;
mod rwlock;
mod semaphore;
mod site;
mod topologies;

pub use any::{AnyHold, AnyKind, AnySite, Kind, Topology};
pub use holdable::{Hold, Holdable, Lease, Reentrant};
pub use rig::{Client, Rig};
pub use run::{Case, check, failure_of, side_by_side};
pub use rwlock::{Reading, Writing};
pub use semaphore::{AllPermits, Permits};
pub use site::{KeyEvents, Site, Standalone};
pub use topologies::{Clustered, Watched};

use std::time::Duration;

use crate::rounds;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// What a hand-over, a wake-up or an answer may take on two cores that do other work too. It is far
/// below one [check](leasehold_runtime::SessionBuilder::check_every), so nothing that only a check
/// puts right passes for a wake-up.
const MACHINE: Duration = Duration::from_millis(500);

/// The server's clock in whole milliseconds may end a lease so much earlier than ours sees it.
const ROUNDING: Duration = Duration::from_millis(2);

/// A duration as the line has it with `scripts/test --soak`, else a quarter.
fn scaled(full: Duration) -> Duration {
    if rounds(10) == 10 { full } else { full / 4 }
}
