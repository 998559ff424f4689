//! Without the reservation.

use pillarbox_core::{
    domain::Seq,
    port::{NewRow, WriteStore},
};

use crate::{
    MemoryStore,
    proof::{Answer, Layer},
};

/// Above every number of a schedule.
const ELSEWHERE: i64 = 1_000_000_000;

/// The insert answers with numbers that are not those of its rows: the writer reserves nothing that a reader could come
/// upon. In the product it reserves the number of a row before the commit makes it visible, the reader passes it over,
/// and the commit turns the reservation into a delivery.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoReservation;

impl Layer<MemoryStore> for NoReservation {
    fn insert<'a, Tx: ?Sized + Send>(
        &'a self,
        store: &'a MemoryStore,
        tx: &'a mut Tx,
        rows: &'a [NewRow],
    ) -> Answer<'a, Vec<Seq>>
    where
        MemoryStore: WriteStore<Tx>,
    {
        Box::pin(async move {
            let seqs = store.insert(tx, rows).await?;
            Ok(seqs.into_iter().map(|Seq(number)| Seq(number + ELSEWHERE)).collect())
        })
    }
}
