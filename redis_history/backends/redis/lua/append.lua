-- Appends messages to a conversation as one change, or puts them in place of all there are, archived ones too. Validates first, writes
-- last: all or nothing. After _change.lua and _document.lua.
--
-- ARGV  10 '1' to replace what there is   11 most messages or ''   12, 13 characters and tokens of all messages
--       14 how many messages, then four for each, ids distinct: ':<id>', timestamp in microseconds or '' for the server's clock,
--       size, digest and tools (as in the state), body;
--       then, with search, for each message its document: how many fields and values, and these
--
-- Returns 'revision sequence timestamp': of the change, of its first message, the first of the server's clock;
-- or {'stored', that, {index, revision, sequence, timestamp, own} of each message that was stored before}, own = 1 if
-- this very call had stored it (sequence 0: it has left again, and its place is not known);
-- or {'buried', that, life} if documents of replaced messages are still to be removed (reap.lua);
-- or {'conflict', id} | {'revision', current} | {'missing'} | {'exists', current}; then nothing was written.
local FIRST, WIDTH, FIELDS = 15, 4, 13
local replace = ARGV[10] == '1'

local count = tonumber(ARGV[14])
local fields = {'e', 'r', 'q', 't', 'n', 'c', 'k', 'b', 'l', 'i', 'a', 'm', 'w'}
for i = 1, count do
  fields[FIELDS + i] = ARGV[FIRST + (i - 1) * WIDTH]
end
local known = redis.call('HMGET', state, unpack(fields))
local epoch, revision = known[1], tonumber(known[2] or 0)
local characters, tokens = tonumber(ARGV[12]), tonumber(ARGV[13])

-- The outcome of this very call, from its log entry: what it stored may be gone again, because of the cap or somebody.
local function recall(before, payload, known)
  touch()
  local items, from = {}, 6
  for i = 1, count do
    local body = ARGV[FIRST + (i - 1) * WIDTH + 3]
    local place = known[FIELDS + i]
    if string.sub(payload, from + 19, from + 18 + #body) == body then
      local _, _, sequence, _, timestamp = struct.unpack('>BBI8Bi8', string.sub(payload, from, from + 18))
      items[i] = {i - 1, before, sequence, format('%.0f', timestamp), 1}
      from = from + 19 + #body
    elseif place then
      local _, _, sequence, _, timestamp, changed = struct.unpack('>BBI8Bi8I8', place)
      items[i] = {i - 1, changed, sequence, format('%.0f', timestamp), 0}
    else
      items[i] = {i - 1, before, 0, '0', 0} -- was there before, and is gone: its place is not known any more
    end
  end
  return {'stored', before .. ' 0 0', items}
end

local stored, stored_at, before_count
if replace then
  local before = told()
  if before then
    touch()
    return before .. ' 0 0'
  end
  for i = 1, count do known[FIELDS + i] = false end
  before_count, known[5] = known[5] or 0, 0
else
  for i = 1, count do
    if not known[FIELDS + i] then -- else it is seen below whether an earlier try stored them
      local before, payload = told()
      if before then return recall(before, payload, known) end
      break
    end
  end
  characters, tokens = characters + (known[6] or 0), tokens + (known[7] or 0)
  for i = 1, count do
    local place = known[FIELDS + i]
    if place then
      local at = FIRST + (i - 1) * WIDTH
      local _, _, sequence, _, timestamp, changed, c, k = struct.unpack('>BBI8Bi8I8I4I4', place)
      if string.sub(place, 28) ~= ARGV[at + 2] or (ARGV[at + 1] ~= '' and tonumber(ARGV[at + 1]) ~= timestamp) then
        local before, payload = told() -- an earlier try may have stored it, and somebody changed it since
        if before then return recall(before, payload, known) end
        return {'conflict', string.sub(ARGV[at], 2)}
      end
      local own = 0
      local entry = redis.call('XRANGE', log, changed .. '-0', changed .. '-0')[1]
      if entry and entry[2][2] == token then own = 1 end
      stored = stored or {}
      stored[#stored + 1] = {i - 1, changed, sequence, format('%.0f', timestamp), own}
      stored_at = changed
      characters, tokens = characters - c, tokens - k
    end
  end
  if stored and #stored == count then
    -- Nothing to write. The precondition holds if it held when these messages were stored.
    if (ARGV[2] == '' or tonumber(ARGV[2]) + 1 == stored_at) and (ARGV[3] ~= 'absent' or stored_at == 1) then
      touch()
      return {'stored', revision .. ' 0 0', stored}
    end
  end
end
local refusal = refused(epoch, revision)
if refusal then return refusal end

local now = clock()
local stamp = now
if known[4] and stamp <= tonumber(known[4]) then stamp = tonumber(known[4]) + 1 end
local now_text, first_stamp = format('%.0f', now), stamp
local sequence = tonumber(known[3] or 0)
revision = revision + 1
local outcome = revision .. ' ' .. sequence + 1 .. ' ' .. format('%.0f', stamp)

local hset = {'r', revision, 'x', token, 'u', now_text, 'q', 0, 't', 0, 'n', 0, 'c', characters, 'k', tokens}
local zadd, members, added, next_field = {}, {}, 0, 17
local documents, next_document = {}, FIRST + WIDTH * count
local searched = #ARGV >= next_document
local changed = pack('>I8', revision)
for i = 1, count do
  local from, to = next_document + 1, nil
  if searched then
    to = next_document + ARGV[next_document]
    next_document = to + 1
  end
  if not known[FIELDS + i] then
    local at = FIRST + (i - 1) * WIDTH
    local timestamp = ARGV[at + 1]
    if timestamp == '' then
      timestamp = stamp -- as a number: redis.call writes integers below 2^53 exactly, and formatting costs more
      stamp = stamp + 1
    end
    sequence = sequence + 1
    added = added + 1
    -- the member is the MessagePack array [uint64 sequence, int64 timestamp, body]
    local head = pack('>BBI8Bi8', 0x93, 0xcf, sequence, 0xd3, timestamp)
    local member = head .. ARGV[at + 3]
    members[added] = member
    zadd[2 * added - 1] = timestamp
    zadd[2 * added] = member
    hset[next_field] = ARGV[at]
    hset[next_field + 1] = head .. changed .. ARGV[at + 2]
    next_field = next_field + 2
    if to then documents[added] = {sequence, timestamp, from, to} end
  end
end
local held = added + (known[5] or 0)
hset[8], hset[12] = sequence, held
hset[10] = stamp > first_stamp and format('%.0f', stamp - 1) or known[4] or '0'

local more
local life, buried = known[10], nil
if replace then
  if epoch then redis.call('HSET', state, 'x', token) end -- takes memory, so that a full server refuses here
  buried, life = bury(life, before_count + (known[12] or 0), known[9] or ARGV[6], known[13]), nil
end
if not life and #documents > 0 then
  life = token
  hset[#hset + 1] = 'i'
  hset[#hset + 1] = life
end
if not epoch then
  redis.call('HSET', state, 'v', 1, 'e', token, 'b', now_text)
  more = begin()
  if ARGV[6] == '' then redis.call('PERSIST', registry) end
elseif replace then
  empty(known[13])
  known[11] = nil
end
if replace then
  hset[#hset + 1] = 'h'
  hset[#hset + 1] = revision
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
  local ttl, ends = ARGV[6] ~= '' and ARGV[6] or known[9], nil
  if ttl then ends = document_ends(now, ttl) end
  local prefix = documents_of(life)
  for _, of in ipairs(documents) do
    document(prefix, life, of[1], of[2], of[3], of[4], ends, true)
  end
end
if ARGV[11] ~= '' and held > tonumber(ARGV[11]) then
  local gone = trim(held - tonumber(ARGV[11]), life)
  redis.call('HSET', state, 'h', revision)
  more = more or {}
  more[#more + 1] = 'g'
  more[#more + 1] = array_of(gone)
end
announce(revision, now, replace and 'restore' or 'append', pack('>BI4', 0xdd, added) .. table.concat(members), more)
if ARGV[6] ~= '' or known[9] then live(ARGV[6], now, known[9], life, known[11]) end
if buried then return {'buried', outcome, buried} end
if stored then return {'stored', outcome, stored} end
return outcome
