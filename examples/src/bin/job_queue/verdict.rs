//! Whether the jobs were done once, in order, each by the worker that it was dealt to.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_examples::orders::Order;

use crate::books::Entry;
use crate::dispatcher::{SKIPPED_WITHIN, Story};
use crate::worker::LEASE;

/// A hold whose process is dead ends with its lease; a check, one more grant and a slow machine are allowed for.
const FOLLOWED_WITHIN: Duration = LEASE.saturating_add(Duration::from_secs(4));

/// What is wrong with the run; nothing if it shows what it should.
pub(crate) fn faults(
    jobs: &BTreeMap<&'static str, Vec<Order>>,
    entries: &[Entry],
    story: &Story,
) -> Vec<String> {
    let mut faults = Vec::new();
    for (account, jobs) in jobs {
        let of_account: Vec<_> = entries.iter().filter(|entry| entry.account == *account).collect();
        faults.extend(faults_of_account(account, jobs, &of_account, story));
    }
    let mut expect = |kept: bool, fault: &str| {
        if !kept {
            faults.push(fault.to_owned());
        }
    };
    expect(!story.left_behind.is_empty(), "no worker was killed with jobs");
    let within = |time: Duration, most| time <= most;
    expect(
        story.followed.is_some_and(|time| within(time, FOLLOWED_WITHIN)),
        "the killed worker's hold was not followed after its lease",
    );
    expect(
        story.passed.iter().any(|&time| within(time, SKIPPED_WITHIN)),
        "no place of the killed worker was skipped",
    );
    expect(
        story.passed.iter().all(|&time| within(time, FOLLOWED_WITHIN)),
        "a place of the killed worker was not passed in time",
    );
    faults
}

fn faults_of_account(
    account: &&'static str,
    jobs: &[Order],
    entries: &[&Entry],
    story: &Story,
) -> Vec<String> {
    let mut faults = Vec::new();
    let booked: Vec<_> = entries.iter().map(|entry| entry.job).collect();
    if booked != (1..=jobs.len()).collect::<Vec<_>>() {
        faults.push(format!("{account}: booked in this order: {booked:?}"));
    }
    let mut balance = 0;
    for entry in entries {
        balance += jobs.get(entry.job.wrapping_sub(1)).map_or(0, |order| order.quantity);
        if entry.balance != balance {
            let told = entry.balance;
            faults.push(format!("{account} job {}: {told} discs, not {balance}", entry.job));
        }
    }
    if !entries.is_sorted_by_key(|entry| entry.token) {
        faults.push(format!("{account}: a smaller token booked after a larger one"));
    }
    // Under the same hold others may only be done for the dead: anything else has overtaken a living worker.
    for entry in entries {
        let of = (*account, entry.job);
        let dealt = story.dealt.get(&of).copied();
        let is_excused = story.left_behind.contains(&of) || story.lost.contains(&of);
        if dealt != Some(entry.worker) && !is_excused {
            let (job, by) = (entry.job, entry.worker);
            faults.push(format!(
                "{account} job {job}: overtaken by one of worker {by}, which did it"
            ));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOBS: [Order; 3] = [
        Order { number: 1, product: "a", quantity: 2 },
        Order { number: 5, product: "a", quantity: 1 },
        Order { number: 9, product: "a", quantity: 4 },
    ];

    fn entry(job: usize, balance: i64, worker: usize, token: i64) -> Entry {
        Entry { account: "a".to_owned(), job, discs: 0, balance, worker, token }
    }

    /// Worker 1 died with job 2, which worker 0 did under its own hold.
    fn good() -> (Vec<Entry>, Story) {
        let entries = vec![entry(1, 2, 0, 10), entry(2, 3, 0, 12), entry(3, 7, 0, 12)];
        let story = Story {
            dealt: BTreeMap::from([(("a", 1), 0), (("a", 2), 1), (("a", 3), 0)]),
            left_behind: [("a", 2)].into(),
            followed: Some(LEASE),
            passed: vec![Duration::from_millis(3)],
            ..Story::default()
        };
        (entries, story)
    }

    fn faults_after(change: impl FnOnce(&mut Vec<Entry>, &mut Story)) -> Vec<String> {
        let (mut entries, mut story) = good();
        change(&mut entries, &mut story);
        faults(&BTreeMap::from([("a", JOBS.to_vec())]), &entries, &story)
    }

    #[test]
    fn a_run_that_shows_what_it_should_has_no_fault() {
        assert_eq!(faults_after(|_, _| {}), Vec::<String>::new());
    }

    #[test]
    fn each_fault_is_found() {
        type Change = fn(&mut Vec<Entry>, &mut Story);
        let cases: [(Change, &str); 8] = [
            (|entries, _| drop(entries.pop()), "booked in this order: [1, 2]"),
            (|entries, _| entries.push(entry(3, 11, 0, 13)), "booked in this order: [1, 2, 3, 3]"),
            (|entries, _| entries[2].balance = 5, "a job 3: 5 discs, not 7"),
            (|entries, _| entries[0].token = 13, "a smaller token"),
            (|entries, _| entries[2].worker = 2, "a job 3: overtaken by one of worker 2"),
            (|_, story| story.followed = None, "was not followed"),
            (|_, story| story.passed.clear(), "was skipped"),
            (|_, story| story.passed.push(Duration::from_secs(20)), "not passed in time"),
        ];
        for (change, fault) in cases {
            let found = faults_after(change);
            assert!(found.len() == 1 && found[0].contains(fault), "{fault}: {found:?}");
        }
    }

    #[test]
    fn jobs_out_of_order_are_a_fault() {
        let found = faults_after(|entries, _| {
            *entries = vec![entry(2, 1, 1, 10), entry(1, 3, 0, 11), entry(3, 7, 0, 12)];
        });
        assert!(found[0].contains("booked in this order: [2, 1, 3]"), "{found:?}");
    }

    #[test]
    fn a_living_worker_that_lost_its_hold_is_no_fault() {
        let found = faults_after(|entries, story| {
            entries[2].worker = 2;
            story.lost.insert(("a", 3));
        });
        assert_eq!(found, Vec::<String>::new());
    }
}
