//! `pillarbox status --watch`: the same again and again.

use std::{pin::pin, process::ExitCode, time::Duration};

use pillarbox::AnyStore;

use super::{View, as_json};
use crate::{
    error::Error,
    interrupt::interrupted,
    out::{self, Reader},
};

/// Between two states where they can't replace each other.
const LINE: &str = "----------------------------------------";

/// Seconds, as an argument.
pub(super) fn every(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=86_400.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "it is a number of seconds, from 0.1 to 86400".to_owned())
}

/// Goes on after an error: whoever watches wants to see the database come back.
pub(super) async fn run(
    store: &AnyStore,
    database: &'static str,
    every: Duration,
    json: bool,
) -> Result<ExitCode, Error> {
    let mut end = pin!(interrupted()?);
    let mut first = true;
    let show = async {
        loop {
            let text = match View::read(store, database).await {
                Ok(view) if json => as_json(serde_json::to_string(&view))?,
                Ok(view) => view.as_text(),
                Err(error) if !json && out::is_terminal() => error.for_terminal() + "\n",
                Err(error) => {
                    error.print();
                    String::new()
                }
            };
            let text = match out::size() {
                _ if json || text.is_empty() => text,
                Some((rows, columns)) => redrawn(&text, every, rows, columns),
                None if first => text,
                None => format!("{LINE}\n{text}"),
            };
            first &= text.is_empty();
            if out::print(text)? == Reader::Left {
                return Ok(ExitCode::SUCCESS);
            }
            tokio::time::sleep(every).await;
        }
    };
    tokio::select! {
        // To be told to stop is how this ends. The cursor stands below what was drawn last.
        () = &mut end => Ok(ExitCode::SUCCESS),
        ended = show => ended,
    }
}

/// Overwrites what was there line by line, which does not flicker as an empty screen between would. What has no room
/// is left off: lines that scroll would not be overwritten.
fn redrawn(text: &str, every: Duration, rows: usize, columns: usize) -> String {
    let mut screen = String::from("\x1b[H");
    let heading = format!("every {} s, Ctrl-C ends it", every.as_secs_f64());
    let lines = [heading.as_str(), ""].into_iter().chain(text.lines());
    for line in lines.take(rows.saturating_sub(1).max(1)) {
        screen.push_str(&console::truncate_str(&out::harmless(line), columns, "…"));
        screen.push_str("\x1b[K\n");
    }
    screen.push_str("\x1b[J");
    screen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_is_never_longer_than_the_terminal() {
        let text = "a line that is long\n".repeat(100);
        let screen = redrawn(&text, Duration::from_secs(2), 10, 8);
        assert_eq!(screen.matches('\n').count(), 9);
        assert!(screen.starts_with("\x1b[Hevery 2…\x1b[K\n") && screen.ends_with("\x1b[J"), "{screen:?}");
    }

    #[test]
    fn every_is_a_number_of_seconds() {
        assert_eq!(every("0.5"), Ok(Duration::from_millis(500)));
        for text in ["", "0", "-1", "nan", "inf", "2s"] {
            assert!(every(text).is_err(), "{text}");
        }
    }
}
