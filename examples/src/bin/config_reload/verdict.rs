//! Whether the readers saw whole configurations, and both sides got in.

use std::time::Duration;

use crate::LEASE;
use crate::run::{KILLED_BEFORE, Reload, Story, VERSIONS};

/// A writer waits for those who read already, some milliseconds; a slow machine is allowed for.
const WRITES_WITHIN: Duration = Duration::from_secs(2);
/// Unless one of them is dead: then for its lease, and whoever wants to read waits behind the writer.
const AFTER_THE_DEAD: Duration = LEASE.saturating_add(Duration::from_secs(3));

/// What is wrong with the run; nothing if it shows what it should.
pub(crate) fn faults(story: &Story) -> Vec<String> {
    let mut faults = Vec::new();
    let mut expect = |kept: bool, fault: String| {
        if !kept {
            faults.push(fault);
        }
    };
    let Story { reloads, reads, torn, stale, longest_read_wait, .. } = story;
    expect(*torn == 0, format!("{torn} of {reads} reads saw half of a configuration"));
    expect(*stale == 0, format!("{stale} of {reads} reads saw what an earlier writer left"));
    let versions: Vec<_> = reloads.iter().map(|reload| reload.version).collect();
    expect(
        versions == (1..=VERSIONS).collect::<Vec<_>>(),
        format!("only {versions:?} were written"),
    );
    for Reload { version, waited, is_verified, .. } in reloads {
        let within = if *version == KILLED_BEFORE { AFTER_THE_DEAD } else { WRITES_WITHIN };
        expect(*waited <= within, format!("version {version}: the writer waited {waited:?}"));
        expect(*is_verified, format!("version {version}: the writer did not read what it wrote"));
    }
    expect(*longest_read_wait <= AFTER_THE_DEAD, format!("a reader waited {longest_read_wait:?}"));
    expect(
        reloads.iter().any(|reload| reload.beside > 0),
        "nobody read beside the writer after its downgrade".to_owned(),
    );
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults_after(change: impl FnOnce(&mut Story)) -> Vec<String> {
        let reload = |version| Reload {
            version,
            waited: if version == KILLED_BEFORE { LEASE } else { Duration::from_millis(9) },
            is_verified: true,
            beside: 20,
        };
        let mut story = Story {
            reloads: (1..=VERSIONS).map(reload).collect(),
            reads: 5000,
            longest_read_wait: LEASE,
            ..Story::default()
        };
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
        let cases: [(Change, &str); 7] = [
            (|story| story.torn = 3, "3 of 5000 reads saw half"),
            (|story| story.stale = 1, "1 of 5000 reads saw what an earlier writer left"),
            (|story| story.reloads.truncate(2), "only [1, 2] were written"),
            (|story| story.reloads[1].waited = LEASE * 3, "version 2: the writer waited 6s"),
            (|story| story.reloads[1].is_verified = false, "did not read what it wrote"),
            (|story| story.longest_read_wait = LEASE * 5, "a reader waited 10s"),
            (|story| story.reloads.iter_mut().for_each(|one| one.beside = 0), "nobody read beside"),
        ];
        for (change, fault) in cases {
            let found = faults_after(change);
            assert!(found.len() == 1 && found[0].contains(fault), "{fault}: {found:?}");
        }
    }
}
