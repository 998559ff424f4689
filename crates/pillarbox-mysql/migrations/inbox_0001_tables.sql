-- Times are UTC. Names are compared byte by byte. Every statement may run twice: the server commits each by itself, so a
-- migration that was cut off is run again.

-- Marks of messages that a consumer has begun to deal with.
create table if not exists {guard} (
    consumer varbinary(200) not null,
    message varbinary(200) not null,
    taken_by blob not null,
    -- Of the call that took it.
    taken_in bigint unsigned not null,
    expires_at datetime(6) not null,
    primary key (consumer, message),
    index by_expiry (expires_at)
) engine = InnoDB default charset = utf8mb4 collate = utf8mb4_bin;

-- Messages that were dealt with, by the time of that: see {bucket}. Each with a number of the call that entered it.
create table if not exists {seen_0} (
    consumer varbinary(200) not null,
    message varbinary(200) not null,
    entered_by bigint unsigned not null,
    primary key (consumer, message)
) engine = InnoDB default charset = utf8mb4 collate = utf8mb4_bin;

create table if not exists {seen_1} (
    consumer varbinary(200) not null,
    message varbinary(200) not null,
    entered_by bigint unsigned not null,
    primary key (consumer, message)
) engine = InnoDB default charset = utf8mb4 collate = utf8mb4_bin;

create table if not exists {seen_2} (
    consumer varbinary(200) not null,
    message varbinary(200) not null,
    entered_by bigint unsigned not null,
    primary key (consumer, message)
) engine = InnoDB default charset = utf8mb4 collate = utf8mb4_bin;

-- How time is cut into buckets: one row, never changed.
create table if not exists {window} (
    one tinyint not null primary key,
    bucket_micros bigint not null,
    constraint {prefix}has_one_window check (one = 1 and bucket_micros > 0)
) engine = InnoDB default charset = utf8mb4 collate = utf8mb4_bin;

-- For which bucket each of the tables above was emptied last.
create table if not exists {bucket} (
    slot tinyint not null primary key,
    emptied_for bigint not null
) engine = InnoDB default charset = utf8mb4 collate = utf8mb4_bin;

-- Messages that a consumer has given up.
create table if not exists {letter} (
    id varchar(64) not null primary key,
    version bigint unsigned not null,
    consumer mediumtext not null,
    event_id mediumtext not null,
    event_type mediumtext not null,
    topic mediumtext not null,
    message_key mediumtext,
    content_type mediumtext not null,
    attributes mediumtext not null,
    headers mediumtext not null,
    payload longblob not null,
    reason mediumtext not null,
    attempts int unsigned not null,
    dead_at datetime(6) not null,
    source mediumtext,
    saga_id mediumtext,
    correlation_id mediumtext,
    replays int unsigned not null,
    status enum ('PENDING', 'REPLAYED', 'DISCARDED') not null,
    finished_at datetime(6),
    claim mediumtext,
    history mediumtext not null,
    index newest (dead_at desc, id),
    index by_status (status, dead_at desc, id),
    index by_end (finished_at)
) engine = InnoDB default charset = utf8mb4 collate = utf8mb4_bin;
