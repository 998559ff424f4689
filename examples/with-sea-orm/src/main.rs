//! Orders and their events in the same transactions, which are those of SeaORM: `cargo run -p with-sea-orm`.
//!
//! On SQLite, in a temporary file, or where `DATABASE_URL` says: `postgres://user:password@localhost/shop`, or
//! `mysql://...` for MySQL and MariaDB. Only how the store is opened differs.

use pillarbox::{
    port::{Store, WriteStore},
    prelude::*,
};
use pillarbox_sea_orm::SeaOrm;
use sea_orm::{
    ActiveValue::Set, Database, DatabaseConnection, DbBackend, Schema, TransactionTrait, entity::prelude::*,
};
use tokio::sync::mpsc;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let url = std::env::var("DATABASE_URL")
        .unwrap_or_else(|_| format!("sqlite:{}?mode=rwc", folder.path().join("shop.db").display()));
    let database = Database::connect(&url).await?;
    match database.get_database_backend() {
        DbBackend::Postgres => run(PostgresStore::open(&url)?, database).await,
        DbBackend::MySql => run(MySqlStore::open(&url).await?, database).await,
        DbBackend::Sqlite => run(SqliteStore::open(&url).await?, database).await,
        other => Err(format!("there is no store for {other:?}").into()),
    }
}

async fn run<S>(store: S, database: DatabaseConnection) -> Result<(), Failure>
where
    S: Store + for<'t> WriteStore<SeaOrm<'t>>,
{
    let mut table = Schema::new(database.get_database_backend()).create_table_from_entity(order::Entity);
    database.execute(table.if_not_exists()).await?;

    let (told, mut shipped) = mpsc::unbounded_channel();
    let outbox = Outbox::single_node(store)
        .route(("Order", "OrderPlaced"), move |delivery: Delivery| {
            let told = told.clone();
            async move {
                let order: serde_json::Value = delivery.event().payload().to()?;
                println!("shipping {order}");
                told.send(delivery.event().id()).map_err(HandlerError::from)
            }
        })
        .start()
        .await?;

    // On SQLite, one that reads before it writes is begun with `begin_with_options` and `Immediate`.
    let tx = database.begin().await?;
    let order = order::ActiveModel { item: Set("tea".into()), ..Default::default() }.insert(&tx).await?;
    let receipt = outbox.write(&mut SeaOrm(&tx), placed(order.id, "tea")).await?;
    tx.commit().await?;
    let id = receipt.ids()[0];
    receipt.confirm();

    let tx = database.begin().await?;
    let order = order::ActiveModel { item: Set("nothing".into()), ..Default::default() }.insert(&tx).await?;
    outbox.write(&mut SeaOrm(&tx), placed(order.id, "nothing")).await?.rolled_back();
    tx.rollback().await?;

    // The reader finds what was committed; what was rolled back is nowhere.
    while shipped.recv().await.ok_or("the handler is gone")? != id {}
    let lost = order::Entity::find().filter(order::Column::Item.eq("nothing")).count(&database).await?;
    assert_eq!(lost, 0, "an order that was rolled back is there");
    println!("no order of what was rolled back");

    outbox.shutdown().await;
    Ok(())
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn placed(order: i64, item: &str) -> Event {
    let event = Event::builder("OrderPlaced").aggregate("Order", order.to_string()).key(order.to_string());
    event.json(&serde_json::json!({ "order": order, "item": item })).build().expect("a valid event")
}

mod order {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "example_order")]
    pub(crate) struct Model {
        #[sea_orm(primary_key)]
        pub(crate) id: i64,
        pub(crate) item: String,
    }

    #[derive(Clone, Copy, Debug, EnumIter, DeriveRelation)]
    pub(crate) enum Relation {}

    impl ActiveModelBehavior for ActiveModel {}
}
