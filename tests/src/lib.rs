//! Real servers, a fault proxy and checkers for the tests of leasehold.
//!
//! - [`Server`]: a Redis server of one test, which can be frozen, killed and restarted, and whose
//!   clock can be shifted ([`ServerClock`]); with TLS by an [`Authority`] of its own.
//! - [`FaultProxy`]: a link between a client and a server that delays, loses and breaks what is
//!   asked for, command by command.
//! - [`mod@conformance`]: one suite over anything that can be held.
//! - [`fake`]: a server that answers what a test has written, and an address whose server changes.
//! - [`history`]: checks that holds did not overlap and that their tokens grew.
//! - [`Worker`]: a process that locks, to be killed and frozen.
//! - [`fair`]: what suites of the fair lock begin with.
//! - [`scene`]: what suites of the mutex begin with, and look at in the end.
//! - [`rig`]: hears every command, samples times to live, counts and kills connections.
//! - [`acl`]: users with the rights that a lock needs, or fewer; [`refused`]: what the types refuse.
//! - [`cost`]: client commands of anything that can be held.
//! - [`mod@latch`]: the same for suites of the latch.
//! - [`mod@rwlock`]: the same for suites of the read-write lock.
//! - [`topology`]: a cluster, and a master with sentinels.
//! - [`measure`]: figures of a measurement.
//! - [`eventually`]: waits for a fact; tests use it where they would sleep.
//! - [`rounds`]: how often a long loop runs, with and without `scripts/test --soak`.
//!
//! The suites are `tests/tests/*.rs`. A suite whose subject is time is named `timed_*`:
//! `scripts/test` runs such a suite one test at a time.

#![expect(clippy::missing_panics_doc, reason = "a helper that cannot do its work fails the test")]

pub mod acl;
mod clock_shim;
pub mod conformance;
pub mod cost;
pub mod fair;
pub mod fake;
pub mod history;
pub mod latch;
pub mod measure;
pub mod permits;
mod poll;
pub mod proxy;
pub mod refused;
pub mod rig;
pub mod rwlock;
pub mod scene;
mod server;
mod soak;
pub mod topology;
mod worker;

pub use clock_shim::ServerClock;
pub use poll::eventually;
pub use proxy::{FaultProxy, Pick};
pub use server::{Authority, CommandCalls, Server, ServerBuilder};
pub use soak::rounds;
pub use worker::Worker;

/// The examples of the README are tests; it stands outside every package that is published.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;
