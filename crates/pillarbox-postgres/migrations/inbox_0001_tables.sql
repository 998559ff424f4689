-- Marks of messages that a consumer has begun to deal with.
create table {guard} (
    consumer text collate "C" not null,
    message text collate "C" not null,
    taken_by text not null,
    expires_at timestamptz not null,
    primary key (consumer, message)
);
create index {prefix}guard_expiry on {guard} (expires_at);

-- Messages that were dealt with, by the time of that: see {bucket}.
create table {seen_0} (
    consumer text collate "C" not null,
    message text collate "C" not null,
    primary key (consumer, message)
);

create table {seen_1} (
    consumer text collate "C" not null,
    message text collate "C" not null,
    primary key (consumer, message)
);

create table {seen_2} (
    consumer text collate "C" not null,
    message text collate "C" not null,
    primary key (consumer, message)
);

-- How time is cut into buckets: one row, never changed.
create table {window} (
    one smallint primary key check (one = 1),
    bucket_micros bigint not null check (bucket_micros > 0)
);

-- For which bucket each of the tables above was emptied last.
create table {bucket} (
    slot smallint primary key,
    emptied_for bigint not null
);

-- Messages that a consumer has given up. Texts may hold what PostgreSQL can't, the character NUL: it is written as
-- U+001A and 0, and U+001A as itself twice.
create table {letter} (
    id text collate "C" primary key,
    version bigint not null,
    consumer text not null,
    event_id text not null,
    event_type text not null,
    topic text not null,
    message_key text,
    content_type text not null,
    attributes text not null,
    headers text not null,
    payload bytea not null,
    reason text not null,
    attempts bigint not null,
    dead_at timestamptz not null,
    source text,
    saga_id text,
    correlation_id text,
    replays bigint not null,
    status text not null check (status in ('PENDING', 'REPLAYED', 'DISCARDED')),
    finished_at timestamptz,
    claim text,
    history text not null
);
create index {prefix}letter_newest on {letter} (dead_at desc, id);
create index {prefix}letter_status on {letter} (status, dead_at desc, id);
create index {prefix}letter_finished on {letter} (finished_at) where status <> 'PENDING';
