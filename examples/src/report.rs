//! What the runs showed: the table, and the verdict on it.

use std::time::Duration;

use crate::scenario::Scenario;
use crate::shop::Book;

/// What is known of one run when it is over.
#[derive(Clone, Debug)]
pub struct Record {
    /// Which run.
    pub scenario: Scenario,
    /// How many orders there were.
    pub orders: usize,
    /// How many orders the workers say they sold.
    pub sold: usize,
    /// How many they refused, since too little was left.
    pub refused: usize,
    /// How many writes the fencing check refused.
    pub stale_writes: usize,
    /// How many holds had ended before their release.
    pub holds_lost: usize,
    /// How long each order waited for its lock.
    pub waits: Vec<Duration>,
    /// From the start of the workers' work to the last order.
    pub elapsed: Duration,
    /// The worker that was frozen and overtaken.
    pub freeze: Option<Freeze>,
    /// The books of the shop at the end.
    pub books: Vec<Book>,
}

/// A worker that was frozen inside its section, and overtaken.
#[derive(Clone, Debug)]
pub struct Freeze {
    /// Which worker.
    pub worker: usize,
    /// Whose section.
    pub product: String,
    /// The token of its hold.
    pub token: i64,
    /// The larger token that the database had seen when the worker went on.
    pub overtaken_by: i64,
    /// How long it was frozen.
    pub lasted: Duration,
}

impl Record {
    /// A run that begins.
    pub fn new(scenario: Scenario, orders: usize) -> Self {
        Self {
            scenario,
            orders,
            sold: 0,
            refused: 0,
            stale_writes: 0,
            holds_lost: 0,
            waits: Vec::with_capacity(orders),
            elapsed: Duration::ZERO,
            freeze: None,
            books: Vec::new(),
        }
    }

    /// An order is done with.
    pub fn order(&mut self, sold: bool, waited: Duration) {
        *(if sold { &mut self.sold } else { &mut self.refused }) += 1;
        self.waits.push(waited);
    }

    /// How many discs were sold that the shop does not have.
    pub fn oversold(&self) -> i64 {
        self.books.iter().map(Book::oversold).sum()
    }

    /// The wait that so many per cent of the orders did not exceed.
    fn wait(&self, percent: usize) -> Duration {
        let mut waits = self.waits.clone();
        waits.sort_unstable();
        let rank = (waits.len() * percent).div_ceil(100);
        waits.get(rank.saturating_sub(1)).copied().unwrap_or_default()
    }

    fn orders_per_second(&self) -> u128 {
        (self.waits.len() as u128 * 1000) / self.elapsed.as_millis().max(1)
    }

    /// What is wrong with this run; nothing if it shows what it should.
    fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let mut expect = |kept: bool, fault: String| {
            if !kept {
                faults.push(format!("{}: {fault}", self.scenario.name()));
            }
        };
        let done = self.sold + self.refused;
        expect(done == self.orders, format!("{done} of {} orders were done", self.orders));
        let sales: u64 = self.books.iter().map(|book| book.sales).sum();
        let told = self.sold;
        expect(
            u64::try_from(told) == Ok(sales),
            format!("{told} orders sold, {sales} in the books"),
        );
        if self.scenario.is_guarded() {
            for book in &self.books {
                let (product, initial) = (&book.product, book.initial);
                let (sold, left) = (book.sold, book.left);
                expect(book.oversold() == 0, format!("{sold} of {initial} {product} were sold"));
                let sum = format!("{product}: {initial} less {sold} sold is not {left}");
                expect(book.adds_up(), sum);
            }
        } else {
            expect(self.oversold() > 0, "nothing was oversold: the fault did not show".to_owned());
        }
        match self.scenario {
            Scenario::NoLock | Scenario::Mutex => {
                let (stale, lost) = (self.stale_writes, self.holds_lost);
                expect(
                    stale == 0 && lost == 0,
                    format!("{lost} holds lost, {stale} stale writes, and nobody was frozen"),
                );
            }
            Scenario::FrozenWorker => {
                expect(self.freeze.is_some(), "no worker was frozen and overtaken".to_owned());
                expect(self.stale_writes > 0, "no stale write was refused".to_owned());
            }
        }
        faults
    }
}

/// What is wrong with the runs; nothing if they show what they should.
pub fn faults(records: &[Record]) -> Vec<String> {
    let missing = Scenario::ALL
        .into_iter()
        .filter(|scenario| !records.iter().any(|record| record.scenario == *scenario))
        .map(|scenario| format!("{}: did not run", scenario.name()));
    missing.chain(records.iter().flat_map(Record::faults)).collect()
}

/// The runs as a table, less than 100 columns wide.
pub fn table(records: &[Record]) -> String {
    let mut table = String::new();
    let mut row = |cells: [&str; 9]| {
        let [run, orders, sold, refused, oversold, stale, rate, p50, p99] = cells;
        let line = format!(
            "{run:<21}{orders:>7}{sold:>7}{refused:>9}{oversold:>10}{stale:>14}{rate:>10}{p50:>9}{p99:>9}"
        );
        table.push_str(line.trim_end());
        table.push('\n');
    };
    row(["", "", "", "out of", "discs", "stale writes", "orders", "wait ms", "wait ms"]);
    row(["run", "orders", "sold", "stock", "oversold", "refused", "per s", "p50", "p99"]);
    for record in records {
        let guarded = |text: String| if record.scenario.is_guarded() { text } else { "-".into() };
        row([
            record.scenario.name(),
            &grouped(record.orders),
            &grouped(record.sold),
            &grouped(record.refused),
            &grouped(record.oversold()),
            &guarded(grouped(record.stale_writes)),
            &grouped(record.orders_per_second()),
            &guarded(milliseconds(record.wait(50))),
            &guarded(milliseconds(record.wait(99))),
        ]);
    }
    table
}

/// 12345 as `12 345`.
pub fn grouped(number: impl ToString) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

fn milliseconds(duration: Duration) -> String {
    format!("{:.1}", duration.as_secs_f64() * 1000.0)
}

/// What one sees in the table, in plain words.
pub fn in_words(records: &[Record]) -> String {
    records.iter().map(Record::in_words).collect::<Vec<_>>().join("\n")
}

impl Record {
    fn in_words(&self) -> String {
        let oversold = grouped(self.oversold());
        match self.scenario {
            Scenario::NoLock => format!(
                "* No lock: {oversold} discs were sold that the shop does not have. Two tasks read the same stock,\n  \
                 both sell, and the second write wipes out the first."
            ),
            Scenario::Mutex => format!(
                "* Mutex: {oversold} oversold. Of every product, the stock less what was sold is what is left."
            ),
            Scenario::FrozenWorker => {
                let story = self.freeze.as_ref().map(Freeze::in_words).unwrap_or_default();
                format!(
                    "* Frozen worker: {oversold} oversold.{story}\n  Stale writes that the database refused: {}; \
                     their orders were done again.",
                    grouped(self.stale_writes)
                )
            }
        }
    }
}

impl Freeze {
    fn in_words(&self) -> String {
        let Self { worker, product, token, overtaken_by, lasted } = self;
        format!(
            " Worker {worker} was stopped inside its section of {product}. {} ms later its\n  \
             lease had run out and another worker had taken over; it went on as if nothing had happened.\n  \
             But its token {token} was smaller than {overtaken_by}, which the database had seen.",
            grouped(lasted.as_millis())
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn book(initial: i64, left: i64, sold: i64) -> Book {
        Book { product: "a".to_owned(), initial, left, sales: 3, sold }
    }

    /// Five orders, three sold with six discs of ten, two refused.
    fn record(scenario: Scenario, books: &[Book]) -> Record {
        let mut record = Record::new(scenario, 5);
        for (order, sold) in [true, true, true, false, false].into_iter().enumerate() {
            record.order(sold, Duration::from_millis(order as u64));
        }
        record.books = books.to_vec();
        if scenario == Scenario::FrozenWorker {
            record.stale_writes = 1;
            record.freeze = Some(Freeze {
                worker: 0,
                product: "a".to_owned(),
                token: 7,
                overtaken_by: 8,
                lasted: Duration::from_millis(1200),
            });
        }
        record
    }

    fn good() -> [Record; 3] {
        [
            record(Scenario::NoLock, &[book(5, 2, 6)]),
            record(Scenario::Mutex, &[book(10, 4, 6)]),
            record(Scenario::FrozenWorker, &[book(10, 4, 6)]),
        ]
    }

    fn faults_after(change: impl FnOnce(&mut [Record; 3])) -> Vec<String> {
        let mut records = good();
        change(&mut records);
        faults(&records)
    }

    #[test]
    fn runs_that_show_what_they_should_have_no_fault() {
        assert_eq!(faults(&good()), Vec::<String>::new());
    }

    #[test]
    fn an_oversold_guarded_run_is_a_fault() {
        for run in [1, 2] {
            let found = faults_after(|records| records[run].books = vec![book(5, -1, 6)]);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].ends_with("6 of 5 a were sold"), "{found:?}");
        }
    }

    #[test]
    fn guarded_books_that_do_not_add_up_are_a_fault_even_if_nothing_is_oversold() {
        for run in [1, 2] {
            let found = faults_after(|records| records[run].books = vec![book(10, 5, 6)]);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].ends_with("a: 10 less 6 sold is not 5"), "{found:?}");
        }
    }

    #[test]
    fn what_one_product_has_left_does_not_hide_what_another_oversold() {
        let found = faults_after(|records| {
            let one = Book { sales: 1, ..book(100, 98, 2) };
            records[1].books = vec![one, Book { sales: 2, ..book(5, -1, 6) }];
        });
        assert_eq!(found.len(), 1, "{found:?}");
    }

    #[test]
    fn an_unguarded_run_without_the_fault_is_a_fault() {
        let found = faults_after(|records| records[0].books = vec![book(10, 4, 6)]);
        assert_eq!(found, ["no lock: nothing was oversold: the fault did not show"]);
    }

    #[test]
    fn a_frozen_run_without_a_refused_stale_write_is_a_fault() {
        let found = faults_after(|records| records[2].stale_writes = 0);
        assert_eq!(found, ["mutex, frozen worker: no stale write was refused"]);
        let found = faults_after(|records| records[2].freeze = None);
        assert_eq!(found, ["mutex, frozen worker: no worker was frozen and overtaken"]);
    }

    #[test]
    fn a_lost_hold_is_a_fault_where_nobody_was_frozen() {
        assert_eq!(faults_after(|records| records[1].holds_lost = 1).len(), 1);
        assert_eq!(faults_after(|records| records[2].holds_lost = 1).len(), 0);
    }

    #[test]
    fn orders_that_were_not_done_or_not_booked_are_faults() {
        assert_eq!(faults_after(|records| records[1].orders = 6).len(), 1);
        assert_eq!(faults_after(|records| records[1].books[0].sales = 2).len(), 1);
    }

    #[test]
    fn a_run_that_is_missing_is_a_fault() {
        assert_eq!(faults(&good()[..2]), ["mutex, frozen worker: did not run"]);
    }

    #[test]
    fn the_table_fits_a_terminal_of_100_columns() {
        let mut records = good();
        records[2].orders = 1_000_000;
        assert!(table(&records).lines().all(|line| line.len() < 100));
        assert!(in_words(&records).lines().all(|line| line.len() <= 100));
    }

    #[test]
    fn a_percentile_is_the_wait_that_so_many_did_not_exceed() {
        let mut record = Record::new(Scenario::Mutex, 0);
        assert_eq!(record.wait(99), Duration::ZERO);
        record.waits = (1..=200).rev().map(Duration::from_millis).collect();
        assert_eq!(
            [50, 99].map(|percent| record.wait(percent)),
            [100, 198].map(Duration::from_millis)
        );
    }

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!([7, 999, 6000, 1_234_567].map(grouped), ["7", "999", "6 000", "1 234 567"]);
    }
}
