-- Finds a message by id, live or archived. After _archived.lua.
--
-- KEYS  state: hash; messages: sorted set
-- ARGV  field: of the state, for this message
--       id: of the message
-- Returns its member, or nil; or {'keys', ...}: see _archive.lua.
use_archives()
use_places()
local state, messages, field, id = KEY.state, KEY.messages, ARG.field, ARG.id
local place = redis.call('HGET', state, field)
if not place then return nil end
local timestamp, sequence = place_of(place)
local time = string.format('%.0f', timestamp)
local live = locate_live(messages, time, sequence, id)
local ask = not live and undeclared_archives(state, (archive_index.at(state, timestamp, sequence)))
if ask then return ask end
return live or (find_archived(state, time, sequence, id))
