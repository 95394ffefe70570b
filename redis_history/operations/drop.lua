-- Drops a draft, so that it cannot be published any more. Its sets of messages are removed by the caller, because they may be many.
--
-- KEYS  1 the draft's state (hash)
-- ARGV  1 milliseconds for which pages of the draft are refused, also the first one if it is still to come; '': not
--
-- Returns the number of its archives; nil if there is no such draft, because it was published, or has expired.
local draft, refused_for = KEYS[1], ARGV[1]
local known = redis.call('HMGET', draft, 'page', 'archives')
local page, archives = known[1], known[2]
if page ~= '-1' then redis.call('UNLINK', draft) end
if refused_for ~= '' then
  redis.call('HSET', draft, 'page', -1, 'archives', archives or 0)
  redis.call('PEXPIRE', draft, refused_for)
end
return archives and tonumber(archives)
