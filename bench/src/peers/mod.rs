//! Peers from crates.io, in rounds with Pillarbox and the limit. They live in a workspace of their own, whose programs
//! measure one of them a call: see `bench/peers/README.md` for the contract.

mod program;

use std::path::PathBuf;

use program::{LIMIT, Measured, PROGRAMS};

use crate::{
    Result, Sizes,
    backend::{Backend as _, Begins, Counted, Database as _, Finish, PAGES, postgres},
    drain, ordered,
    report::{Figure, Peer, Report},
    rounds::{Rounds, Spread, float},
};

const ROUNDS: usize = 3;
/// Those that keep an order, with as many keys as Pillarbox has beside them.
const ORDERED: [&str; 2] = ["cf-gears-toolkit-db", "graphile_worker-queues"];
const ORDERED_KEYS: usize = 64;
/// The trial of a peer has a tenth of the events. So have its rounds, if all would take too long.
const PART: usize = 10;

/// A peer that had no failure so far.
#[derive(Debug)]
struct Candidate {
    name: String,
    program: PathBuf,
    events: usize,
    measured: Vec<Measured>,
}

impl Candidate {
    /// One round. A peer that fails with all events, as one does that comes to a standstill now and then, has its figure with a
    /// part of them from here on, which the trial has shown to be possible.
    async fn measure(&mut self, bed: &postgres::Bed, part: usize) -> Result<()> {
        let mut measured = program::measure(&self.program, bed.url(), &self.name, self.events).await;
        if measured.is_err() && self.events > part {
            self.events = part;
            measured = program::measure(&self.program, bed.url(), &self.name, part).await;
        }
        self.measured.push(measured?);
        Ok(())
    }
}

pub(crate) async fn run(bed: &postgres::Bed, sizes: &Sizes, report: &mut Report) -> Result<()> {
    let events = sizes.peers;
    let mut peers = candidates(bed, events, report).await?;
    let (mut limit, mut pillarbox, mut in_order) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        report.begin(&format!("peers, round {} of {ROUNDS}", round + 1));
        // Each round fills a database of its own behind a checkpoint, as those of the peers do: in a copy the first change of
        // each page would log all of it.
        let mut fastest = 0.0_f64;
        for page in PAGES {
            let database = bed.filled(events).await?;
            fastest = fastest.max(float(events) / database.drain(events, page, Finish::Delete).await?);
        }
        limit.push(fastest);
        pillarbox.push(drain::rate(&bed.filled(events).await?, events, Finish::Delete).await?);
        let keyed = ordered::filled(bed, events, ORDERED_KEYS).await?;
        in_order.push(drain::rate(&keyed, events, Finish::Delete).await?);
        let mut left = Vec::new();
        for mut peer in peers {
            match peer.measure(bed, events / PART).await {
                Ok(()) => left.push(peer),
                Err(error) => report.fail_peer(peer.name, error.to_string()),
            }
        }
        peers = left;
    }
    let by_pillarbox = bed.count(events, events, Begins::Explicitly, async |database| {
        drain::rate(database, events, Finish::Delete).await.map(drop)
    });
    report.count("peers", "pillarbox", by_pillarbox.await?);

    let mut fastest: Option<(f64, String, Rounds)> = None;
    let mut fastest_in_order: Option<(f64, String, Rounds)> = None;
    for Candidate { name, events, measured, .. } in peers {
        let rates: Vec<f64> = measured.iter().map(|one| one.events_per_second).collect();
        let against = Rounds { limit: rates.clone(), pillarbox: pillarbox.clone() };
        let median = |value: fn(&Measured) -> f64| Spread::of(measured.iter().map(value)).median;
        let spread = Spread::of(rates.iter().copied());
        report.add_peer(Peer {
            version: measured[0].version.clone(),
            settings: measured[0].settings.clone(),
            events,
            rates: spread,
            to_limit: Rounds { limit: limit.clone(), pillarbox: rates }.ratios(),
            pillarbox: against.ratios(),
            counted: Counted {
                round_trips: None,
                row_writes: median(|one| one.row_writes_per_event),
                log_bytes: median(|one| one.wal_bytes_per_event),
                commits: median(|one| one.commits_per_event),
            },
            name: name.clone(),
        });
        if ORDERED.contains(&name.as_str()) && fastest_in_order.as_ref().is_none_or(|(rate, ..)| spread.median > *rate)
        {
            let beside = Rounds { limit: against.limit.clone(), pillarbox: in_order.clone() };
            fastest_in_order = Some((spread.median, name.clone(), beside));
        }
        if fastest.as_ref().is_none_or(|(rate, ..)| spread.median > *rate) {
            fastest = Some((spread.median, name, against));
        }
    }
    if let Some((_, name, rounds)) = fastest_in_order {
        let to_limit = Rounds { limit: limit.clone(), pillarbox: in_order }.ratios();
        let figure = Figure::of_rounds("ordered_peers", "events/s", &rounds, postgres::Bed::TARGETS.ordered_peers);
        let note = format!("{ORDERED_KEYS} keys; not the limit, but the fastest peer with an order: {name}");
        report.add(figure.beside_peer(to_limit).note(note));
    }
    if let Some((_, name, rounds)) = fastest {
        let to_limit = Rounds { limit, pillarbox }.ratios();
        let figure = Figure::of_rounds("peers", "events/s", &rounds, postgres::Bed::TARGETS.peers);
        let note = format!("drain_delete of {events} events; not the limit, but the fastest peer: {name}");
        report.add(figure.beside_peer(to_limit).note(note));
    }
    Ok(())
}

/// Builds the peers and tries each with a part of the events. One that fails says so in the report, and the others go
/// on.
async fn candidates(bed: &postgres::Bed, events: usize, report: &mut Report) -> Result<Vec<Candidate>> {
    report.begin("peers: building and trying them");
    let mut candidates = Vec::new();
    for (name, how) in PROGRAMS {
        let program = match program::build(name, how).await {
            Ok(program) => program,
            Err(error) => {
                report.fail_peer(name.to_owned(), error.to_string());
                continue;
            }
        };
        for name in program::list(&program).await? {
            let part = events / PART;
            match program::measure(&program, bed.url(), &name, part).await {
                Ok(trial) => {
                    // Half of the limit is left for the filling, and for who gets slower with more events.
                    let fits = trial.seconds * float(PART) < LIMIT.as_secs_f64() / 2.0;
                    let events = if fits { events } else { part };
                    candidates.push(Candidate { name, program: program.clone(), events, measured: Vec::new() });
                }
                Err(error) => report.fail_peer(name, error.to_string()),
            }
        }
    }
    Ok(candidates)
}
