//! Many dead events and letters, in batches, with a bar where somebody looks on.
//!
//! What is acted upon is what `dead list` shows with the same filters: the outbox's events first, then consumers' letters.

use std::{
    io::IsTerminal as _,
    num::NonZeroU32,
    pin::{Pin, pin},
    process::ExitCode,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use reqwest::Method;
use serde_json::{Map, Value, json};

use super::{act::Act, desk::Api};
use crate::{
    error::Error,
    interrupt::{INTERRUPTED, interrupted},
    out,
};

/// How many events a request takes: few enough for the bar to move.
const AT_ONCE: u32 = 500;
/// The same for letters.
const LETTERS_AT_ONCE: u32 = 50;

/// The origin of the outbox's own events.
const OUTBOX: &str = "outbox";

pub(super) struct Bulk {
    pub(super) act: Act,
    pub(super) filter: Vec<(&'static str, String)>,
    pub(super) origin: Option<String>,
    pub(super) rate: Option<NonZeroU32>,
    pub(super) dry_run: bool,
    pub(super) because: Option<String>,
}

/// The two sides of what is dead.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Events,
    Letters,
}

impl Side {
    const fn path(self) -> &'static str {
        match self {
            Self::Events => "/events",
            Self::Letters => "/dlq",
        }
    }
}

/// What was done.
#[derive(Default)]
struct Done {
    events: u64,
    letters: u64,
    refused: u64,
    cut: bool,
}

impl Bulk {
    /// Which sides the origin and the filters leave.
    async fn sides(&self, api: &Api) -> Result<Vec<Side>, Error> {
        let asks_outbox = self.origin.as_deref().is_none_or(|origin| origin == OUTBOX);
        // Without an outbox there are no events, unless somebody asks for them. A page of one is the least to ask.
        let page = [("limit", "1".to_owned()), ("payloads", "false".to_owned())];
        let of_outbox = asks_outbox && (self.origin.is_some() || !api.get("/events", &page).await?.is_missing());
        let mut sides = Vec::new();
        if of_outbox {
            sides.push(Side::Events);
        }
        // Letters don't know of the others.
        let asks_letters = self.filter.iter().all(|(name, _)| ["type", "from", "until", "text"].contains(name));
        if self.origin.as_deref() != Some(OUTBOX) && asks_letters {
            let count = api.get("/dlq/count", &self.narrowed(Side::Letters)).await?;
            // Without a queue there are none, unless somebody asks for them.
            let is_none = of_outbox && (count.is_missing() || count.value()?["count"] == 0);
            if !is_none {
                count.done()?;
                sides.push(Side::Letters);
            }
        }
        Ok(sides)
    }

    fn narrowed(&self, side: Side) -> Vec<(&'static str, String)> {
        let mut filter = self.filter.clone();
        if side == Side::Letters {
            filter.extend(self.origin.clone().map(|origin| ("consumer", origin)));
        }
        filter
    }

    fn body(&self, side: Side, cursor: Option<&Value>) -> Value {
        let mut body = Map::new();
        let filter = self.narrowed(side);
        if filter.is_empty() {
            body.insert("all".into(), true.into());
        } else {
            let filter: Map<_, _> = filter.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
            body.insert("filter".into(), filter.into());
        }
        // A second's worth, so that somebody sees it go on.
        let limit = self.rate.map_or(AT_ONCE, |rate| rate.get().min(AT_ONCE));
        // A letter is a message to a broker; an event only becomes due.
        let limit = if side == Side::Letters { limit.min(LETTERS_AT_ONCE) } else { limit };
        body.insert("limit".into(), limit.into());
        body.insert("dry_run".into(), self.dry_run.into());
        body.extend(self.rate.map(|rate| ("rate".to_owned(), Value::from(rate.get()))));
        body.extend(self.because.clone().map(|why| ("because".to_owned(), Value::from(why))));
        body.extend(cursor.map(|cursor| ("cursor".to_owned(), cursor.clone())));
        body.into()
    }

    /// Goes through the sides, with a bar where it can be drawn.
    async fn act(
        &self,
        api: &Api,
        sides: &[Side],
        target: ProgressDrawTarget,
        mut end: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<Done, Error> {
        let bar = self.bar(api, sides, target).await?;
        let mut done = Done::default();
        for side in sides {
            let worked = self.work(api, *side, &mut done, &bar, &mut end).await;
            worked.inspect_err(|_| {
                bar.abandon();
                if done.events + done.letters > 0 {
                    eprintln!("{} were {} before it failed", done.words(sides), self.act.done());
                }
            })?;
            if done.cut {
                break;
            }
        }
        bar.finish_and_clear();
        Ok(done)
    }

    async fn bar(&self, api: &Api, sides: &[Side], target: ProgressDrawTarget) -> Result<ProgressBar, Error> {
        if target.is_hidden() {
            return Ok(ProgressBar::hidden());
        }
        let mut count = 0;
        for side in sides {
            let mut query = self.narrowed(*side);
            query.push(("status", if *side == Side::Events { "DEAD" } else { "PENDING" }.to_owned()));
            let answer = api.get(&format!("{}/count", side.path()), &query).await?;
            count += answer.value()?["count"].as_u64().unwrap_or(0);
        }
        let style = ProgressStyle::with_template("{bar:40} {human_pos} of {human_len} {msg}, {eta} left");
        let bar = ProgressBar::with_draw_target(Some(count), target).with_message(self.act.done());
        let bar = style.map_or(bar.clone(), |style| bar.with_style(style));
        // Before the first answer, which may take its time.
        bar.tick();
        Ok(bar)
    }

    /// Goes on until the side is done, or somebody interrupts it.
    async fn work(
        &self,
        api: &Api,
        side: Side,
        done: &mut Done,
        bar: &ProgressBar,
        end: &mut Pin<&mut impl Future<Output = ()>>,
    ) -> Result<(), Error> {
        let path = format!("{}/{}", side.path(), self.act.name());
        let mut cursor = None;
        loop {
            let mut send = pin!(api.send(Method::POST, &path, Some(self.body(side, cursor.as_ref()))));
            let answer = tokio::select! {
                answer = &mut send => answer,
                // What is under way is waited for, and nothing more is sent.
                () = &mut *end => {
                    done.cut = true;
                    send.await
                }
            };
            let said = answer?.value()?;
            let changed = said["changed"].as_u64().unwrap_or(0);
            match side {
                Side::Events => done.events += changed,
                Side::Letters => done.letters += changed,
            }
            done.refused += said["refused"].as_u64().unwrap_or(0);
            bar.set_position(done.events + done.letters);
            match &said["next"] {
                next if !next.is_null() && !done.cut => cursor = Some(next.clone()),
                next => {
                    // Interrupted at its end, it is done.
                    done.cut &= !next.is_null();
                    return Ok(());
                }
            }
        }
    }
}

impl Done {
    /// `3 events`, `1 letter`, or both.
    fn words(&self, sides: &[Side]) -> String {
        let count = |count: u64, one: &str| if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") };
        let side = |side: &Side| match side {
            Side::Events => count(self.events, "event"),
            Side::Letters => count(self.letters, "letter"),
        };
        sides.iter().map(side).collect::<Vec<_>>().join(" and ")
    }
}

pub(super) async fn run(api: &Api, bulk: &Bulk, json: bool) -> Result<ExitCode, Error> {
    let end = pin!(interrupted()?);
    // A bar on a terminal, and nothing elsewhere.
    let draws = !json && !bulk.dry_run && std::io::stderr().is_terminal();
    let target = if draws { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let sides = bulk.sides(api).await?;
    let done = bulk.act(api, &sides, target, end).await?;
    let Done { events, letters, refused, cut } = done;
    let line = if json {
        let (action, changed, dry_run) = (bulk.act.name(), events + letters, bulk.dry_run);
        json!({
            "action": action, "changed": changed, "events": events, "letters": letters, "refused": refused,
            "dry_run": dry_run, "interrupted": cut,
        })
        .to_string()
    } else {
        let (words, acted) = (done.words(&sides), bulk.act.done());
        let line = match (bulk.dry_run, cut) {
            (true, _) => format!("{words} would be {acted}"),
            (false, false) => format!("{words} {acted}"),
            (false, true) => format!("interrupted: {words} {acted}, and there are more"),
        };
        match refused {
            0 => line,
            refused => format!("{line}; {refused} left out: try them one by one to see why"),
        }
    };
    let _ = out::print(line + "\n")?;
    Ok(if cut { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Arc, Mutex, PoisonError},
    };

    use axum::{
        Json, Router,
        routing::{get, post},
    };
    use indicatif::TermLike;

    use super::*;

    /// A terminal that remembers what was written on it.
    #[derive(Clone, Debug, Default)]
    struct Paper(Arc<Mutex<Vec<String>>>);

    impl Paper {
        fn lines(&self) -> Vec<String> {
            let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            lines.iter().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect()
        }
    }

    impl TermLike for Paper {
        fn width(&self) -> u16 {
            100
        }

        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn write_line(&self, line: &str) -> io::Result<()> {
            self.write_str(line)
        }

        fn write_str(&self, text: &str) -> io::Result<()> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(text.to_owned());
            Ok(())
        }

        fn clear_line(&self) -> io::Result<()> {
            self.write_str("(cleared)")
        }

        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    /// An API that has 1,000 events and 200 letters, and takes half of each at a time.
    fn api() -> Api {
        let count = |count: u64| get(move || std::future::ready(Json(json!({ "count": count }))));
        let replay = |half: u64| {
            post(move |Json(body): Json<Value>| {
                let next = if body["cursor"].is_null() { json!("7") } else { Value::Null };
                std::future::ready(Json(json!({ "changed": half, "next": next })))
            })
        };
        let router = Router::new()
            .route("/events", get(|| std::future::ready(Json(json!({ "events": [], "next": null })))))
            .route("/events/count", count(1_000))
            .route("/events/replay", replay(500))
            .route("/dlq/count", count(200))
            .route("/dlq/replay", replay(100));
        Api::Here { router, sink: None }
    }

    fn all() -> Bulk {
        Bulk { act: Act::Replay, filter: Vec::new(), origin: None, rate: None, dry_run: false, because: None }
    }

    /// "progress bar for bulk": over both sides, from nothing to the end, and then it is gone.
    #[tokio::test]
    async fn a_bar_says_how_many_of_how_many_are_done() {
        let (api, bulk, paper) = (api(), all(), Paper::default());
        let target = ProgressDrawTarget::term_like(Box::new(paper.clone()));
        let sides = bulk.sides(&api).await.expect("both sides");
        let done = bulk.act(&api, &sides, target, pin!(std::future::pending())).await.expect("all of them");
        assert_eq!((done.events, done.letters), (1_000, 200));
        let lines = paper.lines();
        let drawn: Vec<_> = lines.iter().filter_map(|line| line.split_once(" of ")).collect();
        let bar = |full: usize, done: &str| format!("{}{} {done}", "█".repeat(full), "░".repeat(40 - full));
        let expected = [bar(0, "0"), bar(16, "500"), bar(33, "1,000"), bar(36, "1,100"), bar(40, "1,200")];
        assert_eq!(drawn.iter().map(|(bar, _)| *bar).collect::<Vec<_>>(), expected, "{lines:?}");
        assert!(drawn.iter().all(|(_, of)| of.starts_with("1,200 replayed, ") && of.ends_with(" left")), "{lines:?}");
        assert_eq!(lines.last().map(String::as_str), Some("(cleared)"), "{lines:?}");
    }

    #[tokio::test]
    async fn where_nobody_looks_on_nothing_is_drawn_or_counted() {
        let (api, bulk) = (api(), all());
        let bar = bulk.bar(&api, &[Side::Events], ProgressDrawTarget::hidden()).await.expect("a bar");
        assert!(bar.is_hidden() && bar.length().is_none());
    }
}
