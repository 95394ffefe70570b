-- Removes an owner from the turns of an agent, if the owner's queue is empty; see _turns.lua. And a conversation from a list of
-- turns, if it has none.
--
-- KEYS  1 the list (sorted set)   2 the owner's queue (sorted set) or the state of the conversation (hash)
-- ARGV  1 the entry
local kind = redis.call('TYPE', KEYS[2]).ok
if kind == 'hash' and redis.call('HEXISTS', KEYS[2], 'P') == 1 or kind == 'zset' then return 0 end
return redis.call('ZREM', KEYS[1], ARGV[1])
