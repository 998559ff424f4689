//! The record of what operators did, and the edit of a payload.

use std::time::Duration;

use pillarbox_core::domain::{Payload, Seq, Timestamp};
use pillarbox_core::port::{
    Action, ActionQuery, ActionStore, Actions, Actor, BoxFuture, StoreError, details_of_edit, payload_before,
};
use sqlx::{Row as _, mysql::MySqlRow};

use crate::{MySqlStore, connection::retried, error, row, tables::statements, write::storable};

macro_rules! action {
    () => {
        "select id, timestampdiff(microsecond, {epoch}, `at`), actor, reason, action, seq, event_id, event_type, details
        from {action} "
    };
}

statements!(ActionSql {
    /// By primary key, as the two that follow. Locks the row: of two operators one comes after the other.
    edited: "select content_type, payload, payload_bytes from {event} force index (primary)
        where seq = ? and status = 'DEAD' for update",
    record_edit: "insert into {action} (actor, reason, action, details, seq, event_id, event_type)
        select ?, ?, 'EDIT', ?, seq, event_id, event_type from {event} force index (primary) where seq = ?",
    edit: "update {event} force index (primary) set content_type = ?, payload = ?, payload_bytes = ?
        where seq = ? and status = 'DEAD'",
    /// By primary key, against its order. Names are compared byte by byte.
    actions: concat!(
        action!(),
        "force index (primary) where id <= ? and (? is null or actor = ? and octet_length(actor) = octet_length(?))
        and (? is null or seq = ?) order by id desc limit ?"
    ),
    /// By the index on the event.
    actions_of: concat!(
        action!(),
        "force index (by_event) where id <= ? and (? is null or actor = ? and octet_length(actor) = octet_length(?))
        and (? is null or seq = ?) and event_id = ? order by id desc limit ?"
    ),
    /// The end of a window of the oldest. By primary key: actions are recorded about in the order of their numbers.
    oldest: "select max(id) from (select id from {action} order by id limit ?) as oldest",
    /// By primary key.
    forget: "delete from {action} where id <= ? and `at` <= {epoch} + interval ? microsecond",
});

impl ActionStore for MySqlStore {
    fn edit<'a>(&'a self, seq: Seq, payload: &'a Payload, actor: &'a Actor) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(retried(move || self.edit_once(seq, payload, actor)))
    }

    fn actions<'a>(
        &'a self,
        query: &'a ActionQuery,
        from: Option<i64>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Actions, StoreError>> {
        Box::pin(async move {
            let ActionSql { actions, actions_of, .. } = &self.0.sql.action;
            let who = query.who.as_deref();
            let sql = if query.event_id.is_some() { actions_of } else { actions };
            let mut read = sqlx::query(sql.clone()).bind(from.unwrap_or(i64::MAX)).bind(who).bind(who).bind(who);
            let seq = query.seq.map(|seq| seq.0);
            read = read.bind(seq).bind(seq);
            if let Some(id) = query.event_id.as_deref() {
                read = read.bind(id);
            }
            let mut entered = self.0.seeks.enter().await?;
            let rows = read.bind(i64::from(limit) + 1).fetch_all(&mut *entered).await.map_err(error::of)?;
            entered.done();
            let mut actions = rows.iter().map(action).collect::<Result<Vec<_>, _>>().map_err(error::of)?;
            let next = (actions.len() > limit as usize).then(|| actions.pop()).flatten().map(|action| action.number);
            Ok(Actions { actions, next })
        })
    }

    fn purge_actions(&self, older_than: Duration, batch: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(retried(move || self.forget_once(older_than, batch)))
    }
}

impl MySqlStore {
    async fn edit_once(&self, seq: Seq, payload: &Payload, actor: &Actor) -> Result<bool, StoreError> {
        let sql = &self.0.sql.action;
        let mut tx = self.0.settles.begin().await?;
        let before = sqlx::query(sql.edited.clone()).bind(seq.0).fetch_optional(&mut *tx).await.map_err(error::of)?;
        let Some(before) = before else {
            tx.commit().await?;
            return Ok(false);
        };
        sqlx::query(sql.record_edit.clone())
            .bind(actor.who.as_str())
            .bind(actor.why.as_deref())
            // A payload that can't be read is none to go back to.
            .bind(row::payload_at(&before, 0).ok().map(|before| details_of_edit(&before)))
            .bind(seq.0)
            .execute(&mut *tx)
            .await
            .map_err(error::of)?;
        // Text stays text in the table, for people to read.
        let text = payload.as_text();
        sqlx::query(sql.edit.clone())
            .bind(payload.content_type())
            .bind(text)
            .bind(text.is_none().then(|| &payload.as_bytes()[..]))
            .bind(seq.0)
            .execute(&mut *tx)
            .await
            .map_err(error::of)?;
        tx.commit().await?;
        // The row is locked since it was found: it was changed, even if the server counts none for the same bytes.
        Ok(true)
    }

    async fn forget_once(&self, older_than: Duration, batch: u32) -> Result<u64, StoreError> {
        let sql = &self.0.sql;
        let mut tx = self.0.settles.begin().await?;
        let clock = sqlx::query(sql.upkeep.clock.clone()).fetch_one(&mut *tx).await.map_err(error::of)?;
        let now = Timestamp::from_micros(clock.try_get(0).map_err(error::of)?);
        let oldest = sqlx::query(sql.action.oldest.clone()).bind(i64::from(batch.max(1)));
        let oldest = oldest.fetch_one(&mut *tx).await.map_err(error::of)?;
        let end: Option<i64> = oldest.try_get(0).map_err(error::of)?;
        let forgotten = sqlx::query(sql.action.forget.clone())
            .bind(end.unwrap_or(0))
            .bind(storable(now.saturating_sub(older_than)))
            .execute(&mut *tx)
            .await
            .map_err(error::of)?;
        tx.commit().await?;
        Ok(forgotten.rows_affected())
    }
}

fn action(row: &MySqlRow) -> Result<Action, sqlx::Error> {
    let details: Option<&str> = row.try_get(8)?;
    Ok(Action {
        number: row.try_get(0)?,
        at: Timestamp::from_micros(row.try_get(1)?),
        actor: Actor { who: row.try_get(2)?, why: row.try_get(3)? },
        action: row.try_get(4)?,
        seq: row.try_get::<Option<i64>, _>(5)?.map(Seq),
        event_id: row.try_get(6)?,
        event_type: row.try_get(7)?,
        before: details.and_then(payload_before),
    })
}
