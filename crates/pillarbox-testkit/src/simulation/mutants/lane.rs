//! Without the lane.

use pillarbox_core::{
    Event,
    domain::Record,
    port::{Candidate, Page, Pick, ReadStore, Row, Scan},
};

use crate::{
    MemoryStore,
    proof::{Answer, Layer},
};

/// Pages hand out the rows of a key as if they had none: nothing waits for the one before it, and a head that failed
/// stops nobody. In the product the lane of the key, in the owner's memory, keeps them apart.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoLane;

impl Layer<MemoryStore> for NoLane {
    fn page<'a>(&'a self, store: &'a MemoryStore, scan: Scan<'a>, pick: &'a mut dyn Pick) -> Answer<'a, Page> {
        Box::pin(async move {
            let mut keyless = |candidate: Candidate<'_>| pick.pick(Candidate { key: None, ..candidate });
            let mut page = store.page(scan, &mut keyless).await?;
            for row in &mut page.rows {
                if let Row::Event(record) = row {
                    forget_key(record);
                }
            }
            Ok(page)
        })
    }
}

fn forget_key(record: &mut Record) {
    let event = &record.event;
    let builder = Event::builder(event.event_type().as_str()).id(event.id()).payload(event.payload().clone());
    if let Ok(event) = builder.build() {
        record.event = event;
    }
}
