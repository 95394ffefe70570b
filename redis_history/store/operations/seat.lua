-- Takes, keeps or gives up a seat: the right of a run to be one of the runs of an owner that workers of an agent make at a time.
-- A seat that is not kept expires, because its worker may have died.
--
-- KEYS  seats: sorted set of run ids, by the time in milliseconds when their seats expire
-- ARGV  run_id: of the run
--       most: seats; '0' to give it up
--       lasts: milliseconds until the seat expires
--
-- Returns 1 if the run has a seat now, else 0.
local seats, id, most, milliseconds = KEY.seats, ARG.run_id, tonumber(ARG.most), ARG.lasts
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if most == 0 then
  redis.call('ZREM', seats, id)
  return 0
end
local expired = redis.call('ZCARD', seats) - redis.call('ZCOUNT', seats, now, '+inf')
if expired > 0 then redis.call('ZREMRANGEBYRANK', seats, 0, expired - 1) end
if not redis.call('ZSCORE', seats, id) and redis.call('ZCARD', seats) >= most then return 0 end
redis.call('ZADD', seats, now + milliseconds, id)
redis.call('PEXPIRE', seats, milliseconds)
return 1
