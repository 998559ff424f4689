//! Owning partitions: the node's lease, and who has what.
//!
//! # The fence
//! A node's row in `instance` is its lease. Whatever the node writes, it first locks that row FOR KEY SHARE and finds
//! it unexpired, by `clock_timestamp()`: `now()` is the transaction's start, and may be stale after a wait. To end a
//! node is to delete its row, which waits for all such locks; its partitions become free in the same transaction,
//! with a raised epoch. So a settle is through before its node ends, or finds the row gone and writes nothing. The
//! statements behind the lock have snapshots of their own (READ COMMITTED), later than the lock, so they see what the
//! lock was waited for.
//!
//! KEY SHARE goes together with the update of `until`: a node whose settle hangs can still renew its lease, and what
//! a settle stores of the node's mark is in a row of another table.
//!
//! A lease that was given before the server crashed is void, whatever its time: see [`crate::life`]. The others leave it to
//! its node to join anew, and expel it when it lapses.
//!
//! # When the process dies
//! - between the lock and the commit of any call: the server ends the session, rolls back and drops the lock; that of
//!   a process that only stands still it ends after a while;
//! - after the commit, before its answer is read: as `engine::ownership` and `engine::settler` tell.
//!
//! Everything here happens on one connection of its own, so that neither settles nor reads are in a renewal's way.

use std::time::Duration;

use pillarbox_core::domain::{Epoch, Incarnation, Lease, NodeId, Partition, PartitionSet, Seq};
use pillarbox_core::port::{
    BoxFuture, Joining, NodeView, OwnStore, Released, Renewal, StoreError, StoreErrorKind, Taken,
};
use sqlx::{PgConnection, Row as _, postgres::PgRow};

use crate::{
    PostgresStore,
    connection::{Entered, Line},
    error, life, row,
    tables::statements,
};

statements!(OwnSql {
    /// By primary key. Says whether the lease is of the server's present life.
    fence: "select coalesce(life = (select life from {life} where one), false)
        from {instance} where incarnation = $1 and id = $2 and until > {now} for key share",
    /// The same in a transaction of the application's pool, which has the settings of a settle from here on: see `SESSION`.
    fence_work: "select coalesce(life = (select life from {life} where one), false),
            set_config('idle_in_transaction_session_timeout', '10000', true),
            case current_setting('synchronous_commit') when 'off' then set_config('synchronous_commit', 'on', true) end
        from {instance} where incarnation = $1 and id = $2 and until > {now} for key share",
    /// By the unique index on id. Waits for the settles of the node.
    namesake: "select incarnation from {instance} where id = $1 for update",
    /// Leaves a node whose settle is under way to the next look. Who waited for it, with its own row locked, would lose
    /// its own lease to a process that stands still in the middle of a settle.
    lapsed: "select incarnation, id from {instance} where until <= {now} and incarnation <> $1
        order by incarnation for update skip locked",
    /// Frees a node's partitions after an unclean end.
    free: "update {partition} set owner = null, epoch = epoch + 1, mark = coalesce(node.mark, {partition}.mark),
            suspects = greatest(suspects, node.in_flight)
        from (select id, in_flight, mark from {instance} left join {mark} using (incarnation) where incarnation = $1)
            as node
        where owner = node.id",
    /// By primary key.
    remove: "with mark as (delete from {mark} where incarnation = $1) delete from {instance} where incarnation = $1",
    enter: "with node as (insert into {instance} (id, until, routes, in_flight, life)
            values ($1, {now} + $2::bigint * interval '1 microsecond', $3, $4, $5::text::uuid) returning incarnation)
        insert into {mark} (incarnation) select incarnation from node returning incarnation",
    /// By primary key. Says whether the lease is of the server's present life.
    renew: "update {instance} set until = {now} + $1::bigint * interval '1 microsecond'
        where incarnation = $2 and id = $3 and until > {now}
        returning coalesce(life = (select life from {life} where one), false)",
    /// By primary key.
    publish: "update {instance} set routes = $1 where incarnation = $2 and id = $3 and until > {now}",
    nodes: "select id, until > {now}, routes from {instance} order by id",
    owners: "select array_agg(owner order by number) from {partition}",
    /// Changes when a node comes, goes or says something of itself, and when a partition changes hands.
    fleet: "select concat_ws(' ', count(owner), sum(epoch),
            (select md5(string_agg(incarnation || ' ' || routes, ' ' order by incarnation)) from {instance}))
        from {partition}",
    /// Locked in order, so that nodes that take at once don't wait in a circle; after the sequence, as by whoever empties the
    /// table of events. A mark above the last number is of numbers that have been set back since, and says nothing of these.
    take: "with given_out as materialized (
            select coalesce(pg_sequence_last_value('{event}_seq_seq'::regclass), 0) as last
        ), free as materialized (select number from {partition}
            where (owner is null or owner = $1) and get_bit($2::bytea, number) = 1
                and (select last from given_out) is not null order by number for update)
        update {partition} set owner = $1, epoch = epoch + 1,
            mark = case when mark <= (select last from given_out) then mark else 0 end
        from free where {partition}.number = free.number
        returning {partition}.number, epoch, mark, suspects",
    /// By primary key.
    lower: "update {mark} set mark = $1 where incarnation = $2 and mark > $1",
    release: "update {partition} set owner = null, mark = $1, suspects = given.suspects
        from unnest($2::smallint[], $3::bigint[]) as given (number, suspects)
        where {partition}.number = given.number and owner = $4",
    /// The mark given, else the node's, else the partition's own.
    abandon: "update {partition} set owner = null, suspects = 0, mark = coalesce($1, node.mark, {partition}.mark)
        from (select id, mark from {instance} left join {mark} using (incarnation) where incarnation = $2) as node
        where owner = node.id",
});

impl OwnStore for PostgresStore {
    fn join<'a>(&'a self, joining: &'a Joining) -> BoxFuture<'a, Result<Lease, StoreError>> {
        Box::pin(self.within(async move {
            let mut entered = self.0.lease.enter().await?;
            entered.begin().await?;
            let (incarnation, life) = self.enter_node(&mut entered, joining).await.map_err(|error| {
                if !error::is_duplicate(&error) {
                    return error::of(error);
                }
                let words = "another node of the same name joined at the same time: give each node a name of its own";
                StoreError::new(StoreErrorKind::Conflict, words).caused_by(error)
            })?;
            entered.commit().await?;
            self.0.life.joined(life);
            Ok(Lease { node: joining.node.clone(), incarnation })
        }))
    }

    fn renew<'a>(&'a self, lease: &'a Lease, ttl: Duration) -> BoxFuture<'a, Result<Option<Renewal>, StoreError>> {
        Box::pin(self.within(async move {
            let mut entered = self.0.lease.enter().await?;
            entered.begin().await?;
            let renewed = self.extend(&mut entered, lease, ttl).await?;
            // The lease is what matters, and durable before anything else is asked for.
            entered.commit().await?;
            if !renewed {
                return Ok(None);
            }
            let mut entered = self.0.lease.enter().await?;
            let (nodes, owners) = self.look_around(&mut entered).await.map_err(error::of)?;
            entered.leave();
            Ok(Some(Renewal {
                nodes: nodes.iter().map(node_view).collect::<Result<_, _>>()?,
                owners: owners_of(&owners)?,
            }))
        }))
    }

    fn publish<'a>(&'a self, lease: &'a Lease, routes: &'a [String]) -> BoxFuture<'a, Result<Option<()>, StoreError>> {
        Box::pin(self.within(async move {
            let mut entered = self.0.lease.enter().await?;
            entered.begin().await?;
            let published = self
                .query(&self.0.sql.own.publish)
                .bind(serde_json::to_string(routes).unwrap_or_default())
                .bind(lease.incarnation.0)
                .bind(lease.node.as_str())
                .execute(entered.connection().map_err(error::of)?)
                .await
                .map_err(error::of)?;
            entered.commit().await?;
            Ok((published.rows_affected() == 1).then_some(()))
        }))
    }

    fn expel<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<Option<Vec<NodeId>>, StoreError>> {
        Box::pin(self.within(async move {
            let Some(mut entered) = self.fenced(&self.0.lease, lease).await? else {
                return Ok(None);
            };
            let expelled = self.end_lapsed(&mut entered, lease).await.map_err(error::of)?;
            entered.commit().await?;
            Ok(Some(expelled))
        }))
    }

    fn take<'a>(
        &'a self,
        lease: &'a Lease,
        partitions: PartitionSet,
    ) -> BoxFuture<'a, Result<Option<Vec<Taken>>, StoreError>> {
        Box::pin(self.within(async move {
            let Some(mut entered) = self.fenced(&self.0.lease, lease).await? else {
                return Ok(None);
            };
            let taken = self.take_free(&mut entered, lease, &partitions).await.map_err(error::of)?;
            entered.commit().await?;
            Ok(Some(taken))
        }))
    }

    fn release<'a>(
        &'a self,
        lease: &'a Lease,
        partitions: &'a [Released],
        mark: Seq,
    ) -> BoxFuture<'a, Result<Option<()>, StoreError>> {
        Box::pin(self.within(async move {
            let Some(mut entered) = self.fenced(&self.0.lease, lease).await? else {
                return Ok(None);
            };
            self.query(&self.0.sql.own.release)
                .bind(mark.0)
                .bind(partitions.iter().map(|given| i16::from(given.partition.0)).collect::<Vec<_>>())
                .bind(partitions.iter().map(|given| i64::from(given.suspects)).collect::<Vec<_>>())
                .bind(lease.node.as_str())
                .execute(entered.connection().map_err(error::of)?)
                .await
                .map_err(error::of)?;
            entered.commit().await.map(Some)
        }))
    }

    fn leave<'a>(&'a self, lease: &'a Lease, mark: Option<Seq>) -> BoxFuture<'a, Result<Option<()>, StoreError>> {
        Box::pin(self.within(async move {
            let Some(mut entered) = self.fenced(&self.0.lease, lease).await? else {
                return Ok(None);
            };
            let connection = entered.connection().map_err(error::of)?;
            let OwnSql { abandon, remove, .. } = &self.0.sql.own;
            let abandon = self.query(abandon).bind(mark.map(|mark| mark.0)).bind(lease.incarnation.0);
            abandon.execute(&mut *connection).await.map_err(error::of)?;
            self.query(remove).bind(lease.incarnation.0).execute(connection).await.map_err(error::of)?;
            entered.commit().await.map(Some)
        }))
    }
}

impl PostgresStore {
    /// Begins a transaction behind the fence; none if the lease is not in force. Until its end, nobody can end the
    /// node.
    pub(crate) async fn fenced(&self, line: &Line, lease: &Lease) -> Result<Option<Entered>, StoreError> {
        let mut entered = line.enter().await?;
        entered.begin().await?;
        let found = self
            .query(&self.0.sql.own.fence)
            .bind(lease.incarnation.0)
            .bind(lease.node.as_str())
            .fetch_optional(entered.connection().map_err(error::of)?)
            .await
            .map_err(error::of)?;
        let Some(found) = found else {
            entered.rollback().await?;
            return Ok(None);
        };
        life::is_present(&found)?;
        Ok(Some(entered))
    }

    /// Returns the life of the server as well.
    async fn enter_node(
        &self,
        entered: &mut Entered,
        joining: &Joining,
    ) -> Result<(Incarnation, Box<str>), sqlx::Error> {
        let tx = entered.connection()?;
        let sql = &self.0.sql.own;
        let namesake = self.query(&sql.namesake).bind(joining.node.as_str()).fetch_optional(&mut *tx).await?;
        if let Some(row) = namesake {
            self.end(&mut *tx, row.try_get(0)?).await?;
        }
        let life = self.begin_life(&mut *tx).await?;
        let entry = self
            .query(&sql.enter)
            .bind(joining.node.as_str())
            .bind(micros(joining.ttl))
            .bind(serde_json::to_string(&joining.routes).unwrap_or_default())
            .bind(i64::from(joining.in_flight))
            .bind(&*life)
            .fetch_one(tx)
            .await?;
        Ok((Incarnation(entry.try_get(0)?), life))
    }

    async fn extend(&self, entered: &mut Entered, lease: &Lease, ttl: Duration) -> Result<bool, StoreError> {
        let renew = self.query(&self.0.sql.own.renew).bind(micros(ttl));
        let renew = renew.bind(lease.incarnation.0).bind(lease.node.as_str());
        let renewed = renew.fetch_optional(entered.connection().map_err(error::of)?).await.map_err(error::of)?;
        renewed.as_ref().map(life::is_present).transpose()?;
        Ok(renewed.is_some())
    }

    async fn look_around(&self, entered: &mut Entered) -> Result<(Vec<PgRow>, PgRow), sqlx::Error> {
        let connection = entered.begin_reading().await?;
        let nodes = self.query(&self.0.sql.own.nodes).fetch_all(&mut *connection).await?;
        let owners = self.query(&self.0.sql.own.owners).fetch_one(connection).await?;
        entered.end_reading().await?;
        Ok((nodes, owners))
    }

    async fn end_lapsed(&self, entered: &mut Entered, lease: &Lease) -> Result<Vec<NodeId>, sqlx::Error> {
        let tx = entered.connection()?;
        let lapsed = self.query(&self.0.sql.own.lapsed).bind(lease.incarnation.0).fetch_all(&mut *tx).await?;
        let mut expelled = Vec::with_capacity(lapsed.len());
        for row in lapsed {
            self.end(&mut *tx, row.try_get(0)?).await?;
            expelled.push(NodeId::new(row.try_get::<&str, _>(1)?));
        }
        Ok(expelled)
    }

    /// Ends an incarnation uncleanly: its partitions become free with a raised epoch. Its row is locked.
    async fn end(&self, tx: &mut PgConnection, incarnation: i64) -> Result<(), sqlx::Error> {
        for sql in [&self.0.sql.own.free, &self.0.sql.own.remove] {
            self.query(sql).bind(incarnation).execute(&mut *tx).await?;
        }
        Ok(())
    }

    async fn take_free(
        &self,
        entered: &mut Entered,
        lease: &Lease,
        partitions: &PartitionSet,
    ) -> Result<Vec<Taken>, sqlx::Error> {
        let tx = entered.connection()?;
        let take = self.query(&self.0.sql.own.take).bind(lease.node.as_str()).bind(row::bits(partitions));
        let rows = take.fetch_all(&mut *tx).await?;
        let mut taken = rows.iter().map(taken).collect::<Result<Vec<_>, _>>()?;
        taken.sort_unstable_by_key(|taken| taken.partition);
        if let Some(lowest) = taken.iter().map(|taken| taken.mark).min() {
            // The node's mark is handed on with all its partitions: it must hold for these, too.
            self.query(&self.0.sql.own.lower).bind(lowest.0).bind(lease.incarnation.0).execute(tx).await?;
        }
        Ok(taken)
    }
}

fn node_view(row: &PgRow) -> Result<NodeView, StoreError> {
    let routes: &str = row.try_get(2).map_err(error::of)?;
    Ok(NodeView {
        node: NodeId::new(row.try_get::<&str, _>(0).map_err(error::of)?),
        live: row.try_get(1).map_err(error::of)?,
        routes: serde_json::from_str(routes).map_err(error::unreadable)?,
    })
}

fn owners_of(row: &PgRow) -> Result<Box<[Option<NodeId>; Partition::COUNT]>, StoreError> {
    let names: Vec<Option<String>> = row.try_get(0).map_err(error::of)?;
    let owners: Box<[_]> = names.into_iter().map(|name| name.map(NodeId::new)).collect();
    owners
        .try_into()
        .map_err(|owners: Box<[_]>| error::unreadable(format!("{} partitions instead of 256", owners.len())))
}

fn taken(row: &PgRow) -> Result<Taken, sqlx::Error> {
    Ok(Taken {
        partition: row::partition(row, 0)?,
        epoch: Epoch(row.try_get(1)?),
        mark: Seq(row.try_get(2)?),
        suspects: u32::try_from(row.try_get::<i64, _>(3)?).unwrap_or(u32::MAX),
    })
}

pub(crate) fn micros(span: Duration) -> i64 {
    // A span that does not fit is held at a thousand years: it must not overflow when it is added to now.
    const LONGEST: i64 = 1_000 * 365 * 86_400 * 1_000_000;
    i64::try_from(span.as_micros()).unwrap_or(LONGEST).min(LONGEST)
}
