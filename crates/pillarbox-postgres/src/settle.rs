//! Settling: the outcomes of a batch, behind the fence, in one transaction.
//!
//! Four round trips, if nothing has failed: begin, the fence, one statement that finishes events and stores the mark,
//! commit. That statement also looks at the epochs; if one is not the partition's any more it writes nothing and says
//! which, and is sent again without those. It waits at the table of events for whoever empties that, and sees what he has done to
//! the epochs, and to the life of the lease. Where numbers follow each other without a gap, as those of a backlog do, it has
//! their runs in place of them. What has failed takes one statement more for each kind.
//!
//! When the process dies before the commit, nothing is written: the events are delivered again by the next owner.
//! After it, everything is.

use pillarbox_core::domain::{Key, Lease, Partition, Seq};
use pillarbox_core::port::{Batch, Change, Hold, HoldChange, Settled, Settlement, StoreError};
use sqlx::{PgConnection, Row as _};

use crate::{PostgresStore, error, own::micros, row, tables::statements};

/// Finishes events, in ascending order, and stores the mark. What each kind is joined with, and how it is found.
macro_rules! finish {
    ($with_done:literal, $is_done:literal, $with_gone:literal, $is_gone:literal) => {
        concat!(
            "with stale as materialized (
            select given.number, given.epoch from unnest($1::smallint[], $2::bigint[]) as given (number, epoch)
            where not exists (select from {partition}
                where {partition}.number = given.number and owner = $3 and {partition}.epoch = given.epoch)
        ), done as (
            update {event} set status = 'DONE', done_at = {now}, available_at = null, starts = 0 ",
            $with_done,
            " where ",
            $is_done,
            " and status in ('NEW', 'RETRY') and not exists (select from stale)
        ), gone as (
            delete from {event} ",
            $with_gone,
            " where ",
            $is_gone,
            " and status in ('NEW', 'RETRY') and not exists (select from stale)
        ), marked as (
            update {mark} set mark = $6
            where incarnation = $7 and $6::bigint is not null and not exists (select from stale)
                and exists (select from {instance} join {life} using (life) where incarnation = $7)
        )
        select number, epoch from stale"
        )
    };
}

statements!(SettleSql {
    /// By primary key, each number by itself.
    finish: finish!("", "seq = any($4)", "", "seq = any($5)"),
    /// By primary key, each run from its first number to its last.
    finish_runs: finish!(
        "from unnest($4::bigint[], $8::bigint[]) as run (first, last)",
        "seq between first and last",
        "using unnest($5::bigint[], $9::bigint[]) as run (first, last)",
        "seq between first and last"
    ),
    interrupted: "update {event} set starts = 0
        where seq = any($1) and starts <> 0 and status in ('NEW', 'RETRY')",
    retry: "update {event} set status = 'RETRY', starts = 0, attempts = given.attempts,
            available_at = {now} + given.delay * interval '1 microsecond',
            last_error = coalesce(given.error, last_error), progress = coalesce(given.progress, {event}.progress)
        from unnest($1::bigint[], $2::integer[], $3::bigint[], $4::text[], $5::text[])
            as given (seq, attempts, delay, error, progress)
        where {event}.seq = given.seq and status in ('NEW', 'RETRY')",
    dead: "update {event} set status = 'DEAD', starts = 0, attempts = given.attempts, last_error = given.error,
            progress = coalesce(given.progress, {event}.progress), available_at = null, done_at = {now}
        from unnest($1::bigint[], $2::integer[], $3::text[], $4::text[]) as given (seq, attempts, error, progress)
        where {event}.seq = given.seq and status in ('NEW', 'RETRY')
        returning {event}.seq",
    /// By the holds' index.
    hold: "insert into {hold} as present (partition, name, kind, from_seq) values ($1, $2, $3, $4)
        on conflict (partition, name) where kind <> 'SINK'
        do update set kind = excluded.kind, from_seq = excluded.from_seq where present.kind <> 'DEAD_HEAD'",
    /// By the holds' index. A head that is still dead keeps its hold.
    hold_dead: "insert into {hold} as present (partition, name, kind, from_seq) values ($1, $2, 'DEAD_HEAD', $3)
        on conflict (partition, name) where kind <> 'SINK'
        do update set kind = excluded.kind, from_seq = excluded.from_seq
        where present.kind <> 'DEAD_HEAD' or not exists
            (select 1 from {event} where seq = present.from_seq and status = 'DEAD')",
    /// By the holds' index.
    unhold: "delete from {hold} where partition = $1 and name = $2 and kind <> 'SINK'",
    /// By primary key. Waits for whoever settles one of them.
    unsettled: "select seq from {event} where seq = any($1) and status in ('NEW', 'RETRY') order by seq for update",
    /// By primary key.
    start: "update {event} set starts = starts + 1
        where seq = $1 and status in ('NEW', 'RETRY') returning starts",
});

/// The outcomes of a batch by kind, a column each.
#[derive(Default)]
struct Sorted<'a> {
    partitions: Vec<i16>,
    epochs: Vec<i64>,
    done: Vec<i64>,
    deleted: Vec<i64>,
    interrupted: Vec<i64>,
    retried: Retried<'a>,
    dead: Died<'a>,
    holding: Vec<(Seq, Partition, &'a Key)>,
    stale: usize,
}

#[derive(Default)]
struct Retried<'a> {
    seqs: Vec<i64>,
    attempts: Vec<i32>,
    delays: Vec<i64>,
    errors: Vec<Option<&'a str>>,
    progress: Vec<Option<&'a str>>,
}

#[derive(Default)]
struct Died<'a> {
    seqs: Vec<i64>,
    attempts: Vec<i32>,
    errors: Vec<&'a str>,
    progress: Vec<Option<&'a str>>,
}

impl PostgresStore {
    pub(crate) async fn settle_batch(&self, lease: &Lease, batch: &Batch) -> Result<Settled, StoreError> {
        let Some(mut entered) = self.fenced(&self.0.settles, lease).await? else {
            return Ok(Settled::Fenced);
        };
        let tx = entered.connection().map_err(error::of)?;
        let stale = self.apply(tx, lease, batch).await.map_err(error::of)?;
        entered.commit().await?;
        Ok(Settled::Applied { stale })
    }

    pub(crate) async fn count_start(&self, lease: &Lease, seq: Seq) -> Result<Option<u32>, StoreError> {
        let Some(mut entered) = self.fenced(&self.0.settles, lease).await? else {
            return Ok(None);
        };
        let starts = self
            .query(&self.0.sql.settle.start)
            .bind(seq.0)
            .fetch_optional(entered.connection().map_err(error::of)?)
            .await
            .map_err(error::of)?;
        entered.commit().await?;
        // A broken count counts as one start: what is wrong with the row is told when it is read.
        Ok(starts.map(|row| row.try_get::<i32, _>(0).map_or(1, |starts| u32::try_from(starts).unwrap_or(1))))
    }

    /// Writes everything; returns how many outcomes were stale.
    pub(crate) async fn apply(
        &self,
        tx: &mut PgConnection,
        lease: &Lease,
        batch: &Batch,
    ) -> Result<usize, sqlx::Error> {
        let mut sorted = sort(&batch.outcomes, &[]);
        loop {
            let stale = self.finish(tx, lease, &sorted, batch.mark).await?;
            if stale.is_empty() {
                break;
            }
            sorted = sort(&batch.outcomes, &stale);
        }
        self.record_failures(tx, &sorted).await?;
        for change in &batch.holds {
            match change {
                HoldChange::Set(hold) => self.set_hold(tx, hold).await?,
                HoldChange::Clear { partition, key } => {
                    let unhold = self.query(&self.0.sql.settle.unhold);
                    unhold.bind(i16::from(partition.0)).bind(key.as_str()).execute(&mut *tx).await?;
                }
            }
        }
        Ok(sorted.stale)
    }

    /// Finishes events and stores the mark, or returns the pairs of partition and epoch that are stale.
    async fn finish(
        &self,
        tx: &mut PgConnection,
        lease: &Lease,
        sorted: &Sorted<'_>,
        mark: Option<Seq>,
    ) -> Result<Vec<(i16, i64)>, sqlx::Error> {
        if sorted.partitions.is_empty() && mark.is_none() {
            return Ok(Vec::new());
        }
        let (done, gone) = (Runs::of(&sorted.done), Runs::of(&sorted.deleted));
        let by_runs = done.are_long() && gone.are_long();
        let sql = &self.0.sql.settle;
        let query = self
            .query(if by_runs { &sql.finish_runs } else { &sql.finish })
            .bind(sorted.partitions.as_slice())
            .bind(sorted.epochs.as_slice())
            .bind(lease.node.as_str())
            .bind(if by_runs { done.first.as_slice() } else { &sorted.done })
            .bind(if by_runs { gone.first.as_slice() } else { &sorted.deleted })
            .bind(mark.map(|mark| mark.0))
            .bind(lease.incarnation.0);
        let query = if by_runs { query.bind(done.last).bind(gone.last) } else { query };
        let rows = query.fetch_all(tx).await?;
        rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
    }

    async fn record_failures(&self, tx: &mut PgConnection, sorted: &Sorted<'_>) -> Result<(), sqlx::Error> {
        let sql = &self.0.sql.settle;
        if !sorted.interrupted.is_empty() {
            self.query(&sql.interrupted).bind(sorted.interrupted.as_slice()).execute(&mut *tx).await?;
        }
        let Retried { seqs, attempts, delays, errors, progress } = &sorted.retried;
        if !seqs.is_empty() {
            let retry = self.query(&sql.retry).bind(seqs.as_slice()).bind(attempts.as_slice()).bind(delays.as_slice());
            retry.bind(errors.as_slice()).bind(progress.as_slice()).execute(&mut *tx).await?;
        }
        let Died { seqs, attempts, errors, progress } = &sorted.dead;
        if seqs.is_empty() {
            return Ok(());
        }
        let dead = self.query(&sql.dead).bind(seqs.as_slice()).bind(attempts.as_slice()).bind(errors.as_slice());
        let died = dead.bind(progress.as_slice()).fetch_all(&mut *tx).await?;
        let died = died.iter().map(|row| row.try_get(0)).collect::<Result<Vec<i64>, _>>()?;
        // A row that was finished before is no head.
        for (seq, partition, key) in sorted.holding.iter().filter(|(seq, ..)| died.contains(&seq.0)) {
            let hold = self.query(&sql.hold_dead).bind(i16::from(partition.0)).bind(key.as_str()).bind(seq.0);
            hold.execute(&mut *tx).await?;
        }
        Ok(())
    }

    async fn set_hold(&self, tx: &mut PgConnection, hold: &Hold) -> Result<(), sqlx::Error> {
        self.query(&self.0.sql.settle.hold)
            .bind(i16::from(hold.partition.0))
            .bind(hold.key.as_str())
            .bind(row::hold_kind(hold.kind))
            .bind(hold.from.0)
            .execute(tx)
            .await
            .map(drop)
    }
}

/// Sorts outcomes by kind, without those of stale pairs of partition and epoch.
fn sort<'a>(outcomes: &'a [Settlement], stale: &[(i16, i64)]) -> Sorted<'a> {
    let mut sorted = Sorted::default();
    // The epoch last seen of each partition: nearly always it is the only one, and a pair that is given twice does no harm.
    let mut seen = [None; Partition::COUNT];
    for outcome in outcomes {
        let pair = (i16::from(outcome.partition.0), outcome.epoch.0);
        if stale.contains(&pair) {
            sorted.stale += 1;
            continue;
        }
        if seen[usize::from(outcome.partition.0)].replace(outcome.epoch) != Some(outcome.epoch) {
            sorted.partitions.push(pair.0);
            sorted.epochs.push(pair.1);
        }
        match &outcome.change {
            Change::Done => sorted.done.push(outcome.seq.0),
            Change::Delete => sorted.deleted.push(outcome.seq.0),
            Change::Interrupted => sorted.interrupted.push(outcome.seq.0),
            Change::Retry { attempts, after, error, progress } => {
                let retried = &mut sorted.retried;
                retried.seqs.push(outcome.seq.0);
                retried.attempts.push(count(*attempts));
                retried.delays.push(micros(*after));
                retried.errors.push(error.as_deref());
                retried.progress.push(progress.as_deref());
            }
            Change::Dead { attempts, error, progress, hold } => {
                sorted.dead.seqs.push(outcome.seq.0);
                sorted.dead.attempts.push(count(*attempts));
                sorted.dead.errors.push(error);
                sorted.dead.progress.push(progress.as_deref());
                if let (true, Some(key)) = (hold, &outcome.key) {
                    sorted.holding.push((outcome.seq, outcome.partition, key));
                }
            }
        }
    }
    sorted
}

/// Numbers that follow each other without a gap, by the first and the last of each run. A run has no number that was not
/// given, so to find rows by it is to find them by their numbers; but it is looked up once, and then followed along the index,
/// which takes half as long.
#[derive(Debug, Default, PartialEq, Eq)]
struct Runs {
    first: Vec<i64>,
    last: Vec<i64>,
    numbers: usize,
}

impl Runs {
    /// Of ascending numbers.
    fn of(numbers: &[i64]) -> Self {
        let mut runs = Self { numbers: numbers.len(), ..Self::default() };
        for run in numbers.chunk_by(|one, next| one.checked_add(1) == Some(*next)) {
            runs.first.extend(run.first());
            runs.last.extend(run.last());
        }
        runs
    }

    /// Whether they are worth it: with fewer numbers each, runs take longer than the numbers do.
    fn are_long(&self) -> bool {
        self.first.len() * 2 <= self.numbers
    }
}

fn count(attempts: u32) -> i32 {
    i32::try_from(attempts).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_gap_ends_a_run() {
        let runs = Runs::of(&[1, 2, 3, 5, 8, 9]);
        assert_eq!(runs, Runs { first: vec![1, 5, 8], last: vec![3, 5, 9], numbers: 6 });
        assert!(runs.are_long());
        assert!(!Runs::of(&[1, 2, 4, 6]).are_long());
        assert!(Runs::of(&[]).are_long());
        assert_eq!(Runs::of(&[i64::MAX - 1, i64::MAX]).last, [i64::MAX]);
    }

    proptest! {
        #[test]
        fn runs_have_the_numbers_that_were_given_and_no_others(given in prop::collection::btree_set(0..60_i64, 0..50)) {
            let given: Vec<i64> = given.into_iter().collect();
            let Runs { first, last, .. } = Runs::of(&given);
            let all: Vec<i64> = first.iter().zip(&last).flat_map(|(first, last)| *first..=*last).collect();
            prop_assert_eq!(all, given);
        }
    }
}
