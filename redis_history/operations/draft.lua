-- Adds messages to the draft of a conversation, which publish.lua makes visible, or removes them again. After _member.lua and
-- _locate.lua.
--
-- KEYS  1 the draft's state (hash)   2 one of its sets of messages (sorted set): the live ones, or those of an archive
-- ARGV  1 page: 1 begins the draft   2 milliseconds until it expires if it is not used
--       3 how many messages to remove, then for each: timestamp, sequence, field of the state
--       then for each message: score, member, field of the state and its value
--
-- Returns 1; 0 if earlier pages are lost (expired, evicted, or a failover lost a part), or if this is a late copy of an earlier
-- page; then nothing was written. A repeated page has the same effect.
local page, before = tonumber(ARGV[1]), tonumber(redis.call('HGET', KEYS[1], 'page') or 0)
if before ~= page and before ~= page - 1 then return 0 end
local at = 4
local fields = {'page', page}
if page == 1 then -- a long value makes the hash a table, see append.lua
  fields[3], fields[4] = 'z', string.rep('z', 513)
end
local zadd = {}
for i = at + 3 * ARGV[3], #ARGV, 4 do
  zadd[#zadd + 1], zadd[#zadd + 2] = ARGV[i], ARGV[i + 1]
  fields[#fields + 1], fields[#fields + 2] = ARGV[i + 2], ARGV[i + 3]
end
redis.call('HSET', KEYS[1], unpack(fields))
for _ = 1, ARGV[3] do
  local member = locate(KEYS[2], ARGV[at], tonumber(ARGV[at + 1]))
  if member then
    redis.call('ZREM', KEYS[2], member)
    redis.call('HDEL', KEYS[1], ARGV[at + 2])
  end
  at = at + 3
end
if #zadd > 0 then redis.call('ZADD', KEYS[2], unpack(zadd)) end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return 1
