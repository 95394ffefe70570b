-- Copies some members of a sorted set to another, which nobody reads yet.
--
-- KEYS  1 from   2 to
-- ARGV  1, 2 ranks of the first and the last   3 milliseconds until the copy ends by itself, should nobody use it
-- Returns how many.
local some, zadd = redis.call('ZRANGE', KEYS[1], ARGV[1], ARGV[2], 'WITHSCORES'), {}
if #some == 0 then return 0 end
for i = 1, #some, 2 do
  zadd[i], zadd[i + 1] = some[i + 1], some[i]
end
redis.call('ZADD', KEYS[2], unpack(zadd))
redis.call('PEXPIRE', KEYS[2], ARGV[3])
return #some / 2
