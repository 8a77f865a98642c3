//! A script: its text, put together once from its own file and the shared pieces it names.

use std::fmt;
use std::sync::OnceLock;

/// The shared pieces of `lua/lib`, by the name that an `--#include` line uses.
const LIBRARY: &[(&str, &str)] = &[
    ("clock", include_str!("../lua/lib/clock.lua")),
    ("token", include_str!("../lua/lib/token.lua")),
    ("queue", include_str!("../lua/lib/queue.lua")),
    ("mutex", include_str!("../lua/lib/mutex.lua")),
    ("shares", include_str!("../lua/lib/shares.lua")),
    ("rwlock", include_str!("../lua/lib/rwlock.lua")),
    ("semaphore", include_str!("../lua/lib/semaphore.lua")),
    ("settle", include_str!("../lua/lib/settle.lua")),
    ("acquire", include_str!("../lua/lib/acquire.lua")),
    ("check", include_str!("../lua/lib/check.lua")),
    ("release", include_str!("../lua/lib/release.lua")),
    ("renew", include_str!("../lua/lib/renew.lua")),
    ("holders", include_str!("../lua/lib/holders.lua")),
    ("force", include_str!("../lua/lib/force.lua")),
    ("latch", include_str!("../lua/lib/latch.lua")),
    ("tell", include_str!("../lua/lib/tell.lua")),
];

/// The line that a script names a shared piece with. The piece stands where the line stood, so that a script can
/// answer its usual case before it pays for pieces that only the other cases need.
const INCLUDE: &str = "--#include ";

/// One Lua script of the protocol.
pub struct Script {
    name: &'static str,
    body: &'static str,
    source: OnceLock<String>,
    hash: OnceLock<String>,
}

impl Script {
    /// A script from the text of its own file.
    pub(crate) const fn new(name: &'static str, body: &'static str) -> Self {
        Self { name, body, source: OnceLock::new(), hash: OnceLock::new() }
    }

    /// What it is called in errors and logs: `<primitive>/<verb>`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The whole text, as `EVAL` takes it.
    pub fn source(&self) -> &str {
        self.source.get_or_init(|| expand(self.body))
    }

    /// The digest that `EVALSHA` takes. This crate has no dependency, so the caller brings the digest function; it is
    /// asked once.
    pub fn hash(&self, sha1_hex: impl FnOnce(&str) -> String) -> &str {
        self.hash.get_or_init(|| sha1_hex(self.source()))
    }

    /// The text of its own file, without the shared pieces.
    pub fn body(&self) -> &'static str {
        self.body
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Script").field(&self.name).finish()
    }
}

fn expand(body: &str) -> String {
    let mut source = String::with_capacity(body.len() * 4);
    for line in body.lines() {
        match line.strip_prefix(INCLUDE).and_then(piece) {
            Some(text) => source.push_str(text),
            None => source.push_str(line),
        }
        source.push('\n');
    }
    source
}

fn piece(name: &str) -> Option<&'static str> {
    LIBRARY.iter().find(|(known, _)| *known == name.trim()).map(|(_, text)| *text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_stands_where_its_line_stood() {
        let source = expand("local a = 1\n--#include clock\nreturn a");
        let (before, after) = source.split_once("redis.call('TIME')").unwrap();
        assert!(before.starts_with("local a = 1"));
        assert!(after.trim_end().ends_with("return a"));
    }

    #[test]
    fn an_unknown_piece_is_left_as_a_comment_that_the_tidy_test_finds() {
        assert_eq!(expand("--#include nothing"), "--#include nothing\n");
    }
}
