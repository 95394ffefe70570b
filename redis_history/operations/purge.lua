-- Removes search documents after all messages were removed. See _document.lua. After _member.lua.
--
-- KEYS  1 pending work of the bucket (hash: name of a pending delete, prefix of its documents' keys)
--       2 pending delete (sorted set: the removed messages)
-- ARGV  1 name of the pending delete   2 how many to remove at most
-- Returns how many are left.
local prefix = redis.call('HGET', KEYS[1], ARGV[1])
if not prefix then return 0 end
local popped, keys = redis.call('ZPOPMIN', KEYS[2], ARGV[2]), {}
for i = 1, #popped, 2 do
  local sequence = sequence_of(popped[i])
  if sequence > 0 then
    keys[#keys + 1] = prefix .. sequence
    keys[#keys + 1] = prefix .. '-' .. sequence -- if it was a summary
  end
end
if #keys > 0 then redis.call('UNLINK', unpack(keys)) end
local left = redis.call('ZCARD', KEYS[2])
if left == 0 then redis.call('HDEL', KEYS[1], ARGV[1]) end
return left
