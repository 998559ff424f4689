-- Times are UTC. What is unique or ordered by a key is compared byte by byte; where a column is text for people's
-- sake, statements compare its length too, since this collation takes no notice of spaces at the end.
-- Every statement may run twice: the server commits each by itself, so a migration that was cut off is run again.

-- A plain insert of event_type and payload is enough. An event with a key needs the partition of that key:
--     insert into {event} (event_type, payload, event_key, `partition`)
--         values ('OrderPlaced', '{"order": 7}', 'order-7', {partition_of}('order-7'));
-- Without it the check of the partition refuses the row, for the default is then -1.
create table if not exists {event} (
    seq bigint not null auto_increment primary key,
    `partition` smallint not null default (if(event_key is null, floor(rand() * 256), -1)),
    status enum ('NEW', 'RETRY', 'DONE', 'DEAD') not null default 'NEW',
    available_at datetime(6),
    created_at datetime(6) not null default (utc_timestamp(6)),
    done_at datetime(6),
    attempts int not null default 0,
    starts int not null default 0,
    event_key varchar(512),
    event_id varchar(26) not null default (concat({ulid_time}, upper(substr(sha2(uuid(), 256), 1, 16)))),
    event_type varchar(255) not null,
    aggregate_type varchar(255) not null default '__GLOBAL__',
    aggregate_id varchar(255),
    tenant_id varchar(255),
    occurred_at datetime(6) not null default (utc_timestamp(6)),
    content_type varchar(255) not null default 'application/json',
    payload longtext,
    payload_bytes longblob,
    headers mediumtext,
    progress mediumtext,
    last_error mediumtext,
    constraint {prefix}key_needs_its_partition check (`partition` between 0 and 255),
    constraint {prefix}has_one_payload check ((payload is null) <> (payload_bytes is null)),
    -- What waits, what is dead, and how many there are.
    index by_status (status, seq),
    -- What waits for a time of its own: retries, delays, replays. Finished rows have none.
    index by_due (available_at, seq),
    -- The lanes: the events of a key.
    index by_key (event_key, seq)
) engine = InnoDB default charset = utf8mb4 collate = utf8mb4_bin row_format = dynamic;

-- Keys whose followers are found by the key. A key has one hold; other kinds of names may come beside keys.
create table if not exists {hold} (
    `partition` smallint not null,
    kind enum ('DEAD_HEAD', 'OVERFLOW', 'SINK') not null,
    name varbinary(512) not null,
    from_seq bigint not null,
    -- 0 for a key, so that a sink of the same name may be held beside it.
    space tinyint not null default 0,
    primary key (`partition`, space, name)
) engine = InnoDB default charset = utf8mb4 collate = utf8mb4_bin;

-- The nodes. No incarnation comes twice.
create table if not exists {instance} (
    incarnation bigint not null auto_increment primary key,
    id varchar(255) not null,
    `until` datetime(6) not null,
    routes mediumtext not null,
    in_flight bigint not null,
    mark bigint,
    started_at datetime(6) not null default (utc_timestamp(6)),
    unique index by_id (id)
) engine = InnoDB default charset = utf8mb4 collate = utf8mb4_bin;

create table if not exists {partition} (
    number smallint not null primary key,
    owner varchar(255),
    epoch bigint not null default 0,
    mark bigint not null default 0,
    suspects bigint not null default 0
) engine = InnoDB default charset = utf8mb4 collate = utf8mb4_bin;
insert ignore into {partition} (number)
    with recursive numbers (number) as (select 0 union all select number + 1 from numbers where number < 255)
    select number from numbers;

create table if not exists {dedup} (
    dedup_key varbinary(512) not null primary key,
    event_id varchar(26) not null,
    expires_at datetime(6) not null,
    -- Of the call that entered the key, so that it knows its own.
    entered_by bigint unsigned not null,
    index by_expiry (expires_at)
) engine = InnoDB default charset = utf8mb4 collate = utf8mb4_bin;

-- What operators did, and why.
create table if not exists {action} (
    id bigint not null auto_increment primary key,
    `at` datetime(6) not null default (utc_timestamp(6)),
    actor mediumtext not null,
    reason mediumtext,
    action varchar(32) not null,
    seq bigint,
    event_id varchar(26),
    event_type varchar(255),
    details mediumtext,
    index by_event (event_id, id)
) engine = InnoDB default charset = utf8mb4 collate = utf8mb4_bin;
