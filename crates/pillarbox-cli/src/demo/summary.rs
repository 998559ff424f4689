//! What the demo says at its end, to people and to programs.

use std::io::{IsTerminal as _, Write as _};

use serde::Serialize;

use super::{
    check::{Findings, Problem},
    figures::Figures,
};

/// Everything there is to say.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    pub(super) verdict: Verdict,
    #[serde(flatten)]
    pub(super) figures: Figures,
    pub(super) problems: Vec<Listed>,
    pub(super) run: i64,
    /// Where the database is, if it is still there.
    pub(super) database: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    Ok,
    Failed,
    Interrupted,
}

/// A kind of problem, with its first examples.
#[derive(Debug, Serialize)]
pub(super) struct Listed {
    problem: Problem,
    count: u64,
    examples: Vec<String>,
}

impl Listed {
    pub(super) fn all(findings: &Findings) -> Vec<Self> {
        let listed = findings.iter().map(|(problem, found)| Self {
            problem,
            count: found.count,
            examples: found.examples.clone(),
        });
        listed.collect()
    }
}

/// The promises, each with the problems that break it.
const PROMISES: [(&str, &[Problem]); 5] = [
    (
        "every committed event was delivered, or is dead as planned",
        &[Problem::Lost, Problem::UnplannedDeath, Problem::NotDead, Problem::Unfinished],
    ),
    ("each event took effect once, after as many attempts as planned", &[Problem::Duplicate, Problem::Attempts]),
    ("each customer's events came in order", &[Problem::OutOfOrder]),
    ("no rolled-back order had an event, and nothing came from nowhere", &[Problem::RolledBack, Problem::Unknown]),
    ("the shop's tables and the outbox tell the same story", &[Problem::Miscount]),
];

impl Summary {
    /// Prints to stdout.
    pub(super) fn print(&self, json: bool) {
        let text =
            if json { serde_json::to_string(self).unwrap_or_default() + "\n" } else { self.text(Paint::on_stdout()) };
        say(&text);
    }

    fn text(&self, paint: Paint) -> String {
        let mut text = String::from("\n");
        for (name, figure, note) in self.lines() {
            text += &format!("  {name:<12}{}  {}\n", paint.bold(&format!("{figure:>10}")), paint.dim(&note));
        }
        text.push('\n');
        for (promise, problems) in PROMISES {
            let broken: Vec<_> = self.problems.iter().filter(|listed| problems.contains(&listed.problem)).collect();
            if broken.is_empty() {
                text += &format!("  {} {promise}\n", paint.green("✓"));
                continue;
            }
            text += &format!("  {} {promise}: {}\n", paint.red("✗"), paint.red("not so"));
            for Listed { count, examples, .. } in broken {
                for example in examples {
                    text += &format!("      {example}\n");
                }
                let more = *count - examples.len() as u64;
                if more > 0 {
                    text += &format!("      ... and {} more\n", grouped(more));
                }
            }
        }
        text += &match self.verdict {
            Verdict::Ok => format!("\n  {}\n", paint.green("All of it holds, by a count of its own.")),
            Verdict::Failed => format!("\n  {}\n", paint.red("The outbox did not keep its promises.")),
            Verdict::Interrupted => format!("\n  {}\n", paint.bold("Interrupted: this is what was done so far.")),
        };
        if let Some(path) = &self.database {
            text += &format!("\n  The database is {path}. Have a look:\n\n    {}\n", look(path, self.run));
        }
        text
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate for the eye")]
    fn lines(&self) -> Vec<(&'static str, String, String)> {
        let f = &self.figures;
        let mut lines = vec![
            (
                "written",
                grouped(f.written),
                format!(
                    "events, of {} and of signups, in {}",
                    counted(f.orders, "order"),
                    counted(f.transactions, "transaction")
                ),
            ),
            (
                "rolled back",
                grouped(f.rolled_back),
                format!("events, in {}", counted(f.rolled_back_transactions, "transaction")),
            ),
            ("delivered", grouped(f.delivered), "events, each counted once".into()),
            ("retried", grouped(f.retried), "attempts after a planned failure".into()),
            ("dead", grouped(f.dead), dead_note(f)),
            ("duplicates", grouped(f.duplicates), "deliveries after a success".into()),
            (
                "latency",
                format!("{:.1} ms", f.latency_ms.p50),
                format!("p50, and {:.1} ms p99, from commit to handler", f.latency_ms.p99),
            ),
            (
                "throughput",
                format!("{}/s", grouped(f.per_second.round() as u64)),
                format!("written and delivered, over {:.1} s", f.seconds),
            ),
        ];
        if f.held_back > 0 {
            let note = "waited behind a failed event of their customer, and are not in the latency";
            lines.push(("held back", grouped(f.held_back), note.into()));
        }
        if f.waiting > 0 {
            lines.insert(5, ("waiting", grouped(f.waiting), "neither delivered nor dead".into()));
        }
        if f.leftovers > 0 {
            lines.push((
                "leftovers",
                grouped(f.leftovers),
                "deliveries of events that an earlier run left here".into(),
            ));
        }
        lines
    }
}

fn dead_note(f: &Figures) -> String {
    let planned = if f.dead == f.dead_planned {
        String::from("as planned")
    } else {
        format!("{} planned", grouped(f.dead_planned))
    };
    match f.dead_skipped {
        0 => planned,
        held => format!("{planned}; {} held back later events of the same customer until skipped", grouped(held)),
    }
}

/// A command that shows what the outbox did.
fn look(path: &str, run: i64) -> String {
    let quoted = path.replace('\'', r"'\''");
    format!(
        "sqlite3 -box '{quoted}' \"select event_type, status, count(*) events, sum(attempts) failures from demo_event where \
         tenant_id = 'run-{run}' group by 1, 2\""
    )
}

/// Prints to stdout. A reader that went away is no error.
pub(super) fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// 1234567 as 1,234,567.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// "1 order", "2 orders".
pub(super) fn counted(number: u64, thing: &str) -> String {
    format!("{} {thing}{}", grouped(number), if number == 1 { "" } else { "s" })
}

/// Colours, where they are wanted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Paint(bool);

impl Paint {
    pub(super) fn on_stdout() -> Self {
        Self(std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty()))
    }

    pub(super) fn bold(self, text: &str) -> String {
        self.code("1", text)
    }

    pub(super) fn dim(self, text: &str) -> String {
        self.code("2", text)
    }

    fn green(self, text: &str) -> String {
        self.code("32", text)
    }

    fn red(self, text: &str) -> String {
        self.code("1;31", text)
    }

    fn code(self, code: &str, text: &str) -> String {
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_three() {
        for (number, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(number), text);
        }
        assert_eq!([counted(1, "order"), counted(2, "order")], ["1 order", "2 orders"]);
    }

    fn summary(verdict: Verdict, problems: Vec<Listed>) -> Summary {
        Summary { verdict, figures: Figures::default(), problems, run: 1, database: None }
    }

    #[test]
    fn a_broken_promise_is_shown_with_its_examples() {
        let lost = Listed { problem: Problem::Lost, count: 12, examples: vec!["OrderPaid of order 7".into()] };
        let text = summary(Verdict::Failed, vec![lost]).text(Paint(false));
        assert!(text.contains("✗ every committed event"), "{text}");
        assert!(text.contains("OrderPaid of order 7") && text.contains("and 11 more"), "{text}");
        assert_eq!(text.matches('✓').count(), PROMISES.len() - 1);
    }

    #[test]
    fn every_problem_breaks_exactly_one_promise() {
        use Problem::{
            Attempts, Duplicate, Lost, Miscount, NotDead, OutOfOrder, RolledBack, Unfinished, Unknown, UnplannedDeath,
        };
        for problem in
            [Lost, UnplannedDeath, NotDead, Unfinished, Duplicate, Attempts, OutOfOrder, RolledBack, Unknown, Miscount]
        {
            let breaks = PROMISES.iter().filter(|(_, problems)| problems.contains(&problem));
            assert_eq!(breaks.count(), 1, "{problem:?}");
        }
    }
}
