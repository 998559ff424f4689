use pillarbox_core::{Event, Outbox};
use pillarbox_testkit::MemoryStore;

struct Pool;

async fn in_no_transaction(outbox: Outbox<MemoryStore>, mut pool: Pool, event: Event) {
    let _ = outbox.write(&mut pool, event);
}

async fn without_one(outbox: Outbox<Pool>) {
    let _ = outbox.begin();
}

fn main() {}
