//! The PostgreSQL store passes the exam: on the oldest version that is tested, on the newest, and behind a pooler.

use std::time::Duration;

use pillarbox_core::{domain::Seq, port::UpkeepStore};
use pillarbox_postgres::{Options, PostgresStore};
use pillarbox_testkit::{
    conformance::{Backend, Executed},
    servers::{Database, Shared},
};
use sqlx::PgConnection;

struct Bed {
    store: PostgresStore,
    database: Database,
}

impl Bed {
    async fn new(server: Shared) -> Self {
        let database = server.database();
        let store = open(server, &database);
        store.migrate().await.expect("migrate");
        database.run("create table work (value text not null)").expect("a table");
        Self { store, database }
    }

    fn break_row(&self, seq: Seq) {
        let sql = format!("update outbox_event set event_id = 'not an id' where seq = {}", seq.0);
        self.database.run(&sql).expect("break a row");
    }

    /// Every stored time moves back.
    fn pass(&self, span: Duration) {
        let by = format!("{} * interval '1 microsecond'", span.as_micros());
        let sql = format!(
            "update outbox_event set available_at = available_at - {by}, created_at = created_at - {by},
                 done_at = done_at - {by};
             update outbox_dedup set expires_at = expires_at - {by};
             update outbox_action set at = at - {by};
             update outbox_instance set until = until - {by}, started_at = started_at - {by};"
        );
        self.database.run(&sql).expect("move the times");
    }
}

fn open(server: Shared, database: &Database) -> PostgresStore {
    let options = Options::new();
    let options = if server == Shared::PgBouncer { options.behind_pooler() } else { options };
    options.open(database.url()).expect("open")
}

macro_rules! backend {
    ($module:ident, $server:ident) => {
        mod $module {
            use super::*;

            struct Server(Bed);

            impl Backend for Server {
                type Store = PostgresStore;

                async fn fresh() -> Self {
                    Self(Bed::new(Shared::$server).await)
                }

                fn store(&self) -> &PostgresStore {
                    &self.0.store
                }

                async fn second_handle(&self) -> PostgresStore {
                    open(Shared::$server, &self.0.database)
                }

                async fn break_row(&self, seq: Seq) {
                    self.0.break_row(seq);
                }

                async fn pass(&self, span: Duration) {
                    self.0.pass(span);
                }

                async fn add_work(connection: &mut PgConnection, value: String) -> Executed {
                    // Not prepared under a name, which behind a pooler another client may have taken.
                    let add = sqlx::query("insert into work values ($1)").persistent(false);
                    add.bind(value).execute(connection).await?;
                    Ok(())
                }

                async fn work(&self) -> Vec<String> {
                    let work =
                        self.0.database.run("select value from work order by value collate \"C\"").expect("work");
                    work.split_whitespace().map(ToOwned::to_owned).collect()
                }
            }

            pillarbox_testkit::conformance!(Server);
        }
    };
}

backend!(oldest, Postgres);
backend!(newest, PostgresNewest);
backend!(pooler, PgBouncer);
