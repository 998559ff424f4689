//! Reading: pages, due rows, lanes.
//!
//! A page is one or more passes, each by the rules of [`crate::horizon`], which is where the order of events is argued
//! for. The statement of a pass returns, from one snapshot: first a row that carries the horizon, then late rows,
//! then rows above the position. The horizon's parts are read in this order: the snapshot, which PostgreSQL takes when
//! the statement begins; the sequence's last number, in the subquery; and only above that the age of the transaction
//! id 3, which the server counts from the next id to be given out (`GetStableLatestTransactionId`). The age is counted
//! once a transaction, so a pass is a transaction of its own.
//!
//! The last number is asked of `pg_sequence_last_value`, which reads it under the sequence's lock. A plain select of
//! `last_value` does not, and every 32 numbers it can see one that is 32 ahead: `nextval` writes it to the shared page for a
//! moment, for the log. The position would pass numbers that are yet to be given out.
//!
//! The carrier also names the life of the tables: a pass that sees the first event of a table that was emptied sees that the
//! node's memory is void, see [`crate::life`].
//!
//! Nothing is written here, so a process may die between any two steps.

use futures_util::TryStreamExt as _;
use pillarbox_core::domain::{Key, Lease, Partition, PartitionSet, Seq, Timestamp};
use pillarbox_core::port::{
    Batch, BoxFuture, Candidate, Due, Hold, HoldKind, Page, Pick, ReadStore, Recall, Row, Scan, Settled, StoreError,
    StoreErrorKind, Taken,
};
use sqlx::{
    PgConnection, Postgres, Row as _,
    postgres::{PgArguments, PgRow},
    query::Query,
};

use crate::{
    PostgresStore,
    connection::Entered,
    error,
    horizon::{Horizon, Reach, Track},
    row::{self, Time, WIDTH},
    tables::statements,
};

/// The row that carries the horizon: the time of the read in the column of `created_at`.
macro_rules! horizon {
    () => {
        "select null::bigint, null::smallint, null::text, null::text, null::text, null::text, null::text, null::text,
            null::text, null::text, null::bytea, null::text, null::integer, null::integer, null::text,
            null::timestamptz, {now}, concat_ws(' ', pg_current_snapshot(), given_out.number, age('3'::xid),
                (select life from {life} where one))
        from (select coalesce(pg_sequence_last_value('{event}_seq_seq'::regclass), 0) as number offset 0) as given_out"
    };
}

macro_rules! waiting {
    () => {
        "status = 'NEW' and available_at is null and get_bit($3::bytea, partition) = 1"
    };
}

/// The pending events of a key, from a number on. As ranges of pairs, because by them no other index than that of the keys is of
/// any use: where nearly all events have one key, an equal key looks so common to the planner that it would go along the
/// primary key, and read them all to find those of another.
macro_rules! of_key {
    ($key:literal, $from:literal, $end:literal) => {
        concat!(
            "pending.event_key is not null and pending.status in ('NEW', 'RETRY')
            and (pending.event_key, pending.seq) >= (",
            $key,
            ", ",
            $from,
            ") and (pending.event_key, pending.seq) ",
            $end
        )
    };
}

statements!(ReadSql {
    /// By primary key.
    page: concat!(
        horizon!(),
        " union all (select {columns}, null from {event} where seq > $1 and ",
        waiting!(),
        " order by seq limit $2)"
    ),
    /// The same, and before it the rows below the position whose ids have ended since: by primary key, from the lowest
    /// of their floors; where none has ended that is null, and nothing is read. A single id is looked up in the
    /// snapshot; of a range, something has ended if not all of it runs.
    page_late: concat!(
        "with ended as materialized (
            select first::text::xid8 as first, last::text::xid8 as last, floor
            from unnest($4::bigint[], $5::bigint[], $6::bigint[]) as open (first, last, floor)
            where case when first = last then pg_visible_in_snapshot(first::text::xid8, pg_current_snapshot())
                else least(last, pg_snapshot_xmax(pg_current_snapshot())::text::bigint - 1) - first + 1
                    > (select count(*) from pg_snapshot_xip(pg_current_snapshot()) as running (id)
                        where id::text::bigint between first and last) end
        ), late as materialized (
            select {columns} from {event}
            where seq > (select min(floor) from ended) and seq <= $1 and ",
        waiting!(),
        "       and exists (select from ended where txid between first and last and seq > floor)
            order by seq limit $2
        ) ",
        horizon!(),
        " union all select {columns}, null from late
        union all (select {columns}, null from {event} where seq > $1 and ",
        waiting!(),
        " order by seq limit $2 - (select count(*) from late))"
    ),
    /// By the due index.
    next_due: "select now, (select available_at from {event}
            where available_at is not null and status in ('NEW', 'RETRY') and available_at > now
                and get_bit($1::bytea, partition) = 1
            order by available_at, seq limit 1)
        from (select {now} as now offset 0) as clock",
    /// By the due index.
    due: "select {columns}, available_at from {event}
        where available_at is not null and status in ('NEW', 'RETRY')
            and available_at <= $1 and (available_at, seq) > ($2, $3) and get_bit($4::bytea, partition) = 1
        order by available_at, seq limit $5",
    /// By the key index.
    lane: concat!(
        "select {columns} from {event} as pending where ",
        of_key!("$1::text", "$2::bigint", "<= ($1::text, 9223372036854775807)"),
        " and partition = $3 and (available_at is null or available_at <= {now})
        order by event_key, seq limit $4"
    ),
    /// By primary key.
    rows: "select {columns} from {event}
        where seq = any($1) and status in ('NEW', 'RETRY') and (available_at is null or available_at <= {now})
        order by seq",
    /// By the holds' index.
    holds: "select partition, name, kind, from_seq from {hold}
        where kind <> 'SINK' and get_bit($1::bytea, partition) = 1 and ($2::text is null or kind = $2)
        order by partition, name",
    /// By the due index: what is RETRY has a due time.
    failing: "select partition, event_key, seq from {event}
        where available_at is not null and status in ('NEW', 'RETRY')
            and status = 'RETRY' and event_key is not null and get_bit($1::bytea, partition) = 1
        order by seq",
    /// Above the mark by primary key, below it by the due index and the holds; whether a key has an earlier row, by
    /// the key index. A delayed row holds back nothing before it is due.
    oldest: concat!(
        "select seq from (
            select seq, event_key from {event}
            where seq > $1 and status in ('NEW', 'RETRY') and get_bit($2::bytea, partition) = 1
                and (available_at is null or available_at <= {now})
            union
            select seq, event_key from {event}
            where available_at is not null and status in ('NEW', 'RETRY') and available_at <= {now}
                and get_bit($2::bytea, partition) = 1
            union
            select (select seq from {event} as pending where ",
        of_key!("name", "from_seq", "<= (name, 9223372036854775807)"),
        " and (available_at is null or available_at <= {now}) order by event_key, seq limit 1), name
            from {hold} where kind = 'OVERFLOW' and get_bit($2::bytea, partition) = 1
        ) as found
        where seq is not null and (event_key is null or (select pending.seq from {event} as pending where ",
        of_key!("found.event_key", "0", "< (found.event_key, found.seq)"),
        " and (pending.status = 'RETRY' or pending.available_at is null or pending.available_at <= {now})
            order by pending.event_key, pending.seq limit 1) is null)
        order by seq limit $3"
    ),
    /// Above the mark by primary key, below it by the due index.
    newest: "select seq from (
            (select seq from {event}
                where seq > $1 and status in ('NEW', 'RETRY') and get_bit($2::bytea, partition) = 1
                order by seq desc limit $3)
            union
            select seq from {event}
            where available_at is not null and status in ('NEW', 'RETRY') and get_bit($2::bytea, partition) = 1)
            as found
        order by seq desc limit $3",
});

impl ReadStore for PostgresStore {
    fn page<'a>(&'a self, scan: Scan<'a>, pick: &'a mut dyn Pick) -> BoxFuture<'a, Result<Page, StoreError>> {
        Box::pin(self.within(async move {
            let mut entered = self.0.reads.enter().await?;
            let page = self.read_page(&mut entered, &scan, pick).await?;
            entered.leave();
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
            let mut entered = self.0.reads.enter().await?;
            let connection = self.begin_reading(&mut entered).await?;
            let due = self.read_due(connection, &partitions, limit, pick).await.map_err(error::of)?;
            entered.end_reading().await.map_err(error::of)?;
            entered.leave();
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
            let mut entered = self.0.reads.enter().await?;
            let rows = self
                .query(&self.0.sql.read.lane)
                .bind(key.as_str())
                .bind(from.0)
                .bind(i16::from(partition.0))
                .bind(at_most(limit))
                .fetch_all(self.begin_reading(&mut entered).await?)
                .await;
            let rows = rows.and_then(decode_all).map_err(error::of)?;
            entered.end_reading().await.map_err(error::of)?;
            entered.leave();
            Ok(rows)
        }))
    }

    fn rows<'a>(&'a self, seqs: &'a [Seq]) -> BoxFuture<'a, Result<Vec<Row>, StoreError>> {
        Box::pin(self.within(async move {
            if seqs.is_empty() {
                return Ok(Vec::new());
            }
            let mut entered = self.0.reads.enter().await?;
            let rows = self
                .query(&self.0.sql.read.rows)
                .bind(row::numbers(seqs))
                .fetch_all(self.begin_reading(&mut entered).await?)
                .await;
            let rows = rows.and_then(decode_all).map_err(error::of)?;
            entered.end_reading().await.map_err(error::of)?;
            entered.leave();
            Ok(rows)
        }))
    }

    fn recall<'a>(&'a self, taken: &'a [Taken]) -> BoxFuture<'a, Result<Recall, StoreError>> {
        Box::pin(self.within(async move {
            if taken.is_empty() {
                return Ok(Recall::default());
            }
            let mut entered = self.0.reads.enter().await?;
            let connection = self.begin_reading(&mut entered).await?;
            let recall = self.read_recall(connection, taken).await.map_err(error::of)?;
            entered.end_reading().await.map_err(error::of)?;
            entered.leave();
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

/// Who has seen higher ones would pass over those that are given out from here on.
fn numbers_went_back() -> StoreError {
    StoreError::new(StoreErrorKind::Rewound, "the numbers of the events begin anew: their sequence was set back")
}

/// What a pass read: the rows in ascending order.
struct Pass {
    horizon: Horizon,
    life: Option<Box<str>>,
    now: Timestamp,
    rows: Vec<Found>,
}

impl Pass {
    async fn of(query: Query<'_, Postgres, PgArguments>, connection: &mut PgConnection) -> Result<Self, sqlx::Error> {
        let (mut carrier, mut rows) = (None, Vec::new());
        let mut coming = query.fetch(connection);
        while let Some(found) = coming.try_next().await? {
            if carrier.is_none() && rows.is_empty() {
                row::check(&found)?;
            }
            match row::seq(&found)? {
                Some(_) => rows.push(Found::of(&found)?),
                None => carrier = Some(found),
            }
        }
        let carrier = carrier.ok_or(sqlx::Error::RowNotFound)?;
        let text: &str = carrier.try_get(WIDTH)?;
        let horizon = Horizon::parse(text)
            .ok_or_else(|| sqlx::Error::Decode(format!("the snapshot {text:?} can't be understood").into()))?;
        let life = text.split(' ').nth(3).map(Into::into);
        let Time(now) = carrier.try_get(row::CREATED_AT)?;
        // They come so; the positions rest on more than that.
        rows.sort_by_key(|found| found.row.seq());
        Ok(Self { horizon, life, now, rows })
    }
}

/// A row that a pass has come upon. It is decoded as it comes, while the server sends the next ones, and before the owner is
/// asked: there is nothing of a backlog that the owner does not want.
struct Found {
    row: Row,
    created_at: Timestamp,
}

impl Found {
    fn of(found: &PgRow) -> Result<Self, sqlx::Error> {
        let Time(created_at) = found.try_get_unchecked(row::CREATED_AT)?;
        Ok(Self { row: row::decode(found, row::candidate(found)?), created_at })
    }

    fn candidate(&self) -> Candidate<'_> {
        Candidate { seq: self.row.seq(), partition: self.row.partition(), key: self.row.key().map(Key::as_str) }
    }
}

impl PostgresStore {
    async fn read_page(&self, entered: &mut Entered, scan: &Scan<'_>, pick: &mut dyn Pick) -> Result<Page, StoreError> {
        let partitions = row::bits(&scan.partitions);
        let mut track = Track::resume(scan.after);
        let mut rows = Vec::with_capacity(scan.limit.min(1_024));
        let mut more = false;
        let mut read_at = None;
        loop {
            // Not too few, where most rows are refused.
            let chunk = (scan.limit - rows.len()).max(64);
            let pass = self.pass(entered, &track, chunk, &partitions).await?;
            let now = *read_at.get_or_insert(pass.now);
            let young = pass.now.saturating_sub(scan.skip_recent);
            let full = pass.rows.len() >= chunk;
            let seqs: Vec<i64> = pass.rows.iter().map(|found| found.row.seq().0).collect();
            let mut taken = 0;
            let mut recent = false;
            for found in pass.rows {
                more = rows.len() >= scan.limit;
                recent = !scan.skip_recent.is_zero() && found.created_at > young;
                if more || recent {
                    break;
                }
                taken += 1;
                if pick.pick(found.candidate()) {
                    rows.push(found.row);
                }
            }
            let reach = Reach::of(&seqs, taken, full, track.seq);
            track.advance(&pass.horizon, reach);
            more |= full && rows.len() >= scan.limit;
            if more || recent || !full {
                // Late rows of a later pass have lower numbers than those before.
                rows.sort_by_key(Row::seq);
                return Ok(Page { rows, position: track.position(), more, now });
            }
        }
    }

    /// One statement, one snapshot, in a transaction of its own.
    async fn pass(
        &self,
        entered: &mut Entered,
        track: &Track,
        chunk: usize,
        partitions: &[u8],
    ) -> Result<Pass, StoreError> {
        let ReadSql { page, page_late, .. } = &self.0.sql.read;
        let open = track.to_probe();
        let query = self.query(if open.is_empty() { page } else { page_late });
        let mut query = query.bind(track.seq).bind(at_most(chunk)).bind(partitions);
        if !open.is_empty() {
            // Ids don't reach 2^63.
            let ids = |id: fn(&crate::horizon::Open) -> u64| {
                open.iter().map(|open| i64::try_from(id(open)).unwrap_or(i64::MAX)).collect::<Vec<_>>()
            };
            query = query
                .bind(ids(|open| open.first))
                .bind(ids(|open| open.last))
                .bind(open.iter().map(|open| open.floor).collect::<Vec<_>>());
        }
        let pass = Pass::of(query, self.begin_reading(entered).await?).await.map_err(error::of)?;
        entered.end_reading().await.map_err(error::of)?;
        self.0.life.check(pass.life.as_deref())?;
        if track.is_ahead_of(&pass.horizon) {
            return Err(numbers_went_back());
        }
        Ok(pass)
    }
}

impl PostgresStore {
    async fn read_due(
        &self,
        connection: &mut PgConnection,
        partitions: &PartitionSet,
        limit: usize,
        pick: &mut dyn Pick,
    ) -> Result<Due, sqlx::Error> {
        let sql = &self.0.sql.read;
        let partitions = row::bits(partitions);
        let clock = self.query(&sql.next_due).bind(partitions.as_slice()).fetch_one(&mut *connection).await?;
        let (Time(now), next): (Time, Option<Time>) = (clock.try_get(0)?, clock.try_get(1)?);
        let mut rows = Vec::new();
        let mut after = (Time(Timestamp::from_micros(i64::MIN)), 0);
        while rows.len() < limit {
            let chunk = (limit - rows.len()).max(64);
            let found = self
                .query(&sql.due)
                .bind(Time(now))
                .bind(after.0)
                .bind(after.1)
                .bind(partitions.as_slice())
                .bind(at_most(chunk))
                .fetch_all(&mut *connection)
                .await?;
            let found = row::checked(found)?;
            for found in &found {
                let candidate = row::candidate(found)?;
                after = (found.try_get(WIDTH)?, candidate.seq.0);
                if rows.len() < limit && pick.pick(candidate) {
                    rows.push(row::decode(found, candidate));
                }
            }
            if found.len() < chunk {
                break;
            }
        }
        Ok(Due {
            rows,
            freed: self.read_holds(connection, &partitions, Some(HoldKind::Overflow)).await?,
            next: next.map(|Time(at)| at.since(now)),
            now,
        })
    }

    async fn read_recall(&self, connection: &mut PgConnection, taken: &[Taken]) -> Result<Recall, sqlx::Error> {
        let partitions = row::bits(&taken.iter().map(|taken| taken.partition).collect());
        let failing =
            self.query(&self.0.sql.read.failing).bind(partitions.as_slice()).fetch_all(&mut *connection).await?;
        let failing = failing.iter().map(|row| {
            let key: &str = row.try_get(1)?;
            Ok((row::partition(row, 0)?, Key::from(key), Seq(row.try_get(2)?)))
        });
        let failing = failing.collect::<Result<_, sqlx::Error>>()?;
        Ok(Recall {
            holds: self.read_holds(connection, &partitions, None).await?,
            failing,
            suspects: self.read_suspects(connection, taken).await?,
        })
    }

    async fn read_suspects(&self, connection: &mut PgConnection, taken: &[Taken]) -> Result<Vec<Seq>, sqlx::Error> {
        let unclean = || taken.iter().filter(|taken| taken.suspects > 0);
        let (Some(most), Some(after)) =
            (unclean().map(|taken| taken.suspects).max(), unclean().map(|taken| taken.mark).min())
        else {
            return Ok(Vec::new());
        };
        let partitions = row::bits(&unclean().map(|taken| taken.partition).collect());
        let mut suspects = Vec::new();
        let ReadSql { oldest, newest, .. } = &self.0.sql.read;
        for sql in [oldest, newest] {
            let query = self.query(sql).bind(after.0).bind(partitions.as_slice()).bind(i64::from(most));
            for row in query.fetch_all(&mut *connection).await? {
                suspects.push(Seq(row.try_get(0)?));
            }
        }
        suspects.sort_unstable();
        suspects.dedup();
        Ok(suspects)
    }

    async fn read_holds(
        &self,
        connection: &mut PgConnection,
        partitions: &[u8],
        kind: Option<HoldKind>,
    ) -> Result<Vec<Hold>, sqlx::Error> {
        let query = self.query(&self.0.sql.read.holds).bind(partitions).bind(kind.map(row::hold_kind));
        query.fetch_all(connection).await?.iter().map(row::hold).collect()
    }
}

fn decode_all(rows: Vec<PgRow>) -> Result<Vec<Row>, sqlx::Error> {
    row::checked(rows)?
        .iter()
        .map(|found| row::candidate(found).map(|candidate| row::decode(found, candidate)))
        .collect()
}

pub(crate) fn at_most(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
