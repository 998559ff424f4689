use diesel_async::{AsyncConnection as _, AsyncMysqlConnection};
use pillarbox_core::{
    Event, Outbox,
    port::{UpkeepStore as _, WriteStore},
};
use pillarbox_diesel::Diesel;
use pillarbox_mysql::MySqlStore;
use pillarbox_testkit::{
    driver::Sql,
    servers::{Database, Shared},
};

use crate::{Ended, bed, transactions};

// An event is written in a transaction, or it does not compile.
static_assertions::assert_not_impl_any!(MySqlStore: WriteStore<AsyncMysqlConnection>);

macro_rules! server {
    ($server:expr) => {
        struct Bed {
            store: MySqlStore,
            database: Database,
        }

        impl Bed {
            async fn fresh() -> Self {
                let database = $server.database();
                let store = MySqlStore::open(database.url()).await.unwrap();
                store.migrate().await.unwrap();
                database.run("create table orders (id varchar(64) primary key)").unwrap();
                Self { store, database }
            }

            async fn connect(&self) -> AsyncMysqlConnection {
                AsyncMysqlConnection::establish(&self.database.url()).await.unwrap()
            }

            fn sql(&self, statement: &str) -> std::future::Ready<String> {
                std::future::ready(self.database.run(statement).unwrap())
            }
        }

        bed!(Bed, MySqlStore, Sql::MYSQL, "insert into orders (id) values (?)", missing: missing($server));
        pillarbox_testkit::driver!(Bed);
    };
}

mod on_mariadb {
    use super::*;

    server!(Shared::MariaDb);
    transactions!(Bed);
}

/// MySQL can't always be had: without it these cases do nothing, and say so.
mod on_mysql {
    use super::*;

    server!(Shared::MySql);
}

fn missing(server: Shared) -> Option<String> {
    let missing = server == Shared::MySql && !server.is_there();
    missing.then(|| format!("{} is not set", server.variable()))
}
