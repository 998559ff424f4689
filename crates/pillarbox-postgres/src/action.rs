//! The record of what operators did, and the edit of a payload.

use std::time::Duration;

use pillarbox_core::domain::{Payload, Seq, Timestamp};
use pillarbox_core::port::{
    Action, ActionQuery, ActionStore, Actions, Actor, BoxFuture, StoreError, details_of_edit, payload_before,
};
use sqlx::{PgConnection, Row as _, postgres::PgRow};

use crate::{
    PostgresStore,
    admin::BY_INDEX,
    error,
    row::{self, Time},
    tables::statements,
    writer,
};

macro_rules! action {
    () => {
        "select id, at, actor, reason, action, seq, event_id, event_type, details from {action} "
    };
}

statements!(ActionSql {
    /// By primary key, as the two that follow. Locks the row: of two operators one comes after the other.
    edited: "select content_type, payload, payload_bytes from {event} where seq = $1 and status = 'DEAD' for update",
    record_edit: "insert into {action} (actor, reason, action, seq, event_id, event_type, details)
        select $2, $3, 'EDIT', seq, event_id, event_type, $4 from {event} where seq = $1",
    edit: "update {event} set content_type = $2, payload = $3, payload_bytes = $4 where seq = $1 and status = 'DEAD'",
    /// By primary key, against its order.
    actions: concat!(
        action!(),
        "where id <= $1 and ($2::text is null or event_id = $2) and ($3::text is null or actor = $3)
        and ($5::bigint is null or seq = $5) order by id desc limit $4"
    ),
    /// By the index on the event.
    actions_of: concat!(
        action!(),
        "where id <= $1 and event_id = $2::text and ($3::text is null or actor = $3)
        and ($5::bigint is null or seq = $5) order by id desc limit $4"
    ),
    /// By primary key: actions are recorded about in the order of their numbers.
    forget: "delete from {action} where at <= $1
        and id <= (select max(id) from (select id from {action} order by id limit $2) as oldest)",
});

impl ActionStore for PostgresStore {
    fn edit<'a>(&'a self, seq: Seq, payload: &'a Payload, actor: &'a Actor) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let mut entered = self.0.settles.enter().await?;
            entered.begin().await?;
            let tx = entered.connection().map_err(error::of)?;
            let edited = self.edit_in(tx, seq, payload, actor).await.map_err(error::of)?;
            entered.commit().await?;
            Ok(edited)
        })
    }

    fn actions<'a>(
        &'a self,
        query: &'a ActionQuery,
        from: Option<i64>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Actions, StoreError>> {
        Box::pin(async move {
            let ActionSql { actions, actions_of, .. } = &self.0.sql.action;
            // In a transaction, or a pooler could give its two halves to two sessions.
            let mut tx = self.0.pool.begin_with(BY_INDEX).await.map_err(error::of)?;
            let rows = self
                .query(if query.event_id.is_some() { actions_of } else { actions })
                .bind(from.unwrap_or(i64::MAX))
                .bind(query.event_id.as_deref())
                .bind(query.who.as_deref())
                .bind(i64::from(limit) + 1)
                .bind(query.seq.map(|seq| seq.0))
                .fetch_all(&mut *tx)
                .await
                .map_err(error::of)?;
            tx.commit().await.map_err(error::of)?;
            let mut actions = rows.iter().map(action).collect::<Result<Vec<_>, _>>().map_err(error::of)?;
            let next = (actions.len() > limit as usize).then(|| actions.pop()).flatten().map(|action| action.number);
            Ok(Actions { actions, next })
        })
    }

    fn purge_actions(&self, older_than: Duration, batch: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move {
            let sql = &self.0.sql;
            let mut entered = self.0.settles.enter().await?;
            entered.begin().await?;
            let tx = entered.connection().map_err(error::of)?;
            let clock = self.query(&sql.upkeep.clock).fetch_one(&mut *tx).await.map_err(error::of)?;
            let Time(now) = clock.try_get(0).map_err(error::of)?;
            let forgotten = self
                .query(&sql.action.forget)
                .bind(Time(Timestamp::saturating_sub(now, older_than)))
                .bind(i64::from(batch.max(1)))
                .execute(&mut *tx)
                .await
                .map_err(error::of)?;
            entered.commit().await?;
            Ok(forgotten.rows_affected())
        })
    }
}

impl PostgresStore {
    async fn edit_in(
        &self,
        tx: &mut PgConnection,
        seq: Seq,
        payload: &Payload,
        actor: &Actor,
    ) -> Result<bool, sqlx::Error> {
        let sql = &self.0.sql.action;
        let Some(before) = self.query(&sql.edited).bind(seq.0).fetch_optional(&mut *tx).await? else {
            return Ok(false);
        };
        self.query(&sql.record_edit)
            .bind(seq.0)
            .bind(actor.who.as_str())
            .bind(actor.why.as_deref())
            // A payload that can't be read is none to go back to.
            .bind(row::payload_alone(&before).ok().map(|before| details_of_edit(&before)))
            .execute(&mut *tx)
            .await?;
        let (text, bytes) = writer::body(payload);
        let edit = self.query(&sql.edit).bind(seq.0).bind(payload.content_type()).bind(text).bind(bytes);
        Ok(edit.execute(tx).await?.rows_affected() > 0)
    }
}

fn action(row: &PgRow) -> Result<Action, sqlx::Error> {
    let Time(at) = row.try_get(1)?;
    let details: Option<&str> = row.try_get(8)?;
    Ok(Action {
        number: row.try_get(0)?,
        at,
        actor: Actor { who: row.try_get(2)?, why: row.try_get(3)? },
        action: row.try_get(4)?,
        seq: row.try_get::<Option<i64>, _>(5)?.map(Seq),
        event_id: row.try_get(6)?,
        event_type: row.try_get(7)?,
        before: details.and_then(payload_before),
    })
}
