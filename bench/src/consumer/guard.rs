//! Marks a second, by `Guard::try_process` and by the bare statement: same table, or key, same driver, and as many
//! connections as there are callers, where a driver has one for each.

use std::time::Instant;

use futures_util::future::try_join_all;
use pillarbox_inbox::Guard;

use super::{OF_STATEMENT, Sizes, Wanted, id};
use crate::{
    Result,
    report::{Figure, Report},
    rounds::{Rounds, float},
};

/// Callers at once, in the second figure of each backend.
pub(super) const MANY: usize = 16;
/// The consumer for which messages are marked.
pub(super) const CONSUMER: &str = "billing";
/// Whose marks those of the bare statement are.
pub(super) const BY: &str = "01ARZ3NDEKTSV4RRFFQ69G5FAV";

/// The figures of each backend: of one caller, and of several at once.
pub(super) mod names {
    pub(in super::super) const MEMORY: [&str; 2] = ["guard_memory", "guard_memory_16"];
    pub(in super::super) const SQLITE: [&str; 2] = ["guard_sqlite", "guard_sqlite_16"];
    pub(in super::super) const POSTGRES: [&str; 2] = ["guard_postgres", "guard_postgres_16"];
    pub(in super::super) const MYSQL: [&str; 2] = ["guard_mysql", "guard_mysql_16"];
    pub(in super::super) const REDIS: [&str; 2] = ["guard_redis", "guard_redis_16"];
    pub(in super::super) const NATS: [&str; 2] = ["guard_nats", "guard_nats_16"];
}

/// Where marks are.
pub(super) trait Place {
    const NAMES: [&'static str; 2];
    /// Whether a call waits for nothing.
    const IS_FAST: bool = false;
    type Bare: Marks;
    /// What lives as long as the guard.
    type Kept;

    /// The bare statement, where no message is marked.
    async fn bare(&self, callers: usize) -> Result<Self::Bare>;

    /// A guard, where no message is marked.
    async fn guard(&self) -> Result<(Guard, Self::Kept)>;

    /// What the bare statement is.
    fn note(&self) -> String;
}

/// Who marks messages.
pub(super) trait Marks {
    /// Whether the message had no mark. `caller` is the number of who asks.
    async fn mark(&self, caller: usize, message: &str) -> Result<bool>;
}

impl Marks for Guard {
    async fn mark(&self, _caller: usize, message: &str) -> Result<bool> {
        Ok(self.try_process(CONSUMER, message).await?)
    }
}

pub(super) async fn run<P: Place>(place: &P, sizes: &Sizes, wanted: &Wanted<'_>, report: &mut Report) -> Result<()> {
    for (callers, name, marks) in [(1, P::NAMES[0], sizes.marks[0]), (MANY, P::NAMES[1], sizes.marks[1])] {
        if !wanted.has(name) {
            continue;
        }
        report.begin(name);
        let marks = if P::IS_FAST { sizes.fast_marks } else { marks };
        let rounds = Rounds::run(
            sizes.rounds,
            async || rate(&place.bare(callers).await?, callers, marks).await,
            async || {
                let (guard, _kept) = place.guard().await?;
                rate(&guard, callers, marks).await
            },
        );
        let rounds = rounds.await?;
        let at_once = if callers == 1 { "one caller".into() } else { format!("{callers} callers at once") };
        let note = format!("{at_once}; the limit: {}", place.note());
        report.add(Figure::of_rounds(name, "marks/s", &rounds, Some(OF_STATEMENT)).note(note));
    }
    Ok(())
}

/// Marks a second. Each is the first of its message.
async fn rate<M: Marks>(marks: &M, callers: usize, count: usize) -> Result<f64> {
    let each = count / callers;
    // Connections are opened, and statements prepared.
    try_join_all((0..callers).map(|caller| async move { marks.mark(caller, &id(caller, usize::MAX / 2)).await }))
        .await?;
    let begun = Instant::now();
    let all = (0..callers).map(async |caller| {
        for number in 0..each {
            let message = id(caller, number);
            if !marks.mark(caller, &message).await? {
                return Err(format!("message {message} had a mark").into());
            }
        }
        Result::Ok(())
    });
    try_join_all(all).await?;
    let took = begun.elapsed();
    for caller in 0..callers {
        if marks.mark(caller, &id(caller, each - 1)).await? {
            return Err("a mark was not made".into());
        }
    }
    Ok(float(each * callers) / took.as_secs_f64())
}
