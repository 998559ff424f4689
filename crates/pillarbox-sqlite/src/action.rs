//! The record of what operators did, and the edit of a payload.

use std::time::Duration;

use pillarbox_core::domain::{Payload, Seq, Timestamp};
use pillarbox_core::port::{
    Action, ActionQuery, ActionStore, Actions, Actor, BoxFuture, StoreError, details_of_edit, payload_before,
};
use sqlx::{Row as _, SqliteConnection, sqlite::SqliteRow};

use crate::{SqliteStore, error, row, tables::statements};

macro_rules! action {
    () => {
        "select id, at, actor, reason, action, seq, event_id, event_type, details from {action} "
    };
}

statements!(ActionSql {
    /// By primary key, as the two that follow.
    edited: "select content_type, payload from {event} not indexed where seq = ? and status = 'DEAD'",
    record_edit: "insert into {action} (actor, reason, action, seq, event_id, event_type, details)
        select ?2, ?3, 'EDIT', seq, event_id, event_type, ?4 from {event} not indexed where seq = ?1",
    edit: "update {event} not indexed set content_type = ?2, payload = ?3 where seq = ?1 and status = 'DEAD'",
    /// By primary key, against its order.
    actions: concat!(
        action!(),
        "not indexed where id <= ?1 and (?2 is null or event_id = ?2) and (?3 is null or actor = ?3)
        and (?5 is null or seq = ?5) order by id desc limit ?4"
    ),
    /// By the index on the event.
    actions_of: concat!(
        action!(),
        "indexed by {action}_event where id <= ?1 and event_id = ?2 and (?3 is null or actor = ?3)
        and (?5 is null or seq = ?5) order by id desc limit ?4"
    ),
    /// By primary key: actions are recorded in the order of their numbers.
    forget: "delete from {action} where at <= ?1
        and id <= (select max(id) from (select id from {action} order by id limit ?2))",
});

impl ActionStore for SqliteStore {
    fn edit<'a>(&'a self, seq: Seq, payload: &'a Payload, actor: &'a Actor) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let (_turn, mut entered) = self.write_on(&self.0.settles).await?;
            let mut tx = entered.begin().await?;
            let edited = self.edit_in(&mut tx, seq, payload, actor).await.map_err(error::of)?;
            tx.commit().await.map_err(error::of_commit)?;
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
            let mut entered = self.0.operators.enter().await?;
            let rows = sqlx::query(if query.event_id.is_some() { actions_of } else { actions }.clone())
                .bind(from.unwrap_or(i64::MAX))
                .bind(query.event_id.as_deref())
                .bind(query.who.as_deref())
                .bind(i64::from(limit) + 1)
                .bind(query.seq.map(|seq| seq.0))
                .fetch_all(entered.connection()?)
                .await;
            let mut actions = rows
                .and_then(|rows| rows.iter().map(action).collect::<Result<Vec<_>, _>>())
                .map_err(|error| entered.failed(error))?;
            let next = (actions.len() > limit as usize).then(|| actions.pop()).flatten().map(|action| action.number);
            Ok(Actions { actions, next })
        })
    }

    fn purge_actions(&self, older_than: Duration, batch: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move {
            let (_turn, mut entered) = self.write_on(&self.0.settles).await?;
            let mut tx = entered.begin().await?;
            let sql = &self.0.sql;
            let now = sqlx::query(sql.upkeep.clock.clone()).fetch_one(&mut *tx).await.map_err(error::of)?;
            let now = Timestamp::from_micros(now.try_get(0).map_err(error::of)?);
            let forgotten = sqlx::query(sql.action.forget.clone())
                .bind(now.saturating_sub(older_than).as_micros())
                .bind(i64::from(batch.max(1)))
                .execute(&mut *tx)
                .await
                .map_err(error::of)?;
            tx.commit().await.map_err(error::of_commit)?;
            Ok(forgotten.rows_affected())
        })
    }
}

impl SqliteStore {
    async fn edit_in(
        &self,
        tx: &mut SqliteConnection,
        seq: Seq,
        payload: &Payload,
        actor: &Actor,
    ) -> Result<bool, sqlx::Error> {
        let sql = &self.0.sql.action;
        let Some(before) = sqlx::query(sql.edited.clone()).bind(seq.0).fetch_optional(&mut *tx).await? else {
            return Ok(false);
        };
        sqlx::query(sql.record_edit.clone())
            .bind(seq.0)
            .bind(actor.who.as_str())
            .bind(actor.why.as_deref())
            // A payload that can't be read is none to go back to.
            .bind(row::payload_at(&before, 0, 1).ok().map(|before| details_of_edit(&before)))
            .execute(&mut *tx)
            .await?;
        let edit = sqlx::query(sql.edit.clone()).bind(seq.0).bind(payload.content_type());
        // Text stays text in the table, for people to read.
        let edit = match payload.as_text() {
            Some(text) => edit.bind(text),
            None => edit.bind(&payload.as_bytes()[..]),
        };
        Ok(edit.execute(tx).await?.rows_affected() > 0)
    }
}

fn action(row: &SqliteRow) -> Result<Action, sqlx::Error> {
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
