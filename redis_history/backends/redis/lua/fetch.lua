-- Reads messages that a search has found, with those before and after each.
--
-- KEYS  1 state (hash)  2 messages (sorted set)
-- ARGV  1 life of the documents   2 how many to read before and after each   then timestamp and sequence of each
--
-- Returns for each {members from first to last, which of them it is (from 0)}, or {} if it is gone.
local found = {}
local same, around = redis.call('HGET', KEYS[1], 'i') == ARGV[1], tonumber(ARGV[2])
for i = 3, #ARGV, 2 do
  local item, timestamp, sequence = {}, ARGV[i], tonumber(ARGV[i + 1])
  if same and around == 0 then
    local member = locate(KEYS[2], timestamp, sequence)
    if member then item = {{member}, 0} end
  elseif same then
    local rank = rank_of(KEYS[2], timestamp, sequence)
    local first = math.max(0, rank - around)
    local members = redis.call('ZRANGE', KEYS[2], first, rank + around)
    local member = members[rank - first + 1]
    if member and sequence_of(member) == sequence then item = {members, rank - first} end
  end
  found[#found + 1] = item
end
return found
