//! Numbers that begin anew: both servers give them out again after every `truncate`.

use pillarbox_core::Outbox as Engine;
use pillarbox_core::domain::Seq;
use pillarbox_testkit::{Probe, servers::Shared};

use crate::support::{MINUTE, Outbox, event, keyed, on_each_server, owner};

on_each_server!(
    events_are_delivered_after_the_table_was_emptied_between_two_nodes,
    a_mark_above_the_last_number_is_set_back_when_its_partition_is_taken,
);

/// P1, O9. What is written later than the node's first look for what slipped through is not found by the next one, ten minutes
/// later.
async fn events_are_delivered_after_the_table_was_emptied_between_two_nodes(server: Shared) {
    let outbox = Outbox::new(server).await;
    let probe = Probe::new();
    for round in 0..3 {
        let engine =
            Engine::single_node(outbox.another().await).route("Placed", probe.handler()).start().await.unwrap();
        for half in 1..=2 {
            outbox.write([event(), keyed("k")]).await;
            probe.wait_for(4 * round + 2 * half).await;
        }
        engine.shutdown().await;
        // As far as a node comes that is not gone again at once.
        outbox.run("update outbox_partition set mark = 4").await;
        outbox.run("truncate outbox_event").await;
    }
    assert_eq!(probe.log().ids().len(), 12);
}

/// P1. And stays where it is if the rows were deleted: to read from the beginning may cost a look at all of them.
async fn a_mark_above_the_last_number_is_set_back_when_its_partition_is_taken(server: Shared) {
    for (empty, left) in [("do 0", 3), ("delete from outbox_event", 3), ("truncate outbox_event", 0)] {
        let outbox = Outbox::new(server).await;
        outbox.write((0..3).map(|_| event())).await;
        outbox.run(empty).await;
        outbox.run("update outbox_partition set mark = if(number < 128, 2, 7)").await;
        let (_, taken) = owner(&outbox, "a", MINUTE).await;
        for taken in &taken {
            let mark = if taken.partition.0 < 128 { 2.min(left) } else { left };
            assert_eq!(taken.mark, Seq(mark), "{taken:?}");
        }
        let stored = outbox.number("select cast(sum(mark) as signed) from outbox_partition").await;
        assert_eq!(stored, 128 * (2.min(left) + left));
    }
}
