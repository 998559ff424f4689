//! A consumer's transactions: the messages are entered, one row of work is written, and both commit. By the inbox, and by
//! the bare insert into one of its tables; everything else is the same.

use std::time::{Duration, Instant};

use super::{OF_STATEMENT, Sizes, Wanted, id};
use crate::{
    Result,
    report::{Figure, Report},
    rounds::{Rounds, float},
};

/// The figures of each backend: of one message a transaction, of a hundred, and of a hundred with random ids and a bucket
/// before that is filled with such.
pub(super) mod names {
    pub(in super::super) const SQLITE: [&str; 3] = ["inbox_sqlite", "inbox_sqlite_100", "inbox_sqlite_random"];
    pub(in super::super) const POSTGRES: [&str; 3] = ["inbox_postgres", "inbox_postgres_100", "inbox_postgres_random"];
    pub(in super::super) const MYSQL: [&str; 3] = ["inbox_mysql", "inbox_mysql_100", "inbox_mysql_random"];
}

/// Messages of a large transaction.
pub(super) const MANY: usize = 100;
/// The consumer for which messages are entered.
pub(super) const CONSUMER: &str = "billing";
/// How long messages are remembered.
pub(super) const WINDOW: Duration = Duration::from_hours(24);

/// Who enters the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    Hand,
    Inbox,
}

/// Where transactions are.
pub(super) trait Place {
    const NAMES: [&'static str; 3];
    type Desk: Desk;

    /// A new database with the inbox's tables and that of the work, all empty but for so many messages with random ids in the
    /// bucket before.
    async fn desk(&self, before: usize) -> Result<Self::Desk>;
}

/// A database with an inbox, and work.
pub(super) trait Desk {
    /// Begins a transaction, enters the messages, writes a row of work, and commits. An error if one was known.
    async fn run(&self, by: By, messages: &[&str]) -> Result<()>;

    /// How many messages are entered, and how many rows of work there are.
    async fn count(&self) -> Result<(usize, usize)>;
}

/// What is done.
#[derive(Clone, Copy, Debug)]
struct Load {
    transactions: usize,
    /// Of each transaction.
    messages: usize,
    /// Messages of the bucket before. If there are any, they have random ids, and so has what is entered.
    before: usize,
}

pub(super) async fn run<P: Place>(place: &P, sizes: &Sizes, wanted: &Wanted<'_>, report: &mut Report) -> Result<()> {
    let [one, many] = sizes.transactions;
    let loads = [(one, 1, 0), (many, MANY, 0), (many, MANY, sizes.before)];
    for (name, (transactions, messages, before)) in P::NAMES.into_iter().zip(loads) {
        if !wanted.has(name) {
            continue;
        }
        report.begin(name);
        let load = Load { transactions, messages, before };
        let rounds = Rounds::run(
            sizes.rounds,
            async || rate(&place.desk(before).await?, By::Hand, load).await,
            async || rate(&place.desk(before).await?, By::Inbox, load).await,
        );
        let rounds = rounds.await?;
        let mut note = format!("{messages} a transaction, with one row of work");
        if before > 0 {
            note = format!("{note}; random ids, {before} of them in the bucket before");
        }
        report.add(Figure::of_rounds(name, "messages/s", &rounds, Some(OF_STATEMENT)).note(note));
    }
    Ok(())
}

/// Transactions before those that count: connections are opened, statements prepared and planned.
const BEFORE: usize = 10;
/// How long they go on at the least where the bucket before is filled: by then an inbox recalls it, as it does for nearly all of
/// a bucket's hours.
const RECALLED: Duration = Duration::from_secs(2);

/// Messages a second.
async fn rate<D: Desk>(desk: &D, by: By, load: Load) -> Result<f64> {
    let Load { transactions, messages, before } = load;
    let id_of = |transaction: usize, place| match before {
        0 => id(0, transaction * messages + place),
        _ => format!("{:032x}", fastrand::u128(..)),
    };
    let run = async |transaction| {
        let ids: Vec<String> = (0..messages).map(|place| id_of(transaction, place)).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        desk.run(by, &ids).await
    };
    let (opened, warm) = (Instant::now(), if before == 0 { Duration::ZERO } else { RECALLED });
    let mut number = 0;
    while number < BEFORE || opened.elapsed() < warm {
        run(number).await?;
        number += 1;
    }
    let (begun, end) = (Instant::now(), number + transactions);
    for number in number..end {
        run(number).await?;
    }
    let took = begun.elapsed();
    let expected = (before + end * messages, end);
    let there = desk.count().await?;
    if there != expected {
        return Err(format!("messages and work: {there:?} are there, and {expected:?} should be").into());
    }
    Ok(float(transactions * messages) / took.as_secs_f64())
}
