//! Keeping duplicates out: an event whose dedup key stands already is not written.
//!
//! The keys are entered in the caller's transaction, before the events: a crash or a rollback leaves neither.

use rustc_hash::FxHashMap;

use crate::{
    domain::EventId,
    port::{NewKey, NewRow, StoreError, WriteStore},
};

/// An event that was not written, since another with its dedup key was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duplicate {
    /// The event that was not written.
    pub event: EventId,
    /// The one that was, earlier in the batch or within the window of the key.
    pub kept: EventId,
}

/// What became of a batch.
#[derive(Debug, Default)]
pub(crate) struct Sorted {
    /// The id under which each event of the batch is kept, in their order; `None` without duplicates.
    pub(crate) answers: Option<Vec<EventId>>,
    pub(crate) duplicates: Vec<Duplicate>,
}

/// Takes those rows out whose key is that of an earlier row, or stands in the database.
pub(crate) async fn keep_first<S, Tx>(store: &S, tx: &mut Tx, rows: &mut Vec<NewRow>) -> Result<Sorted, StoreError>
where
    S: WriteStore<Tx> + ?Sized,
{
    if rows.iter().all(|row| row.event.dedup().is_none()) {
        return Ok(Sorted::default());
    }
    let mut sorted = Sorted::default();
    let mut answers = Vec::with_capacity(rows.len());
    let mut keep = Vec::with_capacity(rows.len());
    {
        // For each key the first row that has it.
        let mut first = FxHashMap::default();
        let mut keys = Vec::new();
        for (index, event) in rows.iter().map(|row| &row.event).enumerate() {
            if let Some(dedup) = event.dedup() {
                first.entry(&*dedup.key).or_insert_with(|| {
                    keys.push(NewKey { key: &dedup.key, window: dedup.window, id: event.id() });
                    (index, keys.len() - 1)
                });
            }
        }
        let standing = store.enter_keys(tx, &keys).await?;
        for (index, event) in rows.iter().map(|row| &row.event).enumerate() {
            let of_key = event.dedup().and_then(|dedup| first.get(&*dedup.key));
            let kept = of_key.and_then(|(first, key)| match standing.get(*key).copied().flatten() {
                Some(kept) => Some(kept),
                None => (*first != index).then(|| rows[*first].event.id()),
            });
            sorted.duplicates.extend(kept.map(|kept| Duplicate { event: event.id(), kept }));
            answers.push(kept.unwrap_or(event.id()));
            keep.push(kept.is_none());
        }
    }
    let mut keep = keep.into_iter();
    rows.retain(|_| keep.next().unwrap_or(true));
    sorted.answers = Some(answers).filter(|_| !sorted.duplicates.is_empty());
    Ok(sorted)
}
