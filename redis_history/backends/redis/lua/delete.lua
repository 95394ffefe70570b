-- Removes messages by id as one change. Unknown ids are ignored; if all are unknown nothing changes.
-- After _change.lua, _document.lua and _locate.lua.
--
-- ARGV  10 on: the ids, distinct
--
-- Returns {revision, how many were removed}, or {'revision', current} | {'missing'}; then nothing was written.
local FIRST, FIELDS = 10, 7
local fields = {'e', 'r', 'n', 'c', 'k', 'l', 'i'}
for i = FIRST, #ARGV do
  fields[#fields + 1] = ':' .. ARGV[i]
end
local known = redis.call('HMGET', state, unpack(fields))
for i = FIELDS + 1, #fields do
  if not known[i] then -- else no earlier try can have been applied
    local before, payload = told()
    if before then
      touch()
      return {before, (struct.unpack('>I4', string.sub(payload, 2, 5)))}
    end
    break
  end
end
local revision = tonumber(known[2] or 0)
local refusal = refused(known[1], revision)
if refusal then return refusal end

local members, gone, ids, sequences = {}, {}, {}, {}
local characters, tokens = tonumber(known[4] or 0), tonumber(known[5] or 0)
for i = FIRST, #ARGV do
  local place = known[FIELDS + i - FIRST + 1]
  if place then
    local _, _, sequence, _, timestamp, _, c, k = struct.unpack('>BBI8Bi8I8I4I4', place)
    members[#members + 1] = locate(messages, format('%.0f', timestamp), sequence)
    gone[#gone + 1] = ':' .. ARGV[i]
    sequences[#sequences + 1] = sequence
    ids[#ids + 1] = ARGV[i]
    characters = characters - c
    tokens = tokens - k
  end
end
if #gone == 0 then
  touch()
  return {revision, 0}
end

local now = clock()
revision = revision + 1
if #members > 0 then redis.call('ZREM', messages, unpack(members)) end
redis.call('HDEL', state, unpack(gone))
forget_documents(known[7], sequences)
redis.call('HSET', state, 'r', revision, 'x', token, 'u', format('%.0f', now), 'n', known[3] - #gone, 'c', characters,
           'k', tokens)
announce(revision, now, 'delete', array_of(ids))
if ARGV[6] ~= '' or known[6] then live(ARGV[6], now, known[6], known[7]) end
return {revision, #gone}
