-- Copies a page of a sorted set to the staging copy of a conversation, which only expand.lua reads.
--
-- KEYS  source: sorted set; state: hash; copy: sorted set
-- ARGV  first, last: ranks
--       lasts: milliseconds until the copy expires if it is not used
--       held: how many members the copy must have; '' starts it, and removes an earlier one
--       token: of the copy
--
-- Returns {how many were read, how many the copy has now, epoch, revision and sequence of the conversation}, or {-1} if
-- earlier pages are missing (the copy expired, was evicted, or a failover lost a part), or another copy was begun; then nothing
-- was written. Field X of the state has the token of the copy, so that changes know that there is one.
local from, state, copy = KEY.source, KEY.state, KEY.copy
local known = redis.call('HMGET', state, 'e', 'r', 'q', 'X')
if not known[1] then return {-1} end
local some, zadd = redis.call('ZRANGE', from, ARG.first, ARG.last, 'WITHSCORES'), {}
if ARG.held == '' then
  redis.call('HSET', state, 'X', ARG.token)
  redis.call('UNLINK', copy)
elseif known[4] ~= ARG.token then
  return {-1}
elseif redis.call('ZCARD', copy) ~= tonumber(ARG.held) then
  -- A repeated page, after a lost reply, is complete.
  for i = 1, #some, 2 do
    if not redis.call('ZSCORE', copy, some[i]) then return {-1} end
  end
end
for i = 1, #some, 2 do
  zadd[i], zadd[i + 1] = some[i + 1], some[i]
end
if #some > 0 then
  redis.call('ZADD', copy, unpack(zadd)) -- at most 1,000
  redis.call('PEXPIRE', copy, ARG.lasts)
end
return {math.floor(#some / 2), redis.call('ZCARD', copy), known[1], known[2] or '0', known[3] or '0'}
