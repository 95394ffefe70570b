-- Reads the messages of a window, ascending.
--
-- KEYS  messages: sorted set
-- ARGV  limit: most messages
--       newest: '1': the last `limit` of the window, '0': the first
--       after, after_sequence: the first position inside the window: timestamp or '', sequence
--       before, before_sequence: the first position after the window: timestamp or '', sequence
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
