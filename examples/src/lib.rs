//! Whole jobs done with leasehold.
//!
//! * `quickstart` (`src/bin/quickstart.rs`): take a lock, use its fencing token, release, shut down. Read it first.
//! * `flash_sale` (`src/bin/flash_sale.rs`, run by `scripts/demo`): a shop sells too little stock to too many orders, by
//!   several processes at once: without a lock, with one, and with a worker that is frozen while it holds one.
//! * `long_job` (`src/bin/long_job.rs`): a hold far longer than its lease, and what to do when it is lost.
//! * `adopt` (`src/bin/adopt.rs`): a job that one process begins and another goes on with, under the same hold.
//! * `job_queue` (`src/bin/job_queue/`): jobs of one account in order over several processes, by a fair lock; one process
//!   is killed while it holds and waits.
//! * `fan_in` (`src/bin/fan_in/`): an import in shards by several processes, and others that wait until all shards are in,
//!   by a latch; one process is killed, and its shards are imported again.
//! * `api_limit` (`src/bin/api_limit/`): a fleet that calls a server within what it allows at a time, by a semaphore; one
//!   process is killed with its permits, and the limit is raised.
//! * `config_reload` (`src/bin/config_reload/`): many processes read a configuration of two files, one replaces it, by a
//!   read-write lock; one is killed while it reads.
//! * `transfer` (`src/bin/transfer/`): money moved between accounts, two of which are locked together, in both directions at
//!   once, by a multi-lock; one process is frozen, and its stale write is refused by its tokens.
//! * `cluster_tour` (`src/bin/cluster_tour/`): each primitive on a Redis Cluster that the program starts: keys, slots, nodes,
//!   and hand-overs between two processes.
//! * `tls` (`src/bin/tls/`): a lock over TLS on a server with a certificate of a private authority; who trusts another is
//!   refused.
//!
//! What they share: [`program`] (a session that is shut down on every way out, interruption, exit status), [`crew`] (worker
//! processes, one of which is killed), [`board`] (what moves on a terminal), [`database`].
//!
//! The flash sale from the inside out: [`orders`] is what is ordered, [`shop`] the database with its fencing check,
//! [`worker`] a process that sells (**the part to copy from**), [`scenario`] what the three runs differ in, [`run`] the
//! parent that starts, freezes and thaws the workers, [`message`] what the two tell each other, [`progress`] the bar, and
//! [`report`] the table and the verdict.

pub mod board;
pub mod crew;
pub mod database;
pub mod message;
pub mod orders;
pub mod program;
pub mod progress;
pub mod report;
pub mod run;
pub mod scenario;
pub mod shop;
pub mod worker;

/// Anything that ends the program early; `main` prints it with its causes.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;
