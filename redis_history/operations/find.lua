-- Finds a message by id, live or archived. After _archived.lua.
--
-- KEYS  1 state (hash)  2 messages (sorted set)
-- ARGV  1 its field of the state   2 id   3 'c' in a cluster
-- Returns its member, or nil; or {'keys', ...}: see _archive.lua.
use_archives()
use_places()
local found = redis.call('HMGET', KEYS[1], ARGV[1], 'w')
if not found[1] then return nil end
local timestamp, sequence = place_of(found[1])
local time = string.format('%.0f', timestamp)
local live = locate_live(KEYS[2], time, sequence, ARGV[2])
local ask = not live and undeclared_archives(KEYS[1], archives_in(found[2]), ARGV[3])
if ask then return ask end
return live or (find_archived(KEYS[1], found[2], time, sequence, ARGV[2]))
