-- Takes conversations that have expired out of a registry.
--
-- KEYS  1 registry (sorted set), then the state (hash) of each conversation
-- ARGV  their names, in the same order
-- Returns how many were taken out.
local gone = 0
for i, name in ipairs(ARGV) do
  if redis.call('EXISTS', KEYS[i + 1]) == 0 then gone = gone + redis.call('ZREM', KEYS[1], name) end
end
return gone
