-- Reads the newest change of a conversation, its totals and optionally its newest messages, in one look.
--
-- KEYS  1 state (hash)  2 change log (list)  3 messages (sorted set)
-- ARGV  1 how many of the newest messages to read, '0' for none
--
-- Returns {epoch, revision, head of the newest log entry, messages, characters, tokens, members}.
local epoch, revision, newest = head_of(KEYS[1], KEYS[2])
local totals = redis.call('HMGET', KEYS[1], 'n', 'c', 'k')
local members = {}
if ARGV[1] ~= '0' then members = redis.call('ZRANGE', KEYS[3], -tonumber(ARGV[1]), -1) end
return {epoch, revision, newest, tonumber(totals[1] or 0), tonumber(totals[2] or 0), tonumber(totals[3] or 0), members}
