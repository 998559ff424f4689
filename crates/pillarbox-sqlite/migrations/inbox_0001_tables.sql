-- Marks of messages that a consumer has begun to deal with.
create table {guard} (
    consumer text not null,
    message text not null,
    taken_by text not null,
    expires_at integer not null,
    primary key (consumer, message)
) strict, without rowid;
create index {guard}_expiry on {guard} (expires_at);

-- Messages that were dealt with, by the time of that: see {bucket}.
create table {seen_0} (
    consumer text not null,
    message text not null,
    primary key (consumer, message)
) strict, without rowid;

create table {seen_1} (
    consumer text not null,
    message text not null,
    primary key (consumer, message)
) strict, without rowid;

create table {seen_2} (
    consumer text not null,
    message text not null,
    primary key (consumer, message)
) strict, without rowid;

-- How time is cut into buckets: one row, never changed.
create table {window} (
    one integer primary key check (one = 1),
    bucket_micros integer not null
) strict;

-- For which bucket each of the tables above was emptied last.
create table {bucket} (
    slot integer primary key,
    emptied_for integer not null
) strict;

-- Messages that a consumer has given up.
create table {letter} (
    id text primary key not null,
    version integer not null,
    consumer text not null,
    event_id text not null,
    event_type text not null,
    topic text not null,
    message_key text,
    content_type text not null,
    attributes text not null,
    headers text not null,
    payload blob not null,
    reason text not null,
    attempts integer not null,
    dead_at integer not null,
    source text,
    saga_id text,
    correlation_id text,
    replays integer not null,
    status text not null check (status in ('PENDING', 'REPLAYED', 'DISCARDED')),
    finished_at integer,
    claim text,
    history text not null
) strict, without rowid;
create index {letter}_newest on {letter} (dead_at desc, id);
create index {letter}_status on {letter} (status, dead_at desc, id);
create index {letter}_finished on {letter} (finished_at) where finished_at is not null;
