-- Reads the messages of a window, ascending.
--
-- KEYS  1 messages (sorted set)
-- ARGV  1 limit   2 '1': the last `limit` of the window, '0': the first
--       3, 4  lower bound: timestamp or '', sequence (the first position inside)
--       5, 6  upper bound: timestamp or '', sequence (the first position after the window)
-- Returns the members.
local messages, limit = KEYS[1], tonumber(ARGV[1])
local first, last = 0, redis.call('ZCARD', messages)
if ARGV[3] ~= '' then first = rank_of(messages, ARGV[3], tonumber(ARGV[4])) end
if ARGV[5] ~= '' then last = rank_of(messages, ARGV[5], tonumber(ARGV[6])) end
if ARGV[2] == '1' then
  first = math.max(first, last - limit)
else
  last = math.min(last, first + limit)
end
if first >= last then return {} end
return redis.call('ZRANGE', messages, first, last - 1)
