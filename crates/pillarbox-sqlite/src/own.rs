//! Owning partitions: the node's lease, and who has what.
//!
//! Every call is one transaction that holds the write lock from its start, so the fence is a plain look at
//! the node's row. The tables are small: 256 partitions, a row a node.

use std::time::Duration;

use pillarbox_core::domain::{Epoch, Incarnation, Lease, NodeId, Partition, PartitionSet, Seq};
use pillarbox_core::port::{BoxFuture, Joining, NodeView, OwnStore, Released, Renewal, StoreError, Taken};
use sqlx::{Row as _, SqliteConnection, sqlite::SqliteRow};

use crate::{SqliteStore, error, row, tables::statements};

statements!(OwnSql {
    /// By primary key.
    fence: "select 1 from {instance} where incarnation = ? and id = ? and until > {now}",
    /// By the unique index on id.
    namesake: "select incarnation from {instance} where id = ?",
    lapsed: "select incarnation, id from {instance} where until <= {now} and incarnation <> ? order by incarnation",
    /// Frees a node's partitions after an unclean end.
    free: "update {partition} set owner = null, epoch = epoch + 1,
            mark = coalesce(node.mark, {partition}.mark),
            suspects = max(suspects, node.in_flight)
        from {instance} as node
        where node.incarnation = ? and owner = node.id",
    /// By primary key.
    remove: "delete from {instance} where incarnation = ?",
    enter: "insert into {instance} (id, until, routes, in_flight) values (?, {now} + ?, ?, ?) returning incarnation",
    /// By primary key.
    renew: "update {instance} set until = {now} + ? where incarnation = ? and id = ? and until > {now}",
    /// By primary key.
    publish: "update {instance} set routes = ? where incarnation = ? and id = ? and until > {now}",
    nodes: "select id, until > {now}, routes from {instance} order by id",
    owners: "select json_group_array(owner) from (select owner from {partition} order by number)",
    /// Changes when a node comes, goes or says something of itself, and when a partition changes hands.
    fleet: "select concat_ws(' ', count(owner), sum(epoch),
            (select group_concat(incarnation || ' ' || routes) from {instance}))
        from {partition}",
    take: "update {partition} set owner = ?1, epoch = epoch + 1
        where (owner is null or owner = ?1) and number in (select value from json_each(?2))
        returning number, epoch, mark, suspects",
    /// By primary key.
    lower: "update {instance} set mark = ?1 where incarnation = ?2 and mark > ?1",
    release: "update {partition} set owner = null, mark = ?, suspects = given.value ->> 1
        from json_each(?) as given
        where number = given.value ->> 0 and owner = ?",
    /// The mark given, else the node's, else the partition's own.
    abandon: "update {partition} set owner = null, suspects = 0,
            mark = coalesce(?1, node.mark, {partition}.mark)
        from {instance} as node
        where node.incarnation = ?2 and owner = node.id",
});

impl OwnStore for SqliteStore {
    fn join<'a>(&'a self, joining: &'a Joining) -> BoxFuture<'a, Result<Lease, StoreError>> {
        Box::pin(async move {
            let (_turn, mut entered) = self.write_on(&self.0.lease).await?;
            let mut tx = entered.begin().await?;
            let sql = &self.0.sql.own;
            let namesake = sqlx::query(sql.namesake.clone())
                .bind(joining.node.as_str())
                .fetch_optional(&mut *tx)
                .await
                .map_err(error::of)?;
            if let Some(row) = namesake {
                self.end(&mut tx, row.try_get(0).map_err(error::of)?).await?;
            }
            let entry = sqlx::query(sql.enter.clone())
                .bind(joining.node.as_str())
                .bind(micros(joining.ttl))
                .bind(serde_json::to_string(&joining.routes).unwrap_or_default())
                .bind(i64::from(joining.in_flight))
                .fetch_one(&mut *tx)
                .await
                .map_err(error::of)?;
            let incarnation = Incarnation(entry.try_get(0).map_err(error::of)?);
            tx.commit().await.map_err(error::of_commit)?;
            Ok(Lease { node: joining.node.clone(), incarnation })
        })
    }

    fn renew<'a>(&'a self, lease: &'a Lease, ttl: Duration) -> BoxFuture<'a, Result<Option<Renewal>, StoreError>> {
        Box::pin(async move {
            let (_turn, mut entered) = self.write_on(&self.0.lease).await?;
            let mut tx = entered.begin().await?;
            let sql = &self.0.sql.own;
            let renewed = sqlx::query(sql.renew.clone())
                .bind(micros(ttl))
                .bind(lease.incarnation.0)
                .bind(lease.node.as_str())
                .execute(&mut *tx)
                .await
                .map_err(error::of)?;
            if renewed.rows_affected() == 0 {
                tx.rollback().await.map_err(error::of)?;
                return Ok(None);
            }
            let nodes = sqlx::query(sql.nodes.clone()).fetch_all(&mut *tx).await.map_err(error::of)?;
            let owners = sqlx::query(sql.owners.clone()).fetch_one(&mut *tx).await.map_err(error::of)?;
            tx.commit().await.map_err(error::of_commit)?;
            Ok(Some(Renewal {
                nodes: nodes.iter().map(node_view).collect::<Result<_, _>>()?,
                owners: owners_of(&owners)?,
            }))
        })
    }

    fn publish<'a>(&'a self, lease: &'a Lease, routes: &'a [String]) -> BoxFuture<'a, Result<Option<()>, StoreError>> {
        Box::pin(async move {
            let (_turn, mut entered) = self.write_on(&self.0.lease).await?;
            let mut tx = entered.begin().await?;
            let published = sqlx::query(self.0.sql.own.publish.clone())
                .bind(serde_json::to_string(routes).unwrap_or_default())
                .bind(lease.incarnation.0)
                .bind(lease.node.as_str())
                .execute(&mut *tx)
                .await
                .map_err(error::of)?;
            tx.commit().await.map_err(error::of_commit)?;
            Ok((published.rows_affected() == 1).then_some(()))
        })
    }

    fn expel<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<Option<Vec<NodeId>>, StoreError>> {
        Box::pin(async move {
            let (_turn, mut entered) = self.write_on(&self.0.settles).await?;
            let mut tx = entered.begin().await?;
            if !self.in_force(&mut tx, lease).await? {
                return Ok(None);
            }
            let lapsed = sqlx::query(self.0.sql.own.lapsed.clone())
                .bind(lease.incarnation.0)
                .fetch_all(&mut *tx)
                .await
                .map_err(error::of)?;
            let mut expelled = Vec::with_capacity(lapsed.len());
            for row in lapsed {
                self.end(&mut tx, row.try_get(0).map_err(error::of)?).await?;
                expelled.push(NodeId::new(row.try_get::<&str, _>(1).map_err(error::of)?));
            }
            tx.commit().await.map_err(error::of_commit)?;
            Ok(Some(expelled))
        })
    }

    fn take<'a>(
        &'a self,
        lease: &'a Lease,
        partitions: PartitionSet,
    ) -> BoxFuture<'a, Result<Option<Vec<Taken>>, StoreError>> {
        Box::pin(async move {
            let (_turn, mut entered) = self.write_on(&self.0.settles).await?;
            let mut tx = entered.begin().await?;
            if !self.in_force(&mut tx, lease).await? {
                return Ok(None);
            }
            let rows = sqlx::query(self.0.sql.own.take.clone())
                .bind(lease.node.as_str())
                .bind(row::json_partitions(&partitions))
                .fetch_all(&mut *tx)
                .await
                .map_err(error::of)?;
            let mut taken = rows.iter().map(taken).collect::<Result<Vec<_>, _>>().map_err(error::of)?;
            taken.sort_unstable_by_key(|taken| taken.partition);
            if let Some(lowest) = taken.iter().map(|taken| taken.mark).min() {
                // The node's mark is handed on with all its partitions: it must hold for these, too.
                sqlx::query(self.0.sql.own.lower.clone())
                    .bind(lowest.0)
                    .bind(lease.incarnation.0)
                    .execute(&mut *tx)
                    .await
                    .map_err(error::of)?;
            }
            tx.commit().await.map_err(error::of_commit)?;
            Ok(Some(taken))
        })
    }

    fn release<'a>(
        &'a self,
        lease: &'a Lease,
        partitions: &'a [Released],
        mark: Seq,
    ) -> BoxFuture<'a, Result<Option<()>, StoreError>> {
        Box::pin(async move {
            let (_turn, mut entered) = self.write_on(&self.0.settles).await?;
            let mut tx = entered.begin().await?;
            if !self.in_force(&mut tx, lease).await? {
                return Ok(None);
            }
            let given: Vec<_> = partitions.iter().map(|given| (given.partition.0, given.suspects)).collect();
            sqlx::query(self.0.sql.own.release.clone())
                .bind(mark.0)
                .bind(serde_json::to_string(&given).unwrap_or_default())
                .bind(lease.node.as_str())
                .execute(&mut *tx)
                .await
                .map_err(error::of)?;
            tx.commit().await.map_err(error::of_commit)?;
            Ok(Some(()))
        })
    }

    fn leave<'a>(&'a self, lease: &'a Lease, mark: Option<Seq>) -> BoxFuture<'a, Result<Option<()>, StoreError>> {
        Box::pin(async move {
            let (_turn, mut entered) = self.write_on(&self.0.settles).await?;
            let mut tx = entered.begin().await?;
            if !self.in_force(&mut tx, lease).await? {
                return Ok(None);
            }
            sqlx::query(self.0.sql.own.abandon.clone())
                .bind(mark.map(|mark| mark.0))
                .bind(lease.incarnation.0)
                .execute(&mut *tx)
                .await
                .map_err(error::of)?;
            sqlx::query(self.0.sql.own.remove.clone())
                .bind(lease.incarnation.0)
                .execute(&mut *tx)
                .await
                .map_err(error::of)?;
            tx.commit().await.map_err(error::of_commit)?;
            Ok(Some(()))
        })
    }
}

impl SqliteStore {
    /// Ends an incarnation uncleanly: its partitions become free with a raised epoch.
    async fn end(&self, tx: &mut SqliteConnection, incarnation: i64) -> Result<(), StoreError> {
        for sql in [&self.0.sql.own.free, &self.0.sql.own.remove] {
            sqlx::query(sql.clone()).bind(incarnation).execute(&mut *tx).await.map_err(error::of)?;
        }
        Ok(())
    }
}

fn node_view(row: &SqliteRow) -> Result<NodeView, StoreError> {
    let routes: &str = row.try_get(2).map_err(error::of)?;
    Ok(NodeView {
        node: NodeId::new(row.try_get::<&str, _>(0).map_err(error::of)?),
        live: row.try_get::<i64, _>(1).map_err(error::of)? != 0,
        routes: serde_json::from_str(routes).map_err(error::unreadable)?,
    })
}

fn owners_of(row: &SqliteRow) -> Result<Box<[Option<NodeId>; Partition::COUNT]>, StoreError> {
    let names: &str = row.try_get(0).map_err(error::of)?;
    let names: Vec<Option<String>> = serde_json::from_str(names).map_err(error::unreadable)?;
    let owners: Box<[_]> = names.into_iter().map(|name| name.map(NodeId::new)).collect();
    owners
        .try_into()
        .map_err(|owners: Box<[_]>| error::unreadable(format!("{} partitions instead of 256", owners.len())))
}

fn taken(row: &SqliteRow) -> Result<Taken, sqlx::Error> {
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
