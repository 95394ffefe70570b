-- Finds a message by id, live or archived. After _archived.lua.
--
-- KEYS  1 state (hash)  2 messages (sorted set)
-- ARGV  1 its field of the state   2 id
-- Returns its member, or nil.
use_archives()
use_places()
local found = redis.call('HMGET', KEYS[1], ARGV[1], 'w')
if not found[1] then return nil end
local timestamp, sequence = place_of(found[1])
local time = string.format('%.0f', timestamp)
return locate_live(KEYS[2], time, sequence, ARGV[2]) or (find_archived(KEYS[1], found[2], time, sequence, ARGV[2]))
