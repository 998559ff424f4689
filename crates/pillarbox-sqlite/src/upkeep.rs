//! Migrations and purging.

use pillarbox_core::domain::{Seq, Timestamp};
use pillarbox_core::port::{BoxFuture, PurgeCursor, PurgeRequest, PurgeScope, Purged, StoreError, UpkeepStore};
use sqlx::{Row as _, SqliteConnection};

use crate::{SqliteStore, error, tables::statements};

statements!(UpkeepSql {
    clock: "select {now}",
    /// The end of a window, how many rows lie in it, and the first that is too young. By primary key.
    window: "select max(seq), count(*), min(seq) filter (where created_at > ?3)
        from (select seq, created_at from {event} not indexed where seq > ?1 order by seq limit ?2)",
    /// By primary key; whether a head holds its key, by the holds' index.
    finished: "delete from {event} not indexed
        where seq > ?1 and seq <= ?2 and (status = 'DONE' and done_at <= ?3
            or status = 'DEAD' and done_at <= ?4 and not exists (
                select 1 from {hold} indexed by {hold}_key
                where kind <> 'SINK' and {hold}.partition = {event}.partition and name = event_key
                    and kind = 'DEAD_HEAD' and from_seq = seq))",
    /// By the index on their end.
    expired: "delete from {dedup} where dedup_key in (
        select dedup_key from {dedup} indexed by {dedup}_expiry where expires_at <= ? order by expires_at limit ?)",
    /// By primary key.
    aged: "delete from {event} not indexed where seq > ? and seq <= ? and created_at <= ?",
});

impl UpkeepStore for SqliteStore {
    fn migrate(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.run_migrations())
    }

    fn check(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async {
            self.use_wal().await?;
            self.check_version().await
        })
    }

    fn purge<'a>(&'a self, request: PurgeRequest<'a>) -> BoxFuture<'a, Result<Purged, StoreError>> {
        Box::pin(async move {
            let (_turn, mut entered) = self.write_on(&self.0.settles).await?;
            let mut tx = entered.begin().await?;
            if let Some(lease) = request.lease
                && !self.in_force(&mut tx, lease).await?
            {
                return Ok(Purged::Fenced);
            }
            let purged = self.purge_window(&mut tx, &request).await.map_err(error::of)?;
            tx.commit().await.map_err(error::of_commit)?;
            Ok(purged)
        })
    }
}

impl SqliteStore {
    /// Looks at as many rows as may be removed, up to the first that is too young for every limit: rows are
    /// inserted in the order of their numbers, so those behind it are too young as well.
    async fn purge_window(&self, tx: &mut SqliteConnection, request: &PurgeRequest<'_>) -> Result<Purged, sqlx::Error> {
        let sql = &self.0.sql.upkeep;
        let now = sqlx::query(sql.clock.clone()).fetch_one(&mut *tx).await?.try_get(0)?;
        let ago = |age| Timestamp::from_micros(now).saturating_sub(age).as_micros();
        let (done, dead) = match request.scope {
            PurgeScope::Finished { done, dead } => (ago(done), dead.map(ago)),
            PurgeScope::ByAge(age) => (ago(age), None),
        };
        let after = request.cursor.map_or(0, |cursor| cursor.0.0);
        let batch = i64::from(request.batch.max(1));
        let expired = sqlx::query(sql.expired.clone()).bind(now).bind(batch).execute(&mut *tx).await?.rows_affected();
        let more_expired = i64::try_from(expired).is_ok_and(|expired| expired >= batch);
        let window = sqlx::query(sql.window.clone())
            .bind(after)
            .bind(batch)
            .bind(dead.map_or(done, |dead| dead.max(done)))
            .fetch_one(&mut *tx)
            .await?;
        let last: Option<i64> = window.try_get(0)?;
        let looked_at: i64 = window.try_get(1)?;
        let young: Option<i64> = window.try_get(2)?;
        let Some(last) = last else {
            return Ok(Purged::Removed { rows: 0, next: more_expired.then_some(PurgeCursor(Seq(after))) });
        };
        let end = young.map_or(last, |young| young - 1);
        let delete = match request.scope {
            PurgeScope::Finished { .. } => {
                sqlx::query(sql.finished.clone()).bind(after).bind(end).bind(done).bind(dead)
            }
            PurgeScope::ByAge(_) => sqlx::query(sql.aged.clone()).bind(after).bind(end).bind(done),
        };
        let rows = delete.execute(&mut *tx).await?.rows_affected();
        let over = (young.is_some() || looked_at < batch) && !more_expired;
        Ok(Purged::Removed { rows, next: (!over).then_some(PurgeCursor(Seq(end))) })
    }
}
