//! Without the deadline.

use std::time::Duration;

use pillarbox_core::{
    domain::Lease,
    port::{OwnStore, Renewal},
};

use crate::{
    MemoryStore,
    proof::{Answer, Layer},
};

/// Some renewals are for less time than the node counts on: it runs on when its lease has lapsed, beside the next
/// owner. In the product the node counts from before the call, and drops what it runs when its own count is over.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoDeadline;

impl Layer<MemoryStore> for NoDeadline {
    fn renew<'a>(&'a self, store: &'a MemoryStore, lease: &'a Lease, ttl: Duration) -> Answer<'a, Option<Renewal>> {
        store.renew(lease, if fastrand::bool() { ttl / 8 } else { ttl })
    }
}
