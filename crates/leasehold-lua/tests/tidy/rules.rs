//! The rules, each a function from a file to what it has against it.

use std::collections::BTreeSet;

use crate::lua;

/// Every command of the scripts: all exist in Redis 6.2, and a user of Redis needs the right to run them.
pub(crate) const COMMANDS: [&str; 28] = [
    "DEL",
    "EXISTS",
    "GET",
    "HDEL",
    "HEXISTS",
    "HGET",
    "HGETALL",
    "HLEN",
    "HMGET",
    "HSET",
    "PEXPIRE",
    "PEXPIREAT",
    "PTTL",
    "PUBLISH",
    "PUBSUB",
    "SET",
    "TIME",
    "ZADD",
    "ZCARD",
    "ZCOUNT",
    "ZMSCORE",
    "ZRANDMEMBER",
    "ZRANGE",
    "ZRANGEBYSCORE",
    "ZRANK",
    "ZREM",
    "ZREMRANGEBYRANK",
    "ZSCORE",
];

/// The names that keys are bound to, everywhere the same.
const KEY_NAMES: [&str; 10] =
    ["holds", "queue", "timeouts", "token", "gone", "notes", "latch", "ids", "waiters", "keys"];

pub(crate) const MOST_LINES: usize = 200;

/// A file of `lua/`.
pub(crate) struct File {
    /// `mutex/acquire` or `lib/clock`.
    pub(crate) name: String,
    pub(crate) text: String,
}

impl File {
    pub(crate) fn new(name: &str, text: &str) -> Self {
        Self { name: name.to_owned(), text: text.to_owned() }
    }

    pub(crate) fn is_piece(&self) -> bool {
        self.name.starts_with("lib/")
    }

    /// Between `--[[` and `]]`, if the file begins so.
    fn header(&self) -> Option<&str> {
        self.text.strip_prefix("--[[\n")?.split_once("\n]]\n").map(|(header, _)| header)
    }

    /// The code without comments, line by line.
    pub(crate) fn code(&self) -> impl Iterator<Item = &str> {
        let code = match self.header() {
            Some(header) => &self.text["--[[\n".len() + header.len() + "\n]]\n".len()..],
            None => &self.text,
        };
        code.lines()
            .map(|line| line.split("--").next().unwrap_or("").trim())
            .filter(|line| !line.is_empty())
    }

    /// The first lines, which give the slots names.
    fn bindings(&self) -> Vec<&str> {
        self.code().take_while(|line| line.starts_with("local ") && has_slot(line)).collect()
    }

    pub(crate) fn includes(&self) -> impl Iterator<Item = &str> {
        self.text.lines().filter_map(|line| line.strip_prefix("--#include "))
    }

    /// The header's slots of `KEYS` or `ARGV`.
    pub(crate) fn slots(&self, array: &str) -> Vec<Slot<'_>> {
        let lines = self.header().unwrap_or("").lines();
        lines.filter_map(|line| Slot::of(line.strip_prefix(array)?)).collect()
    }
}

/// A line of a header: `[6…]  waiting  four an acquisition: …`.
pub(crate) struct Slot<'a> {
    number: usize,
    pub(crate) many: bool,
    name: &'a str,
    pub(crate) about: &'a str,
}

impl<'a> Slot<'a> {
    fn of(line: &'a str) -> Option<Self> {
        let (number, rest) = line.strip_prefix('[')?.split_once(']')?;
        let (name, about) = rest.trim().split_once(' ').unwrap_or((rest.trim(), ""));
        let many = number.ends_with('…');
        Some(Self {
            number: number.trim_end_matches('…').parse().ok()?,
            many,
            name,
            about: about.trim(),
        })
    }
}

fn has_slot(line: &str) -> bool {
    line.contains("KEYS") || line.contains("ARGV")
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// A rule: what it is called, and what it has against a file.
pub(crate) type Rule = (&'static str, fn(&File) -> Vec<String>);

pub(crate) const RULES: [Rule; 10] = [
    ("header", header_says_what_and_with_what),
    ("numbering", slots_are_numbered_from_one),
    ("returns", every_code_is_in_the_header),
    ("binding", slots_are_bound_as_the_header_names_them),
    ("late slot", no_slot_after_the_bindings),
    ("number as text", numbers_become_text_in_one_way),
    ("built key", keys_are_given_not_built),
    ("command", commands_are_known),
    ("piece", pieces_exist),
    ("length", files_are_short),
];

fn header_says_what_and_with_what(file: &File) -> Vec<String> {
    if file.is_piece() {
        let said = file.text.starts_with("-- ");
        return if said { vec![] } else { vec!["does not begin with what it is".into()] };
    }
    let Some(header) = file.header() else { return vec!["no header".into()] };
    let mut found = Vec::new();
    let about = header.split("\n\n").next().unwrap_or("");
    if !about.starts_with(char::is_uppercase) || !about.ends_with('.') {
        found.push("the header does not begin with a sentence".to_owned());
    }
    if file.slots("KEYS").is_empty() {
        found.push("no line for KEYS".to_owned());
    }
    for slot in file.slots("KEYS").iter().chain(&file.slots("ARGV")) {
        if !slot.about.contains(char::is_whitespace) {
            found.push(format!("{} has no type and meaning", slot.name));
        }
    }
    if !header.lines().any(|line| line.starts_with("returns {")) {
        found.push("no line says what it returns".to_owned());
    }
    found
}

fn slots_are_numbered_from_one(file: &File) -> Vec<String> {
    let numbered = |array| {
        let slots = file.slots(array);
        let gap = slots.iter().enumerate().find(|(at, slot)| slot.number != at + 1);
        let open = slots.iter().rev().skip(1).find(|slot| slot.many);
        gap.map(|(_, slot)| slot)
            .or(open)
            .map(|slot| format!("{array}[{}] is out of order", slot.number))
    };
    ["KEYS", "ARGV"].into_iter().filter_map(numbered).collect()
}

/// The codes are what a table begins with, and the values of a local `code`.
fn every_code_is_in_the_header(file: &File) -> Vec<String> {
    let Some(header) = file.header() else { return vec![] };
    let returns: Vec<_> = header.lines().filter(|line| line.starts_with("returns ")).collect();
    let said = returns.iter().flat_map(|line| codes(line, "{")).collect::<BTreeSet<_>>();
    let body =
        file.code().flat_map(|line| codes(line, "{").into_iter().chain(codes(line, "code =")));
    let done = body.collect::<BTreeSet<_>>();
    // What a verb's piece returns need not happen to every kind, but nothing else may be said.
    let pieces = file.includes().flat_map(|name| {
        let text = std::fs::read_to_string(lua().join(format!("lib/{name}.lua")));
        File::new(name, &text.unwrap_or_default())
            .code()
            .flat_map(|line| codes(line, "{"))
            .collect::<Vec<_>>()
    });
    let possible = done.iter().copied().chain(pieces).collect::<BTreeSet<_>>();
    let unsaid =
        done.difference(&said).map(|code| format!("returns {code}, the header does not say so"));
    unsaid
        .chain(
            said.difference(&possible)
                .map(|code| format!("says {code}, the body does not return it")),
        )
        .collect()
}

fn codes(line: &str, before: &str) -> Vec<u32> {
    let after = line.split(before).skip(1).map(str::trim_start);
    let number = |text: &str| {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let ends = text[digits..].trim_start();
        let whole = ends.is_empty() || ends.starts_with([',', '}']);
        text[..digits].parse().ok().filter(|_| whole)
    };
    after.filter_map(number).collect()
}

/// Names and slots of the bindings, as `(name, array, number)`; number 0 is the whole array.
fn bound(line: &str) -> Vec<(&str, &'static str, usize)> {
    let Some((names, values)) = line.trim_start_matches("local ").split_once(" = ") else {
        return vec![];
    };
    let slot = |value: &str| {
        let array = ["KEYS", "ARGV"].into_iter().find(|array| value.contains(array)).unwrap_or("");
        let number = value.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
        (array, number.and_then(|(number, _)| number.parse().ok()).unwrap_or(0))
    };
    let pairs = names.split(", ").zip(values.split(", "));
    pairs.map(|(name, value)| (name, slot(value).0, slot(value).1)).collect()
}

fn slots_are_bound_as_the_header_names_them(file: &File) -> Vec<String> {
    let bindings: Vec<_> = file.bindings().into_iter().flat_map(bound).collect();
    let mut found = Vec::new();
    for array in ["KEYS", "ARGV"] {
        let mut said = file.slots(array).into_iter();
        let mut real = bindings.iter().filter(|(_, of, _)| *of == array);
        loop {
            match (said.next(), real.next()) {
                (None, None) => break,
                (Some(slot), Some((name, _, number)))
                    if slot.name == *name && *number == if slot.many { 0 } else { slot.number } => {
                }
                (slot, real) => {
                    let slot = slot.map(|slot| (slot.name, slot.number));
                    found.push(format!("header {slot:?}, bound {real:?}"));
                }
            }
        }
    }
    found
}

fn no_slot_after_the_bindings(file: &File) -> Vec<String> {
    let later = file.code().skip(file.bindings().len());
    later.filter(|line| has_slot(line)).map(str::to_owned).collect()
}

fn numbers_become_text_in_one_way(file: &File) -> Vec<String> {
    let texts: Vec<&str> = file
        .code()
        .filter_map(|line| line.strip_prefix("local ")?.split_once(" = "))
        .filter(|(_, value)| value.starts_with("text(") || value.starts_with("string."))
        .map(|(name, _)| name)
        .collect();
    let numeric = |operand: &str| {
        let last = operand.rsplit(['.', '(']).next().unwrap_or(operand);
        let named = last.ends_with("_ms") || last.ends_with("_us") || NUMBERS.contains(&last);
        operand.starts_with(|c: char| c.is_ascii_digit()) || (named && !texts.contains(&last))
    };
    let mut found = Vec::new();
    for line in file.code() {
        if line.contains("tostring(") {
            found.push(line.to_owned());
        }
        let parts: Vec<_> = line.split(" .. ").collect();
        for pair in parts.windows(2) {
            let left = pair[0].rsplit(|c: char| !is_word(c) && c != '.').next().unwrap_or("");
            let right = pair[1].split(|c: char| !is_word(c) && c != '.').next().unwrap_or("");
            if [left, right].into_iter().any(numeric) {
                found.push(line.to_owned());
            }
        }
    }
    found
}

/// Names of numbers beside those that end in a unit.
const NUMBERS: [&str; 6] = ["deadline", "ticket", "floor", "last", "position", "wanted"];

/// The arguments of each `redis.call` and `redis.pcall` of a line, the command first.
pub(crate) fn calls(line: &str) -> Vec<Vec<&str>> {
    let starts =
        ["redis.call(", "redis.pcall("].into_iter().flat_map(|call| line.split(call).skip(1));
    starts.map(arguments).collect()
}

/// What stands before the bracket that closes the call, apart by the commas that are not in brackets themselves.
fn arguments(rest: &str) -> Vec<&str> {
    let (mut depth, mut from, mut found) = (0, 0, Vec::new());
    for (at, c) in rest.char_indices() {
        match c {
            '(' | '{' => depth += 1,
            '}' => depth -= 1,
            ')' if depth > 0 => depth -= 1,
            ',' | ')' if depth == 0 => {
                found.push(rest[from..at].trim());
                from = at + 1;
                if c == ')' {
                    break;
                }
            }
            _ => {}
        }
    }
    found
}

fn keys_are_given_not_built(file: &File) -> Vec<String> {
    let is_key = |argument: &str| {
        let name = argument.split('[').next().unwrap_or("");
        let plain = argument == name || argument.ends_with(']');
        KEY_NAMES.contains(&name)
            && plain
            && argument.chars().all(|c| is_word(c) || " +[]".contains(c))
    };
    let mut found = Vec::new();
    for line in file.code() {
        for call in calls(line) {
            let keys = match call[0].trim_matches('\'') {
                "TIME" | "PUBLISH" | "PUBSUB" => 0,
                "EXISTS" | "DEL" => call.len(),
                _ => 1,
            };
            let given = call.iter().skip(1).take(keys);
            found.extend(
                given.filter(|argument| !is_key(argument)).map(|key| format!("{key} in {line}")),
            );
        }
    }
    for line in file.code().skip(file.bindings().len()) {
        let assigned = line.trim_start_matches("local ").split_once(" = ");
        // A script with many elements gives the names to the keys of each in turn.
        let given = |values: &str| values.split(", ").all(|value| value.starts_with("keys["));
        let built = assigned.is_some_and(|(names, values)| {
            names.split(", ").any(|name| KEY_NAMES.contains(&name)) && !given(values)
        });
        if built {
            found.push(line.to_owned());
        }
    }
    found
}

fn commands_are_known(file: &File) -> Vec<String> {
    let known = |name: &str| COMMANDS.iter().any(|one| format!("'{one}'") == name);
    let used = file.code().flat_map(calls).map(|call| call[0].to_owned());
    used.filter(|name| !known(name)).collect()
}

fn pieces_exist(file: &File) -> Vec<String> {
    let missing = |name: &&str| !lua().join(format!("lib/{name}.lua")).is_file();
    file.includes().filter(missing).map(str::to_owned).collect()
}

fn files_are_short(file: &File) -> Vec<String> {
    let lines = file.text.lines().count();
    if lines > MOST_LINES { vec![format!("{lines} lines")] } else { vec![] }
}
