//! Settling: the outcomes of a batch, behind the fence, in one transaction.

use std::ops::RangeInclusive;

use pillarbox_core::domain::{Key, Lease, NodeId, Partition, Seq};
use pillarbox_core::port::{Batch, Change, Hold, HoldChange, Settled, Settlement, StoreError};
use sqlx::{Row as _, SqlStr, SqliteConnection};

use crate::{SqliteStore, error, own::micros, row, tables::statements};

statements!(SettleSql {
    /// The fence and the mark in one. By primary key.
    advance: "update {instance} set mark = ?
        where incarnation = ? and id = ? and until > {now}",
    epochs: "select json_group_array(iif(owner = ?, epoch, null))
        from (select owner, epoch from {partition} order by number)",
    /// By primary key, as all that follow.
    done_run: "update {event} not indexed set status = 'DONE', done_at = {now}, available_at = null, starts = 0
        where seq between ? and ? and status in ('NEW', 'RETRY')",
    done_each: "update {event} not indexed set status = 'DONE', done_at = {now}, available_at = null, starts = 0
        where seq in (select value from json_each(?)) and status in ('NEW', 'RETRY')",
    delete_run: "delete from {event} not indexed where seq between ? and ? and status in ('NEW', 'RETRY')",
    delete_each: "delete from {event} not indexed
        where seq in (select value from json_each(?)) and status in ('NEW', 'RETRY')",
    interrupted: "update {event} not indexed set starts = 0
        where seq in (select value from json_each(?)) and starts <> 0 and status in ('NEW', 'RETRY')",
    retry: "update {event} set status = 'RETRY', starts = 0, attempts = given.value ->> 1,
            available_at = {now} + (given.value ->> 2),
            last_error = coalesce(given.value ->> 3, last_error), progress = coalesce(given.value ->> 4, progress)
        from json_each(?) as given
        where seq = given.value ->> 0 and status in ('NEW', 'RETRY')",
    dead: "update {event} set status = 'DEAD', starts = 0, attempts = given.value ->> 1,
            last_error = given.value ->> 2, progress = coalesce(given.value ->> 3, progress),
            available_at = null, done_at = {now}
        from json_each(?) as given
        where seq = given.value ->> 0 and status in ('NEW', 'RETRY')
        returning seq",
    /// By the holds' index.
    hold: "insert into {hold} (partition, name, kind, from_seq) values (?, ?, ?, ?)
        on conflict (partition, name) where kind <> 'SINK'
        do update set kind = excluded.kind, from_seq = excluded.from_seq where kind <> 'DEAD_HEAD'",
    /// By the holds' index. A head that is still dead keeps its hold.
    hold_dead: "insert into {hold} (partition, name, kind, from_seq) values (?, ?, 'DEAD_HEAD', ?)
        on conflict (partition, name) where kind <> 'SINK'
        do update set kind = excluded.kind, from_seq = excluded.from_seq
        where kind <> 'DEAD_HEAD' or not exists
            (select 1 from {event} where seq = {hold}.from_seq and status = 'DEAD')",
    /// By the holds' index.
    unhold: "delete from {hold} where partition = ? and name = ? and kind <> 'SINK'",
    pending: "select seq from {event} not indexed
        where seq in (select value from json_each(?)) and status in ('NEW', 'RETRY') order by seq",
    start: "update {event} not indexed set starts = starts + 1
        where seq = ? and status in ('NEW', 'RETRY') returning starts",
});

// A run of 500 settled about twice as fast as the same number from a list; where the turn lies between a few
// runs and many is a guess, not measured.
const RUNS: usize = 4;

/// Number, attempts, delay in microseconds, error, progress: as the statement reads them.
type Retried<'a> = (i64, u32, i64, Option<&'a str>, Option<&'a str>);

/// Number, attempts, error, progress.
type Died<'a> = (i64, u32, &'a str, Option<&'a str>);

/// The outcomes of a batch by kind.
#[derive(Default)]
struct Sorted<'a> {
    done: Vec<Seq>,
    deleted: Vec<Seq>,
    interrupted: Vec<Seq>,
    retried: Vec<Retried<'a>>,
    dead: Vec<Died<'a>>,
    holding: Vec<(Seq, Partition, &'a Key)>,
    stale: usize,
}

impl SqliteStore {
    pub(crate) async fn settle_batch(&self, lease: &Lease, batch: &Batch) -> Result<Settled, StoreError> {
        let (_turn, mut entered) = self.write_on(&self.0.settles).await?;
        let mut tx = entered.begin().await?;
        let settled = self.settle_on(&mut tx, lease, batch).await?;
        if settled != Settled::Fenced {
            tx.commit().await.map_err(error::of_commit)?;
        }
        Ok(settled)
    }

    /// Settles in a transaction that holds the write lock.
    pub(crate) async fn settle_on(
        &self,
        tx: &mut SqliteConnection,
        lease: &Lease,
        batch: &Batch,
    ) -> Result<Settled, StoreError> {
        if !self.fence(tx, lease, batch).await? {
            return Ok(Settled::Fenced);
        }
        let mut stale = 0;
        if !batch.outcomes.is_empty() {
            let epochs = self.epochs(tx, &lease.node).await?;
            let sorted = sort(&batch.outcomes, &epochs);
            stale = sorted.stale;
            self.apply(tx, &sorted).await?;
        }
        for change in &batch.holds {
            match change {
                HoldChange::Set(hold) => self.set_hold(tx, hold).await?,
                HoldChange::Clear { partition, key } => {
                    let unhold = sqlx::query(self.0.sql.settle.unhold.clone());
                    let unhold = unhold.bind(i64::from(partition.0)).bind(key.as_str());
                    unhold.execute(&mut *tx).await.map_err(error::of)?;
                }
            }
        }
        Ok(Settled::Applied { stale })
    }

    /// Those of the rows that are pending. Who has the write lock finds no settle under way.
    pub(crate) async fn pending(&self, seqs: &[Seq]) -> Result<Vec<Seq>, StoreError> {
        let (_turn, mut entered) = self.write_on(&self.0.settles).await?;
        let mut tx = entered.begin().await?;
        let pending =
            sqlx::query(self.0.sql.settle.pending.clone()).bind(row::json_numbers(seqs.iter().map(|seq| seq.0)));
        let rows = pending.fetch_all(&mut *tx).await.map_err(error::of)?;
        rows.iter().map(|row| row.try_get(0).map(Seq)).collect::<Result<_, _>>().map_err(error::of)
    }

    pub(crate) async fn count_start(&self, lease: &Lease, seq: Seq) -> Result<Option<u32>, StoreError> {
        let (_turn, mut entered) = self.write_on(&self.0.settles).await?;
        let mut tx = entered.begin().await?;
        if !self.in_force(&mut tx, lease).await? {
            return Ok(None);
        }
        let starts = sqlx::query(self.0.sql.settle.start.clone())
            .bind(seq.0)
            .fetch_optional(&mut *tx)
            .await
            .map_err(error::of)?;
        tx.commit().await.map_err(error::of_commit)?;
        // A broken count counts as one start: what is wrong with the row is told when it is read.
        Ok(starts.map(|row| row.try_get::<i64, _>(0).map_or(1, |starts| u32::try_from(starts).unwrap_or(1))))
    }

    async fn fence(&self, tx: &mut SqliteConnection, lease: &Lease, batch: &Batch) -> Result<bool, StoreError> {
        let Some(mark) = batch.mark else {
            return self.in_force(tx, lease).await;
        };
        let advanced = sqlx::query(self.0.sql.settle.advance.clone())
            .bind(mark.0)
            .bind(lease.incarnation.0)
            .bind(lease.node.as_str())
            .execute(tx)
            .await
            .map_err(error::of)?;
        Ok(advanced.rows_affected() == 1)
    }

    /// The epochs of the partitions that the node owns.
    async fn epochs(&self, tx: &mut SqliteConnection, node: &NodeId) -> Result<Vec<Option<i64>>, StoreError> {
        let row =
            sqlx::query(self.0.sql.settle.epochs.clone()).bind(node.as_str()).fetch_one(tx).await.map_err(error::of)?;
        serde_json::from_str(row.try_get(0).map_err(error::of)?).map_err(error::unreadable)
    }

    async fn apply(&self, tx: &mut SqliteConnection, sorted: &Sorted<'_>) -> Result<(), StoreError> {
        let sql = &self.0.sql.settle;
        finish(tx, &sorted.done, &sql.done_run, &sql.done_each).await?;
        finish(tx, &sorted.deleted, &sql.delete_run, &sql.delete_each).await?;
        if !sorted.interrupted.is_empty() {
            let list = row::json_numbers(sorted.interrupted.iter().map(|seq| seq.0));
            execute_with(tx, &sql.interrupted, list).await?;
        }
        if !sorted.retried.is_empty() {
            execute_with(tx, &sql.retry, serde_json::to_string(&sorted.retried).unwrap_or_default()).await?;
        }
        if !sorted.dead.is_empty() {
            let died = sqlx::query(sql.dead.clone())
                .bind(serde_json::to_string(&sorted.dead).unwrap_or_default())
                .fetch_all(&mut *tx)
                .await
                .map_err(error::of)?;
            let died: Vec<i64> = died.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>().map_err(error::of)?;
            // A row that was finished before is no head.
            for (seq, partition, key) in sorted.holding.iter().filter(|(seq, ..)| died.contains(&seq.0)) {
                let hold = sqlx::query(sql.hold_dead.clone()).bind(i64::from(partition.0));
                let hold = hold.bind(key.as_str()).bind(seq.0);
                hold.execute(&mut *tx).await.map_err(error::of)?;
            }
        }
        Ok(())
    }

    async fn set_hold(&self, tx: &mut SqliteConnection, hold: &Hold) -> Result<(), StoreError> {
        sqlx::query(self.0.sql.settle.hold.clone())
            .bind(i64::from(hold.partition.0))
            .bind(hold.key.as_str())
            .bind(row::hold_kind(hold.kind))
            .bind(hold.from.0)
            .execute(tx)
            .await
            .map(drop)
            .map_err(error::of)
    }
}

fn sort<'a>(outcomes: &'a [Settlement], epochs: &[Option<i64>]) -> Sorted<'a> {
    let mut sorted = Sorted::default();
    for outcome in outcomes {
        if epochs.get(usize::from(outcome.partition.0)) != Some(&Some(outcome.epoch.0)) {
            sorted.stale += 1;
            continue;
        }
        match &outcome.change {
            Change::Done => sorted.done.push(outcome.seq),
            Change::Delete => sorted.deleted.push(outcome.seq),
            Change::Interrupted => sorted.interrupted.push(outcome.seq),
            Change::Retry { attempts, after, error, progress } => {
                sorted.retried.push((outcome.seq.0, *attempts, micros(*after), error.as_deref(), progress.as_deref()));
            }
            Change::Dead { attempts, error, progress, hold } => {
                sorted.dead.push((outcome.seq.0, *attempts, error, progress.as_deref()));
                if let (true, Some(key)) = (hold, &outcome.key) {
                    sorted.holding.push((outcome.seq, outcome.partition, key));
                }
            }
        }
    }
    sorted
}

/// Finishes rows run by run where there are few runs, and by a list otherwise.
async fn finish(tx: &mut SqliteConnection, seqs: &[Seq], run: &SqlStr, each: &SqlStr) -> Result<(), StoreError> {
    if seqs.is_empty() {
        return Ok(());
    }
    let Some(runs) = runs(seqs, RUNS) else {
        return execute_with(tx, each, row::json_numbers(seqs.iter().map(|seq| seq.0))).await;
    };
    for span in runs {
        let query = sqlx::query(run.clone()).bind(span.start().0).bind(span.end().0);
        query.execute(&mut *tx).await.map_err(error::of)?;
    }
    Ok(())
}

/// Ascending numbers as runs without gaps; none if there are more than `most`.
fn runs(seqs: &[Seq], most: usize) -> Option<Vec<RangeInclusive<Seq>>> {
    let mut runs: Vec<RangeInclusive<Seq>> = Vec::new();
    for &seq in seqs {
        if let Some(run) = runs.last_mut()
            && run.end().0 + 1 == seq.0
        {
            *run = *run.start()..=seq;
        } else if runs.len() == most {
            return None;
        } else {
            runs.push(seq..=seq);
        }
    }
    Some(runs)
}

async fn execute_with(tx: &mut SqliteConnection, sql: &SqlStr, list: String) -> Result<(), StoreError> {
    let query = sqlx::query(sql.clone()).bind(list);
    query.execute(tx).await.map(drop).map_err(error::of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_covers_its_numbers_and_no_other() {
        let seqs = |numbers: &[i64]| numbers.iter().copied().map(Seq).collect::<Vec<_>>();
        assert_eq!(runs(&seqs(&[3, 4, 5, 9]), 2), Some(vec![Seq(3)..=Seq(5), Seq(9)..=Seq(9)]));
        assert_eq!(runs(&seqs(&[1, 3, 5]), 2), None);
        assert_eq!(runs(&[], 2), Some(vec![]));
    }
}
