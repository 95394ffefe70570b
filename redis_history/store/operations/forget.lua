-- Removes expired conversations from a registry, or from the list of an owner; from that also those which were created again,
-- and have another owner.
--
-- KEYS  list: the registry or list (sorted set); states: one hash for each conversation
-- ARGV  names: of the conversations, in the same order
--
-- A delayed retry of a call to such a conversation may still arrive. So the registry's record of it (see look in
-- _journal.lua) moves to a separate journal, as for a deleted conversation.
-- Returns how many were removed.
local KEPT = 120000 -- milliseconds: two of the journal's periods
local gone, time = 0, redis.call('TIME')
local oldest = (time[1] * 1000 - KEPT) * 1000
local kind, digest = string.match(KEY.list, ':(.):(%x+)$')
for i, name in ipairs(ARGV) do
  local state = KEYS[i + 1]
  local epoch, user, agent, forked = unpack(redis.call('HMGET', state, 'e', 'U', 'A', 'B')) -- at most 4
  if not epoch then
    local changed = tonumber(redis.call('ZSCORE', KEY.list, name) or 0)
    if changed > oldest then
      local journal = redis.call('HGET', state, 'g')
      if not journal then
        redis.call('HSET', state, 'o', struct.pack('>i7I3', changed, 0), 'g', struct.pack('>i7i7I4I4i7', changed, changed, 0, 0, changed))
        redis.call('PEXPIRE', state, KEPT)
      end
    end
    gone = gone + redis.call('ZREM', KEY.list, name)
  elseif kind then
    local owner = ({u = user, v = agent, f = forked})[kind]
    if not owner or redis.sha1hex(owner) ~= digest then gone = gone + redis.call('ZREM', KEY.list, name) end
  end
end
return gone
