use pillarbox_core::port::{UpkeepStore as _, WriteStore};
use pillarbox_mysql::MySqlStore;
use pillarbox_testkit::{
    driver::Sql,
    servers::{Database, Shared},
};
use sea_orm::DatabaseConnection;

use crate::Place;

// An event is written in a transaction, or it does not compile.
static_assertions::assert_not_impl_any!(MySqlStore: WriteStore<DatabaseConnection>);

macro_rules! place {
    ($name:ident, $server:expr) => {
        struct $name(Database);

        impl Place for $name {
            type Store = MySqlStore;

            const SQL: Sql = Sql::MYSQL;
            const INSERT: &str = "insert into orders (id) values (?)";

            fn missing() -> Option<String> {
                let missing = $server == Shared::MySql && !$server.is_there();
                missing.then(|| format!("{} is not set", $server.variable()))
            }

            async fn fresh() -> (Self, MySqlStore) {
                let database = $server.database();
                let store = MySqlStore::open(database.url()).await.unwrap();
                store.migrate().await.unwrap();
                database.run("create table orders (id varchar(64) primary key)").unwrap();
                (Self(database), store)
            }

            fn url(&self) -> String {
                self.0.url()
            }
        }
    };
}

mod on_mariadb {
    use super::*;
    use crate::Bed;

    place!(MariaDb, Shared::MariaDb);
    pillarbox_testkit::driver!(Bed<MariaDb>);
}

/// MySQL can't always be had: without it these cases do nothing, and say so.
mod on_mysql {
    use super::*;
    use crate::Bed;

    place!(MySql, Shared::MySql);
    pillarbox_testkit::driver!(Bed<MySql>);
}
