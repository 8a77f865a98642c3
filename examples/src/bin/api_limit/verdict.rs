//! Whether the permits kept the fleet within what the server allows, and let it use all of that.

use std::time::Duration;

use crate::LEASE;
use crate::caller::STOPPED;
use crate::fleet::{Kind, Phase, Story};

/// Permits whose process is dead end with their lease; a check and a slow machine are allowed for.
const RETURNED_WITHIN: Duration = LEASE.saturating_add(Duration::from_secs(3));
/// Twice the limit gives twice the calls; a slow machine is allowed for.
const RISES_BY: f64 = 1.2;

/// What is wrong with the run; nothing if it shows what it should.
pub(crate) fn faults(story: &Story) -> Vec<String> {
    let mut faults = Vec::new();
    let kinds: Vec<_> = story.phases.iter().map(|phase| phase.kind).collect();
    if kinds != Kind::ALL {
        return vec![format!("only {kinds:?} ran")];
    }
    let [free, permits, dead, returned, raised] = story.phases.as_slice() else { return faults };
    let mut expect = |kept: bool, fault: String| {
        if !kept {
            faults.push(fault);
        }
    };
    expect(free.refused > 0, "nothing was refused without permits: no limit was needed".to_owned());
    for Phase { kind, refused, .. } in [permits, dead, returned, raised] {
        // A permit that was lost while its call ran is an alarm of its own, and frees it for another.
        expect(
            *refused <= story.lost,
            format!("{kind:?}: {refused} calls were refused in spite of permits"),
        );
    }
    for Phase { kind, peak, limit, .. } in [permits, returned, raised] {
        expect(peak == limit, format!("{kind:?}: {peak} calls at once, and {limit} are allowed"));
    }
    expect(
        story.dead_permits == STOPPED,
        format!("a process was killed with {} permits, not {STOPPED}", story.dead_permits),
    );
    expect(
        story.returned_after.is_some_and(|after| after <= RETURNED_WITHIN),
        format!("the permits of the killed process were back after {:?}", story.returned_after),
    );
    let (before, after) = (returned.per_second, raised.per_second);
    expect(
        after >= before * RISES_BY,
        format!("{after:.1} calls a second with the higher limit, {before:.1} before"),
    );
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Story {
        let phase = |kind, limit, refused, per_second| Phase {
            kind,
            limit,
            served: 60,
            refused,
            peak: limit,
            per_second,
        };
        Story {
            phases: vec![
                phase(Kind::Free, 4, 700, 40.0),
                phase(Kind::Permits, 4, 0, 40.0),
                phase(Kind::Dead, 4, 0, 20.0),
                phase(Kind::Returned, 4, 0, 40.0),
                phase(Kind::Raised, 8, 0, 80.0),
            ],
            dead_permits: 2,
            returned_after: Some(LEASE),
            lost: 0,
        }
    }

    fn faults_after(change: impl FnOnce(&mut Story)) -> Vec<String> {
        let mut story = good();
        change(&mut story);
        faults(&story)
    }

    #[test]
    fn a_run_that_shows_what_it_should_has_no_fault() {
        assert_eq!(faults_after(|_| {}), Vec::<String>::new());
    }

    #[test]
    fn each_fault_is_found() {
        type Change = fn(&mut Story);
        let cases: [(Change, &str); 8] = [
            (|story| story.phases[0].refused = 0, "no limit was needed"),
            (|story| story.phases[1].refused = 1, "Permits: 1 calls were refused"),
            (|story| story.phases[4].refused = 2, "Raised: 2 calls were refused"),
            (|story| story.phases[3].peak = 3, "Returned: 3 calls at once"),
            (|story| story.dead_permits = 0, "with 0 permits"),
            (|story| story.returned_after = None, "were back after None"),
            (|story| story.phases[4].per_second = 47.0, "47.0 calls a second"),
            (|story| story.phases.truncate(4), "only [Free"),
        ];
        for (change, fault) in cases {
            let found = faults_after(change);
            assert!(found.len() == 1 && found[0].contains(fault), "{fault}: {found:?}");
        }
    }
}
