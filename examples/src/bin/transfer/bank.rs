//! The accounts in SQLite, with the second layer of defence: the fencing check. An account refuses tokens smaller than the
//! largest that it has seen, and accepts equal ones, which are the same hold going on.

use std::collections::BTreeMap;
use std::path::Path;

use leasehold_examples::{Failure, database};
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

/// How many accounts there are, numbered from 1 …
pub(crate) const ACCOUNTS: u32 = 6;
/// … and what each has at first.
const AT_FIRST: i64 = 100;

const SCHEMA: &str = "
    PRAGMA journal_mode = WAL;
    CREATE TABLE account (number INTEGER PRIMARY KEY, balance INTEGER NOT NULL, fence INTEGER NOT NULL DEFAULT 0);
    CREATE TABLE transfer (
        number INTEGER PRIMARY KEY, source INTEGER NOT NULL REFERENCES account,
        target INTEGER NOT NULL REFERENCES account, amount INTEGER NOT NULL);
";

/// So much from one account to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transfer {
    /// Unique, from 0. It is booked once.
    pub(crate) number: u32,
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) amount: i64,
}

impl Transfer {
    /// Of 30 in a row each goes between two other accounts, or in the other direction.
    pub(crate) fn of(number: u32) -> Self {
        let pair = (number * 7 + number / 30) % (ACCOUNTS * (ACCOUNTS - 1));
        let (from, further) = (pair / (ACCOUNTS - 1), pair % (ACCOUNTS - 1) + 1);
        let to = (from + further) % ACCOUNTS;
        Self { number, from: from + 1, to: to + 1, amount: i64::from(number * 37 % 60) + 1 }
    }

    pub(crate) fn accounts(&self) -> [u32; 2] {
        [self.from, self.to]
    }
}

/// The fencing tokens of the two accounts of a transfer, in its order.
pub(crate) type Tokens = [i64; 2];

/// One connection to the bank. Where no tokens are given it checks nothing.
pub(crate) struct Bank {
    connection: Connection,
}

/// One account, as the database has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Book {
    pub(crate) balance: i64,
    /// What the booked transfers brought, less what they took.
    pub(crate) moved: i64,
}

impl Bank {
    pub(crate) fn create(file: &Path) -> Result<Self, Failure> {
        let mut bank = Self::open(file)?;
        bank.connection.execute_batch(SCHEMA)?;
        let transaction = bank.connection.transaction()?;
        for number in 1..=ACCOUNTS {
            transaction.execute(
                "INSERT INTO account (number, balance) VALUES (?1, ?2)",
                params![number, AT_FIRST],
            )?;
        }
        transaction.commit()?;
        Ok(bank)
    }

    pub(crate) fn open(file: &Path) -> Result<Self, Failure> {
        Ok(Self { connection: database::open(file)? })
    }

    /// The balances of both. With tokens it is the first step of a guarded section: from now on the accounts refuse smaller
    /// ones. `None` if one has seen a larger token already; then neither has changed.
    pub(crate) fn read(
        &mut self,
        accounts: [u32; 2],
        tokens: Option<Tokens>,
    ) -> Result<Option<[i64; 2]>, Failure> {
        let transaction = self.write()?;
        let mut balances = [0; 2];
        for (at, account) in accounts.into_iter().enumerate() {
            let balance = match tokens {
                Some(tokens) => transaction
                    .prepare_cached(
                        "UPDATE account SET fence = ?2 WHERE number = ?1 AND fence <= ?2 RETURNING balance",
                    )?
                    .query_row(params![account, tokens[at]], |row| row.get(0))
                    .optional()?,
                None => transaction
                    .prepare_cached("SELECT balance FROM account WHERE number = ?1")?
                    .query_row([account], |row| row.get(0))
                    .optional()?,
            };
            let Some(balance) = balance else { return Ok(None) }; // and the transaction is rolled back
            balances[at] = balance;
        }
        transaction.commit()?;
        Ok(Some(balances))
    }

    /// Writes the transfer and both balances, as the caller has counted them; all or nothing. `false` if an account has seen
    /// a larger token. That the balances are absolute numbers is the naive part: most jobs cannot be said as `balance =
    /// balance - amount`, and the worker's pause between read and write stands for them.
    pub(crate) fn book(
        &mut self,
        transfer: Transfer,
        balances: [i64; 2],
        tokens: Option<Tokens>,
    ) -> Result<bool, Failure> {
        let transaction = self.write()?;
        for (at, account) in transfer.accounts().into_iter().enumerate() {
            let written = match tokens {
                Some(tokens) => transaction
                    .prepare_cached(
                        "UPDATE account SET balance = ?2, fence = ?3 WHERE number = ?1 AND fence <= ?3",
                    )?
                    .execute(params![account, balances[at], tokens[at]])?,
                None => transaction
                    .prepare_cached("UPDATE account SET balance = ?2 WHERE number = ?1")?
                    .execute(params![account, balances[at]])?,
            };
            if written == 0 {
                return Ok(false); // and the transaction is rolled back
            }
        }
        let Transfer { number, from, to, amount } = transfer;
        transaction
            .prepare_cached(
                "INSERT INTO transfer (number, source, target, amount) VALUES (?1, ?2, ?3, ?4)",
            )?
            .execute(params![number, from, to, amount])?;
        transaction.commit()?;
        Ok(true)
    }

    /// The largest token that an account has seen.
    pub(crate) fn fence(&self, account: u32) -> Result<i64, Failure> {
        let mut read =
            self.connection.prepare_cached("SELECT fence FROM account WHERE number = ?1")?;
        Ok(read.query_row([account], |row| row.get(0))?)
    }

    /// All accounts.
    pub(crate) fn books(&self) -> Result<BTreeMap<u32, Book>, Failure> {
        let mut read = self.connection.prepare(
            "SELECT number, balance,
                 (SELECT COALESCE(SUM(amount), 0) FROM transfer WHERE target = account.number)
               - (SELECT COALESCE(SUM(amount), 0) FROM transfer WHERE source = account.number)
             FROM account",
        )?;
        let books = read.query_map([], |row| {
            Ok((row.get(0)?, Book { balance: row.get(1)?, moved: row.get(2)? }))
        })?;
        Ok(books.collect::<Result<_, _>>()?)
    }

    /// It waits at its beginning for the writer of another process, never in its midst.
    fn write(&mut self) -> Result<Transaction<'_>, rusqlite::Error> {
        self.connection.transaction_with_behavior(TransactionBehavior::Immediate)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const TRANSFER: Transfer = Transfer { number: 1, from: 1, to: 2, amount: 30 };

    fn bank() -> Bank {
        Bank::create(Path::new(":memory:")).unwrap()
    }

    fn books(bank: &Bank) -> [Book; 2] {
        let books = bank.books().unwrap();
        [books[&1], books[&2]]
    }

    fn book(balance: i64, moved: i64) -> Book {
        Book { balance, moved }
    }

    #[test]
    fn of_thirty_transfers_each_has_a_direction_of_its_own() {
        for first in [0, 30, 3_000] {
            let directions: BTreeSet<_> =
                (first..first + 30).map(|number| Transfer::of(number).accounts()).collect();
            assert_eq!(directions.len(), 30);
            assert!(directions.iter().all(|[from, to]| from != to));
            assert!(directions.iter().flatten().all(|account| (1..=ACCOUNTS).contains(account)));
        }
    }

    #[test]
    fn the_read_of_a_newer_hold_shuts_out_the_write_of_an_older_one() {
        // Of either account: one is enough.
        for newer in [Some([11, 10]), Some([10, 11])] {
            let mut bank = bank();
            assert_eq!(bank.read([1, 2], Some([10, 10])).unwrap(), Some([100, 100]));
            assert_eq!(bank.read([1, 2], newer).unwrap(), Some([100, 100]));
            assert!(!bank.book(TRANSFER, [70, 130], Some([10, 10])).unwrap());
            assert_eq!(bank.read([1, 2], Some([10, 10])).unwrap(), None);
            assert_eq!(books(&bank), [book(100, 0), book(100, 0)]);
        }
    }

    #[test]
    fn equal_tokens_are_accepted_again_and_again() {
        let mut bank = bank();
        assert_eq!(bank.read([1, 2], Some([10, 20])).unwrap(), Some([100, 100]));
        assert!(bank.book(TRANSFER, [70, 130], Some([10, 20])).unwrap());
        assert_eq!(bank.read([1, 2], Some([10, 20])).unwrap(), Some([70, 130]));
        let again = Transfer { number: 2, ..TRANSFER };
        assert!(bank.book(again, [40, 160], Some([10, 20])).unwrap());
        assert_eq!(books(&bank), [book(40, -60), book(160, 60)]);
    }

    #[test]
    fn what_one_account_refuses_changes_neither_fence() {
        let mut bank = bank();
        bank.read([2, 3], Some([20, 20])).unwrap();
        assert_eq!(bank.read([1, 2], Some([10, 10])).unwrap(), None);
        assert_eq!((bank.fence(1).unwrap(), bank.fence(2).unwrap()), (0, 20));
    }

    #[test]
    fn a_transfer_is_booked_once_and_a_failed_one_changes_nothing() {
        let mut bank = bank();
        assert!(bank.book(TRANSFER, [70, 130], None).unwrap());
        assert!(bank.book(TRANSFER, [40, 160], None).is_err());
        assert_eq!(books(&bank), [book(70, -30), book(130, 30)]);
    }
}
