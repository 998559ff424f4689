//! The consumer's half: guard, inbox and consumer loop, each beside what is left of it when it is written by hand.
//!
//! Every round looks at what was done: a mark that was not made, an entry that is missing, or a message that was handled
//! twice or not at all is an error, and there is no figure.

mod broker;
mod guard;
mod inbox;
mod memory;
mod sql;

use std::path::Path;

use crate::{
    Result,
    backend::{Backend as _, mysql, postgres, sqlite},
    report::{Report, Target},
};

/// Of the bare statement.
const OF_STATEMENT: Target = Target::AtLeast(0.8);

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    rounds: usize,
    /// Marks of one caller, and of several at once.
    marks: [usize; 2],
    /// The same where nothing waits for a disk or a network.
    fast_marks: usize,
    /// Transactions of one message, and of a hundred.
    transactions: [usize; 2],
    /// Messages of the bucket before, where it is filled.
    before: usize,
    /// Messages of the consumer loop.
    messages: usize,
    /// Rounds of the consumer loop.
    loops: usize,
}

impl Sizes {
    pub(crate) fn new(quick: bool, rounds: usize) -> Self {
        if quick {
            Self {
                rounds: 3,
                marks: [200, 1_600],
                fast_marks: 100_000,
                transactions: [200, 50],
                before: 20_000,
                messages: 20_000,
                loops: 2,
            }
        } else {
            Self {
                rounds,
                marks: [2_000, 16_000],
                fast_marks: 500_000,
                transactions: [2_000, 300],
                before: 200_000,
                messages: 200_000,
                loops: rounds,
            }
        }
    }
}

/// The databases of a run. Servers that nobody asks for are not started.
pub(crate) struct Beds {
    sqlite: sqlite::Bed,
    postgres: postgres::Bed,
    mysql: Option<mysql::Bed>,
}

/// Which figures are wanted.
pub(crate) struct Wanted<'a>(&'a [String]);

impl<'a> Wanted<'a> {
    pub(crate) fn new(only: &'a [String]) -> Result<Self> {
        let names = ["guard", "inbox", "consumer"];
        let is_one = |only: &&String| !names.iter().any(|name| name.starts_with(*only) || only.starts_with(name));
        match only.iter().find(is_one) {
            Some(unknown) => Err(format!("there is no bench `{unknown}`: {} are there", names.join(", ")).into()),
            None => Ok(Self(only)),
        }
    }

    fn has(&self, name: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|only| name.starts_with(only.as_str()))
    }
}

impl Beds {
    pub(crate) async fn start(wanted: &Wanted<'_>, dir: Option<&Path>, url: Option<&str>) -> Result<Self> {
        let wants_mysql = wanted.has(guard::names::MYSQL[0])
            || wanted.has(guard::names::MYSQL[1])
            || inbox::names::MYSQL.iter().any(|name| wanted.has(name));
        Ok(Self {
            sqlite: sqlite::Bed::new(dir)?,
            postgres: postgres::Bed::new(url).await?,
            mysql: if wants_mysql { Some(mysql::Bed::new(mysql::Family::MariaDb, None).await?) } else { None },
        })
    }

    /// What is measured, for the heading.
    pub(crate) fn place(&self) -> String {
        let mysql = self.mysql.as_ref().map(|mysql| format!("; {}", mysql.place())).unwrap_or_default();
        format!("SQLite in {}; {}{mysql}", self.sqlite.place(), self.postgres.place())
    }
}

/// Measures what is wanted.
pub(crate) async fn run(beds: &Beds, sizes: &Sizes, wanted: &Wanted<'_>, report: &mut Report) -> Result<()> {
    guard::run(&memory::Maps, sizes, wanted, report).await?;
    guard::run(&sql::Sqlite(&beds.sqlite), sizes, wanted, report).await?;
    guard::run(&sql::Postgres(&beds.postgres), sizes, wanted, report).await?;
    if let Some(mysql) = &beds.mysql {
        guard::run(&sql::MySql(mysql), sizes, wanted, report).await?;
    }
    if guard::names::REDIS.iter().any(|name| wanted.has(name)) {
        guard::run(&broker::Redis::start()?, sizes, wanted, report).await?;
    }
    if guard::names::NATS.iter().any(|name| wanted.has(name)) {
        guard::run(&broker::Nats::start()?, sizes, wanted, report).await?;
    }
    inbox::run(&sql::Sqlite(&beds.sqlite), sizes, wanted, report).await?;
    inbox::run(&sql::Postgres(&beds.postgres), sizes, wanted, report).await?;
    if let Some(mysql) = &beds.mysql {
        inbox::run(&sql::MySql(mysql), sizes, wanted, report).await?;
    }
    if wanted.has(broker::names::NATS) {
        broker::run(&broker::Nats::start()?, &beds.postgres, sizes, report).await?;
    }
    if wanted.has(broker::names::REDIS) {
        broker::run(&broker::Redis::start()?, &beds.postgres, sizes, report).await?;
    }
    Ok(())
}

/// What a message is known by: as long as the ids of events.
fn id(caller: usize, number: usize) -> String {
    format!("01M{caller:03}{number:020}")
}
