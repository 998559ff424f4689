-- The partition of a key: MurmurHash3 (x86, 32 bit, seed 0) of its UTF-8 bytes, modulo 256.
create function {partition_of}(event_key varchar(512) character set utf8mb4) returns smallint
    deterministic no sql sql security invoker
begin
    declare bytes varbinary(2048) default cast(event_key as binary);
    declare size int unsigned default length(bytes);
    declare place int unsigned default 1;
    declare hash bigint unsigned default 0;
    declare word bigint unsigned;
    if event_key is null then
        return null;
    end if;
    while place <= size do
        set word = ord(substring(bytes, place, 1)) + (ord(substring(bytes, place + 1, 1)) << 8)
            + (ord(substring(bytes, place + 2, 1)) << 16) + (ord(substring(bytes, place + 3, 1)) << 24);
        set word = (word * 3432918353) & 4294967295;
        set word = ((word << 15) | (word >> 17)) & 4294967295;
        set hash = hash ^ ((word * 461845907) & 4294967295);
        if place + 3 <= size then
            set hash = ((hash << 13) | (hash >> 19)) & 4294967295;
            set hash = (hash * 5 + 3864292196) & 4294967295;
        end if;
        set place = place + 4;
    end while;
    set hash = hash ^ size;
    set hash = ((hash ^ (hash >> 16)) * 2246822507) & 4294967295;
    set hash = ((hash ^ (hash >> 13)) * 3266489909) & 4294967295;
    return (hash ^ (hash >> 16)) & 255;
end
