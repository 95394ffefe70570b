-- Finds one message by id.
--
-- KEYS  1 state (hash)  2 messages (sorted set)
-- ARGV  1 id
-- Returns its member, or nil.
local place = redis.call('HGET', KEYS[1], ':' .. ARGV[1])
if not place then return nil end
local _, _, sequence, _, timestamp = struct.unpack('>BBI8Bi8', place)
return locate(KEYS[2], string.format('%.0f', timestamp), sequence)
