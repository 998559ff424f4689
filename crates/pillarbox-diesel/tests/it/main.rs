//! `diesel-async` passes the exam of a driver, on every database.

#![expect(clippy::unwrap_used, reason = "a test fails by a panic, in its steps as well")]

mod mysql;
mod postgres;
mod sqlite;

use pillarbox_core::engine::{Receipt, WriteError};
use pillarbox_core::port::StoreErrorKind;

/// Why a transaction did not commit.
#[derive(Debug)]
enum Ended {
    RolledBack(Receipt),
    Write(WriteError),
    Database(diesel::result::Error),
}

impl From<diesel::result::Error> for Ended {
    fn from(error: diesel::result::Error) -> Self {
        Self::Database(error)
    }
}

impl From<WriteError> for Ended {
    fn from(error: WriteError) -> Self {
        Self::Write(error)
    }
}

impl Ended {
    fn written(done: Result<Receipt, Self>) -> Result<Receipt, WriteError> {
        match done {
            Ok(receipt) | Err(Self::RolledBack(receipt)) => Ok(receipt),
            Err(Self::Write(error)) => Err(error),
            Err(Self::Database(error)) => panic!("{error}"),
        }
    }
}

/// Makes a driver of a bed with `place`, `store` and `connect`, for connections of diesel's on one kind of database: its
/// traits would take a page to be named for all of them.
macro_rules! bed {
    ($bed:ty, $store:ty, $sql:expr, $insert:expr $(, missing: $missing:expr)?) => {
        impl pillarbox_testkit::driver::Driver for $bed {
            type Store = $store;

            const SQL: pillarbox_testkit::driver::Sql = $sql;

            $(fn missing() -> Option<String> {
                $missing
            })?

            async fn fresh() -> Self {
                Self::fresh().await
            }

            fn store(&self) -> $store {
                self.store.clone()
            }

            async fn write(
                &self,
                outbox: &pillarbox_core::Outbox<$store>,
                order: &str,
                events: Vec<pillarbox_core::Event>,
                end: pillarbox_testkit::driver::End,
            ) -> Result<pillarbox_core::engine::Receipt, pillarbox_core::engine::WriteError> {
                use diesel_async::RunQueryDsl as _;

                let mut connection = self.connect().await;
                let done = pillarbox_diesel::transaction(&mut connection, async |mut tx| {
                    let insert = diesel::sql_query($insert).bind::<diesel::sql_types::Text, _>(order.to_owned());
                    insert.execute(&mut *tx).await?;
                    let receipt = outbox.write_all(&mut tx, events).await?;
                    match end {
                        pillarbox_testkit::driver::End::Commit => Ok(receipt),
                        pillarbox_testkit::driver::End::Rollback => Err($crate::Ended::RolledBack(receipt)),
                    }
                });
                $crate::Ended::written(done.await)
            }

            async fn sql(&self, statement: &str) -> String {
                self.sql(statement).await
            }
        }
    };
}
use bed;

/// Makes the tests that every kind of connection passes beside the exam.
macro_rules! transactions {
    ($bed:ty) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn outside_of_a_transaction_nothing_is_written() {
            use diesel_async::{AsyncConnection as _, SimpleAsyncConnection as _};

            let bed = <$bed>::fresh().await;
            let outbox = Outbox::writer_only(bed.store.clone()).start().await.unwrap();
            let mut connection = bed.connect().await;
            $crate::is_refused(Diesel::new(&mut connection).unwrap_err());

            // One that was ended behind its back is noticed, too.
            connection.begin_test_transaction().await.unwrap();
            let mut tx = Diesel::new(&mut connection).unwrap();
            $crate::roll_back(&mut *tx).await;
            $crate::is_refused(outbox.write(&mut tx, Event::builder("Placed").json(&7)).await.unwrap_err());
            connection.batch_execute("select 1").await.unwrap();
            assert_eq!(bed.sql("select count(*) from outbox_event").await.trim(), "0");
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn diesels_own_transaction_takes_events_and_so_does_a_savepoint() {
            use diesel_async::AsyncConnection as _;

            let bed = <$bed>::fresh().await;
            let outbox = Outbox::writer_only(bed.store.clone()).start().await.unwrap();
            let mut connection = bed.connect().await;
            let writer = outbox.clone();
            // On another thread: the futures must be fit for that.
            let written = tokio::spawn(async move {
                let placed = || Event::builder("Placed").json(&7);
                connection
                    .transaction(async |connection| {
                        let receipt = writer.write(&mut Diesel::new(connection)?, placed()).await?;
                        let undone = pillarbox_diesel::transaction(connection, async |mut tx| {
                            Err::<(), _>(Ended::RolledBack(writer.write(&mut tx, placed()).await?))
                        });
                        assert!(matches!(undone.await, Err(Ended::RolledBack(_))));
                        Ok::<_, Ended>(receipt)
                    })
                    .await
            });
            let receipt = written.await.unwrap().unwrap();
            assert_eq!(bed.sql("select event_id from outbox_event").await.trim(), receipt.ids()[0].to_string());
            receipt.confirm();
        }
    };
}
use transactions;

fn is_refused(error: WriteError) {
    let WriteError::Store(error) = error else { panic!("{error}") };
    assert_eq!(error.kind(), StoreErrorKind::Rejected);
    assert!(error.to_string().contains("in no transaction"), "{error}");
}

async fn roll_back<C: diesel_async::AsyncConnection>(connection: &mut C) {
    use diesel_async::TransactionManager as _;

    C::TransactionManager::rollback_transaction(connection).await.unwrap();
}
