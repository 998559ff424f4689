//! docs/book/src/tables.md says of every column of the outbox what the database says of it.

use std::collections::BTreeMap;

use pillarbox::AnyStore;
use pillarbox_servers::Shared;
use sqlx::Row as _;

use super::{pillarbox, stderr};

const PAGE: &str = include_str!("../../../../docs/book/src/tables.md");

/// A column's type, and whether it may be null and has a default.
#[derive(Debug, PartialEq, Eq)]
struct Column {
    kind: String,
    nullable: bool,
    default: Option<bool>,
}

/// The rows of the table whose heading begins so, without the heading.
fn rows(heading: &str) -> impl Iterator<Item = Vec<&'static str>> + use<> {
    let (_, rest) = PAGE.split_once(heading).unwrap_or_else(|| panic!("no table {heading}"));
    let lines =
        rest.lines().skip_while(|line| !line.starts_with("|---")).skip(1).take_while(|line| line.starts_with('|'));
    lines.map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
}

/// What the page says of a database, whose types are in this column of its tables.
fn of_page(place: usize) -> BTreeMap<String, Column> {
    let types = "PostgreSQL | MySQL, MariaDB | SQLite |";
    let events =
        rows(&format!("| column | {types} default |")).map(|row| (format!("outbox_event.{}", name(row[0])), row));
    let others = rows(&format!("| column | {types}\n")).map(|row| (name(row[0]), row));
    let columns = events.chain(others).filter(|(_, row)| row[place] != "-");
    columns
        .map(|(name, row)| {
            let nullable = !row[place].ends_with(" not null");
            let kind = row[place].trim_end_matches(" not null").trim_matches('`').to_owned();
            let default = row.get(4).map(|default| !default.starts_with("none"));
            (name, Column { kind, nullable, default })
        })
        .collect()
}

fn name(cell: &str) -> String {
    cell.trim_matches('`').to_owned()
}

async fn opened(url: &str) -> AnyStore {
    let output = pillarbox(&["migrate", "--db", url]);
    assert!(output.status.success(), "{}", stderr(&output));
    AnyStore::open(url).await.unwrap()
}

/// What the page leaves open is not compared.
fn compare(mut page: BTreeMap<String, Column>, database: &BTreeMap<String, Column>) {
    assert!(page.len() > 40, "{page:?}");
    for (name, column) in &mut page {
        if column.default.is_none() {
            column.default = database.get(name).and_then(|column| column.default);
        }
    }
    for (name, column) in database {
        assert_eq!(page.get(name), Some(column), "{name}");
    }
    let names = |columns: &BTreeMap<String, Column>| columns.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&page), names(database));
}

#[tokio::test]
async fn the_page_of_the_tables_has_the_types_of_postgres() {
    let database = Shared::Postgres.database();
    let AnyStore::Postgres(store) = opened(&database.url()).await else { panic!("another kind") };
    let rows = sqlx::query(
        "select relname || '.' || attname, format_type(atttypid, atttypmod), not attnotnull, atthasdef or attidentity <> ''
         from pg_attribute join pg_class on pg_class.oid = attrelid
         where relkind = 'r' and starts_with(relname, 'outbox_') and attnum > 0 and not attisdropped",
    )
    .fetch_all(store.pool())
    .await
    .unwrap();
    let columns = rows.iter().map(|row| {
        let kind = row.get::<String, _>(1).replace("timestamp with time zone", "timestamptz");
        (row.get(0), Column { kind, nullable: row.get(2), default: Some(row.get(3)) })
    });
    compare(of_page(1), &columns.collect());
}

#[tokio::test]
async fn the_page_of_the_tables_has_the_types_of_mariadb() {
    of_mysql(Shared::MariaDb).await;
}

#[tokio::test]
async fn the_page_of_the_tables_has_the_types_of_mysql() {
    if Shared::MySql.is_there() {
        of_mysql(Shared::MySql).await;
    } else {
        eprintln!("there is no MySQL here");
    }
}

async fn of_mysql(server: Shared) {
    let database = server.database();
    let AnyStore::MySql(store) = opened(&database.url()).await else { panic!("another kind") };
    let rows = sqlx::query(
        "select cast(concat(table_name, '.', column_name) as char), cast(column_type as char), is_nullable = 'YES', \
         coalesce(column_default, 'NULL') <> 'NULL' or extra like '%auto_increment%' or extra like '%DEFAULT_GENERATED%' \
         from information_schema.columns where table_schema = database() and table_name like 'outbox\\_%'",
    )
    .fetch_all(store.pool())
    .await
    .unwrap();
    let columns = rows.iter().map(|row| {
        let kind: String = row.get(1);
        // MariaDB tells how wide a number is shown.
        let (base, rest) = kind.split_once('(').unwrap_or((&kind, ""));
        let kind = if base.ends_with("int") {
            base.to_owned() + rest.split_once(')').map_or("", |(_, rest)| rest)
        } else {
            kind
        };
        let is = |place| row.get::<i64, _>(place) != 0;
        (row.get(0), Column { kind, nullable: is(2), default: Some(is(3)) })
    });
    compare(of_page(2), &columns.collect());
}

#[tokio::test]
async fn the_page_of_the_tables_has_the_types_of_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("a.db").display());
    let AnyStore::Sqlite(store) = opened(&url).await else { panic!("another kind") };
    let rows = sqlx::query(
        "select t.name || '.' || c.name, lower(c.type), c.\"notnull\" = 0 and c.pk = 0, \
         c.dflt_value is not null or c.pk > 0 and lower(c.type) = 'integer'
         from sqlite_schema t join pragma_table_info(t.name) c where t.type = 'table' and t.name like 'outbox%'",
    )
    .fetch_all(store.pool())
    .await
    .unwrap();
    let columns = rows
        .iter()
        .map(|row| (row.get(0), Column { kind: row.get(1), nullable: row.get(2), default: Some(row.get(3)) }));
    let (columns, mut page) = (columns.collect::<BTreeMap<_, _>>(), of_page(3));
    // Its default is one of the other databases'.
    if let Some(id) = page.get_mut("outbox_event.event_id") {
        id.default = Some(false);
    }
    compare(page, &columns);
}

#[tokio::test]
async fn the_page_of_the_tables_has_the_parameters_of_publish() {
    let database = Shared::Postgres.database();
    let AnyStore::Postgres(store) = opened(&database.url()).await else { panic!("another kind") };
    let sql = "select pg_get_function_arguments('outbox_publish'::regproc)";
    let arguments: String = sqlx::query_scalar(sql).fetch_one(store.pool()).await.unwrap();
    let of_database: Vec<_> = arguments
        .split(", ")
        .map(|argument| {
            let (argument, default) = argument.split_once(" DEFAULT ").unwrap_or((argument, "required"));
            let (name, kind) = argument.split_once(' ').expect("a name and a type");
            let default = default.split("::").next().unwrap_or_default().replace("NULL", "null");
            [name.to_owned(), kind.to_owned(), default]
        })
        .collect();
    let of_page: Vec<_> = rows("| parameter | type | default | meaning |")
        .map(|row| [name(row[0]), name(row[1]), name(row[2])])
        .collect();
    assert_eq!(of_page, of_database);
}
