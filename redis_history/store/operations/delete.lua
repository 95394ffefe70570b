-- Removes messages by id as one change, also archived ones. Unknown ids are ignored; if all are unknown, nothing changes.
-- After _documents.lua and _archived.lua.
--
-- ARGV  count: number of messages
--       fields: of the state, one for each message; then the distinct ids; then which summaries may stay although they may quote
--         these messages: '' all; 'live' none, and if a live summary is one of them, nothing is written, so that the caller can
--         expand it; 'none' none
--
-- There may be thousands of former summaries to remove, which takes longer than a script may. So this change only notes which
-- they are (field E, see _archive.lua): from then on no reader sees them, and scrub.lua removes them little by little.
--
-- Returns {revision, how many of the ids were removed, 1 if scrub.lua has work to do}, {'quoted', id of the live summary}, or
-- {'unfinished'} if it has work to do before this erasure, or {'revision', current} | {'missing'} | {'late', …}; in all but the
-- first case nothing was written. With forks under way: see with_forks in _journal.lua.
use_journal()
use_documents()
use_places()
use_replies()
local FIELDS_FIRST, KNOWN, count_asked = START.fields, 13, tonumber(ARG.count)
local quoting = ARGV[FIELDS_FIRST + 2 * count_asked]
local fields = {'e', 'r', 'n', 'c', 'k', 'l', 'i', 'a', 's', 'm', 'N', 'u', 'g'}
for i = FIELDS_FIRST, FIELDS_FIRST + count_asked - 1 do
  fields[#fields + 1] = ARGV[i]
end
local known = redis.call('HMGET', state, unpack(fields)) -- at most 1,013
local revision = tonumber(known[2] or 0)
local names = contents_in(archives_due(known[6], known[8]), redis.call('HGET', state, '~'))
for i = 1, count_asked do
  if known[KNOWN + i] then note_archives(names, known[KNOWN + i]) end
end
local ask = undeclared_keys(lists_and(owners(), names)) or known[7] and moving(known[7])
if ask then return ask end
local seen, reply = open_change(known[1], revision, known[12], known[13])
if reply then return reply end

-- The messages to remove as {id, field of the state, its value}, and the first position of these messages.
local leaving, asked, earliest, earliest_sequence = {}, {}, nil, nil
for i = 1, count_asked do
  local place, id = known[KNOWN + i], ARGV[FIELDS_FIRST + count_asked + i - 1]
  asked[id] = true
  if place then
    leaving[#leaving + 1] = {id, ARGV[FIELDS_FIRST + i - 1], place}
    local timestamp, sequence = place_of(place)
    if not earliest or timestamp < earliest or timestamp == earliest and sequence < earliest_sequence then
      earliest, earliest_sequence = timestamp, sequence
    end
  end
end

-- The summaries that may quote them. A summary has the position of the last message it replaced, so an earlier one cannot. One
-- that is written after this change was not made from these messages, because compact.lua refuses ranges that were read before
-- the newest 'h'. There should be one live summary at most, but that is not relied on: every summary counts that was not
-- archived by a later compaction.
local former_ids, live_summaries = {}, {}
local function quotes(timestamp, sequence)
  return timestamp > earliest or timestamp == earliest and sequence >= earliest_sequence
end
if earliest and quoting == 'live' and known[9] and not asked[known[9]] then
  local place = redis.call('HGET', state, field_of(known[9]))
  local timestamp, sequence = earliest, -1
  if place then timestamp, sequence = place_of(place) end
  if quotes(timestamp, sequence) then return unchanged(seen, known[1], {'quoted', known[9]}) end
end
local blocks = archive_index.blocks(state)
if quoting ~= '' and archive_index.erased then return {'unfinished'} end
if earliest and quoting ~= '' then
  local archived, candidates = {}, {}
  for _, block in ipairs(blocks) do
    if block.last >= earliest then
      for _, record in ipairs(archive_index.records(state, block)) do
        local former, time = record[OF.former], record[OF.former_time]
        if time then
          archived[former] = true
          if not asked[former] and quotes(time, record[OF.former_sequence]) then former_ids[#former_ids + 1] = former end
        end
        if quotes(record[OF.last], record[OF.sequence]) then candidates[#candidates + 1] = record end
      end
    end
  end
  for _, record in ipairs(candidates) do
    local id = record[OF.summary]
    local standing = not archived[id] and not asked[id] and redis.call('HMGET', state, '^' .. id, field_of(id))
    if standing and standing[2] and tonumber(standing[1]) == record[OF.revision] then
      live_summaries[#live_summaries + 1] = {id, field_of(id), standing[2]}
    end
  end
end
for _, one in ipairs(live_summaries) do leaving[#leaving + 1] = one end
contents.use()
if redis.call('HGET', state, '&') then
  for _, one in ipairs(leaving) do contents.declare(state, contents.held(state, one[1]), names) end
  ask = undeclared_keys(names)
  if ask then return ask end
end

local marks, removed = {}, 0
for i, one in ipairs(leaving) do marks[i] = '^' .. one[1] end
local summaries = #blocks > 0 and #marks > 0 and redis.call('HMGET', state, unpack(marks)) or {} -- at most 2,000
local members, gone, ids, their_sequences, places, sequences = {}, {}, {}, {}, {}, {}
local archived, changed_blocks, count, originals = {}, {}, 0, tonumber(known[10] or 0)
local replies, with_contents = {}, {}
local characters, tokens = tonumber(known[4] or 0), tonumber(known[5] or 0)
for i, one in ipairs(leaving) do
  local id, field, place = one[1], one[2], one[3]
  local timestamp, sequence = place_of(place)
  local time = format('%.0f', timestamp)
  local member, archive, block, erased = locate_live(messages, time, sequence, id), nil, nil, nil
  if not member then member, archive, block, erased = find_archived(state, time, sequence, id) end
  if not erased then
    if asked[id] then removed = removed + 1 end
    local c = member and characters_of(member) or 0
    local k = math.ceil(c / 4)
    gone[#gone + 1] = field
    ids[#ids + 1] = id
    their_sequences[#ids] = summaries[i] and 0 or sequence
    places[#places + 1] = {field, place}
    if member and is_live(member) then replies[sequence] = true end
    if member and contents.has(member) then with_contents[#with_contents + 1] = id end
    local summary = summaries[i]
    if summary then
      gone[#gone + 1] = '^' .. id
      local later, its_block = archive_index.with(state, tonumber(summary), true)
      if later and later[OF.former] == id then
        later[OF.former], later[OF.former_time], later[OF.former_sequence] = nil, nil, nil
        changed_blocks[its_block] = true
      end
    end
    if archive then
      local key = archive_of(state, archive)
      archived[key] = archived[key] or {}
      table.insert(archived[key], member)
      archive[OF.messages] = archive[OF.messages] - 1
      archive[OF.characters], archive[OF.tokens] = archive[OF.characters] - c, archive[OF.tokens] - k
      changed_blocks[block] = true
      if not summary then originals = originals - 1 end
    else
      members[#members + 1] = member
      count, characters, tokens = count + 1, characters - c, tokens - k
      if id == known[9] then gone[#gone + 1] = 's' end -- the messages it replaced stay in the archive
    end
    if not (archive and summary) then sequences[#sequences + 1] = summary and -sequence or sequence end
  end
end
local work = archive_index.erased and 1 or 0
if #ids == 0 then return unchanged(seen, known[1], with_forks({revision, 0, work}, quoting ~= '' and known[11])) end
for _, id in ipairs(former_ids) do
  ids[#ids + 1] = id
  their_sequences[#ids] = 0
end

local now = clock()
revision = revision + 1
free()
local newest = head_of_entry(KIND.DELETED, now)
write_log(newest, {ids, their_sequences})
in_slices('ZREM', messages, members)
for key, of_archive in pairs(archived) do in_slices('ZREM', key, of_archive) end
for block in pairs(changed_blocks) do archive_index.write_block(state, block) end
in_slices('HDEL', state, gone)
if #former_ids > 0 then
  local last = archive_index.records(state, blocks[#blocks])
  redis.call('HSET', state, 'E', pack('>i7I4I6I6', earliest, earliest_sequence, last[#last][OF.revision], 0))
  work = 1
end
if next(replies) then forget_replies(state, replies) end
for _, id in ipairs(with_contents) do contents.set(state, id, {}) end
note_places(seen, places)
drop_copy()
forget_documents(known[7], sequences)
redis.call('HSET', state, 'r', revision, 'x', newest, 'u', now, 'n', known[3] - count, 'c', characters,
           'k', tokens, 'h', revision)
if known[10] then redis.call('HSET', state, 'm', originals) end
local outcome = with_forks({revision, removed, work}, quoting ~= '' and known[11])
return close_change(seen, outcome, revision, now, known[6], known[7], known[8])
