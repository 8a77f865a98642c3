//! Whether each object was where it belongs, and was handed over from there.

use crate::cluster::{Key, NODES};
use crate::objects::Object;
use crate::tour::Stop;

/// What is wrong with the tour; nothing if it shows what it should.
pub(crate) fn faults<'a>(stops: &[Stop], stays: impl IntoIterator<Item = &'a Key>) -> Vec<String> {
    let mut faults = Vec::new();
    let mut expect = |kept: bool, fault: String| {
        if !kept {
            faults.push(fault);
        }
    };
    let seen: Vec<_> = stops.iter().map(|stop| stop.object).collect();
    expect(seen == Object::ALL, format!("the tour saw {seen:?}"));
    for stop in stops {
        let name = stop.object.name();
        let [slots, nodes] = [slots(stop), nodes([stop])];
        let wanted = if stop.object == Object::Across { 2 } else { 1 };
        expect(slots == wanted, format!("{name}: its keys are in {slots} slots, not {wanted}"));
        expect(nodes == wanted, format!("{name}: its keys are on {nodes} nodes, not {wanted}"));
        let scripts = stop.scripts;
        let right = u64::try_from(wanted).unwrap_or_default();
        expect(scripts == right, format!("{name}: held by {scripts} scripts, not {right}"));
        let is_pushed = stop.pushed > 0 || stop.object == Object::Latch;
        expect(is_pushed, format!("{name}: nothing was pushed"));
        expect(grows(stop), format!("{name}: its tokens are {:?}", stop.tokens));
    }
    let nodes = nodes(stops);
    expect(nodes == NODES, format!("the tour saw {nodes} nodes, not {NODES}"));
    for key in stays.into_iter().filter(|key| !may_stay(&key.name)) {
        expect(false, format!("a hold or a waiter stays: {key}"));
    }
    faults
}

fn slots(stop: &Stop) -> usize {
    distinct(stop.keys.iter().map(|key| key.slot))
}

fn nodes<'a>(stops: impl IntoIterator<Item = &'a Stop>) -> usize {
    distinct(stops.into_iter().flat_map(|stop| &stop.keys).map(|key| key.node))
}

fn distinct<T: Ord>(values: impl Iterator<Item = T>) -> usize {
    values.collect::<std::collections::BTreeSet<_>>().len()
}

/// Each later hold has a larger token. A reader has that of the last writer.
fn grows(stop: &Stop) -> bool {
    let [ours, theirs] = &stop.tokens;
    match stop.object {
        Object::Mutex | Object::FairLock => ours.len() == 1 && theirs.len() == 1 && ours < theirs,
        Object::RwLock => ours.len() == 1 && ours == theirs,
        Object::Semaphore | Object::Latch => ours.is_empty() && theirs.is_empty(),
        Object::InGroup | Object::Across => {
            let mut pairs = ours.iter().zip(theirs);
            ours.len() == 2 && theirs.len() == 2 && pairs.all(|(ours, theirs)| ours < theirs)
        }
    }
}

/// The memory of tokens, of late cancels, of limits and of latches, which outlive their use by design. Not who holds or
/// waits.
fn may_stay(key: &str) -> bool {
    let is_of = |suffix: &str| key.ends_with(suffix);
    let is_kind = |kind: &str| key.starts_with(&format!("lh1:{kind}:"));
    is_of(":token")
        || is_of(":gone")
        || (is_kind("semaphore") && is_of("}"))
        || (is_kind("latch") && !is_of(":waiters"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn key(slot: u16, name: &str) -> Key {
        Key { node: usize::from(slot / 100) + 1, slot, name: name.to_owned() }
    }

    fn good() -> Vec<Stop> {
        Object::ALL
            .into_iter()
            .zip([10, 20, 110, 120, 210, 30, 140])
            .map(|(object, slot)| {
                let mut keys = vec![key(slot, "a"), key(slot, "a:queue")];
                if object == Object::Across {
                    keys.push(key(220, "b"));
                }
                let tokens = match object {
                    Object::Mutex | Object::FairLock => [vec![1], vec![2]],
                    Object::RwLock => [vec![1], vec![1]],
                    Object::Semaphore | Object::Latch => [vec![], vec![]],
                    Object::InGroup | Object::Across => [vec![1, 5], vec![2, 6]],
                };
                let scripts = if object == Object::Across { 2 } else { 1 };
                let pushed = u64::from(object != Object::Latch);
                let handed_over = Duration::from_millis(1);
                Stop { object, keys, scripts, tokens, pushed, handed_over }
            })
            .collect()
    }

    #[test]
    fn a_tour_that_shows_what_it_should_has_no_fault() {
        let stays = ["lh1:mutex:{a}:token", "lh1:semaphore:{a}", "lh1:latch:{a}:ids"];
        let stays = stays.map(|name| key(10, name));
        assert_eq!(faults(&good(), &stays), Vec::<String>::new());
    }

    #[test]
    fn each_fault_is_found() {
        type Change = fn(&mut Vec<Stop>);
        let cases: [(Change, &str); 9] = [
            (|stops| drop(stops.pop()), "the tour saw [Mutex"),
            (|stops| stops[0].keys[1].slot = 11, "mutex: its keys are in 2 slots, not 1"),
            (|stops| stops[6].keys[2].node = 2, "two slots: its keys are on 1 nodes, not 2"),
            (|stops| stops[5].scripts = 2, "one group: held by 2 scripts, not 1"),
            (|stops| stops[3].pushed = 0, "semaphore: nothing was pushed"),
            (|stops| stops[1].tokens[1] = vec![1], "fair lock: its tokens are"),
            (|stops| stops[2].tokens[1] = vec![], "read-write lock: its tokens are"),
            (|stops| stops[6].tokens[1] = vec![6, 5], "two slots: its tokens are"),
            (|stops| stops[4].keys[0].node = 1, "latch: its keys are on 2 nodes"),
        ];
        for (change, fault) in cases {
            let mut stops = good();
            change(&mut stops);
            let found = faults(&stops, &[]);
            assert!(found.len() == 1 && found[0].contains(fault), "{fault}: {found:?}");
        }
    }

    #[test]
    fn what_is_held_or_waits_may_not_stay() {
        for name in ["lh1:mutex:{a}", "lh1:semaphore:{a}:queue", "lh1:latch:{a}:waiters"] {
            let found = faults(&good(), &[key(10, name)]);
            assert!(found.len() == 1 && found[0].contains("stays"), "{name}: {found:?}");
        }
    }
}
