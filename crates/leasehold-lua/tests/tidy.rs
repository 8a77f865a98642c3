//! House rules of the scripts: the header says what the body does and what the encoder sends, numbers become text in
//! one way, and a script touches only the keys that it was given.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use leasehold_lua::{
    Acquisition, Call, Keys, LatchKeys, Mode, ObjectName, Script, Settings, Terms, Verbs, fair,
    latch, multi, mutex, rwlock, semaphore,
};

#[path = "tidy/rules.rs"]
mod rules;

use rules::{COMMANDS, File, MOST_LINES, RULES, Slot, calls};

fn lua() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("lua")
}

/// Every file of `lua/`.
fn files() -> Vec<File> {
    let mut all = Vec::new();
    for folder in fs::read_dir(lua()).expect("the folder lua") {
        let folder = folder.expect("a folder").path();
        for file in fs::read_dir(&folder).expect("a folder of scripts") {
            let path = file.expect("a file").path();
            let name = path.strip_prefix(lua()).expect("below lua").with_extension("");
            let text = fs::read_to_string(&path).expect("a text");
            all.push(File { name: name.to_str().expect("a name").to_owned(), text });
        }
    }
    all
}

/// Every script of every primitive.
fn scripts() -> Vec<&'static Script> {
    [
        &mutex::scripts()[..],
        &fair::scripts(),
        &rwlock::scripts(),
        &semaphore::scripts(),
        &latch::scripts(),
        &multi::scripts(),
    ]
    .concat()
}

const TERMS: Terms = Terms { wait_ms: 1, check_ms: 2, grant_ms: 3, fence_ms: 4, floor: 5 };
const ONE: Acquisition<'_> = Acquisition { id: b"u|1|w|i", owner: "o", note: b"n", lease_ms: 1 };

/// The calls that everything has that can be held.
fn calls_of(verbs: &Verbs, keys: &Keys, settings: &Settings) -> Vec<Call> {
    let mut renewals = verbs.renew(keys, ONE.id, 1);
    renewals.join(verbs.renew(keys, ONE.id, 1));
    let wait = Mode::Wait { max_waiters: Some(1) };
    vec![
        verbs.acquire(keys, settings, ONE, wait, TERMS),
        verbs.check(keys, settings, [(ONE, 0), (ONE, 1)], false, TERMS),
        verbs.release(keys, ONE.id, true, 0, TERMS),
        renewals,
    ]
}

/// Each call of each primitive, once.
fn calls_of_the_encoders() -> Vec<Call> {
    let keys = Keys::new(ObjectName { prefix: b"", kind: "mutex", group: None, name: b"a" });
    let mut calls = calls_of(&mutex::VERBS, &keys, &Settings::default());
    calls.extend([
        mutex::adopt(&keys, ONE),
        mutex::force_release(&keys, 1, TERMS),
        mutex::inspect(&keys),
        mutex::queue(&keys, 1),
        fair::cancel(&keys, 1, "t", TERMS),
    ]);
    let ids: [&[u8]; 2] = [ONE.id, ONE.id];
    calls.extend(calls_of(&rwlock::VERBS, &keys, &Settings::default()));
    calls.extend([
        rwlock::exchange(&keys, ONE.id, ONE, TERMS),
        rwlock::adopt(&keys, ONE, TERMS),
        rwlock::force_release(&keys, &ids, TERMS),
        rwlock::inspect(&keys, 1),
    ]);
    calls.extend(calls_of(&semaphore::VERBS, &keys, &semaphore::settings(1, true)));
    calls.extend([semaphore::force_release(&keys, &ids, TERMS), semaphore::inspect(&keys, 1)]);
    calls.extend(calls_of_permits(&keys));
    calls
}

/// The calls that only the semaphore has.
fn calls_of_permits(keys: &Keys) -> [Call; 5] {
    let ended = semaphore::Ended { name: ONE.id, late: true, at_least_ms: 0 };
    [
        semaphore::set_limit(keys, 1, TERMS),
        semaphore::release_many(keys, &[ended, ended], TERMS),
        semaphore::split(keys, ONE.id, ONE),
        semaphore::merge(keys, ONE.id, ONE.id),
        semaphore::adopt(keys, ONE),
    ]
}

/// The call that takes several, once.
fn call_of_several() -> Call {
    let keys = Keys::new(ObjectName { prefix: b"", kind: "mutex", group: None, name: b"a" });
    let (none, limit) = (Settings::default(), semaphore::settings(2, true));
    let element =
        |verbs, settings| multi::Element { verbs, keys: &keys, acquisition: ONE, settings };
    multi::acquire(&[element(&mutex::VERBS, &none), element(&semaphore::VERBS, &limit)], TERMS)
}

/// Each call of the latch, once.
fn calls_of_the_latch() -> Vec<Call> {
    let keys = LatchKeys::new(ObjectName { prefix: b"", kind: "latch", group: None, name: b"a" });
    vec![
        latch::arm(&keys, "u", 1, 2),
        latch::count_down(&keys, 1, latch::Counter::Call("u")),
        latch::look(&keys),
        latch::wait(&keys, "u", b"i", 1, 2),
        latch::leave(&keys, "u", b"i"),
        latch::reset(&keys, 1),
    ]
}

/// Whether an encoder may send so many; the line of an open slot begins with how many an element takes.
fn fits(slots: &[Slot<'_>], sent: usize) -> bool {
    let Some(open) = slots.last().filter(|slot| slot.many) else { return sent == slots.len() };
    let words = ["one ", "two ", "three ", "four ", "five ", "six "];
    let width = words.iter().position(|word| open.about.starts_with(word)).map(|at| at + 1);
    let fixed = slots.len() - 1;
    // The calls here have two elements.
    width.is_some_and(|width| sent == fixed + 2 * width)
}

#[test]
fn scripts_keep_the_house_rules() {
    let mut broken = Vec::new();
    for file in files() {
        for (rule, check) in RULES {
            broken.extend(
                check(&file).into_iter().map(|what| format!("{}: {rule}: {what}", file.name)),
            );
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn files_and_scripts_are_the_same() {
    let files = files();
    let own = files.iter().filter(|file| !file.is_piece());
    let on_disk: BTreeSet<_> = own.map(|file| (file.name.as_str(), file.text.as_str())).collect();
    let scripts = scripts();
    let known: BTreeSet<_> = scripts.iter().map(|script| (script.name(), script.body())).collect();
    assert_eq!(on_disk, known);
    for script in scripts {
        assert!(
            !script.source().contains("--#include"),
            "{}: a piece is not in the library",
            script.name()
        );
    }
}

#[test]
fn every_piece_is_used() {
    let files = files();
    let used: BTreeSet<_> = files.iter().flat_map(File::includes).collect();
    let pieces = files.iter().filter_map(|file| file.name.strip_prefix("lib/"));
    assert_eq!(pieces.collect::<BTreeSet<_>>(), used);
}

#[test]
fn every_allowed_command_is_used() {
    let files = files();
    let used: BTreeSet<_> = files
        .iter()
        .flat_map(File::code)
        .flat_map(calls)
        .map(|call| call[0].trim_matches('\''))
        .collect();
    assert_eq!(BTreeSet::from(COMMANDS), used);
}

#[test]
fn encoders_send_what_the_headers_say() {
    let calls = [calls_of_the_encoders(), calls_of_the_latch(), vec![call_of_several()]].concat();
    let called: Vec<_> = calls.iter().map(|call| call.script.name()).collect();
    assert_eq!(called, scripts().into_iter().map(Script::name).collect::<Vec<_>>());
    for call in calls {
        let file = File::new(call.script.name(), call.script.body());
        let (keys, args) = (file.slots("KEYS"), file.slots("ARGV"));
        assert!(fits(&keys, call.keys.len()), "{}: {} keys", file.name, call.keys.len());
        assert!(fits(&args, call.args.len()), "{}: {} arguments", file.name, call.args.len());
    }
}

/// A script that keeps all rules.
const GOOD: &str = "--[[
Does something.

KEYS[1]  holds     hash: the hold
KEYS[2]  queue     zset: waiting id -> ticket
ARGV[1]  id        text: uuid
ARGV[2]  lease_ms  number: length of the lease

returns {1, left_ms}   done
returns {0}            not done
]]
local holds, queue = KEYS[1], KEYS[2]
local id, lease_ms = ARGV[1], tonumber(ARGV[2])

--#include clock

if redis.call('EXISTS', holds, queue) == 0 then return { 0 } end
local deadline = text(now_ms + lease_ms)
redis.call('HSET', holds, id, deadline .. '|' .. id)
return { 1, lease_ms }
";

#[test]
fn a_good_script_breaks_no_rule() {
    for (rule, check) in RULES {
        assert_eq!(check(&File::new("a/good", GOOD)), Vec::<String>::new(), "{rule}");
    }
}

/// The negative control: each mistake is reported, and by its rule.
#[test]
fn each_rule_reports_what_breaks_it() {
    let mistakes = [
        ("header", "--[[\n", "-- no\n"),
        ("header", "Does something.", "something"),
        ("header", "length of the lease", ""),
        ("header", "returns {1, left_ms}   done\nreturns {0}            not done\n", ""),
        ("numbering", "KEYS[2]  queue", "KEYS[3]  queue"),
        ("numbering", "ARGV[1]  id", "ARGV[1…]  id"),
        ("returns", "returns {0}            not done\n", ""),
        ("returns", "return { 0 }", "return { 7 }"),
        (
            "binding",
            "local holds, queue = KEYS[1], KEYS[2]",
            "local queue, holds = KEYS[1], KEYS[2]",
        ),
        ("binding", "local holds, queue = KEYS[1], KEYS[2]", "local holds = KEYS[1]"),
        ("binding", "ARGV[2]  lease_ms", "ARGV[2]  grant_ms"),
        ("late slot", "return { 1, lease_ms }", "return { 1, tonumber(ARGV[2]) }"),
        ("late slot", "'EXISTS', holds", "'EXISTS', KEYS[1]"),
        ("number as text", "deadline .. '|'", "tostring(lease_ms) .. '|'"),
        ("number as text", "'|' .. id", "'|' .. lease_ms"),
        ("number as text", "'|' .. id", "'|' .. 5"),
        ("number as text", "text(now_ms + lease_ms)", "now_ms + lease_ms"),
        ("number as text", "deadline .. '|'", "now_us .. '|'"),
        ("built key", "'HSET', holds", "'HSET', holds .. ':x'"),
        ("built key", "'HSET', holds", "'HSET', 'lh1:mutex'"),
        ("built key", "'HSET', holds", "'HSET', id"),
        ("built key", "'EXISTS', holds, queue", "'EXISTS', holds, id"),
        ("built key", "local deadline", "local token = holds .. ':token'\nlocal deadline"),
        ("command", "'HSET'", "'HEXPIRE'"),
        ("command", "'HSET'", "command"),
        ("piece", "--#include clock", "--#include calendar"),
    ];
    for (rule, from, to) in mistakes {
        assert!(GOOD.contains(from), "{from}");
        assert_reported(rule, &GOOD.replacen(from, to, 1));
    }
    assert_reported("length", &format!("{GOOD}{}", "-- more\n".repeat(MOST_LINES)));
    let tried: BTreeSet<_> = mistakes.iter().map(|(rule, ..)| *rule).chain(["length"]).collect();
    assert_eq!(tried, RULES.iter().map(|(rule, _)| *rule).collect(), "rules without a control");
}

fn assert_reported(rule: &str, text: &str) {
    let (_, check) = RULES.iter().find(|(name, _)| *name == rule).expect("a rule");
    assert!(!check(&File::new("a/bad", text)).is_empty(), "{rule} passes over:\n{text}");
}
