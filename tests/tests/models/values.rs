//! What a server's values hold.

use std::collections::BTreeMap;

use redis::Value;

pub(crate) fn scores(value: &Value) -> Result<Vec<(String, u64)>, String> {
    let read = |(member, score): (Vec<u8>, Vec<u8>)| {
        let score = latin(&score).parse();
        Ok((latin(&member), score.map_err(|_| format!("score of {}", latin(&member)))?))
    };
    pairs(value).into_iter().map(read).collect()
}

pub(crate) fn texts(value: &Value) -> BTreeMap<String, String> {
    pairs(value).into_iter().map(|(field, it)| (latin(&field), latin(&it))).collect()
}

pub(crate) fn pairs(value: &Value) -> Vec<(Vec<u8>, Vec<u8>)> {
    let Value::Array(parts) = value else { panic!("not a list: {value:?}") };
    parts.chunks(2).map(|pair| (bytes(&pair[0]), bytes(&pair[1]))).collect()
}

pub(crate) fn bytes(value: &Value) -> Vec<u8> {
    let Value::BulkString(bytes) = value else { panic!("not a string: {value:?}") };
    bytes.clone()
}

pub(crate) fn latin(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn text(value: &Value) -> String {
    latin(&bytes(value))
}

pub(crate) fn int(value: &Value) -> i64 {
    let Value::Int(number) = value else { panic!("not an integer: {value:?}") };
    *number
}

/// In microseconds.
pub(crate) fn time(value: &Value) -> u64 {
    let Value::Array(parts) = value else { panic!("not a time: {value:?}") };
    let number = |part: &Value| text(part).parse::<u64>().expect("a number");
    number(&parts[0]) * 1_000_000 + number(&parts[1])
}
