//! Where the import goes: SQLite. An order is kept once, however often it is imported.

use std::collections::BTreeMap;
use std::path::Path;

use leasehold_examples::orders::Order;
use leasehold_examples::{Failure, database};
use rusqlite::{Connection, params};

const SCHEMA: &str = "
    PRAGMA journal_mode = WAL;
    CREATE TABLE sale (order_no INTEGER PRIMARY KEY, product TEXT NOT NULL, quantity INTEGER NOT NULL);
";

/// One connection to it.
pub(crate) struct Store {
    connection: Connection,
}

impl Store {
    pub(crate) fn create(file: &Path) -> Result<Self, Failure> {
        let store = Self::open(file)?;
        store.connection.execute_batch(SCHEMA)?;
        Ok(store)
    }

    pub(crate) fn open(file: &Path) -> Result<Self, Failure> {
        Ok(Self { connection: database::open(file)? })
    }

    /// Adds those of the orders that are not here yet; all or none.
    pub(crate) fn import(&mut self, orders: &[Order]) -> Result<(), Failure> {
        let transaction = self.connection.transaction()?;
        for Order { number, product, quantity } in orders {
            transaction
                .prepare_cached(
                    "INSERT OR IGNORE INTO sale (order_no, product, quantity) VALUES (?1, ?2, ?3)",
                )?
                .execute(params![number, product, quantity])?;
        }
        Ok(transaction.commit()?)
    }

    /// How many orders are here.
    pub(crate) fn orders(&self) -> Result<usize, Failure> {
        Ok(self.connection.query_row("SELECT COUNT(*) FROM sale", [], |row| row.get(0))?)
    }

    /// How many discs of each product are ordered.
    pub(crate) fn sums(&self) -> Result<BTreeMap<String, i64>, Failure> {
        let mut read =
            self.connection.prepare("SELECT product, SUM(quantity) FROM sale GROUP BY product")?;
        let sums = read.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(sums.collect::<Result<_, _>>()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_that_comes_twice_is_kept_once() {
        let mut store = Store::create(Path::new(":memory:")).unwrap();
        let order = |number, quantity| Order { number, product: "a", quantity };
        store.import(&[order(1, 2), order(2, 3)]).unwrap();
        store.import(&[order(2, 3), order(3, 4)]).unwrap();
        assert_eq!(store.orders().unwrap(), 3);
        assert_eq!(store.sums().unwrap(), BTreeMap::from([("a".to_owned(), 9)]));
    }
}
