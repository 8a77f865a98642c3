//! The shop's database, and the second layer of defence in it: the fencing check.
//!
//! A lock in front of a database keeps two workers from working at once, as long as nobody stops one of them for longer
//! than its lease. The database makes sure for that case too: it keeps the largest fencing token that it has seen of each
//! product, and refuses whoever comes with a **smaller** one. An **equal** one is the same hold going on.
//!
//! The token goes with the *read* as well ([`Shop::stock`]). If only the write raised it, a late write could still slip
//! in between the read and the write of the next holder, who would then overwrite it with a stock counted before.

use std::collections::BTreeMap;
use std::path::Path;

use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};

use crate::database;
use crate::orders::Order;

/// `journal_mode=WAL`: readers and the one writer do not wait for each other.
const SCHEMA: &str = "
    PRAGMA journal_mode = WAL;
    CREATE TABLE product (
        name TEXT PRIMARY KEY, initial INTEGER NOT NULL, stock INTEGER NOT NULL, fence INTEGER NOT NULL DEFAULT 0);
    CREATE TABLE sale (
        order_no INTEGER PRIMARY KEY, product TEXT NOT NULL REFERENCES product, quantity INTEGER NOT NULL);
";

/// Why the database did not do it.
#[derive(Debug, thiserror::Error)]
pub enum ShopError {
    /// Somebody with a larger token was here: the hold that this token belongs to is over. Nothing was changed.
    #[error("the fencing token is stale")]
    Stale,
    /// The database failed.
    #[error("the shop's database failed")]
    Database(#[from] rusqlite::Error),
}

/// One connection to the shop's database.
#[derive(Debug)]
pub struct Shop {
    connection: Connection,
}

impl Shop {
    /// Makes the database with so many discs of each product.
    ///
    /// # Errors
    /// [`ShopError::Database`]
    pub fn create(file: &Path, stock: &BTreeMap<&'static str, i64>) -> Result<Self, ShopError> {
        let mut shop = Self::open(file)?;
        let transaction = shop.connection.transaction()?;
        for (name, discs) in stock {
            transaction.execute(
                "INSERT INTO product (name, initial, stock) VALUES (?1, ?2, ?2)",
                params![name, discs],
            )?;
        }
        transaction.commit()?;
        Ok(shop)
    }

    /// Opens a database, an empty one with its tables.
    ///
    /// # Errors
    /// [`ShopError::Database`]
    pub fn open(file: &Path) -> Result<Self, ShopError> {
        let connection = database::open(file)?;
        if !connection.table_exists(None, "product")? {
            connection.execute_batch(SCHEMA)?;
        }
        Ok(Self { connection })
    }

    /// How many discs are left. With a token it is the first step of a guarded section: from now on the product refuses
    /// smaller tokens. One statement, so nobody gets in between.
    ///
    /// # Errors
    /// [`ShopError::Stale`] if the product has seen a larger token; [`ShopError::Database`]
    pub fn stock(&self, product: &str, token: Option<i64>) -> Result<i64, ShopError> {
        let Some(token) = token else {
            let mut read =
                self.connection.prepare_cached("SELECT stock FROM product WHERE name = ?1")?;
            return Ok(read.query_row([product], |row| row.get(0))?);
        };
        let mut fenced_read = self.connection.prepare_cached(
            "UPDATE product SET fence = ?2 WHERE name = ?1 AND fence <= ?2 RETURNING stock",
        )?;
        let stock = fenced_read.query_row(params![product, token], |row| row.get(0));
        stock.optional()?.ok_or(ShopError::Stale)
    }

    /// Writes the sale and the stock that the caller has counted, both or neither. That it writes an absolute number is
    /// the naive part: `stock = stock - quantity WHERE stock >= quantity` would need no lock at all. Most jobs cannot be
    /// said in one statement; the worker's pause between read and write stands for them.
    ///
    /// # Errors
    /// [`ShopError::Stale`] if the product has seen a larger token; [`ShopError::Database`]
    pub fn sell(
        &mut self,
        order: Order,
        stock_left: i64,
        token: Option<i64>,
    ) -> Result<(), ShopError> {
        let transaction =
            self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let written = match token {
            Some(token) => transaction
                .prepare_cached(
                    "UPDATE product SET stock = ?2, fence = ?3 WHERE name = ?1 AND fence <= ?3",
                )?
                .execute(params![order.product, stock_left, token])?,
            None => transaction
                .prepare_cached("UPDATE product SET stock = ?2 WHERE name = ?1")?
                .execute(params![order.product, stock_left])?,
        };
        if written == 0 {
            return Err(ShopError::Stale); // and the transaction, dropped, is rolled back
        }
        transaction
            .prepare_cached("INSERT INTO sale (order_no, product, quantity) VALUES (?1, ?2, ?3)")?
            .execute(params![order.number, order.product, order.quantity])?;
        Ok(transaction.commit()?)
    }

    /// The largest token that a product has seen.
    ///
    /// # Errors
    /// [`ShopError::Database`]
    pub fn fence(&self, product: &str) -> Result<i64, ShopError> {
        let mut read =
            self.connection.prepare_cached("SELECT fence FROM product WHERE name = ?1")?;
        Ok(read.query_row([product], |row| row.get(0))?)
    }

    /// What was there, what was sold and what is left, of each product.
    ///
    /// # Errors
    /// [`ShopError::Database`]
    pub fn books(&self) -> Result<Vec<Book>, ShopError> {
        let mut read = self.connection.prepare(
            "SELECT name, initial, stock, COUNT(order_no), COALESCE(SUM(quantity), 0)
             FROM product LEFT JOIN sale ON sale.product = name GROUP BY name ORDER BY name",
        )?;
        let books = read.query_map([], |row| {
            Ok(Book {
                product: row.get(0)?,
                initial: row.get(1)?,
                left: row.get(2)?,
                sales: row.get(3)?,
                sold: row.get(4)?,
            })
        })?;
        Ok(books.collect::<Result<_, _>>()?)
    }
}

/// The books of one product, as the database has them at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Book {
    /// The product.
    pub product: String,
    /// How many discs there were.
    pub initial: i64,
    /// How many are left, by the stock column.
    pub left: i64,
    /// How many orders were sold.
    pub sales: u64,
    /// How many discs those were.
    pub sold: i64,
}

impl Book {
    /// How many discs were sold that the shop does not have.
    pub fn oversold(&self) -> i64 {
        (self.sold - self.initial).max(0)
    }

    /// Whether what is left is what the sales left.
    pub fn adds_up(&self) -> bool {
        self.initial - self.sold == self.left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDER: Order = Order { number: 1, product: "a", quantity: 2 };

    fn shop() -> Shop {
        Shop::create(Path::new(":memory:"), &BTreeMap::from([("a", 5), ("b", 7)])).unwrap()
    }

    fn book_of_a(shop: &Shop) -> Book {
        shop.books().unwrap().into_iter().find(|book| book.product == "a").unwrap()
    }

    #[test]
    fn the_read_of_a_newer_hold_shuts_out_the_write_of_an_older_one() {
        let mut shop = shop();
        assert_eq!(shop.stock("a", Some(10)).unwrap(), 5);
        assert_eq!(shop.stock("a", Some(11)).unwrap(), 5);
        let before = book_of_a(&shop);
        assert!(matches!(shop.sell(ORDER, 3, Some(10)), Err(ShopError::Stale)));
        assert!(matches!(shop.stock("a", Some(10)), Err(ShopError::Stale)));
        assert_eq!((book_of_a(&shop), shop.fence("a").unwrap()), (before, 11));
    }

    #[test]
    fn an_equal_token_is_accepted_again_and_again() {
        let mut shop = shop();
        assert_eq!(shop.stock("a", Some(10)).unwrap(), 5);
        shop.sell(ORDER, 3, Some(10)).unwrap();
        shop.sell(Order { number: 2, ..ORDER }, 1, Some(10)).unwrap();
        assert_eq!(shop.stock("a", Some(10)).unwrap(), 1);
        assert!(book_of_a(&shop).adds_up());
    }

    #[test]
    fn each_product_has_a_fence_of_its_own() {
        let shop = shop();
        shop.stock("a", Some(10)).unwrap();
        assert_eq!(shop.stock("b", Some(3)).unwrap(), 7);
    }

    #[test]
    fn an_order_is_sold_once_and_a_failed_sale_changes_nothing() {
        let mut shop = shop();
        shop.sell(ORDER, 3, Some(10)).unwrap();
        assert!(matches!(shop.sell(ORDER, 1, Some(10)), Err(ShopError::Database(_))));
        assert_eq!((book_of_a(&shop).left, book_of_a(&shop).sales), (3, 1));
    }

    #[test]
    fn without_a_lock_two_sales_from_one_read_do_not_add_up() {
        let mut shop = shop();
        for number in [1, 2, 3] {
            shop.sell(Order { number, ..ORDER }, 3, None).unwrap();
        }
        let book = book_of_a(&shop);
        assert_eq!((book.left, book.sold, book.oversold(), book.adds_up()), (3, 6, 1, false));
    }
}
