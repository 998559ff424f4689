//! `pillarbox events show`: everything about one event.

use std::{fmt::Write as _, process::ExitCode};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use clap::Args as ClapArgs;
use pillarbox::{AnyStore, EventId, Found, Query, Record, Seq, Timestamp, port::AdminStore as _};

use super::{
    clock, json, unreadable,
    view::{Body, View},
};
use crate::{
    error::Error,
    out::{self, harmless, one_line},
    status::{for_people, seconds},
    store::Database,
};

/// Show everything about one event
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Its id, or its number.
    #[arg(value_name = "ID|SEQ")]
    event: String,
    #[command(flatten)]
    database: Database,
    /// Print one JSON object, on one line.
    #[arg(long)]
    json: bool,
    /// Print the payload alone, byte for byte.
    #[arg(long, conflicts_with = "json")]
    payload_only: bool,
}

pub(super) async fn run(args: Args) -> Result<ExitCode, Error> {
    let name = Name::read(&args.event)?;
    let store = args.database.open_migrated().await?;
    let now = clock(&store).await.map_err(unreadable)?;
    let found = name.find(&store).await?.ok_or_else(|| {
        Error::new(format!("there is no event {}", harmless(&args.event)))
            .advice("pillarbox events list; one that was delivered may have been purged")
    })?;
    let text = if args.payload_only {
        let record = found
            .record
            .as_ref()
            .map_err(|reason| Error::new(format!("event {} can't be decoded", found.seq)).caused_by(reason.clone()))?;
        record.event.payload().as_bytes().to_vec()
    } else if args.json {
        View::of(&found, now).as_line()?.into_bytes()
    } else {
        as_text(&found, now).into_bytes()
    };
    let _ = out::print(text)?;
    Ok(ExitCode::SUCCESS)
}

enum Name {
    Id(EventId),
    Seq(Seq),
}

impl Name {
    fn read(text: &str) -> Result<Self, Error> {
        // An id may consist of digits alone, but it is longer than any number.
        let seq = text.parse().ok().filter(|_| text.len() < 20).map(|seq| Self::Seq(Seq(seq)));
        seq.or_else(|| text.parse().ok().map(Self::Id)).ok_or_else(|| {
            Error::new(format!("{} is neither an event's id nor its number", harmless(text)))
                .advice("an id has 26 letters and digits; a row whose id is broken is found by its number")
        })
    }

    async fn find(&self, store: &AnyStore) -> Result<Option<Found>, Error> {
        let (query, from) = match self {
            Self::Id(id) => (Query { id: Some(*id), ..Query::default() }, Seq(0)),
            Self::Seq(seq) => (Query::default(), *seq),
        };
        let found = store.list(&query, from, 1).await.map_err(unreadable)?.events.pop();
        Ok(found.filter(|found| match self {
            Self::Id(_) => true,
            // The list goes on from a number that is not there.
            Self::Seq(seq) => found.seq == *seq,
        }))
    }
}

fn as_text(found: &Found, now: Timestamp) -> String {
    let mut text = String::new();
    // A string takes everything.
    let _ = write_to(&mut text, found, now);
    text
}

fn write_to(text: &mut String, found: &Found, now: Timestamp) -> std::fmt::Result {
    let mut line = |name: &str, value: &str| writeln!(text, "{name:<16}{}", one_line(value));
    line("seq", &found.seq.to_string())?;
    line("id", &found.id)?;
    line("status", found.status.as_str())?;
    line("failed attempts", &found.attempts.to_string())?;
    match &found.record {
        Ok(record) => {
            let event = &record.event;
            line("type", event.event_type().as_str())?;
            line("aggregate type", event.aggregate_type().as_str())?;
            line("aggregate id", event.aggregate_id().unwrap_or("-"))?;
            line("tenant", event.tenant_id().unwrap_or("-"))?;
            line("key", event.key().map_or("-", |key| key.as_str()))?;
            line("partition", &record.partition.0.to_string())?;
            line("inserted", &format!("{}, {} ago", record.created_at, for_people(seconds(record.created_at, now))))?;
            line("occurred", &event.occurred_at().to_string())?;
        }
        Err(reason) => line("UNDECODABLE", reason)?,
    }
    if let Some(time) = found.available_at {
        let wait = seconds(now, time);
        let until = if wait > 0.0 { format!(", in {}", for_people(wait)) } else { String::new() };
        line("due", &format!("{time}{until}"))?;
    }
    if let Some(time) = found.done_at {
        line("finished", &format!("{time}, {} ago", for_people(seconds(time, now))))?;
    }
    let holds =
        if found.holds_key { "yes: those behind it wait until it is replayed, skipped or discarded" } else { "no" };
    line("holds its key", holds)?;
    if let Some(error) = &found.last_error {
        writeln!(text, "\nlast error")?;
        indented(text, error)?;
    }
    if let Ok(record) = &found.record {
        write_content(text, record)?;
    }
    Ok(())
}

fn write_content(text: &mut String, record: &Record) -> std::fmt::Result {
    let headers = record.event.headers();
    if !headers.is_empty() {
        writeln!(text, "\nheaders")?;
        for (name, value) in headers.iter() {
            indented(text, &format!("{name}: {value}"))?;
        }
    }
    if let Some(progress) = &record.progress {
        writeln!(text, "\nhandlers that are done")?;
        indented(text, progress)?;
    }
    let payload = record.event.payload();
    let body = Body::of(payload);
    let form = if matches!(body, Body::Bytes(_)) { ", in base64" } else { "" };
    writeln!(text, "\npayload: {}, {} bytes{form}", one_line(payload.content_type()), payload.len())?;
    match body {
        Body::Json(json) => indented(text, &json::pretty(json)),
        Body::Text(plain) => indented(text, plain),
        Body::Bytes(bytes) => indented(text, &BASE64_STANDARD.encode(bytes)),
    }
}

fn indented(text: &mut String, lines: &str) -> std::fmt::Result {
    lines.lines().try_for_each(|line| writeln!(text, "  {}", harmless(line)))
}
