-- Removes search documents after all messages were removed. See _document.lua. After _declared.lua and
-- _member.lua.
--
-- KEYS  work: pending work of the bucket (hash: name of a pending delete, prefix of its documents' keys)
--       removed: pending delete (sorted set: the removed messages)
-- ARGV  name: of the pending delete
--       most: how many to remove at most
--
-- Two numbers behind the prefix replace the sorted set: all documents with sequences from the first to the second are
-- removed, the highest first.
-- Returns how many are left.
local work, removed, name, most = KEY.work, KEY.removed, ARG.name, tonumber(ARG.most)
local value = redis.call('HGET', work, name)
if not value then return 0 end
local format, keys, left = string.format, {}, 0
local function add(prefix, sequence)
  keys[#keys + 1] = prefix .. format('%.0f', sequence)
  keys[#keys + 1] = prefix .. format('-%.0f', sequence) -- if it was a summary
end
local prefix, low, high = string.match(value, '^(.*) (%d+) (%d+)$')
if prefix then
  local from = math.max(tonumber(low), high - most + 1)
  for sequence = from, high do add(prefix, sequence) end
  left = from - low
  if left > 0 then redis.call('HSET', work, name, format('%s %s %.0f', prefix, low, from - 1)) end
else
  local popped = redis.call('ZPOPMIN', removed, most)
  for i = 1, #popped, 2 do
    local sequence = sequence_of(popped[i])
    if sequence > 0 then add(value, sequence) end
  end
  left = redis.call('ZCARD', removed)
end
in_slices('UNLINK', nil, keys)
if left == 0 then redis.call('HDEL', work, name) end
return left
