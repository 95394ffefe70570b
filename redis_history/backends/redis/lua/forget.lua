-- Removes expired conversations from a registry, or from the list of an owner.
--
-- KEYS  1 registry or list (sorted set), then the state (hash) of each conversation
-- ARGV  their names, in the same order
-- Returns how many were removed.
local gone = 0
for i, name in ipairs(ARGV) do
  if redis.call('EXISTS', KEYS[i + 1]) == 0 then gone = gone + redis.call('ZREM', KEYS[1], name) end
end
return gone
