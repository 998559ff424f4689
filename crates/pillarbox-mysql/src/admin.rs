//! What operators see and do.

use std::{collections::HashMap, fmt::Write as _};

use pillarbox_core::domain::{Incarnation, NodeId, PartitionSet, Seq, Status, Timestamp};
use pillarbox_core::port::{
    ActionKind, Actor, AdminStore, BoxFuture, Fleet, Found, Listing, NodeStatus, Query, Stats, StoreError,
};
use sqlx::{
    Arguments as _, AssertSqlSafe, MySqlConnection, Row as _, SqlStr,
    mysql::{MySqlArguments, MySqlRow},
};

use crate::{
    MySqlStore,
    connection::retried,
    error,
    row::{self, WIDTH},
    settle::{given, locked},
    tables::statements,
    write::storable,
};

statements!(AdminSql {
    /// By primary key, or by the status where only one is asked for; the conditions follow.
    list: "select {columns}, event_id, status, timestampdiff(microsecond, {epoch}, available_at),
            timestampdiff(microsecond, {epoch}, done_at), last_error, attempts,
            exists (select 1 from {hold} where {hold}.`partition` = {event}.`partition` and space = 0
                and name = event_key and kind = 'DEAD_HEAD' and from_seq = seq)
        from {event} force index ",
    /// Reads the table, or the part of the status index.
    count: "select count(*) from {event} force index ",
    /// The rows of a list that are dead, locked. By primary key, as the actions that follow.
    dead: "select seq from {event} force index (primary) where seq in ({list}) and status = 'DEAD' for update",
    /// Of the dead, those that hold their key. The holds are few.
    heads: "select seq from {event} force index (primary) straight_join {hold}
            on {hold}.`partition` = {event}.`partition` and space = 0 and name = event_key and from_seq = seq
        where seq in ({list}) and kind = 'DEAD_HEAD' and status = 'DEAD' for update",
    record: concat!(
        "insert into {action} (actor, reason, action, seq, event_id, event_type)
        select ?, ?, ?, seq, event_id, event_type from ",
        given!(),
        " order by seq"
    ),
    replay: concat!(
        "update ",
        given!(),
        " set status = 'NEW', attempts = 0, starts = 0,
            last_error = null, done_at = null, available_at = {now} where status = 'DEAD'"
    ),
    discard: concat!("delete {event} from ", given!(), " where status = 'DEAD'"),
    /// The owner finds the followers of a freed key as those of one that overflowed.
    free_keys: "update json_table(?, '$[*]' columns (n bigint path '$')) as given
        straight_join {event} force index (primary) on seq = given.n
        straight_join {hold}
            on {hold}.`partition` = {event}.`partition` and space = 0 and name = event_key and from_seq = seq
        set kind = 'OVERFLOW', from_seq = from_seq + 1
        where kind = 'DEAD_HEAD'",
    /// By the status; the oldest of each by primary key.
    totals: "select status, count(*), min(seq) from {event} force index (by_status) group by status",
    /// By primary key.
    created: "select timestampdiff(microsecond, {epoch}, created_at) from {event} where seq = ?",
    now: "select timestampdiff(microsecond, {epoch}, {now}),
            (select count(*) from {instance} where `until` > {now})",
    /// By the status.
    worst: "select `partition`, count(*) from {event} force index (by_status) where status in ('NEW', 'RETRY')
        group by `partition` order by 2 desc, 1 limit 1",
    nodes: "select id, incarnation, timestampdiff(microsecond, {epoch}, started_at),
            timestampdiff(microsecond, {epoch}, `until`), routes, mark
        from {instance} order by id",
});

impl AdminStore for MySqlStore {
    fn list<'a>(&'a self, query: &'a Query, from: Seq, limit: u32) -> BoxFuture<'a, Result<Listing, StoreError>> {
        Box::pin(async move {
            // One more than asked for tells whether there is a next page.
            let tail = [from.0, i64::from(limit) + 1];
            let order = if query.newest_first {
                " and seq <= ? order by seq desc limit ?"
            } else {
                " and seq >= ? order by seq limit ?"
            };
            let rows = self.matching(&self.0.sql.admin.list, query, order, &tail).await?;
            let mut events = rows.iter().map(found).collect::<Result<Vec<_>, _>>().map_err(error::of)?;
            let next = (events.len() > limit as usize).then(|| events.pop()).flatten().map(|found| found.seq);
            Ok(Listing { events, next })
        })
    }

    fn count<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<u64, StoreError>> {
        Box::pin(async move {
            let rows = self.matching(&self.0.sql.admin.count, query, "", &[]).await?;
            rows.first().map_or(Ok(0), |row| unsigned(row, 0)).map_err(error::of)
        })
    }

    fn replay<'a>(&'a self, seqs: &'a [Seq], actor: &'a Actor) -> BoxFuture<'a, Result<Vec<Seq>, StoreError>> {
        Box::pin(retried(move || self.act(Action::Replay, seqs, actor)))
    }

    fn discard<'a>(&'a self, seqs: &'a [Seq], actor: &'a Actor) -> BoxFuture<'a, Result<Vec<Seq>, StoreError>> {
        Box::pin(retried(move || self.act(Action::Discard, seqs, actor)))
    }

    fn skip<'a>(&'a self, seqs: &'a [Seq], actor: &'a Actor) -> BoxFuture<'a, Result<Vec<Seq>, StoreError>> {
        Box::pin(retried(move || self.act(Action::Skip, seqs, actor)))
    }

    fn stats(&self) -> BoxFuture<'_, Result<Stats, StoreError>> {
        Box::pin(async {
            let mut entered = self.0.seeks.enter().await?;
            let stats = self.read_stats(&mut entered).await.map_err(error::of)?;
            entered.done();
            Ok(stats)
        })
    }

    fn fleet(&self) -> BoxFuture<'_, Result<Fleet, StoreError>> {
        Box::pin(async {
            let mut entered = self.0.seeks.enter().await?;
            let fleet = self.read_fleet(&mut entered).await?;
            entered.done();
            Ok(fleet)
        })
    }
}

impl MySqlStore {
    /// The partitions first: who joins meanwhile owns none of them yet.
    async fn read_fleet(&self, connection: &mut MySqlConnection) -> Result<Fleet, StoreError> {
        let sql = &self.0.sql;
        let now = sqlx::query(sql.upkeep.clock.clone()).fetch_one(&mut *connection).await.map_err(error::of)?;
        let owners = sqlx::query(sql.own.owners.clone()).fetch_all(&mut *connection).await.map_err(error::of)?;
        let nodes = sqlx::query(sql.admin.nodes.clone()).fetch_all(&mut *connection).await.map_err(error::of)?;
        let mut owned: HashMap<&str, PartitionSet> = HashMap::new();
        let mut free = PartitionSet::EMPTY;
        for row in &owners {
            let partition = row::partition(row, 0).map_err(error::of)?;
            match row.try_get::<Option<&str>, _>(1).map_err(error::of)? {
                Some(owner) => owned.entry(owner).or_default().insert(partition),
                None => free.insert(partition),
            };
        }
        let status = |row: &MySqlRow| {
            let number = |column: usize| row.try_get::<i64, _>(column).map_err(error::of);
            let name = row::text(row, 0).map_err(error::of)?;
            Ok(NodeStatus {
                node: NodeId::new(name),
                incarnation: Incarnation(number(1)?),
                started_at: Timestamp::from_micros(number(2)?),
                until: Timestamp::from_micros(number(3)?),
                routes: serde_json::from_str(row::text(row, 4).map_err(error::of)?).map_err(error::unreadable)?,
                mark: row.try_get::<Option<i64>, _>(5).map_err(error::of)?.map(Seq),
                partitions: owned.get(name).copied().unwrap_or_default(),
            })
        };
        let nodes = nodes.iter().map(status).collect::<Result<_, StoreError>>()?;
        Ok(Fleet { nodes, free, now: Timestamp::from_micros(now.try_get(0).map_err(error::of)?) })
    }
}

#[derive(Clone, Copy)]
enum Action {
    Replay,
    Discard,
    Skip,
}

impl MySqlStore {
    /// Runs a statement with the conditions of a query. It is not kept prepared: there are too many forms of it.
    async fn matching(
        &self,
        head: &SqlStr,
        query: &Query,
        tail: &str,
        binds: &[i64],
    ) -> Result<Vec<MySqlRow>, StoreError> {
        let (sql, mut arguments) = conditions(query).map_err(|error| error::of(sqlx::Error::Encode(error)))?;
        for bind in binds {
            arguments.add(*bind).map_err(|error| error::of(sqlx::Error::Encode(error)))?;
        }
        let index = if query.statuses.len() == 1 { "by_status" } else { "primary" };
        let sql = format!("{} ({index}) where {sql}{tail}", head.as_str());
        let mut entered = self.0.seeks.enter().await?;
        // Static texts, put together: every value is bound.
        let rows = sqlx::query_with(AssertSqlSafe(self.0.names.fill(&sql)), arguments)
            .persistent(false)
            .fetch_all(&mut *entered)
            .await
            .map_err(error::of)?;
        entered.done();
        Ok(rows)
    }

    async fn act(&self, action: Action, seqs: &[Seq], actor: &Actor) -> Result<Vec<Seq>, StoreError> {
        if seqs.is_empty() {
            return Ok(Vec::new());
        }
        let mut seqs = seqs.to_vec();
        seqs.sort_unstable();
        let mut tx = self.0.settles.begin().await?;
        let changed = self.act_in(&mut tx, action, &seqs, actor).await.map_err(error::of)?;
        tx.commit().await?;
        Ok(changed)
    }

    async fn act_in(
        &self,
        tx: &mut MySqlConnection,
        action: Action,
        seqs: &[Seq],
        actor: &Actor,
    ) -> Result<Vec<Seq>, sqlx::Error> {
        let sql = &self.0.sql.admin;
        // The lock on the rows decides between two operators.
        let chosen = match action {
            Action::Replay | Action::Discard => &sql.dead,
            Action::Skip => &sql.heads,
        };
        let mut changed = locked(tx, chosen, seqs).await?;
        changed.sort_unstable();
        changed.dedup();
        let list = row::json_numbers(changed.iter().copied());
        // Recorded first, while the rows are there to tell of.
        sqlx::query(sql.record.clone())
            .bind(actor.who.as_str())
            .bind(actor.why.as_deref())
            .bind(match action {
                Action::Replay => ActionKind::Replay.as_str(),
                Action::Discard => ActionKind::Discard.as_str(),
                Action::Skip => ActionKind::Skip.as_str(),
            })
            .bind(list.as_str())
            .execute(&mut *tx)
            .await?;
        let steps: &[&SqlStr] = match action {
            Action::Replay => &[&sql.replay],
            Action::Discard => &[&sql.free_keys, &sql.discard],
            Action::Skip => &[&sql.free_keys],
        };
        for step in steps {
            sqlx::query((*step).clone()).bind(list.as_str()).execute(&mut *tx).await?;
        }
        Ok(changed)
    }

    async fn read_stats(&self, connection: &mut MySqlConnection) -> Result<Stats, sqlx::Error> {
        let sql = &self.0.sql.admin;
        let now = sqlx::query(sql.now.clone()).fetch_one(&mut *connection).await?;
        let mut stats =
            Stats { now: Timestamp::from_micros(now.try_get(0)?), live_nodes: unsigned(&now, 1)?, ..Stats::default() };
        for row in sqlx::query(sql.totals.clone()).fetch_all(&mut *connection).await? {
            let oldest: i64 = row.try_get(2)?;
            let created = sqlx::query(sql.created.clone()).bind(oldest).fetch_optional(&mut *connection).await?;
            let created = created.map(|row| row.try_get(0)).transpose()?.map(Timestamp::from_micros);
            stats.by_status[status(&row, 0)? as usize] = (unsigned(&row, 1)?, created);
        }
        if let Some(worst) = sqlx::query(sql.worst.clone()).fetch_optional(connection).await? {
            stats.worst_partition = Some((row::partition(&worst, 0)?, unsigned(&worst, 1)?));
        }
        Ok(stats)
    }
}

/// What a [`Query`] asks, as conditions with their values. Texts are compared byte by byte.
fn conditions(query: &Query) -> Result<(String, MySqlArguments), sqlx::error::BoxDynError> {
    let mut sql = String::from("1 = 1");
    let mut arguments = MySqlArguments::default();
    if !query.statuses.is_empty() {
        let marks = vec!["?"; query.statuses.len()].join(", ");
        let _ = write!(sql, " and status in ({marks})");
        for status in &query.statuses {
            arguments.add(status.as_str())?;
        }
    }
    let id = query.id.map(|id| id.to_string());
    let fields = [
        ("event_id", &id),
        ("event_type", &query.event_type),
        ("aggregate_type", &query.aggregate_type),
        ("aggregate_id", &query.aggregate_id),
        ("tenant_id", &query.tenant_id),
        ("event_key", &query.key),
    ];
    for (column, value) in fields {
        if let Some(value) = value {
            let _ = write!(sql, " and {column} = ? and octet_length({column}) = ?");
            arguments.add(value.as_str())?;
            arguments.add(crate::read::at_most(value.len()))?;
        }
    }
    for (condition, time) in [("created_at >=", query.from), ("created_at <", query.until)] {
        if let Some(time) = time {
            let _ = write!(sql, " and {condition} {{epoch}} + interval ? microsecond");
            arguments.add(storable(time))?;
        }
    }
    if let Some(text) = &query.text {
        sql.push_str(
            " and (locate(lower(?), lower(last_error)) > 0 or locate(lower(?), lower(payload)) > 0
                or locate(lower(?), lower(convert(payload_bytes using utf8mb4)) collate utf8mb4_bin) > 0)",
        );
        for _ in 0..3 {
            arguments.add(text.as_str())?;
        }
    }
    Ok((sql, arguments))
}

fn found(found: &MySqlRow) -> Result<Found, sqlx::Error> {
    let candidate = row::candidate(found)?;
    let time = |column| Ok::<_, sqlx::Error>(found.try_get::<Option<i64>, _>(column)?.map(Timestamp::from_micros));
    Ok(Found {
        record: row::record(found, candidate),
        seq: candidate.seq,
        id: found.try_get::<Option<String>, _>(WIDTH)?.unwrap_or_default(),
        status: status(found, WIDTH + 1)?,
        attempts: unsigned(found, WIDTH + 5).map_or(0, |attempts| u32::try_from(attempts).unwrap_or(u32::MAX)),
        available_at: time(WIDTH + 2)?,
        done_at: time(WIDTH + 3)?,
        last_error: found.try_get(WIDTH + 4)?,
        holds_key: found.try_get::<i64, _>(WIDTH + 6)? != 0,
    })
}

fn status(row: &MySqlRow, column: usize) -> Result<Status, sqlx::Error> {
    row.try_get::<&str, _>(column)?.parse().map_err(|error| sqlx::Error::Decode(Box::new(error)))
}

pub(crate) fn unsigned(row: &MySqlRow, column: usize) -> Result<u64, sqlx::Error> {
    let number: i64 = row.try_get(column)?;
    u64::try_from(number).map_err(|error| sqlx::Error::Decode(error.into()))
}
