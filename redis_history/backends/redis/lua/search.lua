-- Searches one conversation.
--
-- KEYS  1 state (hash)
-- ARGV  1 which argument of the search is the scope   then the search: FT.SEARCH and its arguments
--
-- Returns {messages, documents, reply of FT.SEARCH}: if the numbers differ, some messages have no document (yet).
-- A conversation without documents has no reply. The error of a search is returned as it is.
local known = redis.call('HMGET', KEYS[1], 'i', 'n')
local life, count = known[1], tonumber(known[2] or 0)
if not life then return {count, 0} end
local found = redis.pcall('FT.SEARCH', ARGV[3], '@c:{$c}', 'PARAMS', '2', 'c', life, 'DIALECT', '2', 'LIMIT', '0', '0')
if found.err then return found end
if found[1] ~= count then return {count, found[1]} end
ARGV[tonumber(ARGV[1]) + 1] = life
local reply = redis.pcall(unpack(ARGV, 2))
if reply.err then return reply end
return {count, count, reply}
