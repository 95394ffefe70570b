-- Gives a message other content, at the same place. After _document.lua and _archived.lua.
--
-- ARGV  10 ':<id>'   11 size, digest and tools (as in the state)   12 body
--       13 on: the fields and values of its search document, if there is one
--
-- Returns 'revision sequence timestamp' of the message as it is now (no change if it has this content already),
-- or {'unknown'} (or archived) | {'revision', current} | {'missing'} | {'late', …}; then nothing was written.
use_journal()
use_documents()
local known = redis.call('HMGET', state, 'e', 'r', 'c', 'k', 'l', ARGV[10], 'i', 'a', 's', 'w', 'u', 'g')
local revision, place = tonumber(known[2] or 0), known[6]
local seen, reply = decided(known[11], known[12])
if reply then return reply end
if place and string.sub(place, 28) == ARGV[11] then
  local _, _, sequence, _, timestamp, changed = struct.unpack('>BBI8Bi8I5', place)
  if ARGV[2] == '' or tonumber(ARGV[2]) == revision or tonumber(ARGV[2]) + 1 == changed then
    return unchanged(seen, true, changed .. ' ' .. sequence .. ' ' .. format('%.0f', timestamp))
  end
end
local refusal = refused(known[1], revision)
if refusal then return unchanged(seen, known[1], refusal) end
if not place then return unchanged(seen, known[1], {'unknown'}) end

local _, _, sequence, _, timestamp, _, c, k = struct.unpack('>BBI8Bi8I8I4I4', place)
local timestamp_text = format('%.0f', timestamp)
local id = string.sub(ARGV[10], 2)
local old = locate_live(messages, timestamp_text, sequence, id)
if not old and find_archived(state, known[10], timestamp_text, sequence, id) then
  return unchanged(seen, true, {'unknown'})
end
local head = string.sub(place, 1, 19)
local member = head .. ARGV[12]
local new_c, new_k = struct.unpack('>I4I4', ARGV[11])
local now = clock()
revision = revision + 1
write_log(revision, 'update', pack('>BI4', 0xdd, 1) .. member)
redis.call('HSET', state, 'r', revision, 'x', token, 'u', now, 'c', known[3] - c + new_c,
           'k', known[4] - k + new_k, 'h', revision, ARGV[10], head .. pack('>I5', revision) .. string.sub(place, 25, 27) .. ARGV[11])
note_places(seen, true, {{id, place}})
if old then redis.call('ZREM', messages, old) end
redis.call('ZADD', messages, timestamp_text, member)
local generation, named = known[7], id == known[9] and -sequence or sequence
if #ARGV > 12 then
  if not generation then
    generation = token
    redis.call('HSET', state, 'i', generation)
  end
  local ttl, ends = ARGV[6] ~= '' and ARGV[6] or known[5], nil
  if ttl then ends = document_ends(now, ttl) end
  document(documents_of(generation), generation, named, timestamp, 13, #ARGV, ends)
elseif generation then -- a document that tells of the former content must not be found
  redis.call('UNLINK', documents_of(generation) .. named)
end
return close_change(seen, revision .. ' ' .. sequence .. ' ' .. timestamp_text, revision, now, known[5], known[7], known[8])
