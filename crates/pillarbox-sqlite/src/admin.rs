//! What operators see and do.

use pillarbox_core::domain::{Incarnation, NodeId, Partition, PartitionSet, Seq, Status, Timestamp};
use pillarbox_core::port::{
    ActionKind, Actor, AdminStore, BoxFuture, Fleet, Found, Listing, NodeStatus, Query, Stats, StoreError,
};
use sqlx::{
    Row as _, SqlStr, Sqlite, SqliteConnection,
    query::Query as SqlQuery,
    sqlite::{SqliteArguments, SqliteRow},
};

use crate::{
    SqliteStore, error,
    row::{self, WIDTH},
    tables::statements,
};

/// What a [`Query`] asks, with the binds of [`bind`]. Letter case is that of ASCII, as far as SQLite knows it.
macro_rules! matching {
    () => {
        "(?1 is null or status in (select value from json_each(?1)))
            and (?2 is null or event_id = ?2) and (?3 is null or event_type = ?3)
            and (?4 is null or aggregate_type = ?4) and (?5 is null or aggregate_id = ?5)
            and (?6 is null or tenant_id = ?6) and (?7 is null or event_key = ?7)
            and (?8 is null or created_at >= ?8) and (?9 is null or created_at < ?9)
            and (?10 is null or instr(lower(last_error), lower(?10)) > 0
                or instr(lower(cast(payload as text)), lower(?10)) > 0)"
    };
}

macro_rules! found {
    () => {
        "select {columns}, event_id, status, available_at, done_at, last_error, attempts,
            exists (select 1 from {hold} indexed by {hold}_key
                where kind <> 'SINK' and {hold}.partition = {event}.partition and name = event_key
                    and kind = 'DEAD_HEAD' and from_seq = seq)
        from {event} "
    };
}

statements!(AdminSql {
    /// By primary key.
    list: concat!(found!(), "not indexed where seq >= ?11 and ", matching!(), " order by seq limit ?12"),
    /// By primary key, against its order.
    list_newest: concat!(found!(), "not indexed where seq <= ?11 and ", matching!(), " order by seq desc limit ?12"),
    /// By the dead index.
    list_dead: concat!(
        found!(),
        "indexed by {event}_dead where status = 'DEAD' and seq >= ?11 and ",
        matching!(),
        " order by seq limit ?12"
    ),
    /// By the dead index, against its order.
    list_dead_newest: concat!(
        found!(),
        "indexed by {event}_dead where status = 'DEAD' and seq <= ?11 and ",
        matching!(),
        " order by seq desc limit ?12"
    ),
    /// Reads the table.
    count: concat!("select count(*) from {event} not indexed where ", matching!()),
    /// By the dead index.
    count_dead: concat!("select count(*) from {event} indexed by {event}_dead where status = 'DEAD' and ", matching!()),
    /// By primary key, as the actions that follow.
    record: "insert into {action} (actor, reason, action, seq, event_id, event_type)
        select ?2, ?3, ?4, seq, event_id, event_type from {event} not indexed
        where seq in (select value from json_each(?1)) and status = 'DEAD'
        order by seq",
    /// Of the dead, those that hold their key. The holds are few.
    heads: "select from_seq from {hold} join {event} on seq = from_seq
        where kind = 'DEAD_HEAD' and status = 'DEAD' and {event}.partition = {hold}.partition and event_key = name
            and seq in (select value from json_each(?))",
    replay: "update {event} not indexed set status = 'NEW', attempts = 0, starts = 0,
            last_error = null, done_at = null, available_at = {now}
        where seq in (select value from json_each(?)) and status = 'DEAD' returning seq",
    discard: "delete from {event} not indexed
        where seq in (select value from json_each(?)) and status = 'DEAD' returning seq",
    /// The owner finds the followers of a freed key as those of one that overflowed.
    free: "update {hold} set kind = 'OVERFLOW', from_seq = from_seq + 1
        where kind = 'DEAD_HEAD' and from_seq in (select value from json_each(?)) returning from_seq - 1",
    /// Reads the table.
    totals: "select
            count(*) filter (where status = 'NEW'), min(created_at) filter (where status = 'NEW'),
            count(*) filter (where status = 'RETRY'), min(created_at) filter (where status = 'RETRY'),
            count(*) filter (where status = 'DONE'), min(created_at) filter (where status = 'DONE'),
            count(*) filter (where status = 'DEAD'), min(created_at) filter (where status = 'DEAD'),
            {now}, (select count(*) from {instance} where until > {now})
        from {event} not indexed",
    /// Reads the table.
    worst: "select partition, count(*) from {event} not indexed where status in ('NEW', 'RETRY')
        group by partition order by 2 desc, 1 limit 1",
    nodes: "select id, incarnation, started_at, until, routes, mark,
            (select json_group_array(number) from {partition} where owner = id)
        from {instance} order by id",
    clock: "select {now}",
});

impl AdminStore for SqliteStore {
    fn list<'a>(&'a self, query: &'a Query, from: Seq, limit: u32) -> BoxFuture<'a, Result<Listing, StoreError>> {
        Box::pin(async move {
            let AdminSql { list, list_dead, list_newest, list_dead_newest, .. } = &self.0.sql.admin;
            let list = match (only_dead(query), query.newest_first) {
                (false, false) => list,
                (false, true) => list_newest,
                (true, false) => list_dead,
                (true, true) => list_dead_newest,
            };
            let mut entered = self.0.operators.enter().await?;
            // One more than asked for tells whether there is a next page.
            let rows = bind(list, query).bind(from.0).bind(i64::from(limit) + 1).fetch_all(entered.connection()?).await;
            let mut events = rows
                .and_then(|rows| rows.iter().map(found).collect::<Result<Vec<_>, _>>())
                .map_err(|error| entered.failed(error))?;
            let next = (events.len() > limit as usize).then(|| events.pop()).flatten().map(|found| found.seq);
            Ok(Listing { events, next })
        })
    }

    fn count<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<u64, StoreError>> {
        Box::pin(async move {
            let AdminSql { count, count_dead, .. } = &self.0.sql.admin;
            let mut entered = self.0.operators.enter().await?;
            let row =
                bind(if only_dead(query) { count_dead } else { count }, query).fetch_one(entered.connection()?).await;
            row.and_then(|row| unsigned(&row, 0)).map_err(|error| entered.failed(error))
        })
    }

    fn replay<'a>(&'a self, seqs: &'a [Seq], actor: &'a Actor) -> BoxFuture<'a, Result<Vec<Seq>, StoreError>> {
        Box::pin(self.act(Action::Replay, seqs, actor))
    }

    fn discard<'a>(&'a self, seqs: &'a [Seq], actor: &'a Actor) -> BoxFuture<'a, Result<Vec<Seq>, StoreError>> {
        Box::pin(self.act(Action::Discard, seqs, actor))
    }

    fn skip<'a>(&'a self, seqs: &'a [Seq], actor: &'a Actor) -> BoxFuture<'a, Result<Vec<Seq>, StoreError>> {
        Box::pin(self.act(Action::Skip, seqs, actor))
    }

    fn stats(&self) -> BoxFuture<'_, Result<Stats, StoreError>> {
        Box::pin(async {
            let mut entered = self.0.operators.enter().await?;
            let stats = self.read_stats(entered.connection()?).await;
            stats.map_err(|error| entered.failed(error))
        })
    }

    fn fleet(&self) -> BoxFuture<'_, Result<Fleet, StoreError>> {
        Box::pin(async {
            let mut entered = self.0.operators.enter().await?;
            let clock = sqlx::query(self.0.sql.admin.clock.clone()).fetch_one(entered.connection()?).await;
            let now = clock.and_then(|row| row.try_get(0)).map_err(|error| entered.failed(error))?;
            let rows = sqlx::query(self.0.sql.admin.nodes.clone()).fetch_all(entered.connection()?).await;
            let nodes = rows.map_err(|error| entered.failed(error))?;
            let nodes = nodes.iter().map(node_status).collect::<Result<Vec<_>, _>>()?;
            let mut free = PartitionSet::ALL;
            nodes.iter().flat_map(|node| node.partitions.iter()).for_each(|owned| {
                free.remove(owned);
            });
            Ok(Fleet { nodes, free, now: Timestamp::from_micros(now) })
        })
    }
}

#[derive(Clone, Copy)]
enum Action {
    Replay,
    Discard,
    Skip,
}

impl SqliteStore {
    async fn act(&self, action: Action, seqs: &[Seq], actor: &Actor) -> Result<Vec<Seq>, StoreError> {
        if seqs.is_empty() {
            return Ok(Vec::new());
        }
        let (_turn, mut entered) = self.write_on(&self.0.settles).await?;
        let mut tx = entered.begin().await?;
        let changed = self.act_in(&mut tx, action, seqs, actor).await.map_err(error::of)?;
        tx.commit().await.map_err(error::of_commit)?;
        Ok(changed)
    }

    async fn act_in(
        &self,
        tx: &mut SqliteConnection,
        action: Action,
        seqs: &[Seq],
        actor: &Actor,
    ) -> Result<Vec<Seq>, sqlx::Error> {
        let sql = &self.0.sql.admin;
        let mut list = row::json_numbers(seqs.iter().map(|seq| seq.0));
        if let Action::Skip = action {
            list = row::json_numbers(numbers(tx, &sql.heads, &list).await?.iter().map(|seq| seq.0));
        }
        // Recorded first, while the rows are there to tell of.
        sqlx::query(sql.record.clone())
            .bind(list.as_str())
            .bind(actor.who.as_str())
            .bind(actor.why.as_deref())
            .bind(match action {
                Action::Replay => ActionKind::Replay.as_str(),
                Action::Discard => ActionKind::Discard.as_str(),
                Action::Skip => ActionKind::Skip.as_str(),
            })
            .execute(&mut *tx)
            .await?;
        match action {
            Action::Replay => numbers(tx, &sql.replay, &list).await,
            Action::Discard => {
                let heads = numbers(tx, &sql.heads, &list).await?;
                numbers(tx, &sql.free, &row::json_numbers(heads.iter().map(|seq| seq.0))).await?;
                numbers(tx, &sql.discard, &list).await
            }
            Action::Skip => numbers(tx, &sql.free, &list).await,
        }
    }

    async fn read_stats(&self, connection: &mut SqliteConnection) -> Result<Stats, sqlx::Error> {
        let sql = &self.0.sql.admin;
        let totals = sqlx::query(sql.totals.clone()).fetch_one(&mut *connection).await?;
        let worst = sqlx::query(sql.worst.clone()).fetch_optional(connection).await?;
        let mut stats = Stats {
            now: Timestamp::from_micros(totals.try_get(8)?),
            live_nodes: unsigned(&totals, 9)?,
            ..Stats::default()
        };
        for (status, column) in Status::ALL.into_iter().zip((0..).step_by(2)) {
            let oldest: Option<i64> = totals.try_get(column + 1)?;
            stats.by_status[status as usize] = (unsigned(&totals, column)?, oldest.map(Timestamp::from_micros));
        }
        if let Some(worst) = worst {
            let partition: Partition = row::partition(&worst, 0)?;
            stats.worst_partition = Some((partition, unsigned(&worst, 1)?));
        }
        Ok(stats)
    }
}

/// Runs a statement on a list of numbers; the numbers it returns, in order.
async fn numbers(tx: &mut SqliteConnection, sql: &SqlStr, list: &str) -> Result<Vec<Seq>, sqlx::Error> {
    let rows = sqlx::query(sql.clone()).bind(list).fetch_all(tx).await?;
    let mut seqs = rows.iter().map(|row| row.try_get(0).map(Seq)).collect::<Result<Vec<_>, _>>()?;
    seqs.sort_unstable();
    Ok(seqs)
}

fn node_status(row: &SqliteRow) -> Result<NodeStatus, StoreError> {
    let text = |column: usize| row.try_get::<&str, _>(column).map_err(error::of);
    let number = |column: usize| row.try_get::<i64, _>(column).map_err(error::of);
    let partitions: Vec<u8> = serde_json::from_str(text(6)?).map_err(error::unreadable)?;
    Ok(NodeStatus {
        node: NodeId::new(text(0)?),
        incarnation: Incarnation(number(1)?),
        started_at: Timestamp::from_micros(number(2)?),
        until: Timestamp::from_micros(number(3)?),
        routes: serde_json::from_str(text(4)?).map_err(error::unreadable)?,
        mark: row.try_get::<Option<i64>, _>(5).map_err(error::of)?.map(Seq),
        partitions: partitions.into_iter().map(Partition).collect(),
    })
}

fn only_dead(query: &Query) -> bool {
    !query.statuses.is_empty() && query.statuses.iter().all(|status| *status == Status::Dead)
}

fn bind<'q>(sql: &SqlStr, query: &'q Query) -> SqlQuery<'q, Sqlite, SqliteArguments> {
    let statuses: Vec<_> = query.statuses.iter().map(|status| status.as_str()).collect();
    let statuses = (!statuses.is_empty()).then(|| serde_json::to_string(&statuses).unwrap_or_default());
    sqlx::query(sql.clone())
        .bind(statuses)
        .bind(query.id.map(|id| id.to_string()))
        .bind(query.event_type.as_deref())
        .bind(query.aggregate_type.as_deref())
        .bind(query.aggregate_id.as_deref())
        .bind(query.tenant_id.as_deref())
        .bind(query.key.as_deref())
        .bind(query.from.map(Timestamp::as_micros))
        .bind(query.until.map(Timestamp::as_micros))
        .bind(query.text.as_deref())
}

fn found(found: &SqliteRow) -> Result<Found, sqlx::Error> {
    let candidate = row::candidate(found)?;
    let time = |column| {
        let micros = found.try_get::<Option<i64>, _>(column).unwrap_or_default();
        micros.map(Timestamp::from_micros)
    };
    let status: &str = found.try_get(WIDTH + 1)?;
    Ok(Found {
        record: row::record(found, candidate),
        seq: candidate.seq,
        id: text(found, WIDTH).unwrap_or_default(),
        status: status.parse().map_err(|error| sqlx::Error::Decode(Box::new(error)))?,
        attempts: unsigned(found, WIDTH + 5).map_or(0, |attempts| u32::try_from(attempts).unwrap_or(u32::MAX)),
        available_at: time(WIDTH + 2),
        done_at: time(WIDTH + 3),
        last_error: text(found, WIDTH + 4),
        holds_key: found.try_get::<i64, _>(WIDTH + 6)? != 0,
    })
}

/// Text as it stands, even where something else was put into the column.
fn text(row: &SqliteRow, column: usize) -> Option<String> {
    let bytes: Option<Vec<u8>> = row.try_get_unchecked(column).ok()?;
    bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

pub(crate) fn unsigned(row: &SqliteRow, column: usize) -> Result<u64, sqlx::Error> {
    let number: i64 = row.try_get(column)?;
    u64::try_from(number).map_err(|error| sqlx::Error::Decode(error.into()))
}
