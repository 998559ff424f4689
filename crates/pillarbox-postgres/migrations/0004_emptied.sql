-- Whoever empties the table makes void what nodes know of it: the numbers may begin anew, and a node that went on would pass
-- over those that come again, or settle them in place of the ones before. The rights are those of the tables' owner, since
-- to empty this table is not to have rights on the others. The order of the locks is that of a node that takes partitions.
create function {prefix_of}emptied() returns trigger
language plpgsql security definer set search_path from current as $$
begin
    perform from {partition} order by number for update;
    update {partition} set owner = null, epoch = epoch + 1, mark = 0, suspects = 0;
    update {mark} set mark = null;
    delete from {hold};
    delete from {life};
    return null;
end $$;
revoke execute on function {prefix_of}emptied() from public;
create trigger {prefix}emptied after truncate on {event} for each statement execute function {prefix_of}emptied();
