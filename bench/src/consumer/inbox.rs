//! A consumer's transactions: the messages are entered, one row of work is written, and both commit. By the inbox, and by
//! the bare insert into one of its tables; everything else is the same.

use std::time::Instant;

use super::{OF_STATEMENT, Sizes, Wanted, id};
use crate::{
    Result,
    report::{Figure, Report},
    rounds::{Rounds, float},
};

/// The figures of each backend: of one message a transaction, and of a hundred.
pub(super) mod names {
    pub(in super::super) const SQLITE: [&str; 2] = ["inbox_sqlite", "inbox_sqlite_100"];
    pub(in super::super) const POSTGRES: [&str; 2] = ["inbox_postgres", "inbox_postgres_100"];
    pub(in super::super) const MYSQL: [&str; 2] = ["inbox_mysql", "inbox_mysql_100"];
}

/// Messages of a large transaction.
pub(super) const MANY: usize = 100;
/// The consumer for which messages are entered.
pub(super) const CONSUMER: &str = "billing";

/// Who enters the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    Hand,
    Inbox,
}

/// Where transactions are.
pub(super) trait Place {
    const NAMES: [&'static str; 2];
    type Desk: Desk;

    /// A new database with the inbox's tables and that of the work, all empty.
    async fn desk(&self) -> Result<Self::Desk>;
}

/// A database with an inbox, and work.
pub(super) trait Desk {
    /// Begins a transaction, enters the messages, writes a row of work, and commits. An error if one was known.
    async fn run(&self, by: By, messages: &[&str]) -> Result<()>;

    /// How many messages are entered, and how many rows of work there are.
    async fn count(&self) -> Result<(usize, usize)>;
}

pub(super) async fn run<P: Place>(place: &P, sizes: &Sizes, wanted: &Wanted<'_>, report: &mut Report) -> Result<()> {
    for (messages, name, transactions) in
        [(1, P::NAMES[0], sizes.transactions[0]), (MANY, P::NAMES[1], sizes.transactions[1])]
    {
        if !wanted.has(name) {
            continue;
        }
        report.begin(name);
        let rounds = Rounds::run(
            sizes.rounds,
            async || rate(&place.desk().await?, By::Hand, transactions, messages).await,
            async || rate(&place.desk().await?, By::Inbox, transactions, messages).await,
        );
        let rounds = rounds.await?;
        let note = format!("{messages} a transaction, with one row of work");
        report.add(Figure::of_rounds(name, "messages/s", &rounds, Some(OF_STATEMENT)).note(note));
    }
    Ok(())
}

/// Messages a second.
async fn rate<D: Desk>(desk: &D, by: By, transactions: usize, messages: usize) -> Result<f64> {
    // Connections are opened, statements prepared and planned.
    const BEFORE: usize = 10;
    let mut begun = Instant::now();
    for number in 0..transactions + BEFORE {
        if number == BEFORE {
            begun = Instant::now();
        }
        let ids: Vec<String> = (0..messages).map(|place| id(0, number * messages + place)).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        desk.run(by, &ids).await?;
    }
    let took = begun.elapsed();
    let expected = ((transactions + BEFORE) * messages, transactions + BEFORE);
    let there = desk.count().await?;
    if there != expected {
        return Err(format!("messages and work: {there:?} are there, and {expected:?} should be").into());
    }
    Ok(float(transactions * messages) / took.as_secs_f64())
}
