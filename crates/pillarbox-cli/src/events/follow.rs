//! `pillarbox events follow`: events as they are committed.
//!
//! Numbers are given when a row is inserted, and seen when it is committed: a slow transaction's numbers come after
//! higher ones. So the last [`WINDOW`] numbers are looked at again every [`LOOK_BACK_EVERY`] polls, and what was not
//! there before is printed then. An event that is committed when the highest number is farther ahead is missed.

use std::{collections::BTreeSet, pin::pin, process::ExitCode, time::Duration};

use clap::Args as ClapArgs;
use pillarbox::{AnyStore, Found, Query, Seq, StoreError, Timestamp, port::AdminStore as _};

use super::{
    clock,
    filter::Filter,
    table::{Table, Time},
    unreadable,
    view::View,
};
use crate::{
    error::Error,
    interrupt::interrupted,
    out::{self, Reader},
    store::Database,
};

const POLL: Duration = Duration::from_millis(500);
const WINDOW: i64 = 5_000;
const LOOK_BACK_EVERY: u32 = 4;
/// Small, since payloads come with it.
const PAGE: u32 = 200;

/// Print events as they are committed, until Ctrl-C
///
/// An event that is committed late, after others with higher numbers, is printed when it comes, as long as no more
/// than 5000 numbers have been given since its own. With --status an event is printed if it has that status when it
/// is looked at, which may be later than its commit.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    #[command(flatten)]
    database: Database,
    #[command(flatten)]
    filter: Filter,
    /// Begin with the oldest event, instead of with what is committed from now on.
    #[arg(long)]
    from_start: bool,
    /// Print one JSON object for each event, on a line of its own.
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: Args) -> Result<ExitCode, Error> {
    let mut end = pin!(interrupted()?);
    let work = async {
        let store = args.database.open_migrated().await?;
        let query = args.filter.query(clock(&store).await.map_err(unreadable)?);
        let mut seen = Seen::default();
        if !args.from_start {
            seen.begin_at(&store, &query).await.map_err(unreadable)?;
        }
        if !args.json && out::is_terminal() {
            eprintln!("waiting for events; Ctrl-C ends it");
        }
        follow(&args, &store, &query, seen).await
    };
    tokio::select! {
        // To be told to stop is how this ends.
        () = &mut end => Ok(ExitCode::SUCCESS),
        ended = work => ended,
    }
}

async fn follow(args: &Args, store: &AnyStore, query: &Query, mut seen: Seen) -> Result<ExitCode, Error> {
    let mut table = Table::new(Time::Inserted, out::size().map(|(_, columns)| columns));
    let (mut polls, mut fails) = (0_u32, false);
    loop {
        polls = polls.wrapping_add(1);
        let look = if polls % LOOK_BACK_EVERY == 0 { Look::Back } else { Look::Ahead };
        match poll(store, query, &mut seen, look, |events, now| print(args.json, &mut table, events, now)).await {
            Ok(Reader::Stays) => fails = false,
            Ok(Reader::Left) => return Ok(ExitCode::SUCCESS),
            // Once is enough: it is tried until it works.
            Err(Fault::Store(error)) if !fails => {
                unreadable(error).print();
                fails = true;
            }
            Err(Fault::Store(_)) => {}
            Err(Fault::Output(error)) => return Err(error),
        }
        tokio::time::sleep(POLL).await;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    Ahead,
    Back,
}

enum Fault {
    Store(StoreError),
    Output(Error),
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// Gives what is new to `take`, page by page.
async fn poll(
    store: &AnyStore,
    query: &Query,
    seen: &mut Seen,
    look: Look,
    mut take: impl FnMut(&[Found], Timestamp) -> Result<Reader, Error>,
) -> Result<Reader, Fault> {
    // Before the events are read: what is above it then is for the next time.
    let (mut from, highest) = match look {
        Look::Ahead => (seen.next(), seen.highest),
        Look::Back => (seen.first_gap(), highest(store, seen.highest).await?),
    };
    loop {
        let listing = store.list(query, from, PAGE).await?;
        // Asked before anything counts as seen: a failure here must lose nothing.
        let now = if listing.events.is_empty() { Timestamp::default() } else { clock(store).await? };
        let new: Vec<_> = listing.events.into_iter().filter(|found| seen.insert(found.seq)).collect();
        if !new.is_empty() && take(&new, now).map_err(Fault::Output)? == Reader::Left {
            return Ok(Reader::Left);
        }
        match listing.next {
            Some(next) => from = next,
            None => break,
        }
    }
    // Without it, a filter that matches little would make every poll read more than the one before.
    seen.reach(highest);
    Ok(Reader::Stays)
}

fn print(json: bool, table: &mut Table, events: &[Found], now: Timestamp) -> Result<Reader, Error> {
    let text = if json {
        events.iter().map(|found| View::of(found, now).as_line()).collect::<Result<String, _>>()?
    } else {
        table.append(events)
    };
    out::print(text)
}

/// The numbers that were there, as far back as the window goes.
#[derive(Debug, Default)]
struct Seen {
    highest: i64,
    numbers: BTreeSet<i64>,
}

impl Seen {
    /// Takes everything that is there as seen.
    async fn begin_at(&mut self, store: &AnyStore, query: &Query) -> Result<(), StoreError> {
        self.highest = highest(store, 0).await?;
        let mut from = Some(self.lowest());
        while let Some(seq) = from {
            let listing = store.list(query, seq, PAGE).await?;
            for found in &listing.events {
                self.insert(found.seq);
            }
            from = listing.next;
        }
        Ok(())
    }

    /// Whether it is new.
    fn insert(&mut self, Seq(seq): Seq) -> bool {
        let new = self.numbers.insert(seq);
        self.reach(seq);
        new
    }

    fn reach(&mut self, seq: i64) {
        if seq > self.highest {
            self.highest = seq;
            self.numbers = self.numbers.split_off(&self.lowest().0);
        }
    }

    fn next(&self) -> Seq {
        Seq(self.highest.saturating_add(1))
    }

    fn lowest(&self) -> Seq {
        Seq((self.highest - WINDOW + 1).max(1))
    }

    /// The first number that may still come.
    fn first_gap(&self) -> Seq {
        let Seq(lowest) = self.lowest();
        let gap = (lowest..).zip(&self.numbers).find(|(number, seen)| number != *seen);
        gap.map_or_else(|| Seq(lowest + i64::try_from(self.numbers.len()).unwrap_or(0)), |(number, _)| Seq(number))
    }
}

/// The highest number that there is, from one that is known, by seeks in the primary key: the port lists upwards only.
async fn highest(store: &AnyStore, mut there: i64) -> Result<i64, StoreError> {
    let all = Query::default();
    let (mut beyond, mut step) = (i64::MAX, 1_i64);
    while there + 1 < beyond {
        // In growing strides first: it is not far, or was not known.
        let middle = there + ((beyond - there) / 2).min(step);
        match store.list(&all, Seq(middle), 1).await?.events.first() {
            Some(found) => {
                there = found.seq.0;
                step = step.saturating_mul(4);
            }
            None => beyond = middle,
        }
    }
    Ok(there)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_late_is_new_and_what_was_there_is_not() {
        let mut seen = Seen::default();
        assert_eq!(seen.first_gap(), Seq(1));
        for seq in [1, 2, 4] {
            assert!(seen.insert(Seq(seq)));
        }
        assert_eq!((seen.first_gap(), seen.next()), (Seq(3), Seq(5)));
        assert!(!seen.insert(Seq(4)) && seen.insert(Seq(3)));
        assert_eq!((seen.first_gap(), seen.next()), (Seq(5), Seq(5)));
    }

    #[test]
    fn only_the_window_is_remembered() {
        let mut seen = Seen::default();
        assert!((1..=3 * WINDOW).all(|seq| seen.insert(Seq(seq))));
        assert_eq!(seen.numbers.len(), usize::try_from(WINDOW).unwrap());
        assert_eq!(seen.first_gap(), seen.next());
    }
}
