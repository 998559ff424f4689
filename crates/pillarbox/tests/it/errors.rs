//! A handler fails with whatever error its author has.

#![expect(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::error::Error;

use anyhow::Context as _;
use pillarbox::{OutboxError, Query, RetryPolicy, prelude::*};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, OutboxEvent)]
struct Fails {
    with: String,
}

#[derive(Debug, thiserror::Error)]
enum ShopError {
    #[error("there is no {0}")]
    NoSuchItem(&'static str),
    #[error("the number is bad")]
    BadNumber(#[from] std::num::ParseIntError),
}

async fn with_anyhow(_: Fails) -> anyhow::Result<()> {
    "x".parse::<i32>().context("the file can't be read")?;
    Ok(())
}

async fn with_a_box(_: Fails) -> Result<(), Box<dyn Error + Send + Sync>> {
    "x".parse::<i32>()?;
    Ok(())
}

async fn with_its_own(_: Fails, meta: Metadata) -> Result<Outcome, ShopError> {
    if meta.attempt() > 1 {
        return Err(ShopError::NoSuchItem("tea"));
    }
    "x".parse::<i32>()?;
    Ok(Outcome::Done)
}

async fn with_words(_: Fails) -> Result<(), String> {
    Err("in plain words".into())
}

async fn with_pillarbox(_: Fails) -> Result<(), HandlerError> {
    Err(HandlerError::msg("at once").permanent())
}

/// The error that an event is left with, and after how many attempts.
macro_rules! dead_after {
    ($handler:expr) => {
        dead_after(|outbox| outbox.handle($handler)).await.unwrap()
    };
}

type Shop = pillarbox::Builder<SqliteStore, pillarbox::mode::SingleNode>;

async fn dead_after(register: impl FnOnce(Shop) -> Shop) -> Result<(u32, String), OutboxError> {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("a.db").display().to_string()).await?;
    let twice = RetryPolicy::fixed(std::time::Duration::from_millis(1)).max_attempts(2);
    let outbox = register(Outbox::single_node(store).retry(twice)).start().await?;
    let mut tx = outbox.begin().await.unwrap();
    tx.write(&Fails { with: "an error".into() }).await.unwrap();
    tx.commit().await.unwrap();
    let found = loop {
        if let Some(found) = outbox.dead().list(&Query::default(), None, 1).await?.events.pop() {
            break found;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    };
    outbox.shutdown().await;
    Ok((found.attempts, found.last_error.unwrap()))
}

/// And the text has the sources too, so that an operator need not look into the log.
#[tokio::test]
async fn a_handler_may_fail_with_any_error() {
    assert_eq!(dead_after!(with_anyhow), (2, "the file can't be read: invalid digit found in string".into()));
    assert_eq!(dead_after!(with_a_box), (2, "invalid digit found in string".into()));
    assert_eq!(dead_after!(with_its_own), (2, "there is no tea".into()));
    assert_eq!(dead_after!(with_words), (2, "in plain words".into()));
    assert_eq!(dead_after!(with_pillarbox), (1, "at once".into()));
}

/// A class of errors is found in the sources of each of them.
#[tokio::test]
async fn a_policy_finds_an_error_in_what_it_is_wrapped_in() {
    let not_for_numbers = || RetryPolicy::never().max_attempts(5).never_on::<std::num::ParseIntError>();
    for (name, dead) in [
        ("anyhow", dead_after!(handler(with_anyhow).retry(not_for_numbers()))),
        ("box", dead_after!(handler(with_a_box).retry(not_for_numbers()))),
        ("its own", dead_after!(handler(with_its_own).retry(not_for_numbers()))),
    ] {
        assert_eq!(dead.0, 1, "{name}: {}", dead.1);
    }
}
