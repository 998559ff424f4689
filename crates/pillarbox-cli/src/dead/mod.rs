//! `pillarbox dead`: what is dead, and what is done about it, over a database or the API.

mod act;
mod bulk;
mod desk;
mod filter;
mod table;

use std::{fmt::Write as _, process::ExitCode};

use clap::{Args as ClapArgs, Subcommand};
use serde_json::Value;

use self::{
    desk::{Api, Desk},
    filter::Filter,
};
use crate::{
    error::Error,
    out::{self, Reader, harmless, one_line},
};

/// List what is dead, look at it, and replay, edit, skip or discard it
///
/// The outbox's own dead events and the dead letters of its consumers, as far as the API knows of any. What is done is
/// recorded with who, when and why: see history.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    List(List),
    Show(Show),
    Replay(act::Replay),
    Discard(act::Discard),
    Skip(act::Skip),
    Edit(act::Edit),
    History(History),
}

/// List what is dead, the newest first
#[derive(Debug, ClapArgs)]
struct List {
    #[command(flatten)]
    desk: Desk,
    #[command(flatten)]
    filter: Filter,
    /// From this origin: outbox for its own events, or the name of a consumer.
    #[arg(long, value_name = "NAME")]
    origin: Option<String>,
    /// So many at most.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Print one JSON object for each, on a line of its own.
    #[arg(long)]
    json: bool,
}

/// Show everything about a dead event or a dead letter
#[derive(Debug, ClapArgs)]
struct Show {
    /// Its id; of an event also its number.
    #[arg(value_name = "ID")]
    id: String,
    #[command(flatten)]
    desk: Desk,
    /// Print one JSON object, on one line.
    #[arg(long)]
    json: bool,
}

/// List what was done, the newest first
#[derive(Debug, ClapArgs)]
struct History {
    /// To the event of this id or number, or to this letter.
    #[arg(value_name = "ID")]
    id: Option<String>,
    #[command(flatten)]
    desk: Desk,
    /// By this actor.
    #[arg(long, value_name = "NAME")]
    who: Option<String>,
    /// From this origin: outbox for its own events, or the name of a consumer.
    #[arg(long, value_name = "NAME")]
    origin: Option<String>,
    /// So many at most.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Print one JSON object for each, on a line of its own.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args) -> Result<ExitCode, Error> {
    match args.command {
        Command::List(args) => list(args).await,
        Command::Show(args) => show(args).await,
        Command::Replay(args) => act::replay(args).await,
        Command::Discard(args) => act::discard(args).await,
        Command::Skip(args) => act::skip(args).await,
        Command::Edit(args) => act::edit(args).await,
        Command::History(args) => history(args).await,
    }
}

async fn list(args: List) -> Result<ExitCode, Error> {
    let api = args.desk.open().await?;
    let mut query = args.filter.query();
    query.extend(args.origin.map(|origin| ("origin", origin)));
    if !args.json {
        query.push(("payloads", "false".to_owned()));
    }
    let table = table::Table::new(["origin", "id", "type", "key", "tries", "died", "error"], table::dead);
    pages(&api, "/dead", "dead", query, args.limit, args.json, table).await
}

async fn history(args: History) -> Result<ExitCode, Error> {
    let api = args.desk.open().await?;
    let mut query = Vec::new();
    query.extend(args.id.map(|id| (if is_letter(&id) { "letter_id" } else { "event_id" }, id)));
    query.extend(args.origin.map(|origin| ("origin", origin)));
    query.extend(args.who.map(|who| ("who", who)));
    let table = table::Table::new(["when", "who", "action", "origin", "id", "type", "why"], table::action);
    pages(&api, "/actions", "actions", query, args.limit, args.json, table).await
}

/// Prints a list, page by page.
async fn pages(
    api: &Api,
    path: &str,
    name: &str,
    query: Vec<(&'static str, String)>,
    limit: u32,
    json: bool,
    mut table: table::Table,
) -> Result<ExitCode, Error> {
    let mut left = limit;
    let mut cursor: Option<String> = None;
    loop {
        let mut query = query.clone();
        query.push(("limit", left.min(100).to_string()));
        query.extend(cursor.take().map(|cursor| ("cursor", cursor)));
        let page = api.get(path, &query).await?.value()?;
        let items = page[name].as_array().map(Vec::as_slice).unwrap_or_default();
        left = left.saturating_sub(u32::try_from(items.len()).unwrap_or(u32::MAX));
        let mut text = String::new();
        if json {
            items.iter().for_each(|item| {
                let _ = writeln!(text, "{item}");
            });
        } else {
            text = table.append(items);
        }
        if out::print(text)? == Reader::Left {
            return Ok(ExitCode::SUCCESS);
        }
        cursor = page["next"].as_str().map(ToOwned::to_owned);
        match &cursor {
            Some(_) if left > 0 => {}
            Some(_) if !json => {
                let _ = out::print("\nthere are more: the same with a greater --limit\n")?;
                return Ok(ExitCode::SUCCESS);
            }
            None if !json && left == limit => {
                let _ = out::print("nothing matches\n")?;
                return Ok(ExitCode::SUCCESS);
            }
            _ => return Ok(ExitCode::SUCCESS),
        }
    }
}

async fn show(args: Show) -> Result<ExitCode, Error> {
    let api = args.desk.open().await?;
    let id = segment(&args.id);
    let mut answer = api.get(&format!("/events/{id}"), &[]).await?;
    if answer.is_missing() && is_letter(&args.id) {
        answer = api.get(&format!("/dlq/{id}"), &[]).await?;
    }
    let text = if args.json { answer.text()? + "\n" } else { for_people(&answer.value()?) };
    let _ = out::print(text)?;
    Ok(ExitCode::SUCCESS)
}

/// An id of a letter has 32 digits, that of an event 26.
fn is_letter(id: &str) -> bool {
    id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// An id as it stands in a path.
fn segment(id: &str) -> String {
    form_urlencoded::byte_serialize(id.as_bytes()).collect::<String>().replace('+', "%20")
}

/// A line for each field, and what is long below.
fn for_people(value: &Value) -> String {
    let mut text = String::new();
    let Some(fields) = value.as_object() else { return text };
    let long = ["payload", "last_error", "reason", "headers", "history"];
    for (name, value) in fields.iter().filter(|(name, _)| !long.contains(&name.as_str())) {
        let value = match value {
            Value::Null => "-".to_owned(),
            Value::String(text) => one_line(text),
            other => other.to_string(),
        };
        let _ = writeln!(text, "{:<16}{value}", name.replace('_', " "));
    }
    for name in long {
        let Some(value) = fields.get(name).filter(|value| !value.is_null()) else { continue };
        let value = match value {
            Value::String(text) => text.clone(),
            other => serde_json::to_string_pretty(other).unwrap_or_default(),
        };
        let _ = writeln!(text, "\n{}", name.replace('_', " "));
        for line in harmless(&value).lines() {
            let _ = writeln!(text, "  {line}");
        }
    }
    text
}
