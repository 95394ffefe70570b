-- Copies a page of a sorted set to a staging copy, which only expand.lua reads.
--
-- KEYS  1 from   2 to   3 state (hash)
-- ARGV  1, 2 ranks of the first and the last   3 milliseconds until the copy expires if it is not used
--       4 how many members the copy must have; '' starts it, and removes an earlier one
--
-- Returns {how many were read, how many the copy has now, epoch, revision and sequence of the conversation}, or {-1} if
-- earlier pages are missing (the copy expired, was evicted, or a failover lost a part); then nothing was written.
local some, zadd = redis.call('ZRANGE', KEYS[1], ARGV[1], ARGV[2], 'WITHSCORES'), {}
if ARGV[4] == '' then
  redis.call('UNLINK', KEYS[2])
elseif redis.call('ZCARD', KEYS[2]) ~= tonumber(ARGV[4]) then
  -- A repeated page, after a lost reply, is complete.
  for i = 1, #some, 2 do
    if not redis.call('ZSCORE', KEYS[2], some[i]) then return {-1} end
  end
end
for i = 1, #some, 2 do
  zadd[i], zadd[i + 1] = some[i + 1], some[i]
end
if #some > 0 then
  redis.call('ZADD', KEYS[2], unpack(zadd))
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
end
local known = redis.call('HMGET', KEYS[3], 'e', 'r', 'q')
return {#some / 2, redis.call('ZCARD', KEYS[2]), known[1] or '', known[2] or '0', known[3] or '0'}
