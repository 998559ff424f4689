//! Order per key: what it costs the drain, and how fast one key alone goes.

use std::time::Duration;

use bytes::Bytes;
use pillarbox::Outbox;

use crate::{
    Result, Sizes,
    backend::{Backend, Database, Finish, PAGES, PAYLOAD},
    drain,
    report::{Figure, Report},
    rounds::{Rounds, Spread, float},
    write,
};

/// Many keys, as orders have.
const KEYS: usize = 10_000;
/// Events of one transaction that fills a table.
const CHUNK: usize = 2_000;

/// Drains events of many keys, beside the same events without keys and beside the limit.
pub(crate) async fn run<B: Backend>(bed: &B, sizes: &Sizes, report: &mut Report) -> Result<()> {
    report.begin("ordered_drain");
    let events = sizes.drained;
    let (plain, keyed) = (bed.filled(events).await?, filled(bed, events, KEYS).await?);
    let (mut to_limit, mut to_plain) = (Rounds::default(), Rounds::default());
    for round in 0..sizes.rounds {
        let mut limits = Vec::new();
        for page in PAGES {
            limits.push(float(events) / bed.copy(&plain).await?.drain(events, page, Finish::Delete).await?);
        }
        let mut rates = [0.0; 2];
        let mut sides = [&plain, &keyed].into_iter().enumerate().collect::<Vec<_>>();
        sides.rotate_left(round % 2);
        for (side, template) in sides {
            rates[side] = drain::rate(&bed.copy(template).await?, events, Finish::Delete).await?;
        }
        to_limit.limit.push(limits.into_iter().fold(0.0, f64::max));
        to_limit.pillarbox.push(rates[1]);
        to_plain.limit.push(rates[0]);
        to_plain.pillarbox.push(rates[1]);
    }
    report.add(
        Figure::of_rounds("ordered_drain", "events/s", &to_limit, None).note(format!("{KEYS} keys, beside the limit")),
    );
    let figure = Figure::of_rounds("ordered_drain", "events/s", &to_plain, B::TARGETS.ordered_drain);
    report.add(figure.of_itself().note(format!("{KEYS} keys, beside drain_delete in the same rounds")));
    one_key(bed, sizes, report).await
}

/// One key alone: each event waits for the one before it.
async fn one_key<B: Backend>(bed: &B, sizes: &Sizes, report: &mut Report) -> Result<()> {
    report.begin("one_key_drain");
    let events = sizes.drained / 5;
    let template = filled(bed, events, 1).await?;
    let mut rates = Vec::new();
    for _ in 0..sizes.rounds {
        rates.push(drain::rate(&bed.copy(&template).await?, events, Finish::Delete).await?);
    }
    let rates = Spread::of(rates);
    let each = Duration::from_secs_f64(1.0 / rates.median);
    let note =
        format!("one after another: {each:.1?} from the end of a handler to the begin of the next, settles apart");
    report.add(Figure::of_spread("one_key_drain", "events/s", rates, None).note(note));
    Ok(())
}

/// A database with so many events of so many keys that wait.
pub(crate) async fn filled<B: Backend>(bed: &B, events: usize, keys: usize) -> Result<B::Database> {
    let database = bed.empty().await?;
    let outbox = Outbox::writer_only(database.store().await?).start().await?;
    let payload = Bytes::from(vec![b'x'; PAYLOAD]);
    let numbers: Vec<usize> = (0..events).collect();
    for chunk in numbers.chunks(CHUNK) {
        let mut tx = outbox.begin().await?;
        tx.write_all(chunk.iter().map(|number| write::event(&payload).key(format!("key-{}", number % keys)))).await?;
        tx.commit().await?;
    }
    outbox.shutdown().await;
    B::Database::close(outbox.store()).await;
    // Tidies up, and adds nothing.
    database.fill(0).await?;
    Ok(database)
}
