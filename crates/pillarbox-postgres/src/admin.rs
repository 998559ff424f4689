//! What operators see and do.

use pillarbox_core::domain::{Incarnation, NodeId, Partition, PartitionSet, Seq, Status};
use pillarbox_core::port::{
    ActionKind, Actor, AdminStore, BoxFuture, Fleet, Found, Listing, NodeStatus, Query, Stats, StoreError,
};
use sqlx::{
    PgConnection, Postgres, Row as _, SqlStr,
    postgres::{PgArguments, PgRow},
    query::Query as SqlQuery,
};

use crate::{
    PostgresStore, error,
    row::{self, Time, WIDTH},
    tables::statements,
};

/// What a [`Query`] asks, with the binds of [`PostgresStore::matching`]. Bytes are searched in their escaped form, in
/// which letter case is that of ASCII.
macro_rules! matching {
    () => {
        "($1::text[] is null or status = any($1))
            and ($2::text is null or event_id = $2) and ($3::text is null or event_type = $3)
            and ($4::text is null or aggregate_type = $4) and ($5::text is null or aggregate_id = $5)
            and ($6::text is null or tenant_id = $6) and ($7::text is null or event_key = $7)
            and ($8::timestamptz is null or created_at >= $8) and ($9::timestamptz is null or created_at < $9)
            and ($10::text is null or position(lower($10) in lower(last_error)) > 0
                or position(lower($10) in lower(payload)) > 0
                or position(lower(encode(convert_to($10, 'UTF8'), 'escape')) in lower(encode(payload_bytes, 'escape'))) > 0)"
    };
}

macro_rules! found {
    () => {
        "select {columns}, event_id, status, available_at, done_at, last_error, attempts,
            exists (select 1 from {hold} as hold
                where kind <> 'SINK' and hold.partition = {event}.partition and name = event_key
                    and kind = 'DEAD_HEAD' and from_seq = seq)
        from {event} "
    };
}

statements!(AdminSql {
    /// By primary key.
    list: concat!(found!(), "where seq >= $11 and ", matching!(), " order by seq limit $12"),
    /// By primary key, against its order.
    list_newest: concat!(found!(), "where seq <= $11 and ", matching!(), " order by seq desc limit $12"),
    /// By the dead index.
    list_dead: concat!(found!(), "where status = 'DEAD' and seq >= $11 and ", matching!(), " order by seq limit $12"),
    /// By the dead index, against its order.
    list_dead_newest: concat!(
        found!(),
        "where status = 'DEAD' and seq <= $11 and ",
        matching!(),
        " order by seq desc limit $12"
    ),
    /// Reads the table.
    count: concat!("select count(*) from {event} where ", matching!()),
    /// By the dead index.
    count_dead: concat!("select count(*) from {event} where status = 'DEAD' and ", matching!()),
    /// By the dead index or the primary key, as the actions that follow. Locks the rows: of two operators one acts on
    /// each.
    lock_dead: "select seq from {event} where seq = any($1) and status = 'DEAD' order by seq for update",
    record: "insert into {action} (actor, reason, action, seq, event_id, event_type)
        select $2, $3, $4, seq, event_id, event_type from {event} where seq = any($1) order by seq",
    /// Of the dead, those that hold their key. The holds are few.
    heads: "select from_seq from {hold} as hold join {event} on seq = from_seq
        where kind = 'DEAD_HEAD' and status = 'DEAD' and {event}.partition = hold.partition and event_key = name
            and seq = any($1)
        order by from_seq for update of hold",
    replay: "update {event} set status = 'NEW', attempts = 0, starts = 0,
            last_error = null, done_at = null, available_at = {now}
        where seq = any($1) and status = 'DEAD' returning seq",
    discard: "delete from {event} where seq = any($1) and status = 'DEAD' returning seq",
    /// The owner finds the followers of a freed key as those of one that overflowed.
    free: "update {hold} set kind = 'OVERFLOW', from_seq = from_seq + 1
        where kind = 'DEAD_HEAD' and from_seq = any($1) returning from_seq - 1",
    /// Reads the table.
    totals: "select status, count(*), min(created_at) from {event} group by status",
    nodes: "select {now}, (select count(*) from {instance} where until > {now})",
    /// The nodes, and who owns what, from one snapshot. The 256 partitions are read once.
    fleet: "select id, incarnation, started_at, until, routes, reached.mark,
            array(select number from {partition} where owner = id)::smallint[]
        from {instance} left join {mark} as reached using (incarnation) order by id",
    /// Reads the table.
    worst: "select partition, count(*) from {event} where status in ('NEW', 'RETRY')
        group by partition order by 2 desc, 1 limit 1",
});

/// What has its index takes it, whatever the statistics say.
pub(crate) const BY_INDEX: &str = "begin isolation level read committed read only;
    set local enable_seqscan = off; set local enable_bitmapscan = off";
pub(crate) const WHOLE_TABLE: &str = "begin isolation level read committed read only";

impl AdminStore for PostgresStore {
    fn list<'a>(&'a self, query: &'a Query, from: Seq, limit: u32) -> BoxFuture<'a, Result<Listing, StoreError>> {
        Box::pin(async move {
            let AdminSql { list, list_dead, list_newest, list_dead_newest, .. } = &self.0.sql.admin;
            let list = match (only_dead(query), query.newest_first) {
                (false, false) => list,
                (false, true) => list_newest,
                (true, false) => list_dead,
                (true, true) => list_dead_newest,
            };
            let mut tx = self.0.pool.begin_with(BY_INDEX).await.map_err(error::of)?;
            // One more than asked for tells whether there is a next page.
            let rows = self
                .matching(list, query)
                .bind(from.0)
                .bind(i64::from(limit) + 1)
                .fetch_all(&mut *tx)
                .await
                .map_err(error::of)?;
            tx.commit().await.map_err(error::of)?;
            let mut events = rows.iter().map(found).collect::<Result<Vec<_>, _>>().map_err(error::of)?;
            let next = (events.len() > limit as usize).then(|| events.pop()).flatten().map(|found| found.seq);
            Ok(Listing { events, next })
        })
    }

    fn count<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<u64, StoreError>> {
        Box::pin(async move {
            let AdminSql { count, count_dead, .. } = &self.0.sql.admin;
            let (begin, count) = if only_dead(query) { (BY_INDEX, count_dead) } else { (WHOLE_TABLE, count) };
            let mut tx = self.0.pool.begin_with(begin).await.map_err(error::of)?;
            let row = self.matching(count, query).fetch_one(&mut *tx).await.map_err(error::of)?;
            tx.commit().await.map_err(error::of)?;
            unsigned(&row, 0).map_err(error::of)
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
            let mut tx = self.0.pool.begin_with(WHOLE_TABLE).await.map_err(error::of)?;
            let stats = self.read_stats(&mut tx).await.map_err(error::of)?;
            tx.commit().await.map_err(error::of)?;
            Ok(stats)
        })
    }

    fn fleet(&self) -> BoxFuture<'_, Result<Fleet, StoreError>> {
        Box::pin(async {
            let mut tx = self.0.pool.begin().await.map_err(error::of)?;
            let clock = self.query(&self.0.sql.upkeep.clock).fetch_one(&mut *tx).await.map_err(error::of)?;
            let rows = self.query(&self.0.sql.admin.fleet).fetch_all(&mut *tx).await.map_err(error::of)?;
            tx.commit().await.map_err(error::of)?;
            let nodes = rows.iter().map(node_status).collect::<Result<Vec<_>, _>>()?;
            let mut free = PartitionSet::ALL;
            nodes.iter().flat_map(|node| node.partitions.iter()).for_each(|owned| {
                free.remove(owned);
            });
            let Time(now) = clock.try_get(0).map_err(error::of)?;
            Ok(Fleet { nodes, free, now })
        })
    }
}

#[derive(Clone, Copy)]
enum Action {
    Replay,
    Discard,
    Skip,
}

impl PostgresStore {
    async fn act(&self, action: Action, seqs: &[Seq], actor: &Actor) -> Result<Vec<Seq>, StoreError> {
        if seqs.is_empty() {
            return Ok(Vec::new());
        }
        let mut entered = self.0.settles.enter().await?;
        entered.begin().await?;
        let tx = entered.connection().map_err(error::of)?;
        let changed = self.act_in(tx, action, seqs, actor).await.map_err(error::of)?;
        entered.commit().await?;
        Ok(changed)
    }

    async fn act_in(
        &self,
        tx: &mut PgConnection,
        action: Action,
        seqs: &[Seq],
        actor: &Actor,
    ) -> Result<Vec<Seq>, sqlx::Error> {
        let sql = &self.0.sql.admin;
        let mut list = self.numbers(tx, &sql.lock_dead, seqs).await?;
        let heads = match action {
            Action::Replay => Vec::new(),
            Action::Discard | Action::Skip => self.numbers(tx, &sql.heads, &list).await?,
        };
        if let Action::Skip = action {
            list.clone_from(&heads);
        }
        // Recorded first, while the rows are there to tell of.
        self.query(&sql.record)
            .bind(row::numbers(&list))
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
            Action::Replay => self.numbers(tx, &sql.replay, &list).await,
            Action::Discard => {
                self.numbers(tx, &sql.free, &heads).await?;
                self.numbers(tx, &sql.discard, &list).await
            }
            Action::Skip => self.numbers(tx, &sql.free, &list).await,
        }
    }

    async fn read_stats(&self, connection: &mut PgConnection) -> Result<Stats, sqlx::Error> {
        let sql = &self.0.sql.admin;
        let totals = self.query(&sql.totals).fetch_all(&mut *connection).await?;
        let worst = self.query(&sql.worst).fetch_optional(&mut *connection).await?;
        let nodes = self.query(&sql.nodes).fetch_one(connection).await?;
        let Time(now) = nodes.try_get(0)?;
        let mut stats = Stats { now, live_nodes: unsigned(&nodes, 1)?, ..Stats::default() };
        for row in totals {
            let oldest: Option<Time> = row.try_get(2)?;
            stats.by_status[status(&row, 0)? as usize] = (unsigned(&row, 1)?, oldest.map(|Time(oldest)| oldest));
        }
        if let Some(worst) = worst {
            let partition: Partition = row::partition(&worst, 0)?;
            stats.worst_partition = Some((partition, unsigned(&worst, 1)?));
        }
        Ok(stats)
    }

    /// Runs a statement on a list of numbers; the numbers it returns, in order.
    async fn numbers(&self, tx: &mut PgConnection, sql: &SqlStr, list: &[Seq]) -> Result<Vec<Seq>, sqlx::Error> {
        let rows = self.query(sql).bind(row::numbers(list)).fetch_all(tx).await?;
        let mut seqs = rows.iter().map(|row| row.try_get(0).map(Seq)).collect::<Result<Vec<_>, _>>()?;
        seqs.sort_unstable();
        Ok(seqs)
    }

    fn matching<'q>(&self, sql: &SqlStr, query: &'q Query) -> SqlQuery<'q, Postgres, PgArguments> {
        let statuses: Vec<_> = query.statuses.iter().map(|status| status.as_str()).collect();
        self.query(sql)
            .bind((!statuses.is_empty()).then_some(statuses))
            .bind(query.id.map(|id| id.to_string()))
            .bind(query.event_type.as_deref())
            .bind(query.aggregate_type.as_deref())
            .bind(query.aggregate_id.as_deref())
            .bind(query.tenant_id.as_deref())
            .bind(query.key.as_deref())
            .bind(query.from.map(Time))
            .bind(query.until.map(Time))
            .bind(query.text.as_deref())
    }
}

fn node_status(row: &PgRow) -> Result<NodeStatus, StoreError> {
    let text = |column: usize| row.try_get::<&str, _>(column).map_err(error::of);
    let time = |column: usize| row.try_get::<Time, _>(column).map(|Time(at)| at).map_err(error::of);
    let partitions: Vec<i16> = row.try_get(6).map_err(error::of)?;
    Ok(NodeStatus {
        node: NodeId::new(text(0)?),
        incarnation: Incarnation(row.try_get(1).map_err(error::of)?),
        started_at: time(2)?,
        until: time(3)?,
        routes: serde_json::from_str(text(4)?).map_err(error::unreadable)?,
        mark: row.try_get::<Option<i64>, _>(5).map_err(error::of)?.map(Seq),
        partitions: partitions.into_iter().filter_map(|number| u8::try_from(number).ok()).map(Partition).collect(),
    })
}

fn only_dead(query: &Query) -> bool {
    !query.statuses.is_empty() && query.statuses.iter().all(|status| *status == Status::Dead)
}

fn found(found: &PgRow) -> Result<Found, sqlx::Error> {
    row::check(found)?;
    let candidate = row::candidate(found)?;
    let time = |column| Ok::<_, sqlx::Error>(found.try_get::<Option<Time>, _>(column)?.map(|Time(at)| at));
    let attempts: i32 = found.try_get(WIDTH + 5)?;
    Ok(Found {
        record: row::record(found, candidate),
        seq: candidate.seq,
        id: found.try_get(WIDTH)?,
        status: status(found, WIDTH + 1)?,
        attempts: u32::try_from(attempts).unwrap_or(0),
        available_at: time(WIDTH + 2)?,
        done_at: time(WIDTH + 3)?,
        last_error: found.try_get(WIDTH + 4)?,
        holds_key: found.try_get(WIDTH + 6)?,
    })
}

fn status(row: &PgRow, column: usize) -> Result<Status, sqlx::Error> {
    let name: &str = row.try_get(column)?;
    name.parse().map_err(|error| sqlx::Error::Decode(Box::new(error)))
}

pub(crate) fn unsigned(row: &PgRow, column: usize) -> Result<u64, sqlx::Error> {
    let number: i64 = row.try_get(column)?;
    u64::try_from(number).map_err(|error| sqlx::Error::Decode(error.into()))
}
