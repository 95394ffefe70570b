-- Reads the messages of a window, ascending.
--
-- KEYS  1 messages (sorted set)
-- ARGV  1 limit   2 '1': the last `limit` of the window, '0': the first
--       3, 4  lower bound: timestamp or '', sequence (the first position inside)
--       5, 6  upper bound: timestamp or '', sequence (the first position after the window)
-- Returns the members.
local messages, limit = KEY.messages, tonumber(ARG.limit)
local first, last = 0, redis.call('ZCARD', messages)
if ARG.after ~= '' then first = rank_of(messages, ARG.after, tonumber(ARG.after_sequence)) end
if ARG.before ~= '' then last = rank_of(messages, ARG.before, tonumber(ARG.before_sequence)) end
if ARG.newest == '1' then
  first = math.max(first, last - limit)
else
  last = math.min(last, first + limit)
end
if first >= last then return {} end
return redis.call('ZRANGE', messages, first, last - 1)
