//! On MySQL and MariaDB.

use diesel::prelude::*;
use diesel_async::{AsyncConnection, AsyncMysqlConnection, RunQueryDsl, SimpleAsyncConnection};
use pillarbox::MySqlStore;

use crate::{Failure, Shop, TABLE, example_order, placed};

pub(crate) async fn run(url: &str) -> Result<(), Failure> {
    let mut connection = AsyncMysqlConnection::establish(url).await?;
    connection.batch_execute(TABLE).await?;
    let shop = Shop::open(MySqlStore::open(url).await?).await?;
    let insert = |id: &str, item| {
        let order = (example_order::id.eq(id.to_owned()), example_order::item.eq(item));
        diesel::insert_into(example_order::table).values(order)
    };

    let order = pillarbox::new_id().to_string();
    let committed = pillarbox_diesel::transaction(&mut connection, async |mut tx| {
        insert(&order, "tea").execute(&mut *tx).await?;
        Ok::<_, Failure>(shop.outbox.write(&mut tx, placed(&order, "tea")).await?)
    })
    .await?;

    let order = pillarbox::new_id().to_string();
    let failed = pillarbox_diesel::transaction(&mut connection, async |mut tx| {
        insert(&order, "nothing").execute(&mut *tx).await?;
        shop.outbox.write(&mut tx, placed(&order, "nothing")).await?.rolled_back();
        // An error rolls back.
        Err::<(), Failure>("out of stock".into())
    });
    println!("rolled back: {}", failed.await.expect_err("the transaction fails"));

    let lost = example_order::table.filter(example_order::item.eq("nothing"));
    let lost = lost.count().get_result(&mut connection).await?;
    shop.close(committed, lost).await
}
