//! Whether the latch opened for all, with everything in, and whether everything is in once.

use std::collections::BTreeMap;

use leasehold_examples::orders::{self, Order};

use crate::coordinator::Story;

/// What is wrong with the run; nothing if it shows what it should.
pub(crate) fn faults(
    orders: &[Order],
    sums: &BTreeMap<String, i64>,
    left: u64,
    story: &Story,
) -> Vec<String> {
    let mut faults = Vec::new();
    let mut expect = |kept: bool, fault: String| {
        if !kept {
            faults.push(fault);
        }
    };
    let all = orders.len();
    let early: Vec<_> = story.found.iter().filter(|&&found| found != all).collect();
    let least = early.iter().min().map_or(0, |&&found| found);
    expect(
        early.is_empty(),
        format!("{} tasks went on too early, with {least} of {all} orders in", early.len()),
    );
    expect(!story.found.is_empty(), "nobody waited".to_owned());
    let wanted = orders::demand(orders);
    let wanted = wanted.iter().map(|(product, discs)| ((*product).to_owned(), *discs)).collect();
    expect(*sums == wanted, "the sums of the import are not those of the orders".to_owned());
    expect(left == 0, format!("the latch stands at {left}"));
    let again = story.left_behind.len();
    expect(again == 2, format!("{again} shards were imported again, not 2"));
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDERS: [Order; 2] = [
        Order { number: 1, product: "a", quantity: 2 },
        Order { number: 2, product: "b", quantity: 3 },
    ];

    fn faults_after(
        change: impl FnOnce(&mut Story, &mut BTreeMap<String, i64>, &mut u64),
    ) -> Vec<String> {
        let mut story = Story { found: vec![2, 2], left_behind: vec![5, 6], ..Story::default() };
        let mut sums = BTreeMap::from([("a".to_owned(), 2), ("b".to_owned(), 3)]);
        let mut left = 0;
        change(&mut story, &mut sums, &mut left);
        faults(&ORDERS, &sums, left, &story)
    }

    #[test]
    fn a_run_that_shows_what_it_should_has_no_fault() {
        assert_eq!(faults_after(|_, _, _| {}), Vec::<String>::new());
    }

    #[test]
    fn each_fault_is_found() {
        type Change = fn(&mut Story, &mut BTreeMap<String, i64>, &mut u64);
        let cases: [(Change, &str); 5] = [
            (|story, _, _| story.found[1] = 1, "1 tasks went on too early, with 1 of 2"),
            (|story, _, _| story.found.clear(), "nobody waited"),
            (|_, sums, _| sums.clear(), "the sums"),
            (|_, _, left| *left = 1, "the latch stands at 1"),
            (|story, _, _| story.left_behind.clear(), "0 shards were imported again"),
        ];
        for (change, fault) in cases {
            let found = faults_after(change);
            assert!(found.len() == 1 && found[0].contains(fault), "{fault}: {found:?}");
        }
    }
}
