-- Appends messages to a conversation as one change, or puts them in place of all there are, archived ones too. Validates first, writes
-- last: all or nothing. After _change.lua.
--
-- ARGV  10 '1' to replace what there is; '2' to remove at once whatever a cap requires   11 most messages or ''   12, 13 characters and tokens of all messages
--       14 how many messages, then three for each, ids distinct: the field of its place; its head, which is characters, flags,
--       header byte, tool marks, then its timestamp in microseconds, if it has one, and the length of that as a byte; the rest
--       of the body, which begins with the id;
--       then, with search, for each message its document: how many fields and values, and these
--
-- Returns 'revision sequence timestamp': of the change, of its first message, the first of the server's clock; then ' pins' if
-- pinned messages alone exceed the cap;
-- or {'stored', that, {index, revision, sequence, timestamp, own} of each message that was stored before}, own = 1 if
-- this very call had stored it (sequence 0: it has left again, and its place is not known any more);
-- or {'pending', that, generation} if documents of replaced messages are still to be removed (purge.lua);
-- or {'trim'} if many messages must leave before (trim.lua);
-- or {'conflict', id} | {'revision', current} | {'missing'} | {'exists', current} | {'late', …}; then nothing was written.
local FIRST, WIDTH, FIELDS, BACKLOG = 15, 3, 12, 100
local replace = ARGV[10] == '1'

local count = tonumber(ARGV[14])
local fields = {'e', 'r', 'q', 't', 'n', 'c', 'k', 'b', 'O', 'u', 'p', 'F'}
for i = 1, count do
  fields[FIELDS + i] = ARGV[FIRST + (i - 1) * WIDTH]
end
local known = redis.call('HMGET', state, unpack(fields))
local epoch, revision, updated = known[1], tonumber(known[2] or 0), known[10]
-- A field that a small hash does not have is looked for from start to end, so those that most conversations do not have are
-- read only if one of them may be there.
local lives, generation, archives_end, archived_count, archives, journal, owner, agent, forked
if not epoch then
  journal = redis.call('HGET', state, 'g')
elseif known[9] ~= '' then
  lives, generation, archives_end, archived_count, archives, journal, owner, agent, forked = unpack(
    redis.call('HMGET', state, 'l', 'i', 'a', 'm', 'w', 'g', 'U', 'A', 'B'))
end
local characters, tokens = tonumber(ARGV[12]), tonumber(ARGV[13])
local now = clock()
-- Whether an earlier copy of this call may be in the journal, and whether the journal has entries that are too old.
local asks, old_entries
if journal then
  local written, _, _, _, oldest = struct.unpack('>i7i7I4I4i7', journal)
  asks, old_entries = repeated or sent <= written, oldest < now - 2 * LIFETIME
end

-- The timestamp in the head of a message; nil: it has none.
local function time_in(head)
  local length = byte(head, -1)
  if length > 0 then return sub(head, -1 - length, -2) end
end

-- Most appends are of new messages to a conversation that is there, and no more.
local excess = ARGV[11] ~= '' and (known[5] or 0) + count > tonumber(ARGV[11])
local unusual = replace or not epoch or lives or asks or old_entries or excess or sent > now or ARGV[2] ~= '' or ARGV[3] ~= '' or ARGV[6] ~= ''
for i = 1, count do
  if known[FIELDS + i] then unusual = true end
end
local searched = #ARGV >= FIRST + WIDTH * count
if unusual or searched or generation then
-- include _archive _document
end
local departed, ended
if unusual then
-- include _life _journal _locate _archived _empty _trim

  -- Where messages of this call were that have left or were replaced since, by the journal:
  -- {index, revision, sequence, timestamp, 1} by index.
  function departed()
    local found, own, of_call = {}, {}, pack('>I3', mark)
    for i = 1, count do
      own[i] = ';' .. sub(ARGV[FIRST + (i - 1) * WIDTH], 2) .. of_call
    end
    for i, place in ipairs(redis.call('HMGET', state, unpack(own))) do
      if place then
        local timestamp, sequence, changed = place_of(place)
        found[i] = {i - 1, changed, sequence, format('%.0f', timestamp), 1}
      end
    end
    return found
  end

  -- An outcome without a change, kept for later copies.
  function ended(seen, outcome)
    use_journal()
    return unchanged(seen or look(updated, journal), epoch, outcome)
  end
end

local stored, before_count, seen
if replace then
  use_journal()
  local reply
  seen, reply = decided(updated, journal)
  if reply then return reply end
  for i = 1, count do known[FIELDS + i] = false end
  before_count, known[5] = known[5] or 0, 0
else
  characters, tokens = characters + (known[6] or 0), tokens + (known[7] or 0)
  local conflict, newest
  local owned = 0
  for i = 1, count do
    local place = known[FIELDS + i]
    if place then
      if not stored then
        stored = {}
        use_places()
        use_archives()
      end
      local at = FIRST + (i - 1) * WIDTH
      local head, rest = ARGV[at + 1], ARGV[at + 2]
      local id, given = id_at(rest, 1), time_in(head)
      local timestamp, sequence, changed, whose = place_of(place)
      local time, own = format('%.0f', timestamp), whose == mark
      local there = locate_live(messages, time, sequence, id) or find_archived(state, archives, time, sequence, id)
      if there and not is_same(there, head, rest) or given and tonumber(given) ~= timestamp then
        conflict = conflict or id
      end
      stored[#stored + 1] = {i - 1, changed, sequence, time, own and 1 or 0}
      if own then owned = owned + 1 end
      newest = changed
      local c = struct.unpack('>I3', head)
      characters, tokens = characters - c, tokens - math.ceil(c / 4)
    end
  end
  local mine = owned > 0
  if mine and asks or (conflict or owned < count) and (mine or asks or not epoch or sent > now) then
    -- An earlier copy may have been executed, and what it stored has left or was replaced since; or it was edited, and
    -- edited back.
    use_journal()
    use_places()
    seen = look(updated, journal)
    if seen.outcome then
      force_write()
      return seen.outcome
    end
    local left = departed()
    if mine or next(left) then
      local items, at = {}, 1
      for i = 1, count do
        local now_there = stored and stored[at]
        if now_there and now_there[1] == i - 1 then at = at + 1 else now_there = nil end
        items[i] = left[i] or now_there or {i - 1, 0, 0, '0', 0}
        if items[i][2] == 0 and sent <= seen.horizon then return late(seen) end -- it may have been of this call
        newest = math.max(newest or 0, items[i][2])
      end
      for _, item in ipairs(items) do
        if item[2] == 0 then item[2] = newest end
      end
      force_write()
      return {'stored', revision .. ' 0 0', items}
    end
    local refusal = late(seen)
    if refusal then return refusal end
  end
  if conflict then return ended(seen, {'conflict', conflict}) end
  if stored and #stored == count then
    -- Nothing to write. The precondition holds if it held when these messages were stored.
    if mine or (ARGV[2] == '' or tonumber(ARGV[2]) + 1 == newest) and (ARGV[3] ~= 'absent' or newest == 1) then
      local outcome = {'stored', revision .. ' 0 0', stored}
      if not mine then return ended(seen, outcome) end
      if string.find(ARGV[9], '1', 1, true) then
        use_journal()
        force_write()
      end
      return outcome
    end
  end
end
local refusal = unusual and refused(epoch, revision)
if refusal then return ended(seen, refusal) end
if excess and ARGV[10] == '0' and (known[5] or 0) - ARGV[11] > BACKLOG then return {'trim'} end
local owners, needed = {owner, agent, forked}, nil
if excess or replace or lives or ARGV[6] ~= '' then
  needed = lists_and(owners, contents_in(archives, redis.call('HGET', state, '~')))
elseif owner or agent or forked then
  needed = lists_of(owners)
end
local ask = needed and undeclared(needed) or (replace or excess and generation) and moving(generation)
if ask then return ask end

local stamp = now
if known[4] and stamp <= tonumber(known[4]) then stamp = tonumber(known[4]) + 1 end
local first_stamp = stamp
local sequence = tonumber(known[3] or 0)
revision = revision + 1
local outcome = revision .. ' ' .. sequence + 1 .. ' ' .. format('%.0f', stamp)

-- Messages of the present period and the one before may still be asked for by a late copy: where their sequences begin.
local period = math.floor(now / LIFETIME)
local begun, at_its_start, at_start_before = 0, 0, 0
if known[11] then begun, at_its_start, at_start_before = struct.unpack('>I4I6I6', known[11]) end
local new_period = begun < period
if new_period then
  at_start_before = begun == period - 1 and at_its_start or sequence
  at_its_start = sequence
end

local hset = {'r', revision, 'x', '', 'u', now, 'q', 0, 't', 0, 'n', 0, 'c', characters, 'k', tokens}
local zadd, times, added, next_field = {}, {}, 0, 17
local documents, next_document = {}, FIRST + WIDTH * count
if searched or generation or unusual and (replace or archives_end) then use_documents() end
local changed = pack_number(revision)
local earliest, latest
local stamped = true -- all at the server's time
if known[12] and not replace then earliest, latest = struct.unpack('>i7i7', known[12]) end
for i = 1, count do
  local from, to = next_document + 1, nil
  if searched then
    to = next_document + ARGV[next_document]
    next_document = to + 1
  end
  if not known[FIELDS + i] then
    local at = FIRST + (i - 1) * WIDTH
    local head, rest = ARGV[at + 1], ARGV[at + 2]
    local timestamp, time = time_in(head), stamp
    if timestamp then
      time = tonumber(timestamp)
      stamped = false
    else
      timestamp = stamp -- as a number: redis.call writes integers below 2^53 exactly, and formatting costs more
      stamp = stamp + 1
    end
    sequence = sequence + 1
    added = added + 1
    if not earliest or time < earliest then earliest = time end
    if not latest or time > latest then latest = time end
    if byte(head, 4) >= 4 then
      use_replies()
      hset[next_field] = '~'
      hset[next_field + 1] = (redis.call('HGET', state, '~') or '') .. reply_record(token, sequence, time, now)
      next_field = next_field + 2
      -- From now on its content exists, so that no call for the reply waits for a key that a moving slot may still bring. Where
      -- this script cannot make it, the first words of the reply wait.
      redis.pcall('APPEND', content_of_reply(state, token), '')
    end
    times[added] = time
    zadd[2 * added - 1] = timestamp
    zadd[2 * added] = member_of(sequence, time, head, rest)
    hset[next_field] = ARGV[at]
    local place = pack('>i7I3', time, mark) .. pack_number(sequence) .. changed
    local marks_end = #head - 1 - byte(head, -1)
    if marks_end > 5 then place = place .. sub(head, 6, marks_end) end
    hset[next_field + 1] = place
    next_field = next_field + 2
    if to then documents[added] = {sequence, timestamp, from, to} end
  end
end
local held = added + (known[5] or 0)
hset[8], hset[12] = sequence, held
if earliest then
  hset[#hset + 1] = 'F'
  hset[#hset + 1] = pack('>i7i7', earliest, latest)
end
hset[10] = stamp > first_stamp and stamp - 1 or known[4] or 0

local pending
-- An entry of one message at the server's time needs no more than its sequence, as the time is in its head.
excess = excess and held - ARGV[11] or 0
local one = added == 1 and not replace and excess <= 0 and stamped
local newest_entry = head_of_entry(replace and RESTORED or one and APPENDED_ONE or APPENDED, one and times[1] or now)
local entry
hset[4] = newest_entry
if one then
  entry = pack(sequence < 65536 and '>I2' or '>I4', sequence)
else
  entry = {sequence - added + 1, times, {}, {}}
end
if epoch then
  -- Which ids a cap removes is known when the messages are in; so the log is written later then.
  if excess <= 0 then write_log(newest_entry, entry) end
else
  redis.call('HSET', state, 'v', 2, 'e', token, 'b', now, 'O', '')
  begin(seen)
  if excess <= 0 then write_log(newest_entry, entry) end
  if ARGV[6] == '' then redis.call('PERSIST', registry) end
end
if replace then
  if epoch then
    if excess > 0 then redis.call('HSET', state, 'x', newest_entry) end -- takes memory, so that a full server refuses here
    note_recent(seen, known[3], known[11], archives)
    pending, generation = schedule_purge(generation, before_count + (archived_count or 0), lives or ARGV[6], archives), nil
    empty(archives, seen)
    archives_end = nil
  end
  hset[#hset + 1] = 'h'
  hset[#hset + 1] = revision
end
if new_period then
  hset[#hset + 1] = 'p'
  hset[#hset + 1] = pack('>I4I6I6', period, at_its_start, at_start_before)
end
if not generation and #documents > 0 then
  generation = token
  hset[#hset + 1] = 'i'
  hset[#hset + 1] = generation
  hset[#hset + 1] = 'O'
  hset[#hset + 1] = '1'
end
if added > 0 then redis.call('ZADD', messages, unpack(zadd)) end
if added > 64 then
  -- A small hash is a list, in which every field is looked for from the start; a long value makes it a table first:
  -- longer than hash-max-listpack-value, which is 64, or 512 where search documents are to be lists.
  hset[#hset + 1] = 'z'
  hset[#hset + 1] = string.rep('z', 513)
  redis.call('HSET', state, unpack(hset))
  redis.call('HDEL', state, 'z')
else
  redis.call('HSET', state, unpack(hset))
end
if #documents > 0 then
  local ttl, ends = ARGV[6] ~= '' and ARGV[6] or lives, nil
  if ttl then ends = document_ends(now, ttl) end
  local prefix = documents_of(generation)
  for _, of in ipairs(documents) do
    document(prefix, generation, of[1], of[2], of[3], of[4], ends, true)
  end
end
if excess > 0 then
  use_journal()
  use_places()
  local places
  entry[3], entry[4], places = trim(excess, generation)
  if #entry[3] < excess then outcome = outcome .. ' pins' end
  redis.call('HSET', state, 'h', revision)
  local recent = recent_places(places, at_start_before)
  if #recent > 0 then
    seen = seen or look(updated, journal)
    note_places(seen, recent)
  end
  write_log(newest_entry, entry)
end
announce(revision, now, owners)
if ARGV[6] ~= '' or lives then live(ARGV[6], now, lives, generation, archives_end) end
if pending then outcome = {'pending', outcome, pending} elseif stored then outcome = {'stored', outcome, stored} end
-- What others had stored is not recognised by the marks of this call.
local kept
if replace or stored then kept = outcome end
-- What the journal says of a former life counts for a new conversation, too.
if kept or old_entries or seen and (#seen.names > 0 or not epoch and (journal or seen.expired)) then
  use_journal()
  concluded(seen or look(updated, journal), true, kept)
end
return outcome
