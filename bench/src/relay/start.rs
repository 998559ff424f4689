//! From the start of the program to its first message.

use pillarbox::Outbox;

use super::{Broker, Ground, payload};
use crate::{
    Result,
    backend::{Backend as _, Database as _, postgres},
    moments::now,
    report::{Figure, Report},
    rounds::{Spread, float},
    write,
};

/// Events that wait when a relay starts.
pub(super) const WAITING: usize = 10;

pub(super) async fn run<B: Broker>(broker: &B, ground: &Ground<'_>, report: &mut Report) -> Result<()> {
    report.begin(B::NAMES.start);
    let mut starts = Vec::new();
    for _ in 0..ground.sizes.rounds {
        starts.push(round(broker, ground).await?);
    }
    let note = format!("from the start of the process to its first message, with {WAITING} events waiting");
    report.add(Figure::of_spread(B::NAMES.start, "ms", Spread::of(starts), None).note(note));
    Ok(())
}

/// Milliseconds until the first of a few events that wait has arrived.
async fn round<B: Broker>(broker: &B, ground: &Ground<'_>) -> Result<f64> {
    let database = waiting(ground.bed).await?;
    broker.clear().await?;
    let output = broker.output()?;
    let mut arrivals = broker.listen().await?;
    let begun = now();
    let relay = ground.program.start(&database.address(), &broker.sink(), output)?;
    let first = arrivals.next().await.map_err(|error| relay.explain(&*error))?;
    for _ in 1..WAITING {
        arrivals.next().await.map_err(|error| relay.explain(&*error))?;
    }
    // It is killed: told to stop so early, it may not listen to signals yet.
    drop(relay);
    Ok(float(first.at.saturating_sub(begun)) / 1e6)
}

/// A database with the events that wait, which have the first numbers.
pub(super) async fn waiting(bed: &postgres::Bed) -> Result<postgres::Database> {
    let database = bed.empty().await?;
    let outbox = Outbox::writer_only(database.store().await?).start().await?;
    let mut tx = outbox.begin().await?;
    tx.write_all((0..WAITING).map(|number| write::event(&payload(number)).key(format!("first-{number}")))).await?;
    tx.commit().await?;
    outbox.shutdown().await;
    postgres::Database::close(outbox.store()).await;
    Ok(database)
}
