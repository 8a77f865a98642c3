//! The orders: real purchases, so that the demand is as skewed as in life.

use std::collections::BTreeMap;

/// What the orders are and where they come from; said wherever they are used (see `data/README.md`).
pub const SOURCE: &str =
    "real purchases at the online shop CDNOW in 1997 (public CDNOW data set of Fader and Hardie)";

const CSV: &str = include_str!("../data/orders.csv");

/// One order: so many discs of one product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Unique, from 1.
    pub number: u32,
    /// What is ordered.
    pub product: &'static str,
    /// How many discs.
    pub quantity: i64,
}

/// All orders, in the order in which they were placed.
pub fn all() -> Vec<Order> {
    CSV.lines().skip(1).map(parse).collect()
}

/// Columns: order_no, date, customer, product, unit_price_cents, quantity.
fn parse(line: &'static str) -> Order {
    let fields: Vec<_> = line.split(',').collect();
    let &[number, _date, _customer, product, _price, quantity] = fields.as_slice() else {
        panic!("not a line of orders.csv: {line}")
    };
    let [number, quantity] =
        [number, quantity].map(|field| field.parse().expect("a number of orders.csv"));
    Order { number, product, quantity: i64::from(quantity) }
}

/// How many discs of each product are ordered in all.
pub fn demand(orders: &[Order]) -> BTreeMap<&'static str, i64> {
    let mut demand = BTreeMap::new();
    for order in orders {
        *demand.entry(order.product).or_default() += order.quantity;
    }
    demand
}

/// The product with the most orders: the one whose lock everybody waits for.
pub fn most_wanted(orders: &[Order]) -> Option<&'static str> {
    let mut counts: BTreeMap<&'static str, usize> = BTreeMap::new();
    for order in orders {
        *counts.entry(order.product).or_default() += 1;
    }
    counts.into_iter().max_by_key(|&(_, count)| count).map(|(product, _)| product)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_thousand_orders_of_47_products() {
        let orders = all();
        assert_eq!((orders.len(), demand(&orders).len()), (6000, 47));
        assert_eq!(orders[1], Order { number: 2, product: "cd-15", quantity: 2 });
        assert!(orders.iter().all(|order| order.quantity > 0));
    }

    #[test]
    fn demand_adds_discs_and_the_most_wanted_has_the_most_orders() {
        let order = |number, product, quantity| Order { number, product, quantity };
        let orders = [order(1, "a", 9), order(2, "b", 1), order(3, "b", 2)];
        assert_eq!(demand(&orders), BTreeMap::from([("a", 9), ("b", 3)]));
        assert_eq!(most_wanted(&orders), Some("b"));
    }
}
