//! What a new owner must know: holds, failing heads, suspects.

use std::collections::{BTreeMap, HashMap};

use pillarbox_core::domain::{Key, PartitionSet, Seq};
use pillarbox_core::port::{Hold, HoldKind, Recall, Taken};
use sqlx::{MySqlConnection, Row as _, mysql::MySqlRow};

use crate::{MySqlStore, read::at_most, row, tables::statements};

statements!(RecallSql {
    /// By primary key, all holds: they are few.
    holds: "select `partition`, name, kind, from_seq from {hold}
        where space = 0 and kind in ('DEAD_HEAD', 'OVERFLOW') and substring(?, `partition` + 1, 1) = '1'
            and (? is null or kind = ?)
        order by `partition`, name",
    /// By the status.
    failing: "select `partition`, event_key, seq from {event} force index (by_status)
        where status = 'RETRY' and event_key is not null and substring(?, `partition` + 1, 1) = '1'
        order by seq",
    /// Above the mark. By the status.
    above: "select seq, event_key from {event} force index (by_status)
        where status = 'NEW' and seq > ? and substring(?, `partition` + 1, 1) = '1'
            and (available_at is null or available_at <= {now})
        order by seq limit ?",
    /// Below or above it. By the due time.
    due: "select seq, event_key from {event} force index (by_due)
        where available_at is not null and available_at <= {now} and status in ('NEW', 'RETRY')
            and substring(?, `partition` + 1, 1) = '1'",
    /// The first that waits behind a hold. By the key.
    behind: "select (select seq from {event} force index (by_key)
            where event_key = convert(name using utf8mb4) collate utf8mb4_bin
                and octet_length(event_key) = octet_length(name) and seq >= from_seq
                and status in ('NEW', 'RETRY') and (available_at is null or available_at <= {now})
            order by seq limit 1), convert(name using utf8mb4)
        from {hold} where space = 0 and kind = 'OVERFLOW' and substring(?, `partition` + 1, 1) = '1'",
    /// From the end. By the status, and by the due time.
    newest: "(select seq from {event} force index (by_status)
            where status = 'NEW' and seq > ? and substring(?, `partition` + 1, 1) = '1' order by seq desc limit ?)
        union (select seq from {event} force index (by_status)
            where status = 'RETRY' and seq > ? and substring(?, `partition` + 1, 1) = '1' order by seq desc limit ?)
        union (select seq from {event} force index (by_due)
            where available_at is not null and status in ('NEW', 'RETRY')
                and substring(?, `partition` + 1, 1) = '1')
        order by 1 desc limit ?",
});

/// How many rows above the mark are looked at in one statement.
const CHUNK: usize = 5_000;

impl MySqlStore {
    pub(crate) async fn read_recall(
        &self,
        connection: &mut MySqlConnection,
        taken: &[Taken],
    ) -> Result<Recall, sqlx::Error> {
        let partitions: PartitionSet = taken.iter().map(|taken| taken.partition).collect();
        let letters = row::letters(&partitions);
        let failing = sqlx::query(self.0.sql.recall.failing.clone())
            .bind(letters.as_str())
            .fetch_all(&mut *connection)
            .await?
            .iter()
            .map(|row| Ok((row::partition(row, 0)?, Key::from(row.try_get::<&str, _>(1)?), Seq(row.try_get(2)?))))
            .collect::<Result<Vec<_>, sqlx::Error>>()?;
        let mut suspects = Vec::new();
        let unclean = || taken.iter().filter(|taken| taken.suspects > 0);
        if let (Some(most), Some(after)) =
            (unclean().map(|taken| taken.suspects).max(), unclean().map(|taken| taken.mark).min())
        {
            let letters = row::letters(&unclean().map(|taken| taken.partition).collect());
            let heads = failing.iter().map(|(_, key, seq)| (key.as_str(), *seq));
            suspects = self.read_oldest(connection, after, &letters, most, heads).await?;
            suspects.extend(self.read_newest(connection, after, &letters, most).await?);
            suspects.sort_unstable();
            suspects.dedup();
        }
        Ok(Recall { holds: self.read_holds(connection, &letters, None).await?, failing, suspects })
    }

    /// The oldest pending rows that could have been running: of a key only the first, since the others wait behind
    /// it. A delayed row holds back nothing before it is due; one that failed does.
    async fn read_oldest(
        &self,
        connection: &mut MySqlConnection,
        after: Seq,
        letters: &str,
        most: u32,
        failing: impl Iterator<Item = (&str, Seq)>,
    ) -> Result<Vec<Seq>, sqlx::Error> {
        let sql = &self.0.sql.recall;
        let mut found: BTreeMap<Seq, Option<String>> = BTreeMap::new();
        for sql in [&sql.due, &sql.behind] {
            let rows = sqlx::query(sql.clone()).bind(letters).fetch_all(&mut *connection).await?;
            found.extend(rows.iter().filter_map(seq_and_key));
        }
        let mut first: HashMap<String, Seq> = HashMap::new();
        let mut note = |key: &str, seq: Seq| {
            let first = first.entry(key.to_owned()).or_insert(seq);
            *first = seq.min(*first);
        };
        failing.for_each(|(key, seq)| note(key, seq));
        found.iter().filter_map(|(seq, key)| Some((key.as_deref()?, *seq))).for_each(|(key, seq)| note(key, seq));
        let mut last = after;
        let mut enough = false;
        while !enough {
            let rows = sqlx::query(sql.above.clone())
                .bind(last.0)
                .bind(letters)
                .bind(at_most(CHUNK))
                .fetch_all(&mut *connection)
                .await?;
            for (seq, key) in rows.iter().filter_map(seq_and_key) {
                last = seq;
                if let Some(key) = &key {
                    let first = first.entry(key.clone()).or_insert(seq);
                    *first = seq.min(*first);
                    if *first != seq {
                        continue;
                    }
                }
                found.insert(seq, key);
            }
            enough = rows.len() < CHUNK || found.len() >= most as usize;
        }
        let could_run =
            |(seq, key): (Seq, Option<String>)| key.is_none_or(|key| first.get(&key) == Some(&seq)).then_some(seq);
        Ok(found.into_iter().filter_map(could_run).take(most as usize).collect())
    }

    async fn read_newest(
        &self,
        connection: &mut MySqlConnection,
        after: Seq,
        letters: &str,
        most: u32,
    ) -> Result<Vec<Seq>, sqlx::Error> {
        let rows = sqlx::query(self.0.sql.recall.newest.clone())
            .bind(after.0)
            .bind(letters)
            .bind(i64::from(most))
            .bind(after.0)
            .bind(letters)
            .bind(i64::from(most))
            .bind(letters)
            .bind(i64::from(most))
            .fetch_all(connection)
            .await?;
        rows.iter().map(|row| row.try_get(0).map(Seq)).collect()
    }

    pub(crate) async fn read_holds(
        &self,
        connection: &mut MySqlConnection,
        letters: &str,
        kind: Option<HoldKind>,
    ) -> Result<Vec<Hold>, sqlx::Error> {
        let kind = kind.map(row::hold_kind);
        let rows = sqlx::query(self.0.sql.recall.holds.clone())
            .bind(letters)
            .bind(kind)
            .bind(kind)
            .fetch_all(connection)
            .await?;
        rows.iter().map(row::hold).collect()
    }
}

fn seq_and_key(row: &MySqlRow) -> Option<(Seq, Option<String>)> {
    let seq: Option<i64> = row.try_get(0).ok()?;
    let key: Option<&str> = row.try_get_unchecked(1).ok()?;
    Some((Seq(seq?), key.map(str::to_owned)))
}
