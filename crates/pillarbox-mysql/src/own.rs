//! Owning partitions: the node's lease, and who has what.
//!
//! **The fence is the lock on the node's row.** Every call that writes as a node first locks that row by its primary
//! key and looks at its time once it has the lock. Who expels a node locks the same row, so a settle under way is
//! through before the node's partitions become free, and one that comes later finds no row. Partitions are locked
//! after nodes, in the order of their numbers. The tables are small: 256 partitions, a row a node.
//!
//! A lease that was given before the server came back from a crash, or was restarted, is void, whatever its time: see
//! [`crate::life`]. The others leave it to its node to join anew, and expel it when it lapses.
//!
//! Each call is one transaction. When the process dies before its commit, the server rolls it back as soon as it sees
//! the connection gone, or after `wait_timeout` where it does not; until then the node's row stays locked, and
//! nobody takes its partitions. When it dies after the commit, the call is in effect: the lease lapses in time, and
//! the next node finds in the tables what it needs.

use std::time::Duration;

use pillarbox_core::domain::{Epoch, Incarnation, Lease, NodeId, Partition, PartitionSet, Seq};
use pillarbox_core::port::{
    BoxFuture, Joining, NodeView, OwnStore, Released, Renewal, StoreError, StoreErrorKind, Taken,
};
use sqlx::{MySqlConnection, Row as _, mysql::MySqlRow};

use crate::{
    MySqlStore,
    connection::{Entered, Line, retried},
    error, row,
    tables::statements,
};

statements!(OwnSql {
    /// By primary key. The time is looked at when the lock is there.
    fence: "select `until` > {now} from {instance} where incarnation = ? and id = ? for update",
    /// By the unique index on id.
    namesake: "select incarnation from {instance} where id = ? for update",
    lapsed: "select incarnation, id from {instance} where `until` <= {now} and incarnation <> ? order by incarnation",
    /// By primary key: it may have been renewed, or expelled by another, since it was seen. One whose settle is under
    /// way is left to the next look: who waited for it, with its own row locked, would lose its own lease to a process
    /// that stands still in the middle of a settle.
    still_lapsed: "select `until` <= {now} from {instance} where incarnation = ? for update skip locked",
    /// Frees a node's partitions after an unclean end.
    free: "update {instance} as node straight_join {partition} as part on part.owner = node.id
        set part.owner = null, part.epoch = part.epoch + 1, part.mark = coalesce(node.mark, part.mark),
            part.suspects = greatest(part.suspects, node.in_flight)
        where node.incarnation = ?",
    /// By primary key.
    remove: "delete from {instance} where incarnation = ?",
    enter: "insert into {instance} (id, `until`, routes, in_flight) values (?, {now} + interval ? microsecond, ?, ?)",
    /// By primary key.
    renew: "update {instance} set `until` = {now} + interval ? microsecond
        where incarnation = ? and id = ? and `until` > {now}",
    /// By primary key.
    publish: "update {instance} set routes = ? where incarnation = ? and id = ?",
    nodes: "select id, `until` > {now}, routes from {instance} order by id",
    owners: "select number, owner from {partition} order by number",
    /// Changes when a node comes, goes or says something of itself, and when a partition changes hands.
    fleet: "select convert(concat_ws(' ', count(owner), sum(epoch),
            (select sum(crc32(concat(incarnation, ' ', routes))) from {instance})) using utf8mb4)
        from {partition}",
    /// By primary key, all 256.
    takeable: "select number, epoch + 1, mark, suspects from {partition}
        where (owner is null or owner = ?) and substring(?, number + 1, 1) = '1'
        order by number for update",
    take: "update {partition} set owner = ?, epoch = epoch + 1, mark = least(mark, ?)
        where (owner is null or owner = ?) and substring(?, number + 1, 1) = '1'
        order by number",
    /// The last number that was given out, as far as it is known: by primary key, from its end, and from the table's counter,
    /// which a delete leaves where it is. So the mark of a table that was purged, where the newest rows are gone, stays above
    /// all that InnoDB has not yet cleared away.
    given_out: "select cast(greatest((select coalesce(max(seq), 0) from {event}), coalesce((
            select auto_increment from information_schema.tables
            where table_schema = coalesce(?, database()) and table_name = '{prefix}event'), 1) - 1) as signed)",
    /// By primary key.
    lower: "update {instance} set mark = ? where incarnation = ? and mark > ?",
    /// By primary key, each.
    release: "update json_table(?, '$[*]' columns (n smallint path '$[0]', s bigint path '$[1]')) as given
        straight_join {partition} as part on part.number = given.n
        set part.owner = null, part.mark = ?, part.suspects = given.s
        where part.owner = ?",
    /// The mark given, else the node's, else the partition's own.
    abandon: "update {instance} as node straight_join {partition} as part on part.owner = node.id
        set part.owner = null, part.suspects = 0, part.mark = coalesce(?, node.mark, part.mark)
        where node.incarnation = ?",
});

impl OwnStore for MySqlStore {
    fn join<'a>(&'a self, joining: &'a Joining) -> BoxFuture<'a, Result<Lease, StoreError>> {
        Box::pin(self.within(retried(move || self.enter_node(joining))))
    }

    fn renew<'a>(&'a self, lease: &'a Lease, ttl: Duration) -> BoxFuture<'a, Result<Option<Renewal>, StoreError>> {
        Box::pin(self.within(retried(move || self.renew_lease(lease, ttl))))
    }

    fn publish<'a>(&'a self, lease: &'a Lease, routes: &'a [String]) -> BoxFuture<'a, Result<Option<()>, StoreError>> {
        Box::pin(self.within(retried(move || self.publish_routes(lease, routes))))
    }

    fn expel<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<Option<Vec<NodeId>>, StoreError>> {
        Box::pin(self.within(retried(move || self.expel_lapsed(lease))))
    }

    fn take<'a>(
        &'a self,
        lease: &'a Lease,
        partitions: PartitionSet,
    ) -> BoxFuture<'a, Result<Option<Vec<Taken>>, StoreError>> {
        Box::pin(self.within(retried(move || self.take_free(lease, partitions))))
    }

    fn release<'a>(
        &'a self,
        lease: &'a Lease,
        partitions: &'a [Released],
        mark: Seq,
    ) -> BoxFuture<'a, Result<Option<()>, StoreError>> {
        Box::pin(self.within(retried(move || self.give_up(lease, partitions, mark))))
    }

    fn leave<'a>(&'a self, lease: &'a Lease, mark: Option<Seq>) -> BoxFuture<'a, Result<Option<()>, StoreError>> {
        Box::pin(self.within(retried(move || self.end_lease(lease, mark))))
    }
}

impl MySqlStore {
    async fn enter_node(&self, joining: &Joining) -> Result<Lease, StoreError> {
        if joining.node.as_str().ends_with(' ') {
            return Err(StoreError::new(
                StoreErrorKind::Rejected,
                format!("node name {:?} ends with a space, which this database does not tell apart", joining.node),
            ));
        }
        let sql = &self.0.sql.own;
        let mut tx = self.0.lease.begin().await?;
        let life = tx.life().await?;
        let namesake = sqlx::query(sql.namesake.clone())
            .bind(joining.node.as_str())
            .fetch_optional(&mut *tx)
            .await
            .map_err(error::of)?;
        if let Some(row) = namesake {
            self.end(&mut tx, row.try_get(0).map_err(error::of)?).await?;
        }
        let entered = sqlx::query(sql.enter.clone())
            .bind(joining.node.as_str())
            .bind(micros(joining.ttl))
            .bind(serde_json::to_string(&joining.routes).unwrap_or_default())
            .bind(i64::from(joining.in_flight))
            .execute(&mut *tx)
            .await
            .map_err(|error| match error::number(&error) {
                Some(error::DUPLICATE) => {
                    StoreError::new(StoreErrorKind::Conflict, "a node of the same name joined at the same time")
                        .caused_by(error)
                }
                _ => error::of(error),
            })?;
        let incarnation = Incarnation(i64::try_from(entered.last_insert_id()).map_err(error::unreadable)?);
        tx.commit().await?;
        self.0.joined.in_life(life, incarnation);
        Ok(Lease { node: joining.node.clone(), incarnation })
    }

    async fn renew_lease(&self, lease: &Lease, ttl: Duration) -> Result<Option<Renewal>, StoreError> {
        let sql = &self.0.sql.own;
        // Three statements by themselves: what they show may be a moment apart, and is old when it arrives anyway.
        let mut entered = self.0.lease.enter().await?;
        self.check_life(&mut entered, Some(lease)).await?;
        let renewed = sqlx::query(sql.renew.clone())
            .bind(micros(ttl))
            .bind(lease.incarnation.0)
            .bind(lease.node.as_str())
            .execute(&mut *entered)
            .await
            .map_err(error::of)?;
        if renewed.rows_affected() == 0 {
            entered.done();
            return Ok(None);
        }
        let nodes = sqlx::query(sql.nodes.clone()).fetch_all(&mut *entered).await.map_err(error::of)?;
        let owners = sqlx::query(sql.owners.clone()).fetch_all(&mut *entered).await.map_err(error::of)?;
        entered.done();
        Ok(Some(Renewal { nodes: nodes.iter().map(node_view).collect::<Result<_, _>>()?, owners: owners_of(&owners)? }))
    }

    async fn publish_routes(&self, lease: &Lease, routes: &[String]) -> Result<Option<()>, StoreError> {
        // Behind the fence: the number of rows affected would not tell whether the text was the same before.
        let Some(mut tx) = self.fenced(&self.0.lease, lease).await? else {
            return Ok(None);
        };
        sqlx::query(self.0.sql.own.publish.clone())
            .bind(serde_json::to_string(routes).unwrap_or_default())
            .bind(lease.incarnation.0)
            .bind(lease.node.as_str())
            .execute(&mut *tx)
            .await
            .map_err(error::of)?;
        tx.commit().await?;
        Ok(Some(()))
    }

    async fn expel_lapsed(&self, lease: &Lease) -> Result<Option<Vec<NodeId>>, StoreError> {
        let sql = &self.0.sql.own;
        let Some(mut tx) = self.fenced(&self.0.lease, lease).await? else {
            return Ok(None);
        };
        // Seen without a lock, so that no live node's settle is waited for.
        let lapsed =
            sqlx::query(sql.lapsed.clone()).bind(lease.incarnation.0).fetch_all(&mut *tx).await.map_err(error::of)?;
        let mut expelled = Vec::with_capacity(lapsed.len());
        for row in lapsed {
            let incarnation: i64 = row.try_get(0).map_err(error::of)?;
            let still = sqlx::query(sql.still_lapsed.clone())
                .bind(incarnation)
                .fetch_optional(&mut *tx)
                .await
                .map_err(error::of)?;
            if still.is_some_and(|row| row.try_get::<i64, _>(0).is_ok_and(|lapsed| lapsed != 0)) {
                self.end(&mut tx, incarnation).await?;
                expelled.push(NodeId::new(row.try_get::<&str, _>(1).map_err(error::of)?));
            }
        }
        tx.commit().await?;
        Ok(Some(expelled))
    }

    async fn take_free(&self, lease: &Lease, partitions: PartitionSet) -> Result<Option<Vec<Taken>>, StoreError> {
        let sql = &self.0.sql.own;
        let Some(mut tx) = self.fenced(&self.0.lease, lease).await? else {
            return Ok(None);
        };
        let (node, wanted) = (lease.node.as_str(), row::letters(&partitions));
        let rows = sqlx::query(sql.takeable.clone())
            .bind(node)
            .bind(wanted.as_str())
            .fetch_all(&mut *tx)
            .await
            .map_err(error::of)?;
        let mut taken = rows.iter().map(taken).collect::<Result<Vec<_>, _>>().map_err(error::of)?;
        if !taken.is_empty() {
            // A mark above it is of numbers from before the table was emptied, and says nothing of those that come again.
            let last = sqlx::query(sql.given_out.clone()).bind(self.0.names.schema()).fetch_one(&mut *tx).await;
            let last = Seq(last.and_then(|row| row.try_get(0)).map_err(error::of)?);
            for taken in &mut taken {
                taken.mark = taken.mark.min(last);
            }
            let take = sqlx::query(sql.take.clone()).bind(node).bind(last.0).bind(node).bind(wanted.as_str());
            take.execute(&mut *tx).await.map_err(error::of)?;
        }
        if let Some(lowest) = taken.iter().map(|taken| taken.mark).min() {
            // The node's mark is handed on with all its partitions: it must hold for these, too.
            let lower = sqlx::query(sql.lower.clone()).bind(lowest.0).bind(lease.incarnation.0).bind(lowest.0);
            lower.execute(&mut *tx).await.map_err(error::of)?;
        }
        tx.commit().await?;
        Ok(Some(taken))
    }

    async fn give_up(&self, lease: &Lease, partitions: &[Released], mark: Seq) -> Result<Option<()>, StoreError> {
        let Some(mut tx) = self.fenced(&self.0.lease, lease).await? else {
            return Ok(None);
        };
        let mut given: Vec<_> = partitions.iter().map(|given| (given.partition.0, given.suspects)).collect();
        given.sort_unstable();
        sqlx::query(self.0.sql.own.release.clone())
            .bind(serde_json::to_string(&given).unwrap_or_default())
            .bind(mark.0)
            .bind(lease.node.as_str())
            .execute(&mut *tx)
            .await
            .map_err(error::of)?;
        tx.commit().await?;
        Ok(Some(()))
    }

    async fn end_lease(&self, lease: &Lease, mark: Option<Seq>) -> Result<Option<()>, StoreError> {
        let sql = &self.0.sql.own;
        let Some(mut tx) = self.fenced(&self.0.lease, lease).await? else {
            return Ok(None);
        };
        let abandon = sqlx::query(sql.abandon.clone()).bind(mark.map(|mark| mark.0)).bind(lease.incarnation.0);
        abandon.execute(&mut *tx).await.map_err(error::of)?;
        sqlx::query(sql.remove.clone()).bind(lease.incarnation.0).execute(&mut *tx).await.map_err(error::of)?;
        tx.commit().await?;
        Ok(Some(()))
    }

    /// Begins a transaction behind the fence: the node's row is locked and its lease in force, and stays so to the
    /// end. `None` if it is not.
    pub(crate) async fn fenced<'a>(&self, line: &'a Line, lease: &Lease) -> Result<Option<Entered<'a>>, StoreError> {
        let mut tx = line.begin().await?;
        self.check_life(&mut tx, Some(lease)).await?;
        if self.in_force(&mut tx, lease).await? {
            return Ok(Some(tx));
        }
        tx.rollback().await?;
        Ok(None)
    }

    /// Locks the node's row to the end of the transaction, and says whether its lease is in force.
    pub(crate) async fn in_force(&self, tx: &mut MySqlConnection, lease: &Lease) -> Result<bool, StoreError> {
        let row = sqlx::query(self.0.sql.own.fence.clone())
            .bind(lease.incarnation.0)
            .bind(lease.node.as_str())
            .fetch_optional(tx)
            .await
            .map_err(error::of)?;
        let in_force = row.map(|row| row.try_get::<i64, _>(0)).transpose().map_err(error::of)?;
        Ok(in_force == Some(1))
    }

    /// Ends an incarnation uncleanly: its partitions become free with a raised epoch.
    async fn end(&self, tx: &mut MySqlConnection, incarnation: i64) -> Result<(), StoreError> {
        for sql in [&self.0.sql.own.free, &self.0.sql.own.remove] {
            sqlx::query(sql.clone()).bind(incarnation).execute(&mut *tx).await.map_err(error::of)?;
        }
        Ok(())
    }
}

fn node_view(row: &MySqlRow) -> Result<NodeView, StoreError> {
    let routes: &str = row.try_get(2).map_err(error::of)?;
    Ok(NodeView {
        node: NodeId::new(row.try_get::<&str, _>(0).map_err(error::of)?),
        live: row.try_get::<i64, _>(1).map_err(error::of)? != 0,
        routes: serde_json::from_str(routes).map_err(error::unreadable)?,
    })
}

fn owners_of(rows: &[MySqlRow]) -> Result<Box<[Option<NodeId>; Partition::COUNT]>, StoreError> {
    let owner = |row: &MySqlRow| row.try_get::<Option<&str>, _>(1).map(|name| name.map(NodeId::new));
    let owners = rows.iter().map(owner).collect::<Result<Box<[_]>, _>>().map_err(error::of)?;
    owners
        .try_into()
        .map_err(|owners: Box<[_]>| error::unreadable(format!("{} partitions instead of 256", owners.len())))
}

fn taken(row: &MySqlRow) -> Result<Taken, sqlx::Error> {
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
