-- Removes messages by id as one change, also archived ones. Unknown ids are ignored; if all are unknown, nothing changes.
-- After _documents.lua and _archived.lua.
--
-- ARGV  10 how many, then their fields of the state, then the ids, distinct, then which summaries may stay although they may
--       quote these messages: '' all; 'live' none, and if the live summary is one of them, nothing is written, so that the
--       caller can expand it; 'none' none
--
-- Returns {revision, how many of the ids were removed}, {'quoted', id of the live summary}, or {'revision', current} |
-- {'missing'} | {'late', …}; in all but the first case nothing was written.
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
local ask = undeclared(lists_and(owners(), contents_in(known[11], redis.call('HGET', state, '~')))) or known[7] and moving(known[7])
if ask then return ask end
local seen, reply = open_change(known[1], revision, known[12], known[13])
if reply then return reply end

-- The ids and fields to remove. Copies, because quoting summaries are added, in this change: one that is written after it
-- was not made from these messages, because compact.lua refuses ranges that were read before the newest 'h'.
local asked, asked_fields, asked_places = {}, {}, {}
local quoting, earliest, earliest_sequence = ARGV[FIRST + 2 * count_asked], nil, nil
for i = 1, count_asked do
  asked[i], asked_fields[i] = ARGV[FIRST + count_asked + i - 1], ARGV[FIRST + i - 1]
  asked_places[i] = known[FIELDS + i] or nil
  if quoting ~= '' and asked_places[i] then
    local timestamp, sequence = place_of(asked_places[i])
    if not earliest or timestamp < earliest or timestamp == earliest and sequence < earliest_sequence then
      earliest, earliest_sequence = timestamp, sequence
    end
  end
end
local count_all = count_asked
if earliest then
  local present = {}
  for i = 1, count_asked do present[asked[i]] = true end
  -- A summary has the position of the last message it replaced, so an earlier one cannot quote these messages.
  local function add(id)
    if not id or id == '' or present[id] then return false end
    local field = field_of(id)
    local place = redis.call('HGET', state, field)
    if not place then return false end
    local timestamp, sequence = place_of(place)
    if timestamp < earliest or timestamp == earliest and sequence < earliest_sequence then return false end
    present[id], count_all = true, count_all + 1
    asked[count_all], asked_fields[count_all], asked_places[count_all] = id, field, place
    return true
  end
  if add(known[9]) and quoting == 'live' then return unchanged(seen, known[1], {'quoted', known[9]}) end
  for _, archive in ipairs(archives_in(known[11])) do
    if archive[3] >= earliest then
      local text = redis.call('HGET', state, '#' .. archive[1])
      add(text and string.match(text, '^%d+ %d+ %d+ %x+ (.+)$'))
    end
  end
end

local removed = 0
local members, gone, ids, their_sequences, places, sequences = {}, {}, {}, {}, {}, {}
local archived, count, originals = {}, 0, tonumber(known[10] or 0)
local replies = {}
local summaries = {}
if known[11] then
  for i = 1, count_all do
    summaries[i] = '^' .. asked[i]
  end
  summaries = redis.call('HMGET', state, unpack(summaries))
end
local characters, tokens = tonumber(known[4] or 0), tonumber(known[5] or 0)
for i = 1, count_all do
  local place, field, id = asked_places[i], asked_fields[i], asked[i]
  if place then
    if i <= count_asked then removed = removed + 1 end
    local timestamp, sequence = place_of(place)
    local time = format('%.0f', timestamp)
    local member, archive = locate_live(messages, time, sequence, id), nil
    if not member then member, archive = find_archived(state, known[11], time, sequence, id) end
    local c = member and characters_of(member) or 0
    local k = math.ceil(c / 4)
    gone[#gone + 1] = field
    ids[#ids + 1] = id
    their_sequences[#ids] = summaries[i] and 0 or sequence
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
note_places(seen, places)
drop_copy()
forget_documents(known[7], sequences)
redis.call('HSET', state, 'r', revision, 'x', newest, 'u', now, 'n', known[3] - count, 'c', characters,
           'k', tokens, 'h', revision)
if known[10] then redis.call('HSET', state, 'm', originals) end
return close_change(seen, {revision, removed}, revision, now, known[6], known[7], known[8])
