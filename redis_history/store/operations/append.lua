-- Appends messages as one change, or replaces all messages with them, including archived ones. Validates first, writes
-- last: all or nothing. Code that most appends do not need is in _append.lua. After _change.lua.
--
-- KEYS  further: large contents of the messages, and keys that the script has asked for
-- ARGV  how: '1' to replace all messages; '2' to remove everything above a cap in this call, else '0'; with a 'w' behind it, a
--         message asks for approval
--       most_messages: or ''
--       totals: how many messages (uint16), their characters and tokens (uint64 each); then, if there is more, the length
--         (uint16) of MessagePack of the agent's name, the time in milliseconds and the id of a message that asks for an answer,
--         and that; then for each message with usage its index (uint16), the length of its usage as a byte, and that (see
--         _usage.lua)
--       messages: three values for each, ids distinct: the field of its place; its head, which is characters, flags, header byte,
--         tool marks, then its timestamp in microseconds, if it has one, and the length of that as a byte; the rest of the body,
--         which begins with the id; then, with search, for each message its document: how many fields and values, and these
--
-- Returns {revision, sequence, timestamp}: of the change, of its first message, the first of the server's clock; then 1 if pinned
-- messages alone exceed the cap;
-- or {'stored', that, {index, revision, sequence, timestamp, own} of each message that was stored before}, own = 1 if
-- this very call had stored it (sequence 0: it has left again, and its place is not known any more);
-- or {'pending', that, generation} if documents of replaced messages are still to be removed (purge.lua);
-- of a replacement with forks under way, what with_forks in _journal.lua makes of these;
-- or {'contents'} if a large content is missing, so the caller must write it again;
-- or {'trim'} if many messages must leave before (trim.lua);
-- or {'conflict', id} | {'revision', current} | {'missing'} | {'exists', current} | {'turns'} (of too many agents) | {'late', …}; then nothing was written.
local FIRST, WIDTH, FIELDS = START.messages, 3, 10
local replace = sub(ARG.how, 1, 1) == '1'
local count, characters, tokens = struct.unpack('>I2I8I8', ARG.totals)
local fields = {'e', 'r', 'q', 't', 'n', 'c', 'k', 'O', 'p', 'F', ARGV[FIRST]}
for i = 2, count do
  fields[FIELDS + i] = ARGV[FIRST + (i - 1) * WIDTH]
end
local known = redis.call('HMGET', state, unpack(fields)) -- at most 1,010
local epoch, revision = known[1], (known[2] or 0) + 0
-- A field that a small hash does not have is looked for from start to end, so those that most conversations do not have are
-- read only if one of them may be there.
local lives, generation, archives_end, archived_count, journal, owner, agent, forked, open
if not epoch then
  journal = redis.call('HGET', state, 'g')
elseif known[8] and byte(known[8]) == 105 then -- 'i'
  generation = sub(known[8], 2)
elseif known[8] ~= '' then
  local more = redis.call('HMGET', state, 'l', 'i', 'a', 'm', 'g', 'U', 'A', 'B', '?')
  lives, generation, archives_end, archived_count, journal, owner, agent, forked, open = unpack(more) -- at most 9
end
local now = clock()
-- Whether an earlier copy of this call may be in the journal, and whether the journal has entries that are too old.
local asks, old_entries
if journal then
  local written, _, _, _, oldest = struct.unpack('>i7i7I4I4i7', journal)
  asks, old_entries = repeated or sent <= written, oldest < now - 2 * LIFETIME
end

-- Most appends are of new messages to a conversation that is there, and no more.
local excess = ARG.most_messages ~= '' and (known[5] or 0) + count > tonumber(ARG.most_messages)
local large = false
local unusual = replace or byte(ARG.how, 2) or open or not epoch or lives or asks or old_entries or excess or sent > now or ARG.expected_revision ~= '' or ARG.condition ~= '' or ARG.ttl ~= ''
for i = 1, count do
  if known[FIELDS + i] then unusual = true end
end
if #KEYS >= START.further then -- large contents, or keys that an earlier copy has asked for
  for i = 1, count do
    if byte(ARGV[FIRST + (i - 1) * WIDTH + 1], 4) >= 8 then large = true end
  end
  unusual = unusual or large
end
local usage_at = 18
if #ARG.totals > 18 then usage_at = 20 + struct.unpack('>I2', ARG.totals, 19) end
if usage_at > 20 then
-- include _turns
  owed.begin_asking(cmsgpack.unpack(sub(ARG.totals, 21, usage_at)))
  unusual = unusual or owed.refused
end
local searched = #ARGV >= FIRST + WIDTH * count
local begins = count > 0 and byte(ARGV[FIRST + 1], 4) % 8 >= 4 -- a streaming reply
if unusual or begins then
-- include _member _live _archive
end
if unusual or searched then
-- include _document
end
if #ARG.totals > usage_at then
-- include _usage
  usage.read(ARG.totals, usage_at + 1)
end
if unusual or owner or agent or forked or usage or owed then
-- include _declared _lists
end
local stored, before_count, seen, updated
if unusual then
  updated = redis.call('HGET', state, 'u')
-- include _contents _documents _requests _approvals _life _journal _locate _archived _empty _trim _append
  approvals.take(open or '')
end

if not replace then characters, tokens = characters + (known[6] or 0), tokens + (known[7] or 0) end
do -- because a script has at most 200 locals at a time
  local reply = unusual and settled()
  if reply then return reply end
  local refusal = unusual and refused(epoch, revision)
  if refusal then return ended(refusal) end
end
if owed and owed.refused then return ended({'turns'}) end
if excess and sub(ARG.how, 1, 1) == '0' and (known[5] or 0) - ARG.most_messages > 100 then return {'trim'} end -- a backlog leaves before
local owners = (owner or agent or forked) and {owner, agent, forked} or nil
do
  local needed
  if excess or replace or lives or ARG.ttl ~= '' then
    use_archives()
    local archives = replace and archive_index.keys(state) or archives_due(lives, archives_end)
    needed = lists_and(owners or {}, contents_in(archives, redis.call('HGET', state, '~'), excess or replace))
  elseif owners then
    needed = lists_of(owners)
  end
  if byte(ARG.how, 2) or open then
    needed, approvals.marked = needed or {}, {} -- messages with calls or results
    for _, list in ipairs(approvals.keys({owner, agent})) do needed[#needed + 1] = list end
  end
  if usage then needed = usage.keys({owner, agent}, needed) end
  if owed and owed.asked then needed = owed.needed(needed or {}) end
  local ask = needed and undeclared_keys(needed) or (replace or excess and generation) and moving(generation)
  if ask then return ask end
end

if large then
  contents.linked = {} -- the messages to add that have large contents: id, and names of these
  contents.use()
  for i = 1, count do
    local at = FIRST + (i - 1) * WIDTH
    if not known[FIELDS + i] and byte(ARGV[at + 1], 4) >= 8 then
      use_places()
      local id, names = id_at(ARGV[at + 2], 1), nil
      names = contents.of(id, ARGV[at + 2])
      if contents.lacks(state, names) then return {'contents'} end
      for _, name in ipairs(names) do contents.kept[name] = true end
      contents.linked[#contents.linked + 1] = {id, names}
    end
  end
end

local stamp = now
if known[4] and stamp <= known[4] + 0 then stamp = known[4] + 1 end
local first_stamp = stamp
local sequence = (known[3] or 0) + 0
revision = revision + 1
local outcome = {revision, sequence + 1, stamp}

-- Messages of the present period and the one before may still be asked for by a late copy: where their sequences begin.
local period = (now - now % LIFETIME) / LIFETIME -- a float in Lua 5.4, as pack takes it
local begun, at_its_start, at_start_before = 0, 0, 0
if known[9] then begun, at_its_start, at_start_before = struct.unpack('>I4I6I6', known[9]) end
local new_period = begun < period
if new_period then
  at_start_before = begun == period - 1 and at_its_start or sequence
  at_its_start = sequence
end

-- With room for one message, because a table that grows costs more.
local hset = {'r', revision, 'x', '', 'u', now, 'q', 0, 't', 0, 'n', 0, 'c', characters, 'k', tokens, nil, nil, nil, nil}
local zadd, times, added, next_field = {nil, nil}, {nil}, 0, 17
local documents, next_document = {}, FIRST + WIDTH * count
if unusual and (searched or generation or replace or archives_end) then use_documents() elseif searched then use_document() end
local changed = pack_number(revision)
local earliest, latest
local stamped = true -- all at the server's time
if known[10] and not replace then earliest, latest = struct.unpack('>i7i7', known[10]) end
for i = 1, count do
  local from, to = next_document + 1, nil
  if searched then
    to = next_document + ARGV[next_document]
    next_document = to + 1
  end
  if not known[FIELDS + i] then
    local at = FIRST + (i - 1) * WIDTH
    local head, rest = ARGV[at + 1], ARGV[at + 2]
    local length, timestamp, time = byte(head, -1), nil, stamp
    if length > 0 then
      timestamp = sub(head, -1 - length, -2)
      time = timestamp + 0
      stamped = false
    else
      timestamp = stamp -- as a number: redis.call writes integers below 2^53 exactly, and formatting costs more
      stamp = stamp + 1
    end
    sequence = sequence + 1
    added = added + 1
    if not earliest or time < earliest then earliest = time end
    if not latest or time > latest then latest = time end
    if begins then
      use_replies()
      local listed = redis.call('HGET', state, '~') or ''
      hset[next_field], hset[next_field + 1] = '~', listed .. reply_record(token, sequence, time, now)
      -- From now on its content exists, so that no call for the reply waits for a key that a moving slot may still bring. Where
      -- this script cannot make it, the first words of the reply wait. In a cluster, a new key cannot be declared.
      redis.pcall('APPEND', content_of_reply(state, token), '')
      next_field = next_field + 2
    end
    if usage then usage.note(i, ARGV[at], time) end
    times[added] = time
    zadd[2 * added - 1] = timestamp
    zadd[2 * added] = member_of(sequence, time, head, rest)
    local place = pack('>i7I3', time, mark) .. pack_number(sequence) .. changed
    local marks_end = #head - 1 - length
    if marks_end > 5 then
      local marks = sub(head, 6, marks_end)
      place = place .. marks
      if approvals and approvals.marked then approvals.marked[#approvals.marked + 1] = {ARGV[at], marks, time, sequence} end
    end
    hset[next_field], hset[next_field + 1] = ARGV[at], place
    next_field = next_field + 2
    if to then documents[added] = {sequence, timestamp, from, to} end
  end
end
local held = added + (known[5] or 0)
hset[8], hset[10], hset[12] = sequence, stamp > first_stamp and stamp - 1 or known[4] or 0, held

if earliest then hset[next_field], hset[next_field + 1] = 'F', pack('>i7i7', earliest, latest) end
-- An entry of one message at the server's time needs no more than its sequence, as the time is in its head.
excess = excess and held - ARG.most_messages or 0
local one = added == 1 and not replace and excess <= 0 and stamped
local newest_entry = head_of_entry(replace and KIND.RESTORED or one and KIND.APPENDED_ONE or KIND.APPENDED, one and times[1] or now)
local entry = one and pack(sequence < 65536 and '>I2' or '>I4', sequence) or {sequence - added + 1, times, {}, {}}
hset[4] = newest_entry
if not epoch then
  redis.call('HSET', state, 'v', 2, 'e', token, 'b', now, 'O', '')
  begin(seen)
end
-- Which ids a cap removes is known when the messages are in; so the log is written later then.
if excess <= 0 then write_log(newest_entry, entry) end
if not epoch and ARG.ttl == '' then redis.call('PERSIST', registry) end
local pending = replace and epoch and empty_before(newest_entry, excess > 0)
if replace then hset[#hset + 1], hset[#hset + 2] = 'h', revision end
if new_period then hset[#hset + 1], hset[#hset + 2] = 'p', pack('>I4I6I6', period, at_its_start, at_start_before) end
if not generation and #documents > 0 then
  generation = token
  local alone = not epoch or known[8] == ''
  for _, value in ipairs({'i', generation, 'O', alone and 'i' .. generation or '1'}) do hset[#hset + 1] = value end
end
if added > 0 then redis.call('ZADD', messages, unpack(zadd)) end -- at most 2,000
if added > 64 then
  -- A small hash is a list, in which every field is looked for from the start; a long value makes it a table first:
  -- longer than hash-max-listpack-value, which is 64, or 512 where search documents are to be lists.
  hset[#hset + 1], hset[#hset + 2] = 'z', string.rep('z', 513)
end
redis.call('HSET', state, unpack(hset)) -- at most 2,050
if added > 64 then redis.call('HDEL', state, 'z') end
if large then
  for _, one in ipairs(contents.linked) do contents.set(state, one[1], one[2], now, ARG.ttl ~= '' and ARG.ttl or lives) end
end
if usage then usage.count(usage.given, {owner, agent}) end
if #documents > 0 then
  local ttl, prefix = ARG.ttl ~= '' and ARG.ttl or lives, documents_of(generation)
  local ends = ttl and document_ends(now, ttl)
  for _, of in ipairs(documents) do document(prefix, generation, of[1], of[2], of[3], of[4], ends, true) end
end
if excess > 0 and trim_to_cap(excess, newest_entry, entry, at_start_before) then outcome[4] = 1 end
announce(revision, now, owners)
local removes = replace or excess > 0
if approvals and (approvals.marked and (#approvals.marked > 0 or removes or lives or ARG.ttl ~= '') or approvals.turns and removes) then
  for _, one in ipairs(approvals.marked or {}) do approvals.note(one[1], one[2], one[3], one[4]) end
  approvals.keep({owner, agent}, ARG.ttl ~= '' and ARG.ttl or lives, removes)
end
if ARG.ttl ~= '' or lives then live(ARG.ttl, now, lives, generation, archives_end) end
if owed and owed.asked and added > 0 then owed.finish_asking(math.floor(now / 1000)) end
if pending then outcome = {'pending', outcome, pending} elseif stored then outcome = {'stored', outcome, stored} end
if replace then outcome = with_forks(outcome, redis.call('HGET', state, 'N')) end
-- The marks of this call do not recognize messages that others had stored.
local kept = (replace or stored) and outcome or nil
-- The journal's record of a former life counts for a new conversation, too.
if kept or old_entries or seen and (#seen.names > 0 or not epoch and (journal or seen.expired)) then
  use_journal()
  concluded(seen or look(updated, journal), true, kept)
end
return outcome
