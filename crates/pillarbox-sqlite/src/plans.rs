//! Every statement is served by the index that its comment names.

use pillarbox_core::port::UpkeepStore as _;
use sqlx::{AssertSqlSafe, Row as _};

use crate::SqliteStore;

const PRIMARY_KEY: &str = "outbox_event USING INTEGER PRIMARY KEY (rowid";

/// What the plan of a statement must contain. Of tables that stay small, nothing is asked.
fn wanted(name: &str) -> &'static [&'static str] {
    match name {
        "page_all" | "page_some" | "rows" | "done_run" | "done_each" | "delete_run" | "delete_each" | "retry"
        | "dead" | "interrupted" | "start" | "window" | "aged" | "list" | "record" | "replay" | "discard" => {
            &[PRIMARY_KEY]
        }
        "finished" => &[PRIMARY_KEY, "outbox_hold_key (partition=? AND name=?)"],
        "due" | "next_due" => &["outbox_event USING INDEX outbox_event_due (available_at>"],
        "failing" => &["outbox_event_due"],
        "lane" => &["outbox_event USING INDEX outbox_event_key (event_key=? AND seq>?)"],
        "list_dead" => {
            &["outbox_event USING INDEX outbox_event_dead (seq>?)", "outbox_hold_key (partition=? AND name=?)"]
        }
        "count_dead" => &["outbox_event_dead"],
        "holds" => &["outbox_hold USING INDEX outbox_hold_key (partition=?)"],
        "oldest" => &["earlier USING", "outbox_event_key (event_key=? AND seq<?)", PRIMARY_KEY],
        "newest" => &[PRIMARY_KEY, "outbox_event_due"],
        "highest" => &["SEARCH outbox_event"],
        _ => &[],
    }
}

#[tokio::test]
async fn statements_use_their_index() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("outbox.db").to_str().unwrap()).await.unwrap();
    store.migrate().await.unwrap();
    let sql = &store.0.sql;
    let statements = [sql.own.named(), sql.read.named(), sql.settle.named(), sql.upkeep.named(), sql.admin.named()];
    for (name, sql) in statements.into_iter().flatten() {
        // Prepares the statement as well: what SQLite does not understand fails here.
        let rows = sqlx::query(AssertSqlSafe(format!("explain query plan {}", sql.as_str())))
            .fetch_all(store.pool())
            .await
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let plan = rows.iter().map(|row| row.get::<String, _>(3)).collect::<Vec<_>>().join("\n");
        for words in wanted(name) {
            assert!(plan.contains(words), "{name} lacks {words:?}:\n{plan}");
        }
        let sorts = ["oldest", "newest", "failing", "worst"].contains(&name);
        assert!(sorts || !plan.contains("TEMP B-TREE FOR ORDER"), "{name} sorts:\n{plan}");
    }
}
