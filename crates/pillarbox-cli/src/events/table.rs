//! Events as people read them: a line each.

use console::{measure_text_width, truncate_str};
use pillarbox::{Found, Timestamp};

use crate::{
    out::one_line,
    status::{for_people, seconds},
};

const COLUMNS: usize = 8;
/// Wider ones are cut where the terminal is too narrow for all. Ids are needed in full to ask for more.
const WIDEST_NAME: usize = 24;
/// Less of an error says nothing.
const NARROWEST_ERROR: usize = 16;
const GAP: &str = "  ";

/// How the time of an event is told.
#[derive(Clone, Copy, Debug)]
pub(super) enum Time {
    /// Until now, by the database's clock.
    Age(Timestamp),
    /// When it was inserted.
    Inserted,
}

/// Keeps its columns from one batch to the next; they only grow.
#[derive(Debug)]
pub(super) struct Table {
    time: Time,
    /// The terminal's; none cuts nothing.
    columns: Option<usize>,
    widths: [usize; COLUMNS],
    begun: bool,
}

type Row = [String; COLUMNS];

impl Table {
    pub(super) fn new(time: Time, columns: Option<usize>) -> Self {
        Self { time, columns, widths: [0; COLUMNS], begun: false }
    }

    /// A table of its own.
    pub(super) fn write(mut self, events: &[Found]) -> String {
        self.append(events)
    }

    /// The lines of some more events; the first ones have the heading before them.
    pub(super) fn append(&mut self, events: &[Found]) -> String {
        let time = match self.time {
            Time::Age(_) => "age",
            Time::Inserted => "inserted",
        };
        let mut rows = Vec::with_capacity(events.len() + 1);
        if !self.begun && !events.is_empty() {
            rows.push(["seq", "id", "type", "key", "status", "tries", time, "error"].map(str::to_owned));
            self.begun = true;
        }
        rows.extend(events.iter().map(|found| self.row(found)));
        for row in &rows {
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = (*width).max(measure_text_width(cell));
            }
        }
        let widths = self.fitting();
        rows.iter().map(|row| self.line(row, widths)).collect()
    }

    fn row(&self, found: &Found) -> Row {
        let record = found.record.as_ref();
        let time = record.map_or_else(
            |_| "?".into(),
            |record| match self.time {
                Time::Age(now) => for_people(seconds(record.created_at, now)),
                Time::Inserted => record.created_at.to_string(),
            },
        );
        let error = match record {
            Ok(_) => found.last_error.clone().unwrap_or_default(),
            Err(reason) => format!("can't be decoded: {reason}"),
        };
        [
            found.seq.to_string(),
            found.id.clone(),
            record.map_or_else(|_| "?".into(), |record| record.event.event_type().as_str().to_owned()),
            record.map_or_else(|_| "?".into(), |record| record.key().map_or("-", |key| key.as_str()).to_owned()),
            // A key that waits for an operator is what one looks for.
            format!("{}{}", found.status, if found.holds_key { "*" } else { "" }),
            found.attempts.to_string(),
            time,
            error.lines().next().unwrap_or_default().to_owned(),
        ]
        .map(|cell| one_line(&cell))
    }

    /// The widths, with the names cut if that leaves room for the error.
    fn fitting(&self) -> [usize; COLUMNS] {
        let mut widths = self.widths;
        let Some(columns) = self.columns else { return widths };
        let taken = |widths: &[usize]| widths[..COLUMNS - 1].iter().sum::<usize>() + GAP.len() * (COLUMNS - 1);
        let error = widths[COLUMNS - 1].min(NARROWEST_ERROR);
        if taken(&widths) + error > columns {
            for name in [2, 3] {
                widths[name] = widths[name].min(WIDEST_NAME);
            }
        }
        widths[COLUMNS - 1] = columns.saturating_sub(taken(&widths)).max(error);
        widths
    }

    fn line(&self, row: &Row, widths: [usize; COLUMNS]) -> String {
        let mut line = String::new();
        for (number, (cell, width)) in row.iter().zip(widths).enumerate() {
            let cell = truncate_str(cell, width, "…");
            let space = " ".repeat(width.saturating_sub(measure_text_width(&cell)));
            // Numbers stand to the right.
            let (before, after) = if matches!(number, 0 | 5) { (&*space, "") } else { ("", &*space) };
            line.push_str(before);
            line.push_str(&cell);
            line.push_str(after);
            line.push_str(GAP);
        }
        let line = line.trim_end();
        match self.columns {
            Some(columns) => truncate_str(line, columns, "…").into_owned() + "\n",
            None => line.to_owned() + "\n",
        }
    }
}

#[cfg(test)]
mod tests {
    use pillarbox::{Seq, Status};

    use super::*;

    fn broken(seq: i64, reason: &str) -> Found {
        Found {
            record: Err(reason.to_owned()),
            seq: Seq(seq),
            id: "01KA4M7Z6Q0000000000000000".to_owned(),
            status: Status::Dead,
            attempts: 3,
            available_at: None,
            done_at: None,
            last_error: None,
            holds_key: true,
        }
    }

    #[test]
    fn lines_are_aligned_and_end_at_the_terminals_edge() {
        let events = [broken(7, "the headers are no JSON object at all"), broken(1_234, "x\u{1b}[2J\ny")];
        let wide = Table::new(Time::Inserted, None).write(&events);
        let lines: Vec<_> = wide.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].starts_with(" seq  id ") && lines[1].starts_with("   7  01KA"), "{wide}");
        assert!(lines[1].ends_with("can't be decoded: the headers are no JSON object at all"), "{wide}");
        assert!(lines[2].contains("DEAD*") && lines[2].ends_with("x\u{fffd}[2J"), "{wide}");
        for columns in [20, 80, 100] {
            let narrow = Table::new(Time::Inserted, Some(columns)).write(&events);
            assert!(narrow.lines().all(|line| measure_text_width(line) <= columns), "{narrow}");
        }
    }

    #[test]
    fn the_heading_stands_once() {
        let mut table = Table::new(Time::Inserted, None);
        assert!(table.append(&[]).is_empty());
        assert!(table.append(&[broken(1, "x")]).starts_with("seq"));
        assert!(!table.append(&[broken(2, "x")]).contains("seq"));
    }
}
