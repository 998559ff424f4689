//! What is done about what is dead.

use std::{path::PathBuf, process::ExitCode};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use clap::Args as ClapArgs;
use reqwest::Method;
use serde_json::{Map, Value, json};

use super::{
    bulk::{self, Bulk},
    desk::{Api, Desk, with},
    filter::Filter,
    is_letter, segment,
};
use crate::{error::Error, out};

/// Make dead events due again, or send dead letters again
///
/// Some by their ids, or all that match, in batches, the oldest first: what list shows with the same filters. Letters go to
/// the topic they came from, through the sink of --config or --broker; over the API, through that of the API.
#[derive(Debug, ClapArgs)]
pub(super) struct Replay {
    #[command(flatten)]
    chosen: Chosen,
    /// Of many: so many a second at the most.
    #[arg(long, value_name = "N")]
    rate: Option<std::num::NonZeroU32>,
}

/// Remove dead events, or put dead letters aside
///
/// Some by their ids, or all that match: what list shows with the same filters. A key that an event holds goes on with its
/// next one.
#[derive(Debug, ClapArgs)]
pub(super) struct Discard {
    #[command(flatten)]
    chosen: Chosen,
}

#[derive(Debug, ClapArgs)]
struct Chosen {
    /// Their ids.
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    #[command(flatten)]
    desk: Desk,
    #[command(flatten)]
    filter: Filter,
    /// From this origin: outbox for its own events, or the name of a consumer.
    #[arg(long, value_name = "NAME", conflicts_with = "ids")]
    origin: Option<String>,
    /// Every dead event and every dead letter there is, or all of one origin.
    #[arg(long, conflicts_with = "ids")]
    all: bool,
    /// Only count what would be done.
    #[arg(long, conflicts_with = "ids")]
    dry_run: bool,
    /// Why; kept in the record.
    #[arg(long, value_name = "WORDS", alias = "why", alias = "reason")]
    because: Option<String>,
    /// Print one JSON object for what was done.
    #[arg(long)]
    json: bool,
}

/// Let the keys of dead events go on without them; the events stay dead
#[derive(Debug, ClapArgs)]
pub(super) struct Skip {
    /// Their ids.
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
    #[command(flatten)]
    desk: Desk,
    /// Why; kept in the record.
    #[arg(long, value_name = "WORDS", alias = "why", alias = "reason")]
    because: Option<String>,
    /// Print one JSON object for each.
    #[arg(long)]
    json: bool,
}

/// Give a dead event or letter another payload; it stays dead until it is replayed
///
/// The payload that it had is kept in the record: see history --json.
#[derive(Debug, ClapArgs)]
pub(super) struct Edit {
    /// Its id.
    #[arg(value_name = "ID")]
    id: String,
    #[command(flatten)]
    desk: Desk,
    /// The file with the new payload, byte for byte; - reads it from stdin.
    #[arg(long, value_name = "FILE", conflicts_with = "payload", required_unless_present = "payload")]
    payload_file: Option<PathBuf>,
    /// The new payload itself.
    #[arg(long, value_name = "TEXT")]
    payload: Option<String>,
    /// Its content type, if it is another than before.
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
    /// Why; kept in the record.
    #[arg(long, value_name = "WORDS", alias = "why", alias = "reason")]
    because: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

pub(super) async fn replay(args: Replay) -> Result<ExitCode, Error> {
    if !args.chosen.ids.is_empty() && args.rate.is_some() {
        return Err(Error::new("--rate is for many, and there are ids").advice("leave one of them out"));
    }
    args.chosen.act(Act::Replay, args.rate).await
}

pub(super) async fn discard(args: Discard) -> Result<ExitCode, Error> {
    args.chosen.act(Act::Discard, None).await
}

pub(super) async fn skip(args: Skip) -> Result<ExitCode, Error> {
    let api = args.desk.open().await?;
    each(&api, Act::Skip, &args.ids, args.because.as_deref(), args.json).await
}

pub(super) async fn edit(args: Edit) -> Result<ExitCode, Error> {
    let bytes = match (&args.payload, &args.payload_file) {
        (Some(text), _) => text.clone().into_bytes(),
        (None, Some(file)) => read(file)?,
        (None, None) => return Err(Error::new("there is no payload").advice("--payload-file FILE or --payload TEXT")),
    };
    let api = args.desk.open().await?;
    let mut body = Map::new();
    body.insert("payload_base64".into(), BASE64_STANDARD.encode(bytes).into());
    body.extend(args.content_type.map(|kind| ("content_type".to_owned(), Value::from(kind))));
    body.extend(args.because.map(|why| ("because".to_owned(), Value::from(why))));
    let place = if is_letter(&args.id) { "dlq" } else { "events" };
    let path = format!("/{place}/{}/payload", segment(&args.id));
    api.send(Method::PUT, &path, Some(body.into())).await?.done()?;
    tell(&args.id, "edit", "edited: it stays dead until it is replayed", args.json)?;
    Ok(ExitCode::SUCCESS)
}

fn read(file: &std::path::Path) -> Result<Vec<u8>, Error> {
    let failed = |error| Error::new(format!("the payload, {}, can't be read", file.display())).caused_by(error);
    if file.as_os_str() == "-" {
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut std::io::stdin().lock(), &mut bytes).map_err(failed)?;
        return Ok(bytes);
    }
    std::fs::read(file).map_err(failed)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Replay,
    Discard,
    Skip,
}

impl Act {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Replay => "replay",
            Self::Discard => "discard",
            Self::Skip => "skip",
        }
    }

    pub(super) const fn done(self) -> &'static str {
        match self {
            Self::Replay => "replayed",
            Self::Discard => "discarded",
            Self::Skip => "skipped",
        }
    }
}

impl Chosen {
    async fn act(&self, act: Act, rate: Option<std::num::NonZeroU32>) -> Result<ExitCode, Error> {
        let filter = self.filter.query();
        let by_ids = match (self.ids.is_empty(), filter.is_empty(), self.all) {
            (false, true, false) => true,
            (true, false, false) | (true, true, true) => false,
            _ => {
                return Err(Error::new(format!("it is not clear what shall be {}", act.done()))
                    .advice("ids, or filters such as --type, or --all; one of the three"));
            }
        };
        let sends = !by_ids || self.ids.iter().any(|id| is_letter(id));
        // A dry run too: where there is no way back, it says so as a run would.
        let replays = act == Act::Replay && sends;
        let api = if replays { self.desk.open_to_replay().await? } else { self.desk.open().await? };
        let done = if by_ids {
            each(&api, act, &self.ids, self.because.as_deref(), self.json).await
        } else {
            let (dry_run, origin, because) = (self.dry_run, self.origin.clone(), self.because.clone());
            bulk::run(&api, &Bulk { act, filter, origin, rate, dry_run, because }, self.json).await
        };
        api.close().await;
        done
    }
}

/// One after another. What can't be done is told, and the rest is done.
async fn each(api: &Api, act: Act, ids: &[String], because: Option<&str>, json: bool) -> Result<ExitCode, Error> {
    let mut good = true;
    for id in ids {
        let place = if is_letter(id) { "dlq" } else { "events" };
        let path = format!("/{place}/{}", segment(id));
        let answer = match act {
            Act::Discard => {
                let query = because.map(|why| ("because", why.to_owned()));
                api.send(Method::DELETE, &with(&path, query.as_slice()), None).await?
            }
            Act::Replay | Act::Skip => {
                let body = because.map_or_else(|| json!({}), |why| json!({ "because": why }));
                api.send(Method::POST, &format!("{path}/{}", act.name()), Some(body)).await?
            }
        };
        match answer.done() {
            Ok(()) => tell(id, act.name(), act.done(), json)?,
            Err(error) => {
                error.print();
                good = false;
            }
        }
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn tell(id: &str, action: &str, done: &str, json: bool) -> Result<(), Error> {
    let line = if json { json!({ "id": id, "action": action }).to_string() } else { format!("{id} {done}") };
    let _ = out::print(line + "\n")?;
    Ok(())
}
