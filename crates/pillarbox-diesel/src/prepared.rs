//! Statements that a connection prepares once.

use diesel::{
    QueryResult,
    expression::expression_types::Untyped,
    query_builder::{AstPass, Query, QueryId},
};

/// A statement with a `?` for each of its values. `sql_query` would have each run prepared anew, which takes a round trip.
pub(crate) struct Prepared<'q, V> {
    pub(crate) sql: &'q str,
    pub(crate) values: Vec<V>,
}

/// A value of a statement on one kind of database.
pub(crate) trait Bind<DB: diesel::backend::Backend> {
    fn push<'b>(&'b self, out: &mut AstPass<'_, 'b, DB>) -> QueryResult<()>;
}

impl<V> Prepared<'_, V> {
    pub(crate) fn walk<'b, DB>(&'b self, mut out: AstPass<'_, 'b, DB>) -> QueryResult<()>
    where
        DB: diesel::backend::Backend,
        V: Bind<DB>,
    {
        // No text of the outbox has a `?` that is not a place for a value.
        let mut values = self.values.iter();
        for (place, part) in self.sql.split('?').enumerate() {
            if place > 0
                && let Some(value) = values.next()
            {
                value.push(&mut out)?;
            }
            out.push_sql(part);
        }
        Ok(())
    }
}

impl<V> Query for Prepared<'_, V> {
    type SqlType = Untyped;
}

impl<V> QueryId for Prepared<'_, V> {
    type QueryId = ();

    const HAS_STATIC_QUERY_ID: bool = false;
}
