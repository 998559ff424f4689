//! Reading: pages, due rows, lanes.
//!
//! The statements name their index, or say `not indexed`, so that no statistics can lead the planner astray.

use futures_util::TryStreamExt as _;
use pillarbox_core::domain::{Key, Lease, Partition, PartitionSet, Seq, Timestamp};
use pillarbox_core::port::{
    Batch, BoxFuture, Due, Hold, HoldKind, Page, Pick, Position, ReadStore, Recall, Row, Scan, Settled, StoreError,
    Taken,
};
use sqlx::{Row as _, SqlStr, SqliteConnection, sqlite::SqliteRow};

use crate::{
    SqliteStore,
    row::{self, WIDTH},
    store::now,
    tables::statements,
};

statements!(ReadSql {
    /// By primary key.
    page_all: "select {columns} from {event} not indexed
        where seq > ?1 and status = 'NEW' and available_at is null
        order by seq limit ?2",
    /// By primary key.
    page_some: "select {columns} from {event} not indexed
        where seq > ?1 and status = 'NEW' and available_at is null
            and partition in (select value from json_each(?3))
        order by seq limit ?2",
    /// By primary key, from its end.
    highest: "select max(seq) from {event}",
    /// By the due index.
    due: "select {columns}, available_at from {event} indexed by {event}_due
        where available_at is not null and status in ('NEW', 'RETRY')
            and available_at <= ?1 and (available_at, seq) > (?2, ?3)
            and partition in (select value from json_each(?4))
        order by available_at, seq limit ?5",
    /// By the due index.
    next_due: "select available_at from {event} indexed by {event}_due
        where available_at is not null and status in ('NEW', 'RETRY')
            and available_at > ? and partition in (select value from json_each(?))
        order by available_at limit 1",
    /// By the key index.
    lane: "select {columns} from {event} indexed by {event}_key
        where event_key is not null and status in ('NEW', 'RETRY')
            and event_key = ? and seq >= ? and partition = ? and (available_at is null or available_at <= {now})
        order by seq limit ?",
    /// By primary key.
    rows: "select {columns} from {event} not indexed
        where seq in (select value from json_each(?)) and status in ('NEW', 'RETRY')
            and (available_at is null or available_at <= {now})
        order by seq",
    /// By the holds' index.
    holds: "select partition, name, kind, from_seq from {hold} indexed by {hold}_key
        where kind <> 'SINK' and partition in (select value from json_each(?1)) and (?2 is null or kind = ?2)
        order by partition, name",
    /// By the due index: what is RETRY has a due time.
    failing: "select partition, event_key, seq from {event} indexed by {event}_due
        where available_at is not null and status in ('NEW', 'RETRY')
            and status = 'RETRY' and event_key is not null and partition in (select value from json_each(?))
        order by seq",
    /// Above the position by primary key, below it by the due index and the holds; whether a key has an
    /// earlier row, by the key index. A delayed row holds back nothing before it is due.
    oldest: "select seq from (
            select seq, event_key from {event} not indexed
            where seq > ?1 and status in ('NEW', 'RETRY') and partition in (select value from json_each(?2))
                and (available_at is null or available_at <= {now})
            union
            select seq, event_key from {event} indexed by {event}_due
            where available_at is not null and status in ('NEW', 'RETRY') and available_at <= {now}
                and partition in (select value from json_each(?2))
            union
            select (select min(seq) from {event} indexed by {event}_key
                    where event_key is not null and status in ('NEW', 'RETRY') and event_key = name
                        and seq >= from_seq and (available_at is null or available_at <= {now})), name
            from {hold} where kind = 'OVERFLOW' and partition in (select value from json_each(?2))
        ) as found
        where seq is not null and (event_key is null or not exists (
            select 1 from {event} as earlier indexed by {event}_key
            where earlier.event_key is not null and earlier.status in ('NEW', 'RETRY')
                and earlier.event_key = found.event_key and earlier.seq < found.seq
                and (earlier.status = 'RETRY' or earlier.available_at is null or earlier.available_at <= {now})))
        order by seq limit ?3",
    /// Above the position by primary key, below it by the due index.
    newest: "select seq from (
            select * from (select seq from {event} not indexed
                where seq > ?1 and status in ('NEW', 'RETRY') and partition in (select value from json_each(?2))
                order by seq desc limit ?3)
            union
            select seq from {event} indexed by {event}_due
            where available_at is not null and status in ('NEW', 'RETRY')
                and partition in (select value from json_each(?2)))
        order by seq desc limit ?3",
});

impl ReadStore for SqliteStore {
    fn page<'a>(&'a self, scan: Scan<'a>, pick: &'a mut dyn Pick) -> BoxFuture<'a, Result<Page, StoreError>> {
        Box::pin(async move {
            let mut entered = self.0.pages.enter().await?;
            let result = self.read_page(entered.connection()?, &scan, pick).await;
            result.map_err(|error| entered.failed(error))
        })
    }

    fn due<'a>(
        &'a self,
        partitions: PartitionSet,
        limit: usize,
        pick: &'a mut dyn Pick,
    ) -> BoxFuture<'a, Result<Due, StoreError>> {
        Box::pin(async move {
            // Not that of the lanes, which others wait for: a reader asks for pages and for what is due in turn.
            let mut entered = self.0.pages.enter().await?;
            let result = self.read_due(entered.connection()?, partitions, limit, pick).await;
            result.map_err(|error| entered.failed(error))
        })
    }

    fn lane<'a>(
        &'a self,
        partition: Partition,
        key: &'a Key,
        from: Seq,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<Row>, StoreError>> {
        Box::pin(async move {
            let mut entered = self.0.seeks.enter().await?;
            let rows = sqlx::query(self.0.sql.read.lane.clone())
                .bind(key.as_str())
                .bind(from.0)
                .bind(i64::from(partition.0))
                .bind(at_most(limit))
                .fetch_all(entered.connection()?)
                .await;
            rows.and_then(|rows| decode_all(&rows)).map_err(|error| entered.failed(error))
        })
    }

    fn rows<'a>(&'a self, seqs: &'a [Seq]) -> BoxFuture<'a, Result<Vec<Row>, StoreError>> {
        Box::pin(async move {
            if seqs.is_empty() {
                return Ok(Vec::new());
            }
            let mut entered = self.0.seeks.enter().await?;
            let rows = sqlx::query(self.0.sql.read.rows.clone())
                .bind(row::json_numbers(seqs.iter().map(|seq| seq.0)))
                .fetch_all(entered.connection()?)
                .await;
            rows.and_then(|rows| decode_all(&rows)).map_err(|error| entered.failed(error))
        })
    }

    fn recall<'a>(&'a self, taken: &'a [Taken]) -> BoxFuture<'a, Result<Recall, StoreError>> {
        Box::pin(async move {
            if taken.is_empty() {
                return Ok(Recall::default());
            }
            let mut entered = self.0.seeks.enter().await?;
            let result = self.read_recall(entered.connection()?, taken).await;
            result.map_err(|error| entered.failed(error))
        })
    }

    fn start<'a>(&'a self, lease: &'a Lease, seq: Seq) -> BoxFuture<'a, Result<Option<u32>, StoreError>> {
        Box::pin(self.count_start(lease, seq))
    }

    fn settle<'a>(&'a self, lease: &'a Lease, batch: &'a Batch) -> BoxFuture<'a, Result<Settled, StoreError>> {
        Box::pin(self.settle_batch(lease, batch))
    }
}

impl SqliteStore {
    /// Reads in chunks of what is missing. Chunks may see later commits than the first, and that is no
    /// matter: number order is commit order, so what a later snapshot adds lies above.
    async fn read_page(
        &self,
        connection: &mut SqliteConnection,
        scan: &Scan<'_>,
        pick: &mut dyn Pick,
    ) -> Result<Page, sqlx::Error> {
        let sql = &self.0.sql.read;
        let now = now();
        let young = now.saturating_sub(scan.skip_recent);
        let some = (scan.partitions != PartitionSet::ALL).then(|| row::json_partitions(&scan.partitions));
        // Read before the rows: when they are exhausted, nothing up to here is left, and what lies between
        // (others' rows, finished ones) need not be passed again.
        let highest: Option<i64> = sqlx::query(sql.highest.clone()).fetch_one(&mut *connection).await?.try_get(0)?;
        let mut rows = Vec::with_capacity(scan.limit.min(1_024));
        let mut last = scan.after.seq;
        let mut more = false;
        loop {
            let missing = scan.limit - rows.len();
            if missing == 0 {
                more = true;
                break;
            }
            // Not too few, where most rows are refused.
            let chunk = missing.max(64);
            let mut query = sqlx::query(if some.is_some() { sql.page_some.clone() } else { sql.page_all.clone() })
                .bind(last.0)
                .bind(at_most(chunk));
            if let Some(some) = &some {
                query = query.bind(some.as_str());
            }
            let mut stream = query.fetch(&mut *connection);
            let mut seen = 0;
            let mut stopped = false;
            while let Some(found) = stream.try_next().await? {
                let candidate = row::candidate(&found)?;
                if rows.len() == scan.limit {
                    more = true;
                    stopped = true;
                    break;
                }
                if !scan.skip_recent.is_zero() && row::created_at(&found) > young {
                    stopped = true;
                    break;
                }
                seen += 1;
                last = candidate.seq;
                if pick.pick(candidate) {
                    rows.push(row::decode(&found, candidate));
                }
            }
            if stopped {
                break;
            }
            if seen < chunk {
                last = last.max(Seq(highest.unwrap_or(0)));
                break;
            }
        }
        Ok(Page { rows, position: Position::at(last), more, now })
    }

    async fn read_due(
        &self,
        connection: &mut SqliteConnection,
        partitions: PartitionSet,
        limit: usize,
        pick: &mut dyn Pick,
    ) -> Result<Due, sqlx::Error> {
        let sql = &self.0.sql.read;
        let now = now();
        let partitions = row::json_partitions(&partitions);
        let mut rows = Vec::new();
        let mut after = (i64::MIN, 0);
        while rows.len() < limit {
            let chunk = (limit - rows.len()).max(64);
            let found = sqlx::query(sql.due.clone())
                .bind(now.as_micros())
                .bind(after.0)
                .bind(after.1)
                .bind(partitions.as_str())
                .bind(at_most(chunk))
                .fetch_all(&mut *connection)
                .await?;
            for found in &found {
                let candidate = row::candidate(found)?;
                after = (found.try_get_unchecked(WIDTH)?, candidate.seq.0);
                if rows.len() < limit && pick.pick(candidate) {
                    rows.push(row::decode(found, candidate));
                }
            }
            if found.len() < chunk {
                break;
            }
        }
        let next = sqlx::query(sql.next_due.clone())
            .bind(now.as_micros())
            .bind(partitions.as_str())
            .fetch_optional(&mut *connection)
            .await?;
        let next = next.map(|row| row.try_get_unchecked(0)).transpose()?;
        Ok(Due {
            rows,
            freed: self.read_holds(connection, &partitions, Some(HoldKind::Overflow)).await?,
            next: next.map(|at| Timestamp::from_micros(at).since(now)),
            now,
        })
    }

    async fn read_recall(&self, connection: &mut SqliteConnection, taken: &[Taken]) -> Result<Recall, sqlx::Error> {
        let sql = &self.0.sql.read;
        let partitions = row::json_numbers(taken.iter().map(|taken| i64::from(taken.partition.0)));
        let failing = sqlx::query(sql.failing.clone())
            .bind(partitions.as_str())
            .fetch_all(&mut *connection)
            .await?
            .iter()
            .map(|row| {
                let key: &str = row.try_get(1)?;
                Ok((row::partition(row, 0)?, Key::from(key), Seq(row.try_get(2)?)))
            })
            .collect::<Result<_, sqlx::Error>>()?;
        Ok(Recall {
            holds: self.read_holds(connection, &partitions, None).await?,
            failing,
            suspects: self.read_suspects(connection, taken).await?,
        })
    }

    async fn read_suspects(&self, connection: &mut SqliteConnection, taken: &[Taken]) -> Result<Vec<Seq>, sqlx::Error> {
        let unclean = || taken.iter().filter(|taken| taken.suspects > 0);
        let (Some(most), Some(after)) =
            (unclean().map(|taken| taken.suspects).max(), unclean().map(|taken| taken.mark).min())
        else {
            return Ok(Vec::new());
        };
        let partitions = row::json_numbers(unclean().map(|taken| i64::from(taken.partition.0)));
        let mut suspects = Vec::new();
        let ReadSql { oldest, newest, .. } = &self.0.sql.read;
        for sql in [oldest, newest] {
            suspects.extend(self.read_seqs(connection, sql, after, &partitions, most).await?);
        }
        suspects.sort_unstable();
        suspects.dedup();
        Ok(suspects)
    }

    async fn read_seqs(
        &self,
        connection: &mut SqliteConnection,
        sql: &SqlStr,
        after: Seq,
        partitions: &str,
        limit: u32,
    ) -> Result<Vec<Seq>, sqlx::Error> {
        let rows = sqlx::query(sql.clone())
            .bind(after.0)
            .bind(partitions)
            .bind(i64::from(limit))
            .fetch_all(connection)
            .await?;
        rows.iter().map(|row| row.try_get(0).map(Seq)).collect()
    }

    async fn read_holds(
        &self,
        connection: &mut SqliteConnection,
        partitions: &str,
        kind: Option<HoldKind>,
    ) -> Result<Vec<Hold>, sqlx::Error> {
        let rows = sqlx::query(self.0.sql.read.holds.clone())
            .bind(partitions)
            .bind(kind.map(row::hold_kind))
            .fetch_all(connection)
            .await?;
        rows.iter().map(row::hold).collect()
    }
}

fn decode_all(rows: &[SqliteRow]) -> Result<Vec<Row>, sqlx::Error> {
    rows.iter().map(|found| row::candidate(found).map(|candidate| row::decode(found, candidate))).collect()
}

pub(crate) fn at_most(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
