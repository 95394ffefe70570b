-- Finds one message by id, archived ones too. After _archived.lua.
--
-- KEYS  1 state (hash)  2 messages (sorted set)
-- ARGV  1 id
-- Returns its member, or nil.
use_archives()
local found = redis.call('HMGET', KEYS[1], ':' .. ARGV[1], 'w')
if not found[1] then return nil end
local _, _, sequence, _, timestamp = struct.unpack('>BBI8Bi8', found[1])
local time = string.format('%.0f', timestamp)
return locate_live(KEYS[2], time, sequence, ARGV[1]) or (find_archived(KEYS[1], found[2], time, sequence, ARGV[1]))
