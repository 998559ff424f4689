//! docs/book/src/tables.md speaks of every column and table that there is.

const PAGE: &str = include_str!("../../../../docs/book/src/tables.md");

const MIGRATIONS: [(&str, &str); 3] = [
    ("SQLite", include_str!("../../../pillarbox-sqlite/migrations/0001_tables.sql")),
    ("PostgreSQL", include_str!("../../../pillarbox-postgres/migrations/0001_tables.sql")),
    ("MySQL", include_str!("../../../pillarbox-mysql/migrations/0001_tables.sql")),
];

const LATER_MIGRATIONS: [(&str, &str); 1] =
    [("PostgreSQL", include_str!("../../../pillarbox-postgres/migrations/0002_life.sql"))];

/// The first words of the lines between `create table ... (` and the closing bracket.
fn columns(sql: &str, table: &str) -> Vec<String> {
    let begin = sql.find(table).unwrap_or_else(|| panic!("no {table}"));
    let body = &sql[begin + table.len()..];
    let body = &body[..body.find("\n)").expect("the table ends")];
    let words = ["check", "constraint", "index", "generated", "unique", "primary", "--"];
    let lines = body.lines().filter(|line| line.starts_with("    ") && !line.starts_with("     "));
    let first = lines.filter_map(|line| line.split_whitespace().next());
    first.filter(|word| !words.contains(word)).map(|word| word.trim_matches('`').to_owned()).collect()
}

#[test]
fn the_page_of_the_tables_names_every_column() {
    for (database, sql) in MIGRATIONS {
        let table = ["create table {event} (", "create table if not exists {event} ("];
        let table = table.into_iter().find(|table| sql.contains(table)).expect("the table of events");
        let columns = columns(sql, table);
        assert!(columns.len() >= 19, "{database}: {columns:?}");
        for column in columns {
            assert!(PAGE.contains(&format!("`{column}`")), "{database}: {column} is not on the page");
        }
    }
}

#[test]
fn the_page_of_the_tables_names_every_table() {
    for (database, sql) in MIGRATIONS.into_iter().chain(LATER_MIGRATIONS) {
        for line in sql.lines().filter(|line| line.starts_with("create") && line.contains(" table ")) {
            let name = line.split(['{', '}']).nth(1).expect("a name");
            assert!(PAGE.contains(&format!("`outbox_{name}`")), "{database}: {name} is not on the page");
        }
    }
}

const INBOX_MIGRATIONS: [(&str, &str); 3] = [
    ("SQLite", include_str!("../../../pillarbox-sqlite/migrations/inbox_0001_tables.sql")),
    ("PostgreSQL", include_str!("../../../pillarbox-postgres/migrations/inbox_0001_tables.sql")),
    ("MySQL", include_str!("../../../pillarbox-mysql/migrations/inbox_0001_tables.sql")),
];

#[test]
fn the_page_of_the_tables_names_every_table_and_column_of_the_inbox() {
    let page = PAGE.split_once("## The tables of an inbox").expect("a chapter of its own").1;
    for (database, sql) in INBOX_MIGRATIONS {
        let tables: Vec<_> = sql.lines().filter(|line| line.starts_with("create table")).collect();
        assert_eq!(tables.len(), 7, "{database}: {tables:?}");
        for line in tables {
            let name = line.split(['{', '}']).nth(1).expect("a name");
            assert!(page.contains(&format!("`inbox_{name}`")), "{database}: {name} is not on the page");
            let columns = columns(sql, line);
            assert!(columns.len() >= 2, "{database}: {name}: {columns:?}");
            for column in columns {
                assert!(page.contains(&format!("`{column}`")), "{database}: {column} of {name} is not on the page");
            }
        }
    }
}
