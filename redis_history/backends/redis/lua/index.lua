-- Writes the search documents of messages that are there. After _change.lua and _document.lua.
--
-- ARGV  1 to 9 as every writing script, though nothing of the conversation changes
--       10 how many messages, then for each ':<id>' and digest;
--       then for each its document: how many fields and values, and these
--
-- Returns how many were written. A message that has left or changed since it was read is left out: who changed it has
-- written its document, or the next search will.
local count = tonumber(ARGV[10])
local fields = {'e', 'i', 'l'}
for i = 1, count do
  fields[3 + i] = ARGV[9 + 2 * i]
end
local known = redis.call('HMGET', state, unpack(fields))
if not known[1] then return 0 end
local now, life, written, ends = clock(), known[2], 0, nil
if not life then
  life = token
  redis.call('HSET', state, 'i', life)
end
if known[3] then ends = document_ends(now, known[3]) end
local prefix, at = documents_of(life), 11 + 2 * count
for i = 1, count do
  local place, to = known[3 + i], at + ARGV[at]
  if place and string.sub(place, 36, 51) == ARGV[10 + 2 * i] then
    local _, _, sequence, _, timestamp = struct.unpack('>BBI8Bi8', place)
    document(prefix, life, sequence, timestamp, at + 1, to, ends)
    written = written + 1
  end
  at = to + 1
end
return written
