//! The record of what operators did, and the edit of a payload.

use std::time::Duration;

use pillarbox_core::{
    domain::{Event, Payload, Seq, Status, Timestamp},
    port::{Action, ActionKind, ActionQuery, ActionStore, Actions, Actor, BoxFuture, StoreError, StoreErrorKind},
};

use super::{MemoryStore, tables::Tables};

impl Tables {
    pub(super) fn record(&mut self, kind: ActionKind, seq: Seq, event: &Event, actor: &Actor, now: Timestamp) {
        self.last_action += 1;
        self.actions.push(Action {
            number: self.last_action,
            at: now,
            actor: actor.clone(),
            action: kind.as_str().to_owned(),
            seq: Some(seq),
            event_id: Some(event.id().to_string()),
            event_type: Some(event.event_type().as_str().to_owned()),
            before: (kind == ActionKind::Edit).then(|| event.payload().clone()),
        });
    }

    fn edit(&mut self, seq: Seq, payload: &Payload, actor: &Actor, now: Timestamp) -> Result<bool, StoreError> {
        let Some(event) = self.row(seq).filter(|row| row.status == Status::Dead).map(|row| row.event.clone()) else {
            return Ok(false);
        };
        let edited = event.to_builder().payload(payload.clone()).build();
        let edited = edited.map_err(|error| StoreError::new(StoreErrorKind::Rejected, error.to_string()))?;
        self.record(ActionKind::Edit, seq, &event, actor, now);
        Ok(self.update(seq, |row| row.event = edited))
    }

    fn actions_of(&self, query: &ActionQuery, from: Option<i64>, limit: u32) -> Actions {
        let mut found = self.actions.iter().rev().filter(|action| {
            from.is_none_or(|from| action.number <= from)
                && (query.event_id.is_none() || query.event_id == action.event_id)
                && (query.seq.is_none() || query.seq == action.seq)
                && query.who.as_ref().is_none_or(|who| *who == action.actor.who)
        });
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let actions = found.by_ref().take(limit).cloned().collect();
        Actions { actions, next: found.next().map(|action| action.number) }
    }
}

impl ActionStore for MemoryStore {
    fn edit<'a>(&'a self, seq: Seq, payload: &'a Payload, actor: &'a Actor) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move { self.run(|tables, now| tables.edit(seq, payload, actor, now)).await })
    }

    fn actions<'a>(
        &'a self,
        query: &'a ActionQuery,
        from: Option<i64>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Actions, StoreError>> {
        Box::pin(async move { Ok(self.run(|tables, _| tables.actions_of(query, from, limit)).await) })
    }

    fn purge_actions(&self, older_than: Duration, batch: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move {
            let forget = self.run(|tables, now| {
                let end = now.saturating_sub(older_than);
                let batch = usize::try_from(batch).unwrap_or(usize::MAX).max(1);
                let old = tables.actions.iter().take(batch).take_while(|action| action.at <= end).count();
                tables.actions.drain(..old);
                old as u64
            });
            Ok(forget.await)
        })
    }
}
