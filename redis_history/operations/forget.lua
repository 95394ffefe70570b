-- Removes expired conversations from a registry, or from the list of an owner.
--
-- KEYS  1 registry or list (sorted set), then the state (hash) of each conversation
-- ARGV  their names, in the same order
--
-- A copy of a call to such a conversation may still come. So what the registry tells of it (see look in _journal.lua) goes to a
-- journal of its own, as that of a deleted conversation.
-- Returns how many were removed.
local KEPT = 120000 -- milliseconds: two of the journal's periods
local gone, time = 0, redis.call('TIME')
local oldest = (time[1] * 1000 - KEPT) * 1000
for i, name in ipairs(ARGV) do
  local state = KEYS[i + 1]
  if not redis.call('HGET', state, 'e') then
    local changed = tonumber(redis.call('ZSCORE', KEYS[1], name) or 0)
    if changed > oldest then
      local journal = redis.call('HGET', state, 'g')
      if not journal then
        redis.call('HSET', state, 'o', struct.pack('>i7I3', changed, 0), 'g', struct.pack('>i7i7I4I4i7', changed, changed, 0, 0, changed))
        redis.call('PEXPIRE', state, KEPT)
      end
    end
    gone = gone + redis.call('ZREM', KEYS[1], name)
  end
end
return gone
