//! The accounts in SQLite, with the second layer of defence: the fencing check. An account refuses tokens smaller than the
//! largest that it has seen, and accepts equal ones, which are the same hold going on.

use std::path::Path;

use leasehold::FencingToken;
use leasehold_examples::{Failure, database};
use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};

const SCHEMA: &str = "
    PRAGMA journal_mode = WAL;
    CREATE TABLE account (
        name TEXT PRIMARY KEY, balance INTEGER NOT NULL DEFAULT 0, last_job INTEGER NOT NULL DEFAULT 0,
        fence INTEGER NOT NULL DEFAULT 0);
    CREATE TABLE entry (
        number INTEGER PRIMARY KEY AUTOINCREMENT, account TEXT NOT NULL REFERENCES account, job INTEGER NOT NULL,
        discs INTEGER NOT NULL, balance INTEGER NOT NULL, worker INTEGER NOT NULL, token INTEGER NOT NULL,
        UNIQUE (account, job));
";

/// One connection to the books.
pub(crate) struct Books {
    connection: Connection,
}

/// Where an account stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Its discs.
    pub(crate) balance: i64,
    /// The last job that was booked; 0 is none.
    pub(crate) last_job: usize,
}

/// A job that was booked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) account: String,
    pub(crate) job: usize,
    pub(crate) discs: i64,
    /// The account's discs with this job.
    pub(crate) balance: i64,
    /// Who did it.
    pub(crate) worker: usize,
    pub(crate) token: i64,
}

impl Books {
    /// Makes the books of these accounts.
    pub(crate) fn create<'a>(
        file: &Path,
        accounts: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, Failure> {
        let mut books = Self::open(file)?;
        books.connection.execute_batch(SCHEMA)?;
        let transaction = books.connection.transaction()?;
        for account in accounts {
            transaction.execute("INSERT INTO account (name) VALUES (?1)", [account])?;
        }
        transaction.commit()?;
        Ok(books)
    }

    /// Opens books that were made.
    pub(crate) fn open(file: &Path) -> Result<Self, Failure> {
        Ok(Self { connection: database::open(file)? })
    }

    /// Where the account stands, and from now on it refuses smaller tokens: one statement, so nobody gets in between.
    /// `None` if it has seen a larger token: the hold is over.
    pub(crate) fn read(
        &self,
        account: &str,
        token: FencingToken,
    ) -> Result<Option<Standing>, Failure> {
        let mut fenced_read = self.connection.prepare_cached(
            "UPDATE account SET fence = ?2 WHERE name = ?1 AND fence <= ?2 RETURNING balance, last_job",
        )?;
        let standing = fenced_read.query_row(params![account, token.as_i64()], |row| {
            Ok(Standing { balance: row.get(0)?, last_job: row.get(1)? })
        });
        Ok(standing.optional()?)
    }

    /// Books a job: its entry, and where the account stands with it. `false` if the account has seen a larger token:
    /// nothing was changed.
    pub(crate) fn book(&mut self, entry: &Entry) -> Result<bool, Failure> {
        let Entry { account, job, discs, balance, worker, token } = entry;
        let transaction =
            self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let written = transaction
            .prepare_cached(
                "UPDATE account SET balance = ?2, last_job = ?3, fence = ?4 WHERE name = ?1 AND fence <= ?4",
            )?
            .execute(params![account, balance, job, token])?;
        if written == 0 {
            return Ok(false); // and the transaction, dropped, is rolled back
        }
        transaction
            .prepare_cached(
                "INSERT INTO entry (account, job, discs, balance, worker, token) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            )?
            .execute(params![account, job, discs, balance, worker, token])?;
        transaction.commit()?;
        Ok(true)
    }

    /// All entries, in the order in which they were booked.
    pub(crate) fn entries(&self) -> Result<Vec<Entry>, Failure> {
        let mut read = self.connection.prepare(
            "SELECT account, job, discs, balance, worker, token FROM entry ORDER BY number",
        )?;
        let entries = read.query_map([], |row| {
            Ok(Entry {
                account: row.get(0)?,
                job: row.get(1)?,
                discs: row.get(2)?,
                balance: row.get(3)?,
                worker: row.get(4)?,
                token: row.get(5)?,
            })
        })?;
        Ok(entries.collect::<Result<_, _>>()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(job: usize, token: i64) -> Entry {
        Entry { account: "a".to_owned(), job, discs: 2, balance: 2, worker: 0, token }
    }

    fn books() -> Books {
        Books::create(Path::new(":memory:"), ["a", "b"]).unwrap()
    }

    #[test]
    fn a_smaller_token_books_nothing_and_an_equal_one_goes_on() {
        let mut books = books();
        assert!(books.book(&entry(1, 10)).unwrap() && books.book(&entry(2, 10)).unwrap());
        assert!(!books.book(&entry(3, 9)).unwrap());
        assert_eq!(books.entries().unwrap(), [entry(1, 10), entry(2, 10)]);
    }

    #[test]
    fn a_job_is_booked_once() {
        let mut books = books();
        assert!(books.book(&entry(1, 10)).unwrap());
        assert!(books.book(&entry(1, 11)).is_err());
    }
}
