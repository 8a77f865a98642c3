//! The script that takes several objects at once, called as no client would: whatever it answers, all are held or none of
//! them is (I16).

use std::time::Duration;

use leasehold_lua::Share;
use leasehold_lua::multi::MultiReply;
use leasehold_tests::{Server, rounds};
use redis::Commands;

#[path = "multi_lock_script/bench.rs"]
mod bench;
#[path = "multi_lock_script/random.rs"]
mod random;
#[path = "multi_lock_script/reference.rs"]
mod reference;

use bench::{Bench, Element, OBJECTS, call, keys, release, try_one, wait_for};
use random::Case;

const LEASE: u64 = 30_000;
const MS: Duration = Duration::from_millis(1);

/// In full; else a tenth.
const CASES: u32 = 2_000;
/// A mutant must be caught within so many cases.
const MUTANT_CASES: u64 = 400;

fn exclusive(object: usize, number: u64) -> Element {
    Element::new(object, number, "", LEASE, Share::Exclusive)
}

fn permits(object: usize, number: u64, weight: u32) -> Element {
    Element::new(object, number, "", LEASE, Share::Weight(weight))
}

fn read(number: u64) -> Element {
    Element::new(3, number, "", LEASE, Share::Read)
}

/// Mutex, fair lock, reader, permits.
fn one_of_each(from: u64) -> [Element; 4] {
    [exclusive(0, from), exclusive(2, from + 1), read(from + 2), permits(4, from + 3, 2)]
}

fn nothing_is_held(bench: &mut Bench) -> bool {
    (0..OBJECTS.len()).all(|object| bench.ids(object).is_empty())
}

fn is_taken(reply: &MultiReply) -> bool {
    matches!(reply, MultiReply::Taken { .. })
}

#[test]
fn objects_of_all_kinds_are_taken_by_one_call() {
    let mut bench = Bench::start();
    let MultiReply::Taken { holds, .. } = bench.take(&one_of_each(1)) else { panic!("free") };
    assert!(holds.iter().all(|hold| hold.left_ms == LEASE));
    let tokens: Vec<_> = holds.iter().map(|hold| hold.token > 0).collect();
    assert_eq!(
        tokens,
        [true, true, false, false],
        "readers of an unwritten lock and permits have none"
    );
    let limits: Vec<_> = holds.iter().map(|hold| hold.limit).collect();
    assert_eq!((limits, bench.limit_and_used(4)), (vec![0, 0, 0, 3], (Some(3), 2)));
    assert_eq!(bench.endless(), None, "I17");
    // A second reader and a third permit fit, a second holder of the mutex does not.
    assert!(is_taken(&bench.take(&[read(10), permits(4, 11, 1)])));
    let busy = bench.take(&[read(12), exclusive(0, 13)]);
    assert!(matches!(busy, MultiReply::Busy { which: 1, again: false, .. }), "{busy:?}");
    assert_eq!(bench.ids(3).len(), 2);
}

/// I6.
#[test]
fn a_resend_answers_as_the_first_and_moves_no_deadline() {
    let mut bench = Bench::start();
    let all = one_of_each(1);
    let MultiReply::Taken { holds: first, .. } = bench.take(&all) else { panic!("free") };
    bench.server.clock().forward(5_000 * MS);
    let MultiReply::Taken { holds: again, .. } = bench.take(&all) else { panic!("held") };
    for (first, again) in first.iter().zip(&again) {
        assert_eq!((first.token, first.limit), (again.token, again.limit));
        assert!(again.left_ms <= LEASE - 5_000);
    }
    assert_eq!(bench.limit_and_used(4).1, 2, "counted once");
}

/// W22 f's other half: what is left of an earlier copy is not taken for the whole.
#[test]
fn a_resend_of_what_ran_out_in_part_is_torn_whoever_has_it_now() {
    let mut bench = Bench::start();
    let mut all = one_of_each(1);
    all[1] = Element::new(2, 2, "", 2_000, Share::Exclusive);
    assert!(is_taken(&bench.take(&all)));
    bench.server.clock().forward(3_000 * MS);
    assert_eq!(bench.take(&all), MultiReply::Torn { which: 1 });
    assert!(bench.ids(2).is_empty(), "and nothing is taken anew");
    // Somebody else has it: still torn, and not merely busy, so that the caller gives the rest back.
    assert!(is_taken(&bench.take(&[exclusive(2, 50)])));
    assert_eq!(bench.take(&all), MultiReply::Torn { which: 1 });
    for it in &all {
        bench.send(&release(it, true, 0)).expect("an answer");
    }
    assert_eq!(bench.take(&all), MultiReply::Cancelled { which: 0 });
}

/// I9: the cancels come one by one; whichever came first, a late copy takes nothing.
#[test]
fn a_late_copy_after_the_first_cancel_takes_nothing() {
    for first in 0..4 {
        let mut bench = Bench::start();
        let all = one_of_each(1);
        bench.send(&release(&all[first], true, 0)).expect("an answer");
        let which = first as u64;
        assert_eq!(bench.take(&all), MultiReply::Cancelled { which });
        assert!(nothing_is_held(&mut bench));
    }
}

/// An early release with a shortest hold: nobody holds, and it is not free.
#[test]
fn what_cools_down_is_busy_and_its_own_late_copy_is_cancelled() {
    let mut bench = Bench::start();
    let all = one_of_each(1);
    assert!(is_taken(&bench.take(&all)));
    for it in &all {
        bench.send(&release(it, false, 20_000)).expect("an answer");
    }
    assert_eq!(bench.take(&all), MultiReply::Cancelled { which: 0 });
    for (at, it) in all.iter().enumerate() {
        let other = Element::new(
            it.object,
            70 + at as u64,
            "",
            LEASE,
            match it.share {
                Share::Read => Share::Exclusive,
                Share::Weight(_) => Share::Weight(3),
                Share::Exclusive => Share::Exclusive,
            },
        );
        assert!(matches!(bench.take(&[other]), MultiReply::Busy { which: 0, .. }), "{it:?}");
    }
    bench.server.clock().forward(21_000 * MS);
    assert!(is_taken(&bench.take(&one_of_each(90))));
}

#[test]
fn the_first_use_of_a_semaphore_sets_its_limit_and_later_ones_go_by_it() {
    let mut bench = Bench::start();
    let never = bench.take(&[exclusive(0, 1), permits(4, 2, 4)]);
    assert_eq!(never, MultiReply::NeverFits { which: 1 });
    assert!(nothing_is_held(&mut bench));
    assert_eq!(bench.limit_and_used(4).0, Some(3));
    let mut more = permits(4, 3, 4);
    more.limit = 5;
    assert_eq!(bench.take(&[more.clone()]), MultiReply::NeverFits { which: 0 });
    more.strict = true;
    assert_eq!(bench.take(&[more]), MultiReply::LimitDiffers { which: 0, server: 3 });
    let mut other = permits(4, 4, 3);
    other.limit = 5;
    let MultiReply::Taken { holds, .. } = bench.take(&[other]) else { panic!("it fits") };
    assert_eq!(holds[0].limit, 3, "told, for the event");
    // A first use alone sets it too, and a busy one keeps it.
    assert!(matches!(bench.take(&[permits(4, 5, 1)]), MultiReply::Busy { which: 0, .. }));
}

#[test]
fn an_owner_enters_again_past_a_queue_and_never_more_than_64_times() {
    let mut bench = Bench::start();
    let mine = |number, share, object| Element::new(object, number, "me", LEASE, share);
    assert!(is_taken(&bench.take(&[mine(1, Share::Exclusive, 0), mine(2, Share::Exclusive, 3)])));
    bench.send(&wait_for(&exclusive(0, 3))).expect("an answer");
    bench.send(&wait_for(&exclusive(3, 4))).expect("an answer");
    let busy = bench.take(&[exclusive(1, 5), exclusive(0, 6)]);
    assert!(matches!(busy, MultiReply::Busy { which: 1, .. }), "the queue is for others: {busy:?}");
    for number in 10..73 {
        let more = [
            mine(number, Share::Exclusive, 0),
            mine(number + 100, Share::Read, 3),
            exclusive(1, number + 200),
        ];
        assert!(is_taken(&bench.take(&more)), "{number}");
        bench.send(&release(&more[2], false, 0)).expect("an answer");
    }
    assert_eq!((bench.ids(0).len(), bench.ids(3).len()), (64, 64));
    let crowded = bench.take(&[exclusive(1, 500), mine(501, Share::Exclusive, 0)]);
    assert_eq!(crowded, MultiReply::TooManyEntries { which: 1 });
    let crowded = bench.take(&[exclusive(1, 502), mine(503, Share::Read, 3)]);
    assert_eq!(crowded, MultiReply::TooManyEntries { which: 1 });
    assert!(bench.ids(1).is_empty(), "and the other is not taken");
}

#[test]
fn an_expired_hold_with_nobody_in_its_queue_is_free() {
    let mut bench = Bench::start();
    assert!(is_taken(&bench.take(&one_of_each(1))));
    assert!(!is_taken(&bench.take(&one_of_each(10))));
    bench.server.clock().forward(31_000 * MS);
    assert!(is_taken(&bench.take(&one_of_each(20))));
    assert_eq!(bench.limit_and_used(4).1, 2, "what ended by time is no longer counted");
}

#[test]
fn a_queue_behind_one_member_refuses_all() {
    for (object, share) in [(0, Share::Exclusive), (2, Share::Exclusive), (3, Share::Exclusive)] {
        let mut bench = Bench::start();
        let holder = exclusive(object, 1);
        bench.send(&try_one(&holder)).expect("an answer");
        bench.send(&wait_for(&Element::new(object, 2, "", LEASE, share))).expect("an answer");
        let busy = bench.take(&[exclusive(1, 3), exclusive(object, 4)]);
        assert!(matches!(busy, MultiReply::Busy { which: 1, .. }), "{busy:?}");
        let left: bool = bench.connection.exists(&keys(object).queue[..]).expect("EXISTS");
        assert!(left && bench.ids(1).is_empty(), "nobody was passed, and nothing taken");
    }
}

/// 10 000 expired permits go in steps: it says so, and is not merely busy.
#[test]
fn many_expired_permits_are_swept_in_steps() {
    let mut bench = Bench::start();
    for number in 0..600 {
        let mut it = Element::new(4, number, "", 1_000, Share::Weight(1));
        it.limit = 600;
        bench.send(&try_one(&it)).expect("an answer");
    }
    bench.server.clock().forward(2_000 * MS);
    let mut all = permits(4, 1_000, 600);
    all.limit = 600;
    let mut calls = 1;
    while let MultiReply::Busy { again, .. } = bench.take(&[exclusive(0, 1_001), all.clone()]) {
        assert!(again, "there is room: only the sweep is not through");
        calls += 1;
    }
    assert_eq!((calls, bench.limit_and_used(4).1), (3, 600));
}

/// I5.
#[test]
fn tokens_grow_above_the_floor_and_a_poisoned_floor_is_ignored() {
    let mut bench = Bench::start();
    let floor = bench.now_us() + 60_000_000;
    let all = [exclusive(0, 1), exclusive(2, 2), exclusive(3, 3)];
    let MultiReply::Taken { holds, .. } = bench.take_above(&all, floor) else { panic!("free") };
    assert!(holds.iter().all(|hold| hold.token > floor));
    for it in &all {
        bench.send(&release(it, false, 0)).expect("an answer");
    }
    let poisoned = bench.now_us() + 2 * 86_400_000_000;
    let all = [exclusive(0, 11), exclusive(2, 12), exclusive(3, 13)];
    let MultiReply::Taken { holds: next, now_us } = bench.take_above(&all, poisoned) else {
        panic!("free")
    };
    for (hold, next) in holds.iter().zip(&next) {
        assert!(next.token > hold.token && next.token < now_us + 86_400_000_000);
    }
}

/// I18: the most that a multi-lock has.
#[test]
fn sixty_four_members_are_taken_in_a_moment() {
    let mut bench = Bench::start();
    let keys: Vec<_> = (0..64)
        .map(|number| {
            let name = format!("member {number}");
            leasehold_lua::Keys::new(leasehold_lua::ObjectName {
                prefix: b"",
                kind: "mutex",
                group: None,
                name: name.as_bytes(),
            })
        })
        .collect();
    let ids: Vec<_> = (0..64).map(|number| format!("u{number}|{LEASE}|w|nobody")).collect();
    let none = leasehold_lua::Settings::default();
    let elements: Vec<_> = keys
        .iter()
        .zip(&ids)
        .map(|(keys, id)| leasehold_lua::multi::Element {
            verbs: &leasehold_lua::mutex::VERBS,
            keys,
            acquisition: leasehold_lua::Acquisition {
                id: id.as_bytes(),
                owner: id,
                note: b"note",
                lease_ms: LEASE,
            },
            settings: &none,
        })
        .collect();
    let call = leasehold_lua::multi::acquire(&elements, bench::TERMS);
    redis::cmd("CONFIG").arg("RESETSTAT").exec(&mut bench.connection).expect("RESETSTAT");
    let reply = bench.send(&call).expect("an answer");
    let Ok(MultiReply::Taken { holds, .. }) = MultiReply::decode(&reply) else {
        panic!("{reply:?}")
    };
    assert_eq!(holds.len(), 64);
    let info: String =
        redis::cmd("INFO").arg("commandstats").query(&mut bench.connection).expect("INFO");
    let line = info.lines().find(|line| line.starts_with("cmdstat_eval:")).expect("it ran");
    let micros = line.split("usec=").nth(1).and_then(|rest| rest.split(',').next());
    let micros: u64 = micros.expect("a time").parse().expect("a number");
    println!("64 members: {micros} us");
    assert!(micros < 20_000, "{line}");
}

/// Whatever of an element is foreign, nothing of the others is taken.
#[test]
fn a_foreign_key_takes_nothing() {
    let mut bench = Bench::start();
    let mine = [
        (0, vec![keys(0).holds, keys(0).token, keys(0).gone]),
        (3, vec![keys(3).holds, keys(3).token, keys(3).gone, keys(3).notes]),
        (4, vec![keys(4).holds, keys(4).gone, keys(4).notes]),
    ];
    for (object, foreign) in mine {
        for key in foreign {
            redis::cmd("FLUSHALL").exec(&mut bench.connection).expect("FLUSHALL");
            let text = String::from_utf8_lossy(&key).into_owned();
            if text.ends_with(":token") {
                let _: u64 = bench.connection.rpush(&key[..], "not ours").expect("RPUSH");
            } else {
                let _: () = bench.connection.set(&key[..], "not ours").expect("SET");
            }
            let share = if object == 4 { Share::Weight(1) } else { Share::Exclusive };
            let all = [exclusive(1, 1), Element::new(object, 2, "", LEASE, share), exclusive(2, 3)];
            let refused = bench.send(&call(&all, 0)).expect_err(&text).to_string();
            assert!(refused.contains("WRONGTYPE"), "{text}: {refused}");
            for other in [1, 2] {
                assert!(bench.ids(other).is_empty(), "{text}");
            }
        }
    }
}

/// Whether an error is of this kind. Before Redis 7.0 what a script met stands inside another error.
fn says(refused: &redis::RedisError, word: &str) -> bool {
    refused.code() == Some(word) || refused.detail().is_some_and(|text| text.contains(word))
}

#[test]
fn a_full_server_refuses_all_of_it() {
    let mut bench = Bench::at(Server::builder().arg("--maxmemory-policy", "noeviction").start());
    let expired = Element::new(1, 1, "", 1, Share::Exclusive);
    bench.send(&try_one(&expired)).expect("an answer");
    redis::cmd("CONFIG")
        .arg(&["SET", "maxmemory", "1"])
        .exec(&mut bench.connection)
        .expect("CONFIG SET");
    let refused = bench.send(&call(&one_of_each(10), 0)).expect_err("full");
    assert!(says(&refused, "OOM"), "{refused}");
    redis::cmd("CONFIG")
        .arg(&["SET", "maxmemory", "0"])
        .exec(&mut bench.connection)
        .expect("CONFIG SET");
    for object in [0, 2, 3, 4] {
        assert!(bench.ids(object).is_empty());
    }
    assert!(is_taken(&bench.take(&one_of_each(20))), "the control");
}

#[test]
fn a_replica_refuses_all_of_it() {
    let master = Server::start();
    let mut bench = Bench::at(Server::start());
    let mut follow = redis::cmd("REPLICAOF");
    follow.arg("127.0.0.1").arg(master.addr().port());
    follow.exec(&mut bench.connection).expect("REPLICAOF");
    let refused = bench.send(&call(&one_of_each(1), 0)).expect_err("a replica");
    assert!(says(&refused, "READONLY"), "{refused}");
    redis::cmd("REPLICAOF").arg("NO").arg("ONE").exec(&mut bench.connection).expect("REPLICAOF");
    assert!(is_taken(&bench.take(&one_of_each(1))), "the control");
}

/// Random calls, resends, ends, losses and clock steps; each answer and all holds by the rules.
#[test]
fn random_calls_do_what_the_rules_say() {
    let mut bench = Bench::start();
    let first = std::env::var("LEASEHOLD_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds: Vec<u64> = match first {
        Some(seed) => vec![seed],
        None => (0..u64::from(rounds(CASES))).collect(),
    };
    for seed in seeds {
        if let Err(what) = Case::run(&mut bench, seed) {
            panic!("LEASEHOLD_SEED={seed}: {what}");
        }
    }
}

/// The negative control: each line of the script that matters, broken.
const MUTANTS: &[(&str, &str)] = &[
    ("if held > 0 and missing then return { 3, missing } end", ""),
    ("if refusal then return refusal end", ""),
    ("or redis.call('EXISTS', queue) == 1 then", "then"),
    ("if is_gone(id) or kind.cools(id) then return { 4, which } end", ""),
    ("if differs then return { 7, which, limit } end", ""),
    ("if room < 0 then return { 5, which } end", ""),
    ("if room == 0 or", "if"),
    ("if held == 0 then\n  each", "if true then\n  each"),
    ("if held == 0 then kind.reenter", "if false then kind.reenter"),
    ("if not enters_again[which] then", "if true then"),
    ("refusal = refusal or refusal_of", "refusal = refusal_of"),
    ("missing = missing or which", "missing = which"),
    ("  if kind.may_reenter(id, owner) then\n", "  if false then\n"),
    ("  kind.read_hold()\n  if kind.holds_id", "  if kind.holds_id"),
    ("    kind.read_hold()\n    if held", "    if held"),
    ("  kind.check()\n", ""),
    ("kinds.fair = kinds.mutex", "kinds.fair = kinds.rwlock"),
    ("if floor >= fresh and", "if false and"),
    ("if not last then return minted end", "if true then return minted end"),
    (
        "  read_hold = read_hold, holds_id = holds_id, cools",
        "  read_hold = read_hold, holds_id = function(_) return false end, cools",
    ),
    ("text(score('#u') + weight_of(id)), '#u')", "text(score('#u')), '#u')"),
    ("which * KEYED", "0"),
];

#[test]
fn every_mutant_of_the_script_is_caught() {
    let mut bench = Bench::start();
    for (from, to) in MUTANTS {
        bench.change(from, to);
        let caught = (0..MUTANT_CASES).find(|seed| {
            let run = std::panic::AssertUnwindSafe(|| Case::run(&mut bench, *seed));
            // A script that fails is caught as well.
            !matches!(std::panic::catch_unwind(run), Ok(Ok(())))
        });
        let caught = caught.unwrap_or_else(|| panic!("survives: {from:?} -> {to:?}"));
        println!("{from:?} caught by case {caught}");
    }
}
