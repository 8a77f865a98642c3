//! The client's values as the scripts' replies.

use leasehold_lua::Reply;
use redis::Value;

/// Scripts answer integers, strings and arrays; what else RESP3 knows becomes text.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the client's enum is open; what is not named is treated alike"
)]
pub(super) fn from_value(value: Value) -> Reply {
    match value {
        Value::Nil => Reply::Nil,
        Value::Int(number) => Reply::Int(number),
        Value::Boolean(flag) => Reply::Int(flag.into()),
        Value::BulkString(bytes) => Reply::Bytes(bytes),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => {
            Reply::Bytes(text.into_bytes())
        }
        Value::Okay => Reply::Bytes(b"OK".to_vec()),
        Value::Array(values) | Value::Set(values) => {
            Reply::List(values.into_iter().map(from_value).collect())
        }
        other => Reply::Bytes(format!("{other:?}").into_bytes()),
    }
}
