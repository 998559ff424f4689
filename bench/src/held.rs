//! What a transaction that stays open costs the drain.

use crate::{
    Result, Sizes,
    backend::{Finish, Hold, Server},
    drain,
    report::{Figure, Report},
    rounds::Rounds,
};

/// Drains without and with a transaction held open during the whole run; of two kinds the worse counts.
pub(crate) async fn run<B: Server>(bed: &B, sizes: &Sizes, report: &mut Report) -> Result<()> {
    report.begin("drain_held_tx");
    let events = sizes.drained;
    let template = bed.filled(events).await?;
    let (mut snapshot, mut writer) = (Rounds::default(), Rounds::default());
    for round in 0..sizes.rounds {
        let mut kinds = [None, Some(Hold::Snapshot), Some(Hold::Writer)];
        kinds.rotate_left(round % 3);
        for kind in kinds {
            let database = bed.copy(&template).await?;
            let held = match kind {
                Some(kind) => Some(bed.hold(&database, kind).await?),
                None => None,
            };
            let rate = drain::rate(&database, events, Finish::Delete).await?;
            drop(held);
            match kind {
                None => {
                    snapshot.limit.push(rate);
                    writer.limit.push(rate);
                }
                Some(Hold::Snapshot) => snapshot.pillarbox.push(rate),
                Some(Hold::Writer) => writer.pillarbox.push(rate),
            }
        }
    }
    let ratios = [snapshot.ratios().median, writer.ratios().median];
    let note = format!("a snapshot held: {:.2}, a writer: {:.2}; the lower counts", ratios[0], ratios[1]);
    let lower = if ratios[0] <= ratios[1] { snapshot } else { writer };
    let figure = Figure::of_rounds("drain_held_tx", "events/s", &lower, B::TARGETS.held_tx);
    report.add(figure.of_itself().note(note));
    Ok(())
}
