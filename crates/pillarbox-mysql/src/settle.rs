//! Settling: the outcomes of a batch, behind the fence, in one transaction.
//!
//! Rows are found one by one by their numbers, never by a range: a range looks at the row behind its end, and would
//! wait there for a writer that has not committed. On the store's connections (READ COMMITTED) a number without a row
//! leaves no lock behind, so the gap above the newest row stays free for writers.
//!
//! When the process dies before the commit, the server rolls back, and the events are delivered again by the next
//! owner. When it dies after it, everything is in effect. When only the answer is lost, the batch is sent again: rows
//! that are no longer pending are left alone.

use pillarbox_core::domain::{Key, Lease, NodeId, Partition, Seq};
use pillarbox_core::port::{Batch, Change, Hold, HoldChange, Settled, Settlement, StoreError};
use sqlx::{AssertSqlSafe, Executor as _, MySqlConnection, Row as _, SqlStr};

use crate::{MySqlStore, connection::retried, error, own::micros, row, tables::statements};

/// The rows of a list of numbers. The list comes first, and each row by its primary key.
macro_rules! given {
    () => {
        "json_table(?, '$[*]' columns (n bigint path '$')) as given straight_join {event} force index (primary) on seq = given.n"
    };
}
pub(crate) use given;

statements!(SettleSql {
    /// By primary key; the row is locked already.
    advance: "update {instance} set mark = ? where incarnation = ?",
    epochs: "select number, epoch from {partition} where owner = ?",
    /// By primary key, as all that follow.
    done: concat!(
        "update ",
        given!(),
        " set status = 'DONE', done_at = {now}, available_at = null, starts = 0
        where status in ('NEW', 'RETRY')"
    ),
    delete: concat!("delete {event} from ", given!(), " where status in ('NEW', 'RETRY')"),
    interrupted: concat!("update ", given!(), " set starts = 0 where starts <> 0 and status in ('NEW', 'RETRY')"),
    retry: "update json_table(?, '$[*]' columns (n bigint path '$[0]', a bigint path '$[1]', d bigint path '$[2]',
            e mediumtext character set utf8mb4 path '$[3]', p mediumtext character set utf8mb4 path '$[4]')) as given straight_join {event} force index (primary) on seq = given.n
        set status = 'RETRY', starts = 0, attempts = given.a, available_at = {now} + interval given.d microsecond,
            last_error = coalesce(given.e, last_error), progress = coalesce(given.p, progress)
        where status in ('NEW', 'RETRY')",
    /// Which of them may die: a row that was finished before is no head.
    dying: "select seq from {event} force index (primary)
        where seq in ({list}) and status in ('NEW', 'RETRY') for update",
    dead: "update json_table(?, '$[*]' columns (n bigint path '$[0]', a bigint path '$[1]',
            e mediumtext character set utf8mb4 path '$[2]', p mediumtext character set utf8mb4 path '$[3]')) as given straight_join {event} force index (primary) on seq = given.n
        set status = 'DEAD', starts = 0, attempts = given.a, last_error = given.e,
            progress = coalesce(given.p, progress), available_at = null, done_at = {now}
        where status in ('NEW', 'RETRY')",
    /// By primary key.
    hold: "insert into {hold} (`partition`, name, kind, from_seq) values (?, ?, ?, ?)
        on duplicate key update from_seq = if(kind = 'DEAD_HEAD', from_seq, values(from_seq)),
            kind = if(kind = 'DEAD_HEAD', kind, values(kind))",
    /// By primary key. A head that is still dead keeps its hold.
    held: "select from_seq from {hold} join {event} on seq = from_seq
        where {hold}.`partition` = ? and space = 0 and name = ? and kind = 'DEAD_HEAD' and status = 'DEAD'
            and seq <> ?",
    hold_dead: "insert into {hold} (`partition`, name, kind, from_seq) values (?, ?, 'DEAD_HEAD', ?)
        on duplicate key update kind = values(kind), from_seq = values(from_seq)",
    /// By primary key.
    unhold: "delete from {hold} where `partition` = ? and space = 0 and name = ?",
    /// By primary key.
    start: "update {event} set starts = starts + 1 where seq = ? and status in ('NEW', 'RETRY')",
    starts: "select starts from {event} where seq = ?",
});

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

impl MySqlStore {
    pub(crate) async fn settle_batch(&self, lease: &Lease, batch: &Batch) -> Result<Settled, StoreError> {
        retried(move || self.settle_once(lease, batch)).await
    }

    async fn settle_once(&self, lease: &Lease, batch: &Batch) -> Result<Settled, StoreError> {
        let Some(mut tx) = self.fenced(&self.0.settles, lease).await? else {
            return Ok(Settled::Fenced);
        };
        let stale = self.settle_behind_fence(&mut tx, lease, batch).await?;
        tx.commit().await?;
        Ok(Settled::Applied { stale })
    }

    /// Settles in a transaction that has passed the fence; returns how many outcomes were stale.
    pub(crate) async fn settle_behind_fence(
        &self,
        tx: &mut MySqlConnection,
        lease: &Lease,
        batch: &Batch,
    ) -> Result<usize, StoreError> {
        let sql = &self.0.sql.settle;
        if let Some(mark) = batch.mark {
            let advance = sqlx::query(sql.advance.clone()).bind(mark.0).bind(lease.incarnation.0);
            advance.execute(&mut *tx).await.map_err(error::of)?;
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
                    let unhold = sqlx::query(sql.unhold.clone()).bind(i64::from(partition.0)).bind(key.as_str());
                    unhold.execute(&mut *tx).await.map_err(error::of)?;
                }
            }
        }
        Ok(stale)
    }

    pub(crate) async fn count_start(&self, lease: &Lease, seq: Seq) -> Result<Option<u32>, StoreError> {
        retried(move || self.count_start_once(lease, seq)).await
    }

    async fn count_start_once(&self, lease: &Lease, seq: Seq) -> Result<Option<u32>, StoreError> {
        let Some(mut tx) = self.fenced(&self.0.settles, lease).await? else {
            return Ok(None);
        };
        let sql = &self.0.sql.settle;
        let counted = sqlx::query(sql.start.clone()).bind(seq.0).execute(&mut *tx).await.map_err(error::of)?;
        let mut starts = None;
        if counted.rows_affected() == 1 {
            let row = sqlx::query(sql.starts.clone()).bind(seq.0).fetch_one(&mut *tx).await.map_err(error::of)?;
            // A broken count counts as one start: what is wrong with the row is told when it is read.
            starts = Some(row.try_get::<i64, _>(0).map_or(1, |starts| u32::try_from(starts).unwrap_or(1)));
        }
        tx.commit().await?;
        Ok(starts)
    }

    /// The epochs of the partitions that the node owns. They don't change while its row is locked.
    async fn epochs(
        &self,
        tx: &mut MySqlConnection,
        node: &NodeId,
    ) -> Result<[Option<i64>; Partition::COUNT], StoreError> {
        let rows =
            sqlx::query(self.0.sql.settle.epochs.clone()).bind(node.as_str()).fetch_all(tx).await.map_err(error::of)?;
        let mut epochs = [None; Partition::COUNT];
        for row in rows {
            let partition = row::partition(&row, 0).map_err(error::of)?;
            epochs[usize::from(partition.0)] = Some(row.try_get(1).map_err(error::of)?);
        }
        Ok(epochs)
    }

    async fn apply(&self, tx: &mut MySqlConnection, sorted: &Sorted<'_>) -> Result<(), StoreError> {
        let sql = &self.0.sql.settle;
        for (statement, seqs) in
            [(&sql.done, &sorted.done), (&sql.delete, &sorted.deleted), (&sql.interrupted, &sorted.interrupted)]
        {
            if !seqs.is_empty() {
                execute_with(tx, statement, row::json_numbers(seqs.iter().copied())).await?;
            }
        }
        if !sorted.retried.is_empty() {
            execute_with(tx, &sql.retry, serde_json::to_string(&sorted.retried).unwrap_or_default()).await?;
        }
        if sorted.dead.is_empty() {
            return Ok(());
        }
        let mut dying = Vec::new();
        if !sorted.holding.is_empty() {
            let list: Vec<_> = sorted.holding.iter().map(|(seq, ..)| *seq).collect();
            dying = locked(tx, &sql.dying, &list).await.map_err(error::of)?;
        }
        execute_with(tx, &sql.dead, serde_json::to_string(&sorted.dead).unwrap_or_default()).await?;
        for (seq, partition, key) in sorted.holding.iter().filter(|(seq, ..)| dying.contains(seq)) {
            let held = sqlx::query(sql.held.clone()).bind(i64::from(partition.0)).bind(key.as_str()).bind(seq.0);
            if held.fetch_optional(&mut *tx).await.map_err(error::of)?.is_none() {
                let hold = sqlx::query(sql.hold_dead.clone()).bind(i64::from(partition.0));
                hold.bind(key.as_str()).bind(seq.0).execute(&mut *tx).await.map_err(error::of)?;
            }
        }
        Ok(())
    }

    async fn set_hold(&self, tx: &mut MySqlConnection, hold: &Hold) -> Result<(), StoreError> {
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

fn sort<'a>(outcomes: &'a [Settlement], epochs: &[Option<i64>; Partition::COUNT]) -> Sorted<'a> {
    let mut sorted = Sorted::default();
    for outcome in outcomes {
        if epochs[usize::from(outcome.partition.0)] != Some(outcome.epoch.0) {
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

/// Runs a statement that locks rows of a list, and returns their numbers. The list stands in the text: MySQL can't
/// lock rows that it joins with a JSON table.
pub(crate) async fn locked(tx: &mut MySqlConnection, sql: &SqlStr, list: &[Seq]) -> Result<Vec<Seq>, sqlx::Error> {
    if list.is_empty() {
        return Ok(Vec::new());
    }
    let list: Vec<String> = list.iter().map(|seq| seq.0.to_string()).collect();
    // Numbers alone enter.
    let rows = tx.fetch_all(AssertSqlSafe(sql.as_str().replace("{list}", &list.join(", ")))).await?;
    rows.iter().map(|row| row.try_get(0).map(Seq)).collect()
}

async fn execute_with(tx: &mut MySqlConnection, sql: &SqlStr, list: String) -> Result<(), StoreError> {
    let query = sqlx::query(sql.clone()).bind(list);
    query.execute(tx).await.map(drop).map_err(error::of)
}
