//! The shop's tests: no database, no waiting.

use std::{error::Error, sync::Arc, time::Duration};

use pillarbox::{
    prelude::*,
    testing::{self, OutboxExt as _, assert_not_written, assert_written},
};

use crate::shop::{self, OrderPlaced, Warehouse};

type Tested = Result<(), Box<dyn Error>>;

#[tokio::test]
async fn an_order_is_told_of() -> Tested {
    let outbox = testing::outbox().start().await?;
    shop::place(&outbox, "7", 4_200).await?;
    assert_written!(outbox, OrderPlaced { order_id: "7", .. }, times = 1);
    Ok(())
}

#[tokio::test]
async fn a_refused_order_leaves_no_event() -> Tested {
    let outbox = testing::outbox().start().await?;
    assert!(shop::place(&outbox, "7", 0).await.is_err());
    assert_not_written!(outbox, OrderPlaced);
    Ok(())
}

#[tokio::test]
async fn a_large_order_is_shipped_when_the_carrier_answers() -> Tested {
    let warehouse = Arc::new(Warehouse::default());
    let outbox = testing::outbox().with(|outbox| shop::handlers(outbox, &warehouse)).start().await?;
    shop::place(&outbox, "7", 250_000).await?;
    let report = outbox.drain().await?;
    assert_eq!(report.failed[0].error, "the carrier does not answer");
    assert_eq!(report.delivered.len(), 1);
    assert_eq!(warehouse.shipped().await, ["7"]);
    Ok(())
}

#[tokio::test]
async fn a_second_delivery_ships_nothing() -> Tested {
    let warehouse = Arc::new(Warehouse::default());
    let state = warehouse.clone();
    let outbox = testing::outbox()
        .with(|outbox| shop::handlers(outbox, &warehouse))
        .twice_comparing(move || {
            let state = state.clone();
            async move { state.shipped().await }
        })
        .start()
        .await?;
    shop::place(&outbox, "7", 4_200).await?;
    shop::place(&outbox, "8", 4_200).await?;
    assert_eq!(outbox.drain().await?.delivered.len(), 2);
    Ok(())
}

#[tokio::test]
async fn a_crash_before_the_outcome_is_stored_loses_nothing() -> Tested {
    let warehouse = Arc::new(Warehouse::default());
    let outbox = testing::outbox().with(|outbox| shop::handlers(outbox, &warehouse)).start().await?;
    shop::place(&outbox, "7", 4_200).await?;
    outbox.crash_after_handler();
    assert!(outbox.drain().await?.crashed);
    assert_eq!(outbox.drain().await?.delivered.len(), 1);
    assert_eq!(warehouse.shipped().await, ["7"]);
    Ok(())
}

/// The whole, on the database of production.
#[tokio::test]
async fn the_shop_works_on_sqlite() -> Tested {
    let folder = tempfile::tempdir()?;
    let store = SqliteStore::open(folder.path().join("shop.db").display().to_string()).await?;
    let warehouse = Arc::new(Warehouse::default());
    let outbox = shop::handlers(Outbox::single_node(store), &warehouse).start().await?;
    shop::place(&outbox, "7", 250_000).await?;
    outbox.drain_within(Duration::from_secs(10)).await?;
    assert_eq!(warehouse.shipped().await, ["7"]);
    outbox.shutdown().await;
    Ok(())
}

/// The same by hand, with a crash.
#[tokio::test]
async fn a_crash_on_sqlite_loses_nothing_either() -> Tested {
    let folder = tempfile::tempdir()?;
    let store = SqliteStore::open(folder.path().join("shop.db").display().to_string()).await?;
    let warehouse = Arc::new(Warehouse::default());
    let outbox = testing::outbox_on(store).with(|outbox| shop::handlers(outbox, &warehouse)).start().await?;
    shop::place(&outbox, "7", 250_000).await?;
    shop::place(&outbox, "8", 4_200).await?;
    outbox.crash_after_handler();
    assert_eq!(outbox.drain().await?.lost.len(), 2);
    let report = outbox.drain().await?;
    assert_eq!((report.delivered.len(), report.failed.len()), (2, 1));
    assert_eq!(warehouse.shipped().await, ["7", "8"]);
    Ok(())
}
