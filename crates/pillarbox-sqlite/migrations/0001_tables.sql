-- Times are microseconds since 1970-01-01 UTC, from SQLite's clock, which counts in milliseconds.
-- Columns that scans look at stand before the payload: SQLite reads a long row up to the last column it needs.
create table {event} (
    seq integer primary key autoincrement,
    partition integer not null default (abs(random() % 256)) check (partition between 0 and 255),
    status text not null default 'NEW' check (status in ('NEW', 'RETRY', 'DONE', 'DEAD')),
    available_at integer,
    created_at integer not null default {now},
    done_at integer,
    attempts integer not null default 0,
    starts integer not null default 0,
    event_key text,
    event_id text not null,
    event_type text not null,
    aggregate_type text not null default '__GLOBAL__',
    aggregate_id text,
    tenant_id text,
    occurred_at integer not null default {now},
    content_type text not null default 'application/json',
    payload blob not null,
    headers text,
    progress text,
    last_error text
);

-- What waits for a time of its own: retries, delays, replays.
create index {event}_due on {event} (available_at)
    where available_at is not null and status in ('NEW', 'RETRY');

-- The lanes: the pending events of a key.
create index {event}_key on {event} (event_key, seq)
    where event_key is not null and status in ('NEW', 'RETRY');

-- What waits for a person.
create index {event}_dead on {event} (seq, event_id)
    where status = 'DEAD';

-- Keys whose followers are found by the key. A key has one hold; other kinds of names may come beside keys.
create table {hold} (
    partition integer not null,
    kind text not null check (kind in ('DEAD_HEAD', 'OVERFLOW', 'SINK')),
    name text not null,
    from_seq integer not null
);
create unique index {hold}_key on {hold} (partition, name) where kind <> 'SINK';

-- The nodes. Autoincrement, so that no incarnation comes twice.
create table {instance} (
    incarnation integer primary key autoincrement,
    id text not null unique,
    until integer not null,
    routes text not null,
    in_flight integer not null,
    mark integer,
    started_at integer not null default {now}
);

create table {partition} (
    number integer primary key check (number between 0 and 255),
    owner text,
    epoch integer not null default 0,
    mark integer not null default 0,
    suspects integer not null default 0
);
insert into {partition} (number)
    with recursive numbers (number) as (select 0 union all select number + 1 from numbers where number < 255)
    select number from numbers;

create table {dedup} (
    dedup_key text primary key,
    event_id text not null,
    expires_at integer not null
) without rowid;
create index {dedup}_expiry on {dedup} (expires_at);

-- What operators did, and why.
create table {action} (
    id integer primary key autoincrement,
    at integer not null default {now},
    actor text not null,
    reason text,
    action text not null,
    seq integer,
    event_id text,
    event_type text,
    details text
);
create index {action}_event on {action} (event_id, id);
