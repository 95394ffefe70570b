-- Writes the search documents of messages that are there. After _change.lua and _document.lua.
--
-- ARGV  1 to 9 as every writing script, though nothing of the conversation changes
--       10 how many arguments a document has   then for each message: ':<id>', digest, and these
--
-- Returns how many were written. A message that has left or changed since it was read is left out: who changed it has
-- written its document, or the next search will.
local FIRST, WIDTH = 11, tonumber(ARGV[10]) + 2
local fields = {'e', 'i', 'l'}
for at = FIRST, #ARGV, WIDTH do
  fields[#fields + 1] = ARGV[at]
end
local known = redis.call('HMGET', state, unpack(fields))
if not known[1] then return 0 end
local now, life, written, ends = clock(), known[2], 0, nil
if not life then
  life = token
  redis.call('HSET', state, 'i', life)
end
if known[3] then ends = document_ends(now, known[3]) end
local prefix = documents_of(life)
for i = 4, #fields do
  local place, at = known[i], FIRST + (i - 4) * WIDTH
  if place and string.sub(place, 36, 51) == ARGV[at + 1] then
    local _, _, sequence, _, timestamp = struct.unpack('>BBI8Bi8', place)
    document(prefix, life, sequence, timestamp, at + 2, at + WIDTH - 1, ends)
    written = written + 1
  end
end
return written
