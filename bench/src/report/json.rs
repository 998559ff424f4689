//! One JSON object a line.

use serde::Serialize;

use super::{Figure, Peer, Report};
use crate::{Result, backend::Counted};

/// A line.
#[derive(Clone, Debug, Serialize)]
struct Line<'a> {
    bench: &'a str,
    /// What was counted, where it is not the bench's own figure.
    #[serde(skip_serializing_if = "Option::is_none")]
    measure: Option<&'a str>,
    system: &'a str,
    backend: &'a str,
    value: f64,
    unit: &'a str,
    ratio_to_limit: Option<f64>,
    ratio_min: Option<f64>,
    ratio_max: Option<f64>,
    /// Pillarbox over this peer; in the line of Pillarbox, over the fastest one.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio_of_pillarbox: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio_of_pillarbox_min: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio_of_pillarbox_max: Option<f64>,
    rounds: Option<usize>,
    /// How many events a peer has drained.
    #[serde(skip_serializing_if = "Option::is_none")]
    events: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'a str>,
    quick: bool,
}

pub(super) fn text(report: &Report) -> Result<String> {
    let plain = Line {
        bench: "",
        measure: None,
        system: "pillarbox",
        backend: report.backend,
        value: f64::NAN,
        unit: "",
        ratio_to_limit: None,
        ratio_min: None,
        ratio_max: None,
        ratio_of_pillarbox: None,
        ratio_of_pillarbox_min: None,
        ratio_of_pillarbox_max: None,
        rounds: None,
        events: None,
        version: None,
        note: None,
        quick: report.quick,
    };
    let mut lines = Vec::new();
    for figure in &report.figures {
        lines.extend(of_figure(figure, &plain));
    }
    for (bench, system, counted) in &report.counts {
        lines.extend(of_counts(bench, system, counted, &plain));
    }
    for peer in &report.peers {
        lines.push(of_peer(peer, &plain));
        lines.extend(of_counts("peers", &peer.name, &peer.counted, &plain));
    }
    let mut text = String::new();
    for line in lines {
        text += &serde_json::to_string(&line)?;
        text.push('\n');
    }
    Ok(text)
}

fn of_figure<'a>(figure: &'a Figure, plain: &Line<'a>) -> Vec<Line<'a>> {
    let single = figure.ratios.or(figure.values);
    let line = |system, value, unit| Line {
        bench: figure.bench,
        system,
        value,
        unit,
        rounds: single.map(|spread| spread.count),
        note: figure.note.as_deref(),
        ..plain.clone()
    };
    let mut pillarbox = line("pillarbox", figure.pillarbox, figure.unit);
    if let (Some(ratios), Some(to_limit)) = (figure.ratios, figure.to_limit) {
        pillarbox.ratio_of_pillarbox = Some(ratios.median);
        pillarbox.ratio_of_pillarbox_min = Some(ratios.min);
        pillarbox.ratio_of_pillarbox_max = Some(ratios.max);
        pillarbox.ratio_to_limit = Some(to_limit.median);
        pillarbox.ratio_min = Some(to_limit.min);
        pillarbox.ratio_max = Some(to_limit.max);
        return vec![pillarbox];
    }
    if let Some(ratios) = figure.ratios {
        pillarbox.ratio_to_limit = Some(ratios.median);
        pillarbox.ratio_min = Some(ratios.min);
        pillarbox.ratio_max = Some(ratios.max);
    }
    if figure.of_itself {
        pillarbox.value = figure.decisive();
        pillarbox.unit = "ratio";
        return vec![pillarbox];
    }
    let limit = figure.limit.map(|value| Line { ratio_to_limit: Some(1.0), ..line("limit", value, figure.unit) });
    limit.into_iter().chain([pillarbox]).collect()
}

fn of_peer<'a>(peer: &'a Peer, plain: &Line<'a>) -> Line<'a> {
    Line {
        bench: "peers",
        system: &peer.name,
        value: peer.rates.median,
        unit: "events/s",
        ratio_to_limit: Some(peer.to_limit.median),
        ratio_min: Some(peer.to_limit.min),
        ratio_max: Some(peer.to_limit.max),
        ratio_of_pillarbox: Some(peer.pillarbox.median),
        ratio_of_pillarbox_min: Some(peer.pillarbox.min),
        ratio_of_pillarbox_max: Some(peer.pillarbox.max),
        rounds: Some(peer.rates.count),
        events: Some(peer.events),
        version: Some(&peer.version),
        note: Some(&peer.settings),
        ..plain.clone()
    }
}

fn of_counts<'a>(bench: &'a str, system: &'a str, counted: &Counted, plain: &Line<'a>) -> Vec<Line<'a>> {
    [
        ("round_trips", counted.round_trips, "round trips/event"),
        ("row_writes", Some(counted.row_writes), "rows/event"),
        ("log_bytes", Some(counted.log_bytes), "bytes/event"),
        ("commits", Some(counted.commits), "commits/event"),
    ]
    .into_iter()
    .filter_map(|(measure, value, unit)| {
        Some(Line { bench, measure: Some(measure), system, value: value?, unit, ..plain.clone() })
    })
    .collect()
}
