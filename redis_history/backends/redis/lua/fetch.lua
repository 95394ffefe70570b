-- Reads messages that a search has found, with those before and after each. After _locate.lua.
--
-- KEYS  1 state (hash)   2 messages (sorted set)   then the document of each message
-- ARGV  1 life of the documents   2 how many to read before and after each   then the sequence of each
--
-- Returns for each {members from first to last, which of them it is (from 0)}, or {} if it is gone.
local found, around = {}, tonumber(ARGV[2])
local same = redis.call('HGET', KEYS[1], 'i') == ARGV[1]
for i = 3, #ARGV do
  local item, sequence = {}, tonumber(ARGV[i])
  local timestamp = same and redis.call('HGET', KEYS[i], 'm')
  if timestamp then
    local rank = rank_of(KEYS[2], timestamp, sequence)
    local first = math.max(0, rank - around)
    local members = redis.call('ZRANGE', KEYS[2], first, rank + around)
    local member = members[rank - first + 1]
    if member and sequence_of(member) == sequence then item = {members, rank - first} end
  end
  found[i - 2] = item
end
return found
