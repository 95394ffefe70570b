-- Removes conversations without open requests for approval from a list of those that have some (lua/_approvals.lua), such as
-- expired ones; from the list of an owner or an agent also those that belong to another one.
--
-- KEYS  list: sorted set; states: one hash for each conversation
-- ARGV  names: of the conversations, in the same order
--
-- Returns how many were removed.
local gone, kind, digest = 0, string.match(KEY.list, ':([uv])(%x+)$')
for i, name in ipairs(ARGV) do
  local packed, user, agent = unpack(redis.call('HMGET', KEYS[i + 1], '?', 'U', 'A')) -- at most 3
  local owner = kind == 'u' and user or kind == 'v' and agent
  if not packed or kind and (not owner or redis.sha1hex(owner) ~= digest) then
    gone = gone + redis.call('ZREM', KEY.list, name)
  end
end
return gone
