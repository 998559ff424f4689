-- The partition of a key: MurmurHash3 (x86, 32 bit, seed 0) of its UTF-8 bytes, modulo 256.
create function {prefix_of}partition_of(key text) returns smallint
language plpgsql immutable strict parallel safe as $$
declare
    mask constant bigint := 4294967295;
    bytes constant bytea := convert_to(key, 'UTF8');
    size constant int := length(bytes);
    hash bigint := 0;
    word bigint := 0;
begin
    -- Products of two words of 32 bits don't fit, so one factor is taken in two halves.
    for i in 0 .. size - 1 loop
        word := word | (get_byte(bytes, i)::bigint << (8 * (i % 4)));
        if i % 4 = 3 then
            word := ((word & 65535) * 3432918353 + (((word >> 16) * 3432918353 & 65535) << 16)) & mask;
            word := ((word << 15) | (word >> 17)) & mask;
            word := ((word & 65535) * 461845907 + (((word >> 16) * 461845907 & 65535) << 16)) & mask;
            hash := hash # word;
            hash := ((((hash << 13) | (hash >> 19)) & mask) * 5 + 3864292196) & mask;
            word := 0;
        end if;
    end loop;
    word := ((word & 65535) * 3432918353 + (((word >> 16) * 3432918353 & 65535) << 16)) & mask;
    word := ((word << 15) | (word >> 17)) & mask;
    word := ((word & 65535) * 461845907 + (((word >> 16) * 461845907 & 65535) << 16)) & mask;
    hash := hash # word # size;
    hash := hash # (hash >> 16);
    hash := ((hash & 65535) * 2246822507 + (((hash >> 16) * 2246822507 & 65535) << 16)) & mask;
    hash := hash # (hash >> 13);
    hash := ((hash & 65535) * 3266489909 + (((hash >> 16) * 3266489909 & 65535) << 16)) & mask;
    return (hash # (hash >> 16)) & 255;
end $$;

-- A new id: a ULID, of the time in milliseconds and of 64 random bits (hexadecimal digits are digits of a ULID, too).
create function {prefix_of}new_id() returns text
language sql volatile parallel safe as $$
    select string_agg(
            substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', ((millis >> (45 - 5 * place)) & 31)::int + 1, 1), '' order by place)
        || upper(left(uuid, 8) || substr(uuid, 10, 4) || right(uuid, 4))
    from (select (extract(epoch from clock_timestamp()) * 1000)::bigint as millis, gen_random_uuid()::text as uuid) as made
        cross join generate_series(0, 9) as place
    group by uuid
$$;

-- The transaction's id comes first, so that it is taken before the number: see the module `horizon`.
-- The number must come from a sequence with cache 1: order per key rests on it.
create table {event} (
    txid xid8 not null default pg_current_xact_id(),
    seq bigint generated always as identity (cache 1) primary key,
    created_at timestamptz not null default clock_timestamp(),
    occurred_at timestamptz not null default clock_timestamp(),
    available_at timestamptz,
    done_at timestamptz,
    attempts integer not null default 0,
    starts integer not null default 0,
    -- What the writer chose. Whoever inserts by hand leaves it out, and the key decides, or else the id.
    given_partition smallint,
    partition smallint not null
        generated always as (coalesce(given_partition, {prefix_of}partition_of(coalesce(event_key, event_id)))) stored
        check (partition between 0 and 255),
    status text not null default 'NEW' check (status in ('NEW', 'RETRY', 'DONE', 'DEAD')),
    event_id text not null default {prefix_of}new_id(),
    event_type text not null,
    aggregate_type text not null default '__GLOBAL__',
    aggregate_id text,
    tenant_id text,
    event_key text collate "C",
    content_type text not null default 'application/json',
    payload text,
    payload_bytes bytea,
    headers text,
    progress text,
    last_error text,
    check (num_nonnulls(payload, payload_bytes) = 1)
);

-- What waits for a time of its own: retries, delays, replays.
create index {prefix}event_due on {event} (available_at, seq)
    where available_at is not null and status in ('NEW', 'RETRY');

-- The lanes: the pending events of a key.
create index {prefix}event_key on {event} (event_key, seq)
    where event_key is not null and status in ('NEW', 'RETRY');

-- What waits for a person.
create index {prefix}event_dead on {event} (seq)
    where status = 'DEAD';

-- Keys whose followers are found by the key. A key has one hold; other kinds of names may come beside keys.
create table {hold} (
    partition smallint not null,
    kind text not null check (kind in ('DEAD_HEAD', 'OVERFLOW', 'SINK')),
    name text collate "C" not null,
    from_seq bigint not null
);
create unique index {prefix}hold_key on {hold} (partition, name) where kind <> 'SINK';

-- The nodes. From a sequence, so that no incarnation comes twice.
create table {instance} (
    incarnation bigint generated always as identity primary key,
    id text not null unique,
    until timestamptz not null,
    routes text not null,
    in_flight bigint not null,
    started_at timestamptz not null default clock_timestamp()
);

-- How far each node has come. Apart from the lease, so that a settle that writes it is not in a renewal's way.
create table {mark} (
    incarnation bigint primary key,
    mark bigint
);

create table {partition} (
    number smallint primary key check (number between 0 and 255),
    owner text,
    epoch bigint not null default 0,
    mark bigint not null default 0,
    suspects bigint not null default 0
);
insert into {partition} (number) select generate_series(0, 255);

create table {dedup} (
    dedup_key text collate "C" primary key,
    event_id text not null,
    expires_at timestamptz not null
);
create index {prefix}dedup_expiry on {dedup} (expires_at);

-- What operators did, and why.
create table {action} (
    id bigint generated always as identity primary key,
    at timestamptz not null default clock_timestamp(),
    actor text not null,
    reason text,
    action text not null,
    seq bigint,
    event_id text,
    event_type text,
    details text
);
create index {prefix}action_event on {action} (event_id, id);

-- For other languages: select outbox_publish('OrderPlaced', '{"order": 7}', key => 'order-7'), in the transaction
-- that changes the order. Returns the id of the event.
create function {prefix_of}publish(
    event_type text,
    payload text,
    key text default null,
    aggregate_type text default '__GLOBAL__',
    aggregate_id text default null,
    tenant_id text default null,
    headers jsonb default null,
    content_type text default 'application/json',
    deliver_after interval default null
) returns text
language sql volatile as $$
    insert into {event} (event_type, payload, event_key, aggregate_type, aggregate_id, tenant_id, headers, content_type,
            available_at)
    values ($1, $2, $3, $4, $5, $6, $7::text, $8, clock_timestamp() + $9)
    returning event_id
$$;
