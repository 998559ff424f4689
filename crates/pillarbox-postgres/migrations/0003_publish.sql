-- The function finds its table under any search path. Here the path is the schema of the tables.
alter function {prefix_of}publish(text, text, text, text, text, text, jsonb, text, interval) set search_path from current;
