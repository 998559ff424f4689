//! The short form of the trial.

use pillarbox_servers::Shared;
use sqlx::{Connection as _, SqliteConnection};
use tempfile::TempDir;

use super::saga;

const ORDERS: &str = "60";
const SEED: &str = "7";

#[tokio::test]
async fn services_that_are_killed_at_random_agree_in_the_end_and_a_second_charge_would_be_noticed() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().to_str().unwrap();
    let nats = Shared::Nats.url();
    let pace = ["--rate", "30", "--kill-every", "300ms", "--timeout", "5s", "--within", "2m"];
    let place = ["--orders", ORDERS, "--seed", SEED, "--nats", &nats, "--folder", path];
    let (output, words) = saga(&[&place[..], &pace[..]].concat());
    assert!(output.status.success(), "{words}");
    assert!(words.contains("verdict: money, stock and orders agree"), "{words}");
    // Each way to end has been gone.
    for end in
        ["CONFIRMED", "CANCELLED OUT_OF_STOCK", "CANCELLED DECLINED", "CANCELLED TIMED_OUT", "CANCELLED REFUNDED"]
    {
        assert!(words.contains(&format!("  {end}")), "{end}: {words}");
    }
    let last = words.lines().rfind(|line| line.contains("kills")).unwrap();
    assert!(!last.contains("kills 0") && !last.contains("replayed  0"), "{last}");
    assert!(last.contains("dead letters  0"), "{last}");

    let mut database = SqliteConnection::connect(folder.path().join("payment.db").to_str().unwrap()).await.unwrap();
    let twice = "insert into booking select * from booking where kind = 'CHARGE' limit 1 returning order_id";
    let id: String = sqlx::query_scalar(twice).fetch_one(&mut database).await.unwrap();
    let (output, words) = saga(&["verdict", "--folder", path, "--orders", ORDERS, "--seed", SEED]);
    assert_eq!(output.status.code(), Some(1), "{words}");
    assert!(words.contains(&format!("WRONG: {id} was charged 2 times")), "{words}");
}

#[test]
fn without_the_inbox_the_verdict_names_what_was_heard_twice() {
    let folder = TempDir::new().unwrap();
    let nats = Shared::Nats.url();
    let place = ["--orders", ORDERS, "--seed", SEED, "--nats", &nats, "--folder", folder.path().to_str().unwrap()];
    // One acknowledgement in twenty is lost, of hundreds.
    let (output, words) = saga(&[&place[..], &["--without-inbox", "--timeout", "3s", "--within", "2m"]].concat());
    assert_eq!(output.status.code(), Some(1), "{words}");
    assert!(words.contains("WRONG: ") && words.contains("a dead letter") && words.contains("can't be"), "{words}");
}
