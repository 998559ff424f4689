//! Who orders what, and what there is at the beginning: all of it follows from the seed.

use std::{collections::BTreeMap, path::Path, time::Duration};

use sqlx::{Connection as _, SqliteConnection, sqlite::SqliteConnectOptions};

use crate::{Failure, events::Order, inventory, orders, payments};

/// The services, as they are named everywhere; each has a file of this name.
pub(crate) const SERVICES: [&str; 3] = ["order", "inventory", "payment"];

/// What is sold, and for how much. There is too little of the last.
const GOODS: [(&str, i64); 4] = [("tea", 500), ("cocoa", 700), ("coffee", 900), ("saffron", 4_000)];

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) orders: Vec<Order>,
    /// By item.
    pub(crate) stock: BTreeMap<String, i64>,
    /// By customer.
    pub(crate) accounts: BTreeMap<String, Account>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Account {
    pub(crate) cents: i64,
    pub(crate) frozen: Frozen,
    /// The bank's word takes longer than an order may wait.
    pub(crate) late: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frozen {
    Never,
    /// Until the first payment has failed because of it.
    AtFirst,
    /// Until all orders have ended: those of this customer have timed out.
    ToTheEnd,
}

impl Plan {
    pub(crate) fn new(count: usize, seed: u64) -> Self {
        let mut dice = fastrand::Rng::with_seed(seed);
        let customers = (count / 20).max(10);
        let orders: Vec<_> = (0..count)
            .map(|number| {
                let (item, price) = GOODS[dice.usize(..GOODS.len())];
                let quantity = dice.i64(1..=3);
                Order {
                    id: format!("order-{number:05}"),
                    customer: format!("customer-{:03}", dice.usize(..customers)),
                    item: item.to_owned(),
                    quantity,
                    cents: quantity * price,
                }
            })
            .collect();
        let total: i64 = orders.iter().map(|order| order.cents).sum();
        let account = |number: usize| match number % 10 {
            0 => Account { cents: total, frozen: Frozen::AtFirst, late: false },
            1 => Account { cents: total, frozen: Frozen::ToTheEnd, late: false },
            // Enough for an order or two.
            2 => Account { cents: 4_000, frozen: Frozen::Never, late: false },
            3 => Account { cents: 0, frozen: Frozen::Never, late: false },
            number => Account { cents: total, frozen: Frozen::Never, late: number == 4 },
        };
        let accounts = (0..customers).map(|number| (format!("customer-{number:03}"), account(number))).collect();
        let wanted =
            |item: &str| -> i64 { orders.iter().filter(|order| order.item == item).map(|order| order.quantity).sum() };
        let scarce = GOODS[GOODS.len() - 1].0;
        let stock = GOODS.iter().map(|(item, _)| {
            let wanted = wanted(item);
            ((*item).to_owned(), if *item == scarce { wanted / 2 } else { wanted })
        });
        Self { stock: stock.collect(), accounts, orders }
    }

    pub(crate) fn order(&self, id: &str) -> Option<&Order> {
        self.orders.iter().find(|order| order.id == id)
    }

    /// Makes the three files, with what there is at the beginning.
    pub(crate) async fn open_shop(&self, folder: &Path, timeout: Duration) -> Result<(), Failure> {
        let mut database = create(folder, "order", orders::TABLES).await?;
        database.close().await?;
        database = create(folder, "inventory", inventory::TABLES).await?;
        for (item, quantity) in &self.stock {
            let insert = sqlx::query("insert into stock (item, quantity) values (?, ?)").bind(item).bind(quantity);
            insert.execute(&mut database).await?;
        }
        database.close().await?;
        database = create(folder, "payment", payments::TABLES).await?;
        for (customer, account) in &self.accounts {
            let insert = sqlx::query("insert into account (customer, cents, frozen, late) values (?, ?, ?, ?)");
            let insert = insert.bind(customer).bind(account.cents).bind(account.frozen != Frozen::Never);
            let late = if account.late { timeout.as_secs_f64() * 1.5 } else { 0.0 };
            insert.bind(late).execute(&mut database).await?;
        }
        database.close().await?;
        Ok(())
    }
}

async fn create(folder: &Path, service: &str, tables: &'static str) -> Result<SqliteConnection, Failure> {
    let options = SqliteConnectOptions::new().filename(folder.join(format!("{service}.db"))).create_if_missing(true);
    let mut database = SqliteConnection::connect_with(&options).await?;
    sqlx::raw_sql(tables).execute(&mut database).await?;
    Ok(database)
}

/// The file of a service, for a look from outside. It has to be there.
pub(crate) async fn look_into(folder: &Path, service: &str) -> Result<SqliteConnection, Failure> {
    let file = folder.join(format!("{service}.db"));
    let opened = SqliteConnection::connect_with(&SqliteConnectOptions::new().filename(&file)).await;
    opened.map_err(|error| format!("{} can't be opened: {error}", file.display()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_orders_and_every_kind_of_customer() {
        let plan = Plan::new(60, 7);
        assert_eq!(plan.orders, Plan::new(60, 7).orders);
        assert_ne!(plan.orders, Plan::new(60, 8).orders);
        for kind in [Frozen::Never, Frozen::AtFirst, Frozen::ToTheEnd] {
            let of_kind = |order: &&Order| plan.accounts[&order.customer].frozen == kind;
            assert!(plan.orders.iter().any(|order| of_kind(&order)), "{kind:?}");
        }
        assert_eq!(plan.order("order-00059"), plan.orders.last());
    }
}
