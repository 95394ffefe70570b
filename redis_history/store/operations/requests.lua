-- Reads the open requests for approval of a conversation. After _member.lua, _locate.lua and _requests.lua.
--
-- KEYS  state: hash; messages: sorted set
--
-- Returns owner and agent of the record, MessagePack values or ''; then for each request, oldest first, the revision of the
-- content of its message, the message's member, and the digests of the call.
use_places()
local known = redis.call('HMGET', KEY.state, 'U', 'A', '?')
local found = {known[1] or '', known[2] or ''}
for _, one in ipairs(requests_in(known[3] or '')) do
  local place = redis.call('HGET', KEY.state, one[1])
  local timestamp, sequence, changed
  if place then timestamp, sequence, changed = place_of(place) end
  local member = sequence == one[4] and locate(KEY.messages, string.format('%.0f', timestamp), sequence)
  if member then
    found[#found + 1], found[#found + 2], found[#found + 3] = changed, member, one[2]
  end
end
return found
