-- The server's life, from its start or from its last crash on: PostgreSQL empties an unlogged table when it comes back from a
-- crash, and when a standby takes over. A lease is in force only in the life in which it was given: see the module `life`.
create unlogged table {life} (
    one boolean primary key default true check (one),
    life uuid not null default gen_random_uuid()
);
alter table {instance} add column life uuid;
