//! D13, decision 10: an event that ends its process, and a supervisor that starts the process again.

use pillarbox_core::domain::Status;
use serde_json::{Value, json};

use super::{Site, Stage, wait};

const MAX_STARTS: usize = 3;

/// Starts the node again as often as it dies, and returns how often that was.
fn supervise<S: Site>(stage: &Stage<S>, task: &Value, dead: usize) -> usize {
    let mut deaths = 0;
    let mut node = stage.start("node", task.clone());
    wait("the end of the deaths", || {
        if node.has_ended() {
            deaths += 1;
            assert!(deaths < 30, "it dies without end");
            node = stage.start("node", task.clone());
        }
        let over = stage.events(&[Status::Dead]);
        // The key of a dead head waits: the follower is pending.
        let held = over.iter().filter(|found| found.holds_key).count();
        let pending = usize::try_from(stage.pending()).unwrap();
        let wrote = stage.number("select count(*) from lives where name = 'node'") > 0;
        (over.len() == dead && pending == held && wrote).then_some(())
    });
    deaths
}

fn neighbours(n: usize) -> Vec<Value> {
    (0..n).map(|n| if n % 2 == 0 { json!({}) } else { json!({ "key": format!("k{}", n % 5) }) }).collect()
}

fn with_neighbours(poison: &[Value]) -> Vec<Value> {
    let mut orders = neighbours(12);
    orders.extend(poison.iter().cloned());
    orders.extend(neighbours(12));
    orders
}

fn dies_alone<S: Site>(cold: &[Value], hot: &[Value], poisons: usize) {
    let stage = Stage::<S>::new();
    if !cold.is_empty() {
        assert!(stage.start("writer", json!({ "role": "writer", "once": cold })).end());
    }
    let task = json!({ "role": "single", "lease": 1_500, "max_starts": MAX_STARTS, "once": hot });
    let deaths = supervise(&stage, &task, poisons);
    println!("{poisons} poison events, {deaths} deaths");
    // The first one of a death is not counted, and one more may fall between a start and its count.
    assert!((poisons * MAX_STARTS..=poisons * MAX_STARTS + 2).contains(&deaths), "{deaths} deaths");

    let orders = stage.orders();
    let ledger = stage.ledger();
    let delivered = ledger.delivered();
    for found in stage.events(&[Status::Dead]) {
        let order: Value = found.record.as_ref().unwrap().event.payload().to().unwrap();
        assert_eq!(order["then"], "abort", "a neighbour died too: {found:?}");
    }
    assert_eq!(u64::try_from(orders.len() - delivered.len() - poisons).unwrap(), stage.pending());
    assert_eq!(stage.number("select count(*) from outbox_event where starts <> 0"), 0);
    ledger.assert_in_order_per_key(&orders);
}

/// D13: read from the table.
pub fn a_poison_event_without_a_key_dies_alone_on_the_cold_path<S: Site>() {
    dies_alone::<S>(&with_neighbours(&[json!({ "then": "abort" })]), &[], 1);
}

/// D13, O3: the follower waits for an operator.
pub fn a_poison_event_with_a_key_dies_alone_and_holds_its_key<S: Site>() {
    let poison = [json!({ "then": "abort", "key": "p" }), json!({ "key": "p" })];
    dies_alone::<S>(&with_neighbours(&poison), &neighbours(6), 1);
}

/// D13: one was written by the process that it ends.
pub fn poison_events_on_the_hot_and_the_cold_path_die_without_their_neighbours<S: Site>() {
    let poison = [json!({ "then": "abort" })];
    dies_alone::<S>(&with_neighbours(&poison), &with_neighbours(&poison), 2);
}
