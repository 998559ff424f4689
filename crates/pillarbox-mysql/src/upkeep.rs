//! Migrations and purging.

use pillarbox_core::domain::{Seq, Timestamp};
use pillarbox_core::port::{BoxFuture, PurgeCursor, PurgeRequest, PurgeScope, Purged, StoreError, UpkeepStore};
use sqlx::{MySqlConnection, Row as _};

use crate::{MySqlStore, connection::retried, error, row, settle::given, tables::statements, write::storable};

statements!(UpkeepSql {
    clock: "select timestampdiff(microsecond, {epoch}, {now})",
    /// A window of rows, and what becomes of each: too young, finished long enough ago, or neither. Read without
    /// locks, by primary key; whether a head holds its key, by that of the holds.
    window: "select seq, created_at > {epoch} + interval ? microsecond,
            coalesce(status = 'DONE' and done_at <= {epoch} + interval ? microsecond
                or status = 'DEAD' and done_at <= {epoch} + interval ? microsecond and not exists (
                    select 1 from {hold} where {hold}.`partition` = {event}.`partition` and space = 0
                        and name = event_key and kind = 'DEAD_HEAD' and from_seq = seq), 0)
        from {event} force index (primary) where seq > ? order by seq limit ?",
    /// By primary key, each by itself: a range would wait for the row behind it.
    finished: concat!(
        "delete {event} from ",
        given!(),
        " where status = 'DONE' and done_at <= {epoch} + interval ? microsecond
            or status = 'DEAD' and done_at <= {epoch} + interval ? microsecond"
    ),
    /// By the index on their end.
    expired: "delete from {dedup} where expires_at <= {now} order by expires_at limit ?",
    /// By primary key.
    aged: concat!("delete {event} from ", given!()),
});

impl UpkeepStore for MySqlStore {
    fn migrate(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async { self.run_migrations().await.map(drop) })
    }

    fn check(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.within(self.check_version()))
    }

    fn purge<'a>(&'a self, request: PurgeRequest<'a>) -> BoxFuture<'a, Result<Purged, StoreError>> {
        Box::pin(self.within(retried(move || self.purge_once(request))))
    }
}

impl MySqlStore {
    async fn purge_once(&self, request: PurgeRequest<'_>) -> Result<Purged, StoreError> {
        let mut tx = match request.lease {
            Some(lease) => match self.fenced(&self.0.settles, lease).await? {
                Some(tx) => tx,
                None => return Ok(Purged::Fenced),
            },
            None => self.0.settles.begin().await?,
        };
        let purged = self.purge_window(&mut tx, &request).await.map_err(error::of)?;
        tx.commit().await?;
        Ok(purged)
    }

    /// Looks at as many rows as may be removed, up to the first that is too young for every limit: rows are
    /// inserted in the order of their numbers, so those behind it are too young as well.
    ///
    /// A head that an operator replays between the look and the removal is pending again, or has died anew: it stays.
    async fn purge_window(&self, tx: &mut MySqlConnection, request: &PurgeRequest<'_>) -> Result<Purged, sqlx::Error> {
        let sql = &self.0.sql.upkeep;
        let now: i64 = sqlx::query(sql.clock.clone()).fetch_one(&mut *tx).await?.try_get(0)?;
        let ago = |age| storable(Timestamp::from_micros(now).saturating_sub(age));
        let (done, dead) = match request.scope {
            PurgeScope::Finished { done, dead } => (ago(done), dead.map(ago)),
            PurgeScope::ByAge(age) => (ago(age), None),
        };
        let batch = request.batch.max(1);
        let expired = sqlx::query(sql.expired.clone()).bind(i64::from(batch)).execute(&mut *tx).await?.rows_affected();
        let window = sqlx::query(sql.window.clone())
            .bind(dead.map_or(done, |dead| dead.max(done)))
            .bind(done)
            .bind(dead)
            .bind(request.cursor.map_or(0, |cursor| cursor.0.0))
            .bind(i64::from(batch))
            .fetch_all(&mut *tx)
            .await?;
        let mut going = Vec::new();
        let mut next = None;
        for row in &window {
            if row.try_get::<i64, _>(1)? != 0 {
                next = None;
                break;
            }
            let seq = Seq(row.try_get(0)?);
            next = Some(PurgeCursor(seq));
            if matches!(request.scope, PurgeScope::ByAge(_)) || row.try_get::<i64, _>(2)? != 0 {
                going.push(seq);
            }
        }
        if window.len() < batch as usize {
            next = None;
        }
        let mut rows = 0;
        if !going.is_empty() {
            let list = row::json_numbers(going);
            let delete = match request.scope {
                PurgeScope::Finished { .. } => sqlx::query(sql.finished.clone()).bind(list).bind(done).bind(dead),
                PurgeScope::ByAge(_) => sqlx::query(sql.aged.clone()).bind(list),
            };
            rows = delete.execute(&mut *tx).await?.rows_affected();
        }
        if expired >= u64::from(batch) {
            // More keys may have expired: the run goes on where it is.
            next = next.or(Some(request.cursor.unwrap_or(PurgeCursor(Seq(0)))));
        }
        Ok(Purged::Removed { rows, next })
    }
}
