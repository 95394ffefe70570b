-- Appends messages to a conversation as one change. Validates first, writes last: all or nothing.
--
-- KEYS  1 state (hash)  2 messages (sorted set)  3 change log (stream)  4 registry (sorted set)
-- ARGV  1 token of this change   2 expected revision or ''   3 'exists', 'absent' or ''
--       4 length of the change log   5 name in the registry   6, 7 characters and tokens of all messages
--       then four for each message, ids distinct: ':<id>', timestamp in microseconds or '' for the server's clock,
--       size and digest (24 bytes: uint32 characters, uint32 tokens, digest), body
--
-- Returns 'revision sequence timestamp': of the change, of its first message, the first of the server's clock;
-- or {'stored', that, {index, revision, sequence, timestamp, own} of each message that was stored before}, own = 1 if
-- this very call had stored it;
-- or {'conflict', id} | {'revision', current} | {'missing'} | {'exists', current}; then nothing was written.
--
-- State fields: v layout, e epoch, r revision, x token of the newest change, q sequence, t newest server timestamp,
-- n messages, c characters, k tokens, b created, u updated (microseconds);
-- ':<id>' = head of the member (19 bytes: array of 3, uint64 sequence, int64 timestamp), uint64 revision, size and digest.
local state, messages, log, registry = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token = ARGV[1]
local FIRST, WIDTH, FIELDS = 8, 4, 8
local pack, format = struct.pack, string.format

local count = (#ARGV - FIRST + 1) / WIDTH
local fields = {'e', 'r', 'q', 't', 'n', 'c', 'k', 'b'}
for i = 1, count do
  fields[FIELDS + i] = ARGV[FIRST + (i - 1) * WIDTH]
end
local known = redis.call('HMGET', state, unpack(fields))
local revision = tonumber(known[2] or 0)
local characters, tokens = ARGV[6] + (known[6] or 0), ARGV[7] + (known[7] or 0)

local stored, stored_at
for i = 1, count do
  local place = known[FIELDS + i]
  if place then
    local at = FIRST + (i - 1) * WIDTH
    local _, _, sequence, _, timestamp, changed, c, k = struct.unpack('>BBI8Bi8I8I4I4', place)
    if string.sub(place, 28) ~= ARGV[at + 2] or (ARGV[at + 1] ~= '' and tonumber(ARGV[at + 1]) ~= timestamp) then
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
    return {'stored', revision .. ' 0 0', stored}
  end
end
if ARGV[2] ~= '' and tonumber(ARGV[2]) ~= revision then return {'revision', revision} end
if ARGV[3] == 'exists' and not known[1] then return {'missing'} end
if ARGV[3] == 'absent' and known[1] then return {'exists', revision} end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local stamp = now
if known[4] and stamp <= tonumber(known[4]) then stamp = tonumber(known[4]) + 1 end
local now_text, newest_stamp = format('%.0f', now), known[4] or '0'
local sequence = tonumber(known[3] or 0)
revision = revision + 1
local outcome = revision .. ' ' .. sequence + 1 .. ' ' .. format('%.0f', stamp)

local hset = {'r', revision, 'x', token, 'u', now_text, 'q', 0, 't', 0, 'n', 0, 'c', characters, 'k', tokens}
local zadd, members, added, next_field = {}, {}, 0, 17
local changed = pack('>I8', revision)
for i = 1, count do
  if not known[FIELDS + i] then
    local at = FIRST + (i - 1) * WIDTH
    local timestamp = ARGV[at + 1]
    if timestamp == '' then
      timestamp = format('%.0f', stamp)
      newest_stamp = timestamp
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
  end
end
hset[8], hset[10], hset[12] = sequence, newest_stamp, added + (known[5] or 0)

local payload = pack('>BI4', 0xdd, added) .. table.concat(members)
redis.call('ZADD', registry, now_text, ARGV[5])
if known[1] then
  redis.call('ZADD', messages, unpack(zadd))
  redis.call('HSET', state, unpack(hset))
  redis.call('XADD', log, 'MAXLEN', '~', ARGV[4], revision .. '-0', 't', token, 'k', 'append', 'p', payload)
else
  -- A new life. What a former one left behind must not come back; a log still there had its subscribers, who are
  -- told by 'o' that this conversation takes the place of theirs.
  redis.call('UNLINK', messages)
  local replaced = redis.call('UNLINK', log)
  redis.call('ZADD', messages, unpack(zadd))
  redis.call('HSET', state, 'v', 1, 'e', token, 'b', now_text, unpack(hset))
  redis.call('XADD', log, revision .. '-0', 't', token, 'k', 'append', 'p', payload, unpack(replaced == 1 and {'o', 1} or {}))
end
if stored then return {'stored', outcome, stored} end
return outcome
