#![doc = include_str!("../README.md")]

pub mod call;
pub mod fair;
pub mod holders;
pub mod keys;
pub mod latch;
pub mod multi;
pub mod mutex;
pub mod reply;
pub mod rwlock;
pub mod script;
pub mod semaphore;
pub mod terms;
pub mod verbs;
pub mod wire;

pub use call::{Call, Reply};
pub use keys::{Keys, LatchKeys, ObjectName};
pub use reply::DecodeError;
pub use script::Script;
pub use terms::{Acquisition, Mode, Share, Terms};
pub use verbs::{Settings, Verbs};
