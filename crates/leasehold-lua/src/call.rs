//! A script call as a value, and what comes back.

use std::sync::Arc;

use crate::script::Script;

/// One call of a script: what to run, on which keys, with which arguments.
///
/// Two calls that are equal are the same call: sending one again is a resend, which every script of this crate
/// answers as it answered the first (I6).
#[derive(Debug, Clone)]
pub struct Call {
    /// What to run.
    pub script: &'static Script,
    /// Every key that the script touches; all of them share a slot, unless elements were [joined](Call::join).
    pub keys: Vec<Arc<[u8]>>,
    /// The arguments, in the order of the script's header.
    pub args: Vec<Vec<u8>>,
}

impl Call {
    /// Appends the elements of another call of the same script. For scripts that take many elements in one call.
    pub fn join(&mut self, other: Call) {
        debug_assert_eq!(self.script.name(), other.script.name());
        self.keys.extend(other.keys);
        self.args.extend(other.args);
    }
}

/// What a script answered, free of any client crate's types.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// A nil.
    Nil,
    /// A whole number.
    Int(i64),
    /// A string of bytes.
    Bytes(Vec<u8>),
    /// An array.
    List(Vec<Reply>),
}

/// Writes a number as an argument.
pub(crate) fn number(value: u64) -> Vec<u8> {
    value.to_string().into_bytes()
}
