//! Many dead events, in batches, with a bar where somebody looks on.

use std::{io::IsTerminal as _, num::NonZeroU32, pin::pin, process::ExitCode};

use indicatif::{ProgressBar, ProgressStyle};
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

pub(super) struct Bulk {
    pub(super) act: Act,
    pub(super) filter: Vec<(&'static str, String)>,
    pub(super) rate: Option<NonZeroU32>,
    pub(super) dry_run: bool,
    pub(super) because: Option<String>,
}

impl Bulk {
    fn body(&self, cursor: Option<&Value>) -> Value {
        let mut body = Map::new();
        if self.filter.is_empty() {
            body.insert("all".into(), true.into());
        } else {
            let filter: Map<_, _> =
                self.filter.iter().map(|(name, value)| ((*name).to_owned(), Value::from(value.as_str()))).collect();
            body.insert("filter".into(), filter.into());
        }
        // A second's worth, so that somebody sees it go on.
        let limit = self.rate.map_or(AT_ONCE, |rate| rate.get().min(AT_ONCE));
        body.insert("limit".into(), limit.into());
        body.insert("dry_run".into(), self.dry_run.into());
        body.extend(self.rate.map(|rate| ("rate".to_owned(), Value::from(rate.get()))));
        body.extend(self.because.clone().map(|why| ("because".to_owned(), Value::from(why))));
        body.extend(cursor.map(|cursor| ("cursor".to_owned(), cursor.clone())));
        body.into()
    }
}

pub(super) async fn run(api: &Api, bulk: &Bulk, json: bool) -> Result<ExitCode, Error> {
    let mut end = pin!(interrupted()?);
    let bar = bar(api, bulk, json).await?;
    let path = format!("/events/{}", bulk.act.name());
    let (mut changed, mut cursor) = (0, None);
    let mut cut = false;
    loop {
        let mut send = pin!(api.send(Method::POST, &path, Some(bulk.body(cursor.as_ref()))));
        let answer = tokio::select! {
            answer = &mut send => answer,
            // What is under way is waited for, and nothing more is sent.
            () = &mut end => {
                cut = true;
                send.await
            }
        };
        let done = answer.and_then(|answer| answer.value()).inspect_err(|_| {
            bar.abandon();
            if changed > 0 {
                eprintln!("{changed} events were {} before it failed", bulk.act.done());
            }
        })?;
        changed += done["changed"].as_u64().unwrap_or(0);
        bar.set_position(changed);
        match &done["next"] {
            next if !next.is_null() && !cut => cursor = Some(next.clone()),
            next => {
                // Interrupted at its end, it is done.
                cut &= !next.is_null();
                break;
            }
        }
    }
    bar.finish_and_clear();
    let line = if json {
        let done =
            json!({ "action": bulk.act.name(), "changed": changed, "dry_run": bulk.dry_run, "interrupted": cut });
        done.to_string()
    } else {
        let events = if changed == 1 { "event" } else { "events" };
        match (bulk.dry_run, cut) {
            (true, _) => format!("{changed} {events} would be {}", bulk.act.done()),
            (false, false) => format!("{changed} {events} {}", bulk.act.done()),
            (false, true) => format!("interrupted: {changed} {events} {}, and there are more", bulk.act.done()),
        }
    };
    let _ = out::print(line + "\n")?;
    Ok(if cut { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
}

/// A bar on a terminal, and nothing elsewhere.
async fn bar(api: &Api, bulk: &Bulk, json: bool) -> Result<ProgressBar, Error> {
    if json || bulk.dry_run || !std::io::stderr().is_terminal() {
        return Ok(ProgressBar::hidden());
    }
    let mut query = bulk.filter.clone();
    query.push(("status", "DEAD".to_owned()));
    let count = api.get("/events/count", &query).await?.value()?["count"].as_u64().unwrap_or(0);
    let style = ProgressStyle::with_template("{bar:40} {human_pos} of {human_len} {msg}, {eta} left");
    let bar = ProgressBar::new(count).with_message(bulk.act.done());
    Ok(style.map_or(bar.clone(), |style| bar.with_style(style)))
}
