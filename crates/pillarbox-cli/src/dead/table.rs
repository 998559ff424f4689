//! A line for each.

use console::{measure_text_width, truncate_str};
use serde_json::Value;

use crate::out::{self, one_line};

const COLUMNS: usize = 7;
const GAP: &str = "  ";

pub(super) type Row = [String; COLUMNS];

/// Keeps its columns from one page to the next; they only grow.
pub(super) struct Table {
    head: Option<Row>,
    row: fn(&Value) -> Row,
    widths: [usize; COLUMNS],
    columns: Option<usize>,
}

impl Table {
    pub(super) fn new(head: [&str; COLUMNS], row: fn(&Value) -> Row) -> Self {
        let columns = out::size().map(|(_, columns)| columns);
        Self { head: Some(head.map(ToOwned::to_owned)), row, widths: [0; COLUMNS], columns }
    }

    /// The lines of some more; the first ones have the heading before them.
    pub(super) fn append(&mut self, items: &[Value]) -> String {
        let mut rows: Vec<Row> = Vec::new();
        if !items.is_empty() {
            rows.extend(self.head.take());
        }
        rows.extend(items.iter().map(|item| (self.row)(item).map(|cell| one_line(&cell))));
        for row in &rows {
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = (*width).max(measure_text_width(cell));
            }
        }
        rows.iter().map(|row| self.line(row)).collect()
    }

    fn line(&self, row: &Row) -> String {
        let cells = row.iter().zip(self.widths).map(|(cell, width)| {
            let space = " ".repeat(width.saturating_sub(measure_text_width(cell)));
            format!("{cell}{space}{GAP}")
        });
        let line: String = cells.collect();
        match self.columns {
            Some(columns) => truncate_str(line.trim_end(), columns, "…").into_owned() + "\n",
            None => line.trim_end().to_owned() + "\n",
        }
    }
}

/// An item of the list of what is dead.
pub(super) fn dead(item: &Value) -> Row {
    let of = if item["event"].is_object() { &item["event"] } else { &item["letter"] };
    let holds = if of["holds_key"] == true { "*" } else { "" };
    [
        word(&item["origin"]),
        word(&of["id"]),
        word(&of["type"]),
        // A key that waits for an operator is what one looks for.
        format!("{}{holds}", word(&of["key"])),
        word(&of["attempts"]),
        word(&item["dead_at"]).chars().take(19).collect(),
        first_line(if of["last_error"].is_null() { &of["reason"] } else { &of["last_error"] }),
    ]
}

/// An item of the list of what was done.
pub(super) fn action(item: &Value) -> Row {
    [
        word(&item["at"]).chars().take(19).collect(),
        word(&item["who"]),
        word(&item["action"]),
        word(&item["origin"]),
        word(if item["letter_id"].is_null() { &item["event_id"] } else { &item["letter_id"] }),
        word(&item["event_type"]),
        first_line(&item["why"]),
    ]
}

fn word(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn first_line(value: &Value) -> String {
    word(value).lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lines_are_aligned_and_harmless() {
        let mut table = Table::new(["origin", "id", "type", "key", "tries", "died", "error"], dead);
        table.columns = None;
        let event = json!({ "id": "01", "type": "A", "key": "k", "attempts": 3, "holds_key": true, "last_error": "a\u{1b}[2J\nb" });
        let items = [
            json!({ "origin": "outbox", "dead_at": "2026-11-15T08:30:00.250000Z", "event": event }),
            json!({ "origin": "billing-and-more", "dead_at": null, "letter": { "id": "02", "type": "B", "attempts": 10, "reason": "r" } }),
        ];
        let text = table.append(&items);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "origin            id  type  key  tries  died                 error");
        assert_eq!(lines[1], "outbox            01  A     k*   3      2026-11-15T08:30:00  a\u{fffd}[2J");
        assert_eq!(lines[2], "billing-and-more  02  B     -    10     -                    r");
        assert!(!table.append(&items[..1]).contains("origin"), "the heading stands once");
    }
}
