//! Migrations and purging.

use pillarbox_core::domain::{Seq, Timestamp};
use pillarbox_core::port::{BoxFuture, PurgeCursor, PurgeRequest, PurgeScope, Purged, StoreError, UpkeepStore};
use sqlx::{PgConnection, Row as _};

use crate::{PostgresStore, error, row::Time, tables::statements};

statements!(UpkeepSql {
    clock: "select {now}",
    /// The end of a window, how many rows lie in it, and the first that is too young. By primary key.
    window: "select max(seq), count(*), min(seq) filter (where created_at > $3)
        from (select seq, created_at from {event} where seq > $1 order by seq limit $2) as seen",
    /// By primary key; whether a head holds its key, by the holds' index.
    finished: "delete from {event}
        where seq > $1 and seq <= $2 and (status = 'DONE' and done_at <= $3
            or status = 'DEAD' and done_at <= $4 and not exists (
                select 1 from {hold} as hold
                where kind <> 'SINK' and hold.partition = {event}.partition and name = event_key
                    and kind = 'DEAD_HEAD' and from_seq = seq))",
    /// By the index on their end, and by primary key.
    expired: "delete from {dedup} where dedup_key = any(array(
        select dedup_key from {dedup} where expires_at <= $1 order by expires_at limit $2))",
    /// By primary key.
    aged: "delete from {event} where seq > $1 and seq <= $2 and created_at <= $3",
});

impl UpkeepStore for PostgresStore {
    fn migrate(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.run_migrations())
    }

    fn check(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.within(self.check_version()))
    }

    fn purge<'a>(&'a self, request: PurgeRequest<'a>) -> BoxFuture<'a, Result<Purged, StoreError>> {
        Box::pin(self.within(async move {
            let line = &self.0.settles;
            let entered = if let Some(lease) = request.lease {
                self.fenced(line, lease).await?
            } else {
                let mut entered = line.enter().await?;
                entered.begin().await?;
                Some(entered)
            };
            let Some(mut entered) = entered else {
                return Ok(Purged::Fenced);
            };
            let tx = entered.connection().map_err(error::of)?;
            let purged = self.purge_window(tx, &request).await.map_err(error::of)?;
            entered.commit().await?;
            Ok(purged)
        }))
    }
}

impl PostgresStore {
    /// Looks at as many rows as may be removed, up to the first that is too young for every limit: rows are
    /// inserted about in the order of their numbers, so those behind it are too young as well, or a moment older.
    async fn purge_window(&self, tx: &mut PgConnection, request: &PurgeRequest<'_>) -> Result<Purged, sqlx::Error> {
        let sql = &self.0.sql.upkeep;
        let Time(now) = self.query(&sql.clock).fetch_one(&mut *tx).await?.try_get(0)?;
        let ago = |age| Timestamp::saturating_sub(now, age);
        let (done, dead) = match request.scope {
            PurgeScope::Finished { done, dead } => (ago(done), dead.map(ago)),
            PurgeScope::ByAge(age) => (ago(age), None),
        };
        let after = request.cursor.map_or(0, |cursor| cursor.0.0);
        let batch = i64::from(request.batch.max(1));
        let expired = self.query(&sql.expired).bind(Time(now)).bind(batch).execute(&mut *tx).await?.rows_affected();
        let more_expired = i64::try_from(expired).is_ok_and(|expired| expired >= batch);
        let window = self
            .query(&sql.window)
            .bind(after)
            .bind(batch)
            .bind(Time(dead.map_or(done, |dead| dead.max(done))))
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
                self.query(&sql.finished).bind(after).bind(end).bind(Time(done)).bind(dead.map(Time))
            }
            PurgeScope::ByAge(_) => self.query(&sql.aged).bind(after).bind(end).bind(Time(done)),
        };
        let rows = delete.execute(&mut *tx).await?.rows_affected();
        let over = (young.is_some() || looked_at < batch) && !more_expired;
        Ok(Purged::Removed { rows, next: (!over).then_some(PurgeCursor(Seq(end))) })
    }
}
