-- Removes messages by id as one change, also archived ones. Unknown ids are ignored; if all are unknown, nothing changes.
-- After _document.lua and _archived.lua.
--
-- ARGV  10 how many, then their fields of the state, then the ids, distinct
--
-- Returns {revision, how many were removed}, or {'revision', current} | {'missing'} | {'late', …}; then nothing was written.
use_journal()
use_documents()
use_places()
use_replies()
local FIRST, FIELDS, count_asked = 11, 13, tonumber(ARGV[10])
local fields = {'e', 'r', 'n', 'c', 'k', 'l', 'i', 'a', 's', 'm', 'w', 'u', 'g'}
for i = FIRST, FIRST + count_asked - 1 do
  fields[#fields + 1] = ARGV[i]
end
local known = redis.call('HMGET', state, unpack(fields))
local revision = tonumber(known[2] or 0)
local seen, reply = open_change(known[1], revision, known[12], known[13])
if reply then return reply end

local members, gone, ids, their_sequences, places, sequences = {}, {}, {}, {}, {}, {}
local archived, count, originals = {}, 0, tonumber(known[10] or 0)
local replies = {}
local summaries = {}
if known[11] then
  for i = 1, count_asked do
    summaries[i] = '^' .. ARGV[FIRST + count_asked + i - 1]
  end
  summaries = redis.call('HMGET', state, unpack(summaries))
end
local characters, tokens = tonumber(known[4] or 0), tonumber(known[5] or 0)
for i = 1, count_asked do
  local place, field, id = known[FIELDS + i], ARGV[FIRST + i - 1], ARGV[FIRST + count_asked + i - 1]
  if place then
    local timestamp, sequence = place_of(place)
    local time = format('%.0f', timestamp)
    local member, archive = locate_live(messages, time, sequence, id), nil
    if not member then member, archive = find_archived(state, known[11], time, sequence, id) end
    local c = member and characters_of(member) or 0
    local k = math.ceil(c / 4)
    gone[#gone + 1] = field
    ids[#ids + 1] = id
    their_sequences[#ids] = sequence
    places[#places + 1] = {field, place}
    if member and is_live(member) then replies[sequence] = true end
    local summary = summaries[i]
    if summary then gone[#gone + 1] = '^' .. id end
    if archive then
      archived[archive] = archived[archive] or {members = {}, c = 0, k = 0}
      local its = archived[archive]
      its.members[#its.members + 1] = member
      its.c, its.k = its.c + c, its.k + k
      if not summary then originals = originals - 1 end
    else
      members[#members + 1] = member
      count, characters, tokens = count + 1, characters - c, tokens - k
      if id == known[9] then gone[#gone + 1] = 's' end -- the messages it replaced stay in the archive
    end
    if not (archive and summary) then sequences[#sequences + 1] = summary and -sequence or sequence end
  end
end
if #ids == 0 then return unchanged(seen, known[1], {revision, 0}) end

local now = clock()
revision = revision + 1
free()
local newest = head_of_entry(DELETED, now)
write_log(newest, {ids, their_sequences})
if #members > 0 then redis.call('ZREM', messages, unpack(members)) end
for archive, its in pairs(archived) do
  redis.call('ZREM', archive_of(state, archive), unpack(its.members))
  local held, c, k, rest = string.match(redis.call('HGET', state, '#' .. archive) or '', '^(%d+) (%d+) (%d+) (.*)$')
  if held then
    redis.call('HSET', state, '#' .. archive, held - #its.members .. ' ' .. c - its.c .. ' ' .. k - its.k .. ' ' .. rest)
  end
end
redis.call('HDEL', state, unpack(gone))
if next(replies) then forget_replies(state, replies) end
note_places(seen, true, places)
forget_documents(known[7], sequences)
redis.call('HSET', state, 'r', revision, 'x', newest, 'u', now, 'n', known[3] - count, 'c', characters,
           'k', tokens, 'h', revision)
if known[10] then redis.call('HSET', state, 'm', originals) end
return close_change(seen, {revision, #ids}, revision, now, known[6], known[7], known[8])
