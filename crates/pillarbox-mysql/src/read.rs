//! Reading: pages, due rows, lanes.
//!
//! The statements name their index, so that no statistics can lead the planner astray.
//!
//! A page is one statement that returns numbers, partitions and keys: of all rows above the newest number that was
//! read, so that it is known which numbers are missing there, and of the pending rows in the gaps below it (see
//! [`position`](crate::position)). The owner picks, and what was picked is then read by its numbers. Where one statement
//! is not enough, because most rows were refused, the page begins again in a transaction with one snapshot for all its
//! statements: a later chunk with a snapshot of its own could show an event without its late predecessor.

use std::{collections::BTreeSet, time::Instant};

use pillarbox_core::domain::{Key, Lease, Partition, PartitionSet, Seq, Timestamp};
use pillarbox_core::port::{
    Batch, BoxFuture, Candidate, Due, HoldKind, Page, Pick, Position, ReadStore, Recall, Row, Scan, Settled,
    StoreError, Taken,
};
use sqlx::{Executor as _, MySqlConnection, Row as _, mysql::MySqlRow};

use crate::{
    MySqlStore, error,
    life::Life,
    own::micros,
    position::{Gaps, RANGES},
    row::{self, WIDTH},
    settle::given,
    tables::statements,
    write::storable,
};

macro_rules! gap {
    () => {
        "seq between ? and ?"
    };
}

statements!(ReadSql {
    /// The time; then what has come into the gaps; then what has come above. By primary key, and in its order.
    page: concat!(
        "select 0, 0, 0, null, 0, timestampdiff(microsecond, {epoch}, {now})
        union all (select 1, seq, `partition`, event_key, created_at > utc_timestamp(6) - interval ? microsecond, 1
            from {event} force index (primary)
            where (",
        gap!(),
        " or ",
        gap!(),
        " or ",
        gap!(),
        " or ",
        gap!(),
        " or ",
        gap!(),
        " or ",
        gap!(),
        " or ",
        gap!(),
        " or ",
        gap!(),
        " or ",
        gap!(),
        " or ",
        gap!(),
        " or ",
        gap!(),
        " or ",
        gap!(),
        " or ",
        gap!(),
        " or ",
        gap!(),
        " or ",
        gap!(),
        " or ",
        gap!(),
        ") and status = 'NEW' and available_at is null and substring(?, `partition` + 1, 1) = '1'
            order by seq limit ?)
        union all (select 2, seq, `partition`, event_key, created_at > utc_timestamp(6) - interval ? microsecond,
                status = 'NEW' and available_at is null and substring(?, `partition` + 1, 1) = '1'
            from {event} force index (primary) where seq > ? order by seq limit ?)"
    ),
    /// The same without gaps.
    page_above: "select 0, 0, 0, null, 0, timestampdiff(microsecond, {epoch}, {now})
        union all (select 2, seq, `partition`, event_key, created_at > utc_timestamp(6) - interval ? microsecond,
                status = 'NEW' and available_at is null and substring(?, `partition` + 1, 1) = '1'
            from {event} force index (primary) where seq > ? order by seq limit ?)",
    /// What slipped through, if anything did. By the status.
    sweep: "select 1, seq, `partition`, event_key, created_at > utc_timestamp(6) - interval ? microsecond, 1
        from {event} force index (by_status)
        where status = 'NEW' and seq > ? and seq <= ? and available_at is null
            and substring(?, `partition` + 1, 1) = '1'
        order by seq limit ?",
    /// By primary key.
    picked: concat!("select {columns} from ", given!()),
    /// By primary key.
    rows: concat!(
        "select {columns} from ",
        given!(),
        " where status in ('NEW', 'RETRY') and (available_at is null or available_at <= {now})"
    ),
    /// By primary key, from its end.
    newest: "select coalesce(max(seq), 0) from {event}",
    clock: "select timestampdiff(microsecond, {epoch}, {now})",
    /// By the due time.
    due: "select {columns}, timestampdiff(microsecond, {epoch}, available_at) from {event} force index (by_due)
        where available_at >= {epoch} + interval ? microsecond and available_at <= {epoch} + interval ? microsecond
            and (available_at > {epoch} + interval ? microsecond or seq > ?)
            and status in ('NEW', 'RETRY') and substring(?, `partition` + 1, 1) = '1'
        order by available_at, seq limit ?",
    /// By the due time.
    next_due: "select timestampdiff(microsecond, {epoch}, available_at) from {event} force index (by_due)
        where available_at > {epoch} + interval ? microsecond
            and status in ('NEW', 'RETRY') and substring(?, `partition` + 1, 1) = '1'
        order by available_at, seq limit 1",
    /// By the key. Spaces at the end count.
    lane: "select {columns} from {event} force index (by_key)
        where event_key = ? and octet_length(event_key) = ? and seq >= ? and `partition` = ?
            and status in ('NEW', 'RETRY') and (available_at is null or available_at <= {now})
        order by seq limit ?",
});

/// How many rows of the gaps one statement returns.
const LATE: usize = 2_000;
/// How many rows above one statement returns at the least, and at the most.
const CHUNK: (usize, usize) = (64, 4_096);

impl ReadStore for MySqlStore {
    fn page<'a>(&'a self, scan: Scan<'a>, pick: &'a mut dyn Pick) -> BoxFuture<'a, Result<Page, StoreError>> {
        Box::pin(self.within(async move {
            let mut entered = self.enter_reading(&self.0.pages).await?;
            let life = entered.life().await?;
            let page = self.read_page(&mut entered, &life, &scan, pick).await.map_err(error::of)?;
            entered.done();
            Ok(page)
        }))
    }

    fn due<'a>(
        &'a self,
        partitions: PartitionSet,
        limit: usize,
        pick: &'a mut dyn Pick,
    ) -> BoxFuture<'a, Result<Due, StoreError>> {
        Box::pin(self.within(async move {
            // Not that of the lanes, which others wait for: a reader asks for pages and for what is due in turn.
            let mut entered = self.enter_reading(&self.0.pages).await?;
            let due = self.read_due(&mut entered, partitions, limit, pick).await.map_err(error::of)?;
            entered.done();
            Ok(due)
        }))
    }

    fn lane<'a>(
        &'a self,
        partition: Partition,
        key: &'a Key,
        from: Seq,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<Row>, StoreError>> {
        Box::pin(self.within(async move {
            let mut entered = self.enter_reading(&self.0.seeks).await?;
            let rows = sqlx::query(self.0.sql.read.lane.clone())
                .bind(key.as_str())
                .bind(at_most(key.as_str().len()))
                .bind(from.0)
                .bind(i64::from(partition.0))
                .bind(at_most(limit))
                .fetch_all(&mut *entered)
                .await
                .map_err(error::of)?;
            entered.done();
            row::decode_all(&rows).map_err(error::of)
        }))
    }

    fn rows<'a>(&'a self, seqs: &'a [Seq]) -> BoxFuture<'a, Result<Vec<Row>, StoreError>> {
        Box::pin(self.within(async move {
            if seqs.is_empty() {
                return Ok(Vec::new());
            }
            let mut entered = self.enter_reading(&self.0.seeks).await?;
            let rows = sqlx::query(self.0.sql.read.rows.clone())
                .bind(row::json_numbers(seqs.iter().copied()))
                .fetch_all(&mut *entered)
                .await
                .map_err(error::of)?;
            entered.done();
            sorted(&rows).map_err(error::of)
        }))
    }

    fn recall<'a>(&'a self, taken: &'a [Taken]) -> BoxFuture<'a, Result<Recall, StoreError>> {
        Box::pin(self.within(async move {
            if taken.is_empty() {
                return Ok(Recall::default());
            }
            let mut entered = self.enter_reading(&self.0.seeks).await?;
            let recall = self.read_recall(&mut entered, taken).await.map_err(error::of)?;
            entered.done();
            Ok(recall)
        }))
    }

    fn start<'a>(&'a self, lease: &'a Lease, seq: Seq) -> BoxFuture<'a, Result<Option<u32>, StoreError>> {
        Box::pin(self.within(self.count_start(lease, seq)))
    }

    fn settle<'a>(&'a self, lease: &'a Lease, batch: &'a Batch) -> BoxFuture<'a, Result<Settled, StoreError>> {
        Box::pin(self.within(self.settle_batch(lease, batch)))
    }
}

/// A page as it is being read.
struct Reading<'a> {
    scan: &'a Scan<'a>,
    /// Nothing at or below can still become visible in the snapshots of this page, or later.
    safe: Seq,
    gaps: Gaps,
    /// The last row above that was looked at, and the last in the gaps.
    last: Seq,
    last_late: Seq,
    /// The first row in the gaps that was left for the next page.
    left: Option<Seq>,
    picked: BTreeSet<Seq>,
    /// Whether rows of the gaps are still to be read.
    late: bool,
    end: End,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// Not reached.
    Open,
    /// There is nothing more.
    Exhausted,
    /// The limit is reached, and there is more.
    Full,
    /// What follows is too young.
    Young,
}

impl<'a> Reading<'a> {
    fn new(scan: &'a Scan<'a>, safe: Seq, picked: BTreeSet<Seq>) -> Self {
        let gaps = Gaps::read(scan.after.token.as_deref(), scan.after.seq);
        let late = !gaps.is_empty();
        let (last, last_late) = (scan.after.seq, scan.after.mark);
        Self { scan, safe, gaps, last, last_late, left: None, picked, late, end: End::Open }
    }

    /// Looks at the rows of one statement.
    fn look(
        &mut self,
        rows: &[MySqlRow],
        late_limit: usize,
        limit: usize,
        pick: &mut dyn Pick,
    ) -> Result<(), sqlx::Error> {
        let part = |row: &MySqlRow, part: i64| row.try_get::<i64, _>(0).is_ok_and(|found| found == part);
        let late: Vec<_> = rows.iter().filter(|row| part(row, 1)).collect();
        for row in &late {
            let candidate = candidate(row)?;
            if !self.ask(row, candidate, pick)? {
                self.left = Some(candidate.seq);
                return Ok(());
            }
            self.last_late = candidate.seq;
        }
        if self.late && late.len() == late_limit {
            // Rows above must not come before those that are left in the gaps.
            return Ok(());
        }
        self.late = false;
        let above: Vec<_> = rows.iter().filter(|row| part(row, 2)).collect();
        for row in &above {
            let candidate = candidate(row)?;
            if row.try_get::<i64, _>(5)? == 1 && !self.ask(row, candidate, pick)? {
                return Ok(());
            }
            self.gaps.push(Seq(self.last.max(self.safe).0 + 1), Seq(candidate.seq.0 - 1));
            self.last = candidate.seq;
        }
        if above.len() < limit {
            self.end = End::Exhausted;
        }
        Ok(())
    }

    /// Asks the owner about a row; `false` if the page ends before it.
    fn ask(&mut self, row: &MySqlRow, candidate: Candidate<'_>, pick: &mut dyn Pick) -> Result<bool, sqlx::Error> {
        if self.picked.contains(&candidate.seq) {
            return Ok(true);
        }
        if self.picked.len() >= self.scan.limit {
            self.end = End::Full;
            return Ok(false);
        }
        if !self.scan.skip_recent.is_zero() && row.try_get::<i64, _>(4)? == 1 {
            self.end = End::Young;
            return Ok(false);
        }
        if pick.pick(candidate) {
            self.picked.insert(candidate.seq);
        }
        Ok(true)
    }

    /// Where the next page begins.
    fn position(&mut self) -> Position {
        let below = self.left.map_or(Seq(i64::MAX), |left| Seq(left.0 - 1));
        let mark = self.safe.min(self.last).min(below).max(self.scan.after.mark);
        self.gaps.pass(mark);
        Position { seq: self.last, mark, token: self.gaps.token() }
    }
}

impl MySqlStore {
    async fn read_page(
        &self,
        connection: &mut MySqlConnection,
        life: &Life,
        scan: &Scan<'_>,
        pick: &mut dyn Pick,
    ) -> Result<Page, sqlx::Error> {
        self.watch_water(connection, life).await?;
        // Known before the snapshots of this page are taken: they show everything up to here.
        let safe = self.water().of(life).safe();
        let letters = row::letters(&scan.partitions);
        let swept = self.sweep(connection, life, scan, &letters, pick).await?;

        let mut reading = Reading::new(scan, safe, swept.clone());
        let mut snapshot = false;
        // Expects that all rows of its partitions are wanted, and grows where that is not so.
        let share = Partition::COUNT / scan.partitions.len().max(1);
        let mut chunk = (scan.limit + 1).saturating_mul(share).clamp(CHUNK.0, CHUNK.1);
        let mut now;
        loop {
            let above = if reading.late && snapshot { 0 } else { chunk };
            let rows = self.page_statement(connection, &mut reading, &letters, above).await?;
            now = Timestamp::from_micros(rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get(5)?);
            reading.look(&rows, LATE, above, pick)?;
            if reading.end != End::Open {
                break;
            }
            if snapshot {
                chunk = (chunk * 2).min(CHUNK.1);
                continue;
            }
            snapshot = true;
            connection.execute("start transaction with consistent snapshot, read only").await?;
            reading = Reading::new(scan, safe, swept.clone());
            pick.again();
        }
        let rows = self.read_picked(connection, &reading.picked).await?;
        if snapshot {
            connection.execute("commit").await?;
        }
        self.water().of(life).note(reading.last, Instant::now());
        let more = reading.end == End::Full;
        Ok(Page { rows, position: reading.position(), more, now })
    }

    async fn page_statement(
        &self,
        connection: &mut MySqlConnection,
        reading: &mut Reading<'_>,
        letters: &str,
        above: usize,
    ) -> Result<Vec<MySqlRow>, sqlx::Error> {
        let recent = micros(reading.scan.skip_recent);
        let sql = &self.0.sql.read;
        let query = if reading.late {
            let mut query = sqlx::query(sql.page.clone()).bind(recent);
            let after = reading.last_late.0;
            let ranges = reading.gaps.ranges();
            for at in 0..RANGES {
                // Those that are not needed are empty.
                let (first, last) = ranges.get(at).copied().unwrap_or((1, 0));
                query = query.bind(first.max(after + 1)).bind(last);
            }
            query.bind(letters).bind(at_most(LATE))
        } else {
            sqlx::query(sql.page_above.clone())
        };
        query.bind(recent).bind(letters).bind(reading.last.0).bind(at_most(above)).fetch_all(connection).await
    }

    /// Looks at all pending rows up to the mark, if it is time to, and gives what the owner picked of them.
    async fn sweep(
        &self,
        connection: &mut MySqlConnection,
        life: &Life,
        scan: &Scan<'_>,
        letters: &str,
        pick: &mut dyn Pick,
    ) -> Result<BTreeSet<Seq>, sqlx::Error> {
        let begun = Instant::now();
        let mut picked = BTreeSet::new();
        if scan.after.mark <= Seq(0) || !self.sweeps().of(life).is_due(&scan.partitions, begun) {
            return Ok(picked);
        }
        let mut last = 0;
        loop {
            let rows = sqlx::query(self.0.sql.read.sweep.clone())
                .bind(micros(scan.skip_recent))
                .bind(last)
                .bind(scan.after.mark.0)
                .bind(letters)
                .bind(at_most(CHUNK.1))
                .fetch_all(&mut *connection)
                .await?;
            for row in &rows {
                let candidate = candidate(row)?;
                last = candidate.seq.0;
                if picked.len() >= scan.limit {
                    // The rest at the next page.
                    return Ok(picked);
                }
                let young = !scan.skip_recent.is_zero() && row.try_get::<i64, _>(4)? == 1;
                if !young && pick.pick(candidate) {
                    picked.insert(candidate.seq);
                }
            }
            if rows.len() < CHUNK.1 {
                break;
            }
        }
        self.sweeps().of(life).done(scan.partitions, begun);
        Ok(picked)
    }

    async fn read_picked(
        &self,
        connection: &mut MySqlConnection,
        picked: &BTreeSet<Seq>,
    ) -> Result<Vec<Row>, sqlx::Error> {
        if picked.is_empty() {
            return Ok(Vec::new());
        }
        let list = row::json_numbers(picked.iter().copied());
        let rows = sqlx::query(self.0.sql.read.picked.clone()).bind(list).fetch_all(connection).await?;
        sorted(&rows)
    }

    async fn read_due(
        &self,
        connection: &mut MySqlConnection,
        partitions: PartitionSet,
        limit: usize,
        pick: &mut dyn Pick,
    ) -> Result<Due, sqlx::Error> {
        let sql = &self.0.sql.read;
        let letters = row::letters(&partitions);
        let now: i64 = sqlx::query(sql.clock.clone()).fetch_one(&mut *connection).await?.try_get(0)?;
        let mut rows = Vec::new();
        let mut after = (storable(Timestamp::from_micros(i64::MIN)), 0);
        while rows.len() < limit {
            let chunk = (limit - rows.len()).max(CHUNK.0);
            let found = sqlx::query(sql.due.clone())
                .bind(after.0)
                .bind(now)
                .bind(after.0)
                .bind(after.1)
                .bind(letters.as_str())
                .bind(at_most(chunk))
                .fetch_all(&mut *connection)
                .await?;
            for found in &found {
                let candidate = row::candidate(found)?;
                after = (found.try_get(WIDTH)?, candidate.seq.0);
                if rows.len() < limit && pick.pick(candidate) {
                    rows.push(row::decode(found)?);
                }
            }
            if found.len() < chunk {
                break;
            }
        }
        let next =
            sqlx::query(sql.next_due.clone()).bind(now).bind(letters.as_str()).fetch_optional(&mut *connection).await?;
        let next: Option<i64> = next.map(|row| row.try_get(0)).transpose()?;
        let now = Timestamp::from_micros(now);
        Ok(Due {
            rows,
            freed: self.read_holds(connection, &letters, Some(HoldKind::Overflow)).await?,
            next: next.map(|at| Timestamp::from_micros(at).since(now)),
            now,
        })
    }
}

fn candidate(row: &MySqlRow) -> Result<Candidate<'_>, sqlx::Error> {
    Ok(Candidate { seq: Seq(row.try_get(1)?), partition: row::partition(row, 2)?, key: row.try_get_unchecked(3)? })
}

/// Rows in the order of their numbers.
fn sorted(rows: &[MySqlRow]) -> Result<Vec<Row>, sqlx::Error> {
    let mut rows = row::decode_all(rows)?;
    rows.sort_by_key(Row::seq);
    Ok(rows)
}

pub(crate) fn at_most(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
