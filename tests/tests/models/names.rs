//! What acquisitions and owners are called. Their numbers are all that the models know of them.

pub(crate) fn uuid(number: usize) -> String {
    format!("a{number:02}")
}

/// The number of an acquisition from its uuid, or from an id, which begins with it; in a cool-down with a dash before.
pub(crate) fn number_of(uuid: &str) -> usize {
    let uuid = uuid.strip_prefix('-').unwrap_or(uuid);
    uuid.get(1..3).and_then(|digits| digits.parse().ok()).expect("an id of this test")
}

pub(crate) fn owner_name(owner: usize) -> String {
    format!("owner {owner}")
}

/// Opaque to the scripts, with the byte that separates their fields.
pub(crate) fn note(number: usize) -> String {
    format!("{}|note", uuid(number))
}
