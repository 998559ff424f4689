//! Books that agree, and what the verdict says when somebody has been at them.

use std::{path::Path, time::Duration};

use sqlx::{AssertSqlSafe, SqliteConnection};
use tempfile::TempDir;

use super::{Books, tell};
use crate::{
    events::Order,
    plan::{Account, Frozen, Plan, SERVICES, look_into},
};

fn plan() -> Plan {
    let order = |number: usize| Order {
        id: format!("o-{number}"),
        customer: "ada".into(),
        item: "tea".into(),
        quantity: 2,
        cents: 1_000,
    };
    let account = Account { cents: 10_000, frozen: Frozen::Never, late: false };
    Plan {
        orders: (1..=6).map(order).collect(),
        stock: [("tea".to_owned(), 20)].into(),
        accounts: [("ada".to_owned(), account)].into(),
    }
}

/// One order of each end, and all that belongs to it.
const AGREED: [(&str, &str); 3] = [
    (
        "order",
        "insert into orders (id, customer, item, quantity, cents, correlation, state, reason) values
            ('o-1', 'ada', 'tea', 2, 1000, '', 'CONFIRMED', null),
            ('o-2', 'ada', 'tea', 2, 1000, '', 'CANCELLED', 'OUT_OF_STOCK'),
            ('o-3', 'ada', 'tea', 2, 1000, '', 'CANCELLED', 'DECLINED'),
            ('o-4', 'ada', 'tea', 2, 1000, '', 'CANCELLED', 'TIMED_OUT'),
            ('o-5', 'ada', 'tea', 2, 1000, '', 'CANCELLED', 'REFUNDED'),
            ('o-6', 'ada', 'tea', 2, 1000, '', 'CONFIRMED', null)",
    ),
    (
        "payment",
        "insert into payment (order_id, customer, cents, state) values
            ('o-1', 'ada', 1000, 'CHARGED'), ('o-3', 'ada', 1000, 'DECLINED'), ('o-4', 'ada', 1000, 'VOID'),
            ('o-5', 'ada', 1000, 'REFUNDED'), ('o-6', 'ada', 1000, 'CHARGED');
        insert into booking (order_id, customer, kind, cents) values
            ('o-1', 'ada', 'CHARGE', 1000), ('o-5', 'ada', 'CHARGE', 1000), ('o-5', 'ada', 'REFUND', 1000),
            ('o-6', 'ada', 'CHARGE', 1000);
        update account set cents = 8000",
    ),
    (
        "inventory",
        "insert into reservation (order_id, item, quantity, state) values
            ('o-1', 'tea', 2, 'SHIPPED'), ('o-2', 'tea', 2, 'REJECTED'), ('o-3', 'tea', 2, 'RELEASED'),
            ('o-4', 'tea', 2, 'VOID'), ('o-5', 'tea', 2, 'RELEASED'), ('o-6', 'tea', 2, 'SHIPPED');
        insert into move (order_id, item, quantity) values
            ('o-1', 'tea', -2), ('o-3', 'tea', -2), ('o-3', 'tea', 2), ('o-5', 'tea', -2), ('o-5', 'tea', 2), ('o-6', 'tea', -2);
        update stock set quantity = 16",
    ),
];

async fn run(database: &mut SqliteConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(database).await.unwrap();
}

async fn change(folder: &Path, service: &str, sql: &str) {
    run(&mut look_into(folder, service).await.unwrap(), sql).await;
}

async fn agreed() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    plan().open_shop(folder.path(), Duration::from_secs(1)).await.unwrap();
    for service in SERVICES {
        // As much of the outbox and the dead letters as is looked at.
        let tables = "create table outbox_event (event_type text, status text);
            create table inbox_letter (event_type text, reason text, status text);
            insert into outbox_event values ('OrderPlaced', 'DONE');
            insert into inbox_letter values ('StockReserved', 'frozen', 'REPLAYED')";
        change(folder.path(), service, tables).await;
    }
    for (service, sql) in AGREED {
        change(folder.path(), service, sql).await;
    }
    folder
}

#[tokio::test]
async fn books_that_agree_have_no_faults() {
    let folder = agreed().await;
    assert_eq!(Books::read(folder.path()).await.unwrap().faults(&plan()), [""; 0]);
    assert!(tell(folder.path(), &plan()).await.unwrap());
}

#[tokio::test]
async fn whatever_is_tampered_with_is_named() {
    for (service, sql, named) in [
        ("order", "delete from orders where id = 'o-2'", "o-2 is lost"),
        ("order", "update orders set id = 'o-9' where id = 'o-2'", "o-9 was never placed"),
        ("order", "update orders set cents = 1 where id = 'o-2'", "o-2 was placed as"),
        ("order", "update orders set state = 'PLACED', reason = null where id = 'o-4'", "o-4 has not ended"),
        ("order", "update orders set state = 'CONFIRMED', reason = null where id = 'o-5'", "o-5 is CONFIRMED"),
        ("order", "update orders set reason = 'TIMED_OUT' where id = 'o-5'", "its payment REFUNDED"),
        ("payment", "insert into booking values ('o-1', 'ada', 'CHARGE', 1000)", "o-1 was charged 2 times"),
        ("payment", "delete from booking where kind = 'REFUND'", "o-5 has cost 1000 cents, and should 0"),
        ("payment", "delete from booking where order_id = 'o-1'", "the confirmed orders cost 2000"),
        ("payment", "update account set cents = cents - 1", "ada has 7999 cents, and should have 8000"),
        ("payment", "delete from payment where order_id = 'o-4'", "its payment NONE"),
        ("payment", "update payment set cents = 1 where order_id = 'o-1'", "o-1 has another price"),
        ("payment", "insert into payment values ('o-7', 'ada', 1, 'VOID')", "o-7 was never placed"),
        ("inventory", "update reservation set state = 'RESERVED' where order_id = 'o-5'", "its reservation RESERVED"),
        ("inventory", "update stock set quantity = 15", "15 tea are left, and should be 16"),
        ("inventory", "insert into move values ('o-2', 'tea', -2)", "o-2 has moved -2 pieces, and should 0"),
        ("inventory", "insert into outbox_event values ('StockReserved', 'RETRY')", "an unsent StockReserved, RETRY"),
        ("order", "insert into outbox_event values ('OrderPlaced', 'DEAD')", "an unsent OrderPlaced, DEAD"),
        ("payment", "insert into inbox_letter values ('StockReserved', 'frozen', 'PENDING')", "a dead letter"),
    ] {
        let folder = agreed().await;
        change(folder.path(), service, sql).await;
        let faults = Books::read(folder.path()).await.unwrap().faults(&plan());
        assert!(faults.iter().any(|fault| fault.contains(named)), "{sql}: {faults:?}");
        assert!(!tell(folder.path(), &plan()).await.unwrap());
    }
}

#[tokio::test]
async fn a_file_that_is_not_there_is_named() {
    let folder = agreed().await;
    std::fs::remove_file(folder.path().join("payment.db")).unwrap();
    let error = tell(folder.path(), &plan()).await.unwrap_err().to_string();
    assert!(error.contains("payment.db"), "{error}");
}
