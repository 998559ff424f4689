//! Without the fence's lock, and without the epoch.

use pillarbox_core::{
    domain::Lease,
    port::{Batch, Settled},
};
use tokio::time::{Duration, sleep};

use crate::{
    MemoryStore,
    memory::Guards,
    proof::{Answer, Layer},
};

/// How long a settle may take between the check and its writes.
const GAP: Duration = Duration::from_secs(3);

/// The settle looks whether the lease and the epochs are in force, and then writes, without the lock that keeps others
/// from expelling the node in between. In the product it is the lock of the node's row that the settle's transaction
/// takes first: `select ... for update` on the servers, `begin immediate` on SQLite.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnlockedFence;

impl Layer<MemoryStore> for UnlockedFence {
    fn settle<'a>(&'a self, store: &'a MemoryStore, lease: &'a Lease, batch: &'a Batch) -> Answer<'a, Settled> {
        Box::pin(async move {
            let Some(current) = store.look_at_fence(lease, batch).await else { return Ok(Settled::Fenced) };
            if fastrand::u8(..3) == 0 {
                sleep(GAP.mul_f64(fastrand::f64())).await;
            }
            Ok(store.settle_guarded(lease, &current, Guards { lease: false, epoch: false }).await)
        })
    }
}

/// The settle holds the lease's lock, and accepts outcomes whatever the epoch of their partition is by now. In the
/// product every outcome is joined with its partition's row, and compared with its epoch.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoEpoch;

impl Layer<MemoryStore> for NoEpoch {
    fn settle<'a>(&'a self, store: &'a MemoryStore, lease: &'a Lease, batch: &'a Batch) -> Answer<'a, Settled> {
        Box::pin(async move { Ok(store.settle_guarded(lease, batch, Guards { lease: true, epoch: false }).await) })
    }
}
