//! Whether all transfers were made or declined, once, and no money was made or lost.

use std::collections::BTreeMap;

use crate::bank::Book;
use crate::run::{Freeze, Story, VICTIM};
use crate::{How, LEASE};

type Books = BTreeMap<u32, Book>;

/// What is wrong with the run; nothing if it shows what it should.
pub(crate) fn faults(how: How, before: &Books, after: &Books, story: &Story) -> Vec<String> {
    let mut faults = Vec::new();
    let mut expect = |kept: bool, fault: String| {
        if !kept {
            faults.push(fault);
        }
    };
    let stuck = story.stuck.len();
    expect(
        stuck == 0,
        format!(
            "{stuck} transfers were dead-locked: they waited {:?} in a circle, or behind one",
            how.wait()
        ),
    );
    for phase in &story.phases {
        let done = phase.made + phase.declined;
        // Nobody waits for the end of a run that gets nowhere.
        expect(
            done == phase.wanted || stuck > 0,
            format!("{done} of {} transfers were made or declined", phase.wanted),
        );
    }
    let [was, is] = [before, after].map(sum);
    expect(was == is, format!("the sum was {was} and is {is}"));
    for (account, book) in after {
        let Book { balance, moved } = *book;
        let right = before.get(account).map_or(0, |before| before.balance) + moved;
        expect(
            balance == right,
            format!("account {account} has {balance}, its transfers leave {right}"),
        );
        expect(balance >= 0, format!("account {account} is below zero: {balance}"));
    }
    // The bank hides from the sums what the locks let pass; but whoever it refuses must have lost a hold.
    let (stale, lost) = (story.stale.len(), story.lost);
    expect(
        stale <= lost,
        format!("{stale} were refused by the bank, and only {lost} had lost a hold"),
    );
    if how == How::Together {
        expect(story.phases.len() == 2, format!("{} phases ran, not 2", story.phases.len()));
        expect(
            is_overtaken(story.freeze.as_ref()),
            "no worker was frozen and overtaken".to_owned(),
        );
        expect(story.stale.contains(&VICTIM), "its stale write was not refused".to_owned());
    }
    faults
}

/// Beyond its lease, on both of its accounts.
fn is_overtaken(freeze: Option<&Freeze>) -> bool {
    freeze.is_some_and(|freeze| {
        let mut accounts = freeze.tokens.iter().zip(&freeze.overtaken_by);
        // The lease had begun before the freeze did, by less than a third of it: then it is renewed.
        freeze.lasted > LEASE / 2 && accounts.all(|(token, later)| token < later)
    })
}

/// The sums before and after.
pub(crate) fn sums(before: &Books, after: &Books) -> String {
    let [before, after] = [before, after].map(sum);
    format!("{:<22}{before:>8}\n{:<22}{after:>8}", "sum before", "sum after")
}

fn sum(books: &Books) -> i64 {
    books.values().map(|book| book.balance).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bank::Transfer;
    use crate::run::Phase;

    struct Good {
        before: Books,
        after: Books,
        story: Story,
    }

    fn good() -> Good {
        let book = |balance, moved| Book { balance, moved };
        let phase = |wanted, made, declined| Phase { wanted, made, declined, ..Phase::default() };
        let freeze = Freeze {
            transfer: Transfer::of(0),
            tokens: [10, 11],
            overtaken_by: [12, 12],
            lasted: LEASE,
        };
        Good {
            before: BTreeMap::from([(1, book(100, 0)), (2, book(100, 0))]),
            after: BTreeMap::from([(1, book(70, -30)), (2, book(130, 30))]),
            story: Story {
                phases: vec![phase(20, 18, 2), phase(5, 5, 0)],
                freeze: Some(freeze),
                stale: vec![VICTIM],
                lost: 1,
                ..Story::default()
            },
        }
    }

    fn faults_after(change: impl FnOnce(&mut Good)) -> Vec<String> {
        let mut good = good();
        change(&mut good);
        let Good { before, after, story } = good;
        faults(How::Together, &before, &after, &story)
    }

    #[test]
    fn a_run_that_shows_what_it_should_has_no_fault() {
        assert_eq!(faults_after(|_| {}), Vec::<String>::new());
    }

    #[test]
    fn each_fault_is_found() {
        type Change = fn(&mut Good);
        let cases: [(Change, &str); 9] = [
            (|good| good.story.stuck.push("1 to 2".to_owned()), "1 transfers were dead-locked"),
            (|good| good.story.phases[0].made = 17, "19 of 20 transfers"),
            (|good| drop(good.story.phases.pop()), "1 phases ran"),
            (|good| good.story.freeze = None, "no worker was frozen"),
            (|good| freeze(good).overtaken_by[1] = 11, "no worker was frozen"),
            (|good| freeze(good).lasted = LEASE / 4, "no worker was frozen"),
            (|good| good.story.stale = vec![VICTIM + 1], "its stale write was not refused"),
            // Two held one account, and the sum is right.
            (|good| good.story.stale.push(0), "2 were refused by the bank, and only 1 had lost"),
            // The sum is right, and two accounts are not.
            (|good| take(good, 1, 2), "account 1 has 68, its transfers leave 70"),
        ];
        for (change, fault) in cases {
            let found = faults_after(change);
            assert!(found[0].contains(fault), "{fault}: {found:?}");
        }
    }

    #[test]
    fn money_that_is_made_or_lost_is_found() {
        let found = faults_after(|good| good.after.get_mut(&1).unwrap().balance += 1);
        assert_eq!(
            found,
            ["the sum was 200 and is 201", "account 1 has 71, its transfers leave 70"]
        );
        let found = faults_after(|good| take(good, 1, 71));
        assert!(found.contains(&"account 1 is below zero: -1".to_owned()), "{found:?}");
    }

    fn freeze(good: &mut Good) -> &mut Freeze {
        good.story.freeze.as_mut().expect("it was frozen")
    }

    /// Moves money that no transfer moved.
    fn take(good: &mut Good, account: u32, amount: i64) {
        for (number, book) in &mut good.after {
            book.balance += if *number == account { -amount } else { amount };
        }
    }
}
