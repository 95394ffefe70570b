-- Appends messages to a conversation as one change. Validates first, writes last: all or nothing.
--
-- KEYS  1 state (hash)  2 messages (sorted set)  3 change log (stream)  4 registry (sorted set)
-- ARGV  1 token of this change   2 expected revision or ''   3 'exists', 'absent' or ''
--       4 length of the change log   5 name in the registry
--       then six for each message, ids distinct:
--       id, timestamp in microseconds or '' for the server's clock, digest, characters, tokens, body
--
-- Returns {revision, first sequence, first server timestamp, {index, revision, sequence, timestamp, own} of each
-- message that was stored before; own = 1 if this very call stored it}
-- or {'conflict', id} | {'revision', current} | {'missing'} | {'exists', current}; then nothing was written.
--
-- State fields: v layout, e epoch, r revision, x token of the newest change, q sequence, t newest server timestamp,
-- n messages, c characters, k tokens, b created, u updated (microseconds);
-- ':<id>' = timestamp, sequence, revision, characters, tokens, digest.
local state, messages, log, registry = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token = ARGV[1]
local FIRST, WIDTH, FIELDS = 6, 6, 8
local PLACE = '>i8I8I8I4I4' -- 32 bytes, then the digest

local count = (#ARGV - FIRST + 1) / WIDTH
local fields = {'e', 'r', 'q', 't', 'n', 'c', 'k', 'b'}
for i = 1, count do
  fields[FIELDS + i] = ':' .. ARGV[FIRST + (i - 1) * WIDTH]
end
local known = redis.call('HMGET', state, unpack(fields))
local revision = tonumber(known[2] or 0)

local stored, stored_at = {}, nil
for i = 1, count do
  local place = known[FIELDS + i]
  if place then
    local at = FIRST + (i - 1) * WIDTH
    local timestamp, sequence, changed = struct.unpack(PLACE, place)
    if string.sub(place, 33) ~= ARGV[at + 2] or (ARGV[at + 1] ~= '' and tonumber(ARGV[at + 1]) ~= timestamp) then
      return {'conflict', ARGV[at]}
    end
    local own = 0
    local entry = redis.call('XRANGE', log, changed .. '-0', changed .. '-0')[1]
    if entry and entry[2][2] == token then own = 1 end
    stored[#stored + 1] = {i - 1, changed, sequence, string.format('%.0f', timestamp), own}
    stored_at = changed
  end
end
if #stored == count then
  -- Nothing to write. The precondition holds if it held when these messages were stored.
  if (ARGV[2] == '' or tonumber(ARGV[2]) + 1 == stored_at) and (ARGV[3] ~= 'absent' or stored_at == 1) then
    return {revision, 0, '0', stored}
  end
end
if ARGV[2] ~= '' and tonumber(ARGV[2]) ~= revision then return {'revision', revision} end
if ARGV[3] == 'exists' and not known[1] then return {'missing'} end
if ARGV[3] == 'absent' and known[1] then return {'exists', revision} end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local stamp = now
if known[4] and stamp <= tonumber(known[4]) then stamp = tonumber(known[4]) + 1 end
local first_stamp, newest_stamp = stamp, known[4] or '0'
local sequence = tonumber(known[3] or 0)
local first_sequence = sequence + 1
local characters, tokens, added = tonumber(known[6] or 0), tonumber(known[7] or 0), 0
revision = revision + 1

local zadd, members = {}, {}
local hset = {'r', revision, 'x', token, 'u', string.format('%.0f', now)}
for i = 1, count do
  if not known[FIELDS + i] then
    local at = FIRST + (i - 1) * WIDTH
    local timestamp = ARGV[at + 1]
    if timestamp == '' then
      timestamp = string.format('%.0f', stamp)
      newest_stamp = timestamp
      stamp = stamp + 1
    end
    sequence = sequence + 1
    added = added + 1
    characters = characters + ARGV[at + 3]
    tokens = tokens + ARGV[at + 4]
    -- the MessagePack array [uint64 sequence, int64 timestamp, body]
    local member = struct.pack('>BBI8Bi8', 0x93, 0xcf, sequence, 0xd3, timestamp) .. ARGV[at + 5]
    members[added] = member
    zadd[2 * added - 1] = timestamp
    zadd[2 * added] = member
    hset[#hset + 1] = ':' .. ARGV[at]
    hset[#hset + 1] = struct.pack(PLACE, timestamp, sequence, revision, ARGV[at + 3], ARGV[at + 4]) .. ARGV[at + 2]
  end
end
for _, value in ipairs({'q', sequence, 't', newest_stamp, 'n', tonumber(known[5] or 0) + added, 'c', characters,
                        'k', tokens}) do
  hset[#hset + 1] = value
end

local entry = {'MAXLEN', '~', ARGV[4], revision .. '-0', 't', token, 'k', 'append', 'p',
               struct.pack('>BI4', 0xdd, added) .. table.concat(members)}
if not known[1] then
  -- A new life. What a former one left behind must not come back; a log still there had its subscribers.
  redis.call('UNLINK', messages)
  if redis.call('UNLINK', log) == 1 then
    entry[#entry + 1] = 'o'
    entry[#entry + 1] = '1'
  end
  for _, value in ipairs({'v', 1, 'e', token, 'b', string.format('%.0f', now)}) do
    hset[#hset + 1] = value
  end
end
redis.call('ZADD', messages, unpack(zadd))
redis.call('HSET', state, unpack(hset))
redis.call('ZADD', registry, string.format('%.0f', now), ARGV[5])
redis.call('XADD', log, unpack(entry))
return {revision, first_sequence, string.format('%.0f', first_stamp), stored}
