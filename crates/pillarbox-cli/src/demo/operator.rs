//! The person who looks after dead events. A dead event holds back the later ones of its key until somebody
//! decides; here, that the customer's other orders shall go on without it.

use std::{collections::HashMap, time::Duration};

use pillarbox::{Actor, EventId, Outbox, OutboxError, Query, SqliteStore};
use tokio_util::sync::CancellationToken;

use super::{ledger::Ledger, shop::Run};

const EVERY: Duration = Duration::from_millis(200);

/// Lets the keys of dead events go on, until stopped. Returns when it did so for each event, in nanoseconds
/// since the run began.
pub(super) async fn run(
    outbox: Outbox<SqliteStore>,
    run: Run,
    ledger: &Ledger,
    stop: CancellationToken,
) -> Result<HashMap<EventId, u64>, OutboxError> {
    let query = Query { tenant_id: Some(run.tenant()), ..Query::default() };
    let actor = Actor::new("pillarbox demo").because("the customer's other orders shall not wait");
    let mut skipped = HashMap::new();
    loop {
        let dead = outbox.dead().list(&query, None, 1_000).await?;
        for found in dead.events.into_iter().filter(|found| found.holds_key) {
            let Ok(id) = found.id.parse() else { continue };
            outbox.dead().skip(id, &actor).await?;
            skipped.insert(id, ledger.now());
        }
        tokio::select! {
            () = tokio::time::sleep(EVERY) => {}
            () = stop.cancelled() => return Ok(skipped),
        }
    }
}
