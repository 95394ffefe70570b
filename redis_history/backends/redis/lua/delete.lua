-- Removes messages by id as one change. Unknown ids are ignored; if all are unknown nothing changes.
--
-- KEYS  1 state (hash)  2 messages (sorted set)  3 change log (stream)  4 registry (sorted set)
-- ARGV  1 token of this change   2 expected revision or ''   3 'exists' or ''
--       4 length of the change log   5 name in the registry   6 '1' if this call may have run before
--       then the ids, distinct
--
-- Returns {revision, how many were removed}, or {'revision', current} | {'missing'}; then nothing was written.
local state, messages, log, registry = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, FIRST, FIELDS = ARGV[1], 7, 5

-- What the log tells of this very change, if an earlier try was applied and its reply lost.
local function told()
  local from = '+'
  while true do
    local entries = redis.call('XREVRANGE', log, from, '-', 'COUNT', 64)
    if #entries == 0 then return nil end
    for _, entry in ipairs(entries) do
      if entry[2][2] == token then
        return {tonumber(string.match(entry[1], '^%d+')), (struct.unpack('>I4', string.sub(entry[2][6], 2, 5)))}
      end
    end
    from = '(' .. entries[#entries][1]
  end
end

local fields = {'e', 'r', 'n', 'c', 'k'}
for i = FIRST, #ARGV do
  fields[#fields + 1] = ':' .. ARGV[i]
end
local known = redis.call('HMGET', state, unpack(fields))
local revision = tonumber(known[2] or 0)
if ARGV[6] == '1' then
  for i = FIELDS + 1, #fields do
    if not known[i] then -- else no earlier try can have been applied
      local before = told()
      if before then return before end
      break
    end
  end
end
if ARGV[2] ~= '' and tonumber(ARGV[2]) ~= revision then return {'revision', revision} end
if ARGV[3] == 'exists' and not known[1] then return {'missing'} end

local members, gone, ids = {}, {}, {}
local characters, tokens = tonumber(known[4] or 0), tonumber(known[5] or 0)
for i = FIRST, #ARGV do
  local place = known[FIELDS + i - FIRST + 1]
  if place then
    local _, _, sequence, _, timestamp, _, c, k = struct.unpack('>BBI8Bi8I8I4I4', place)
    members[#members + 1] = locate(messages, string.format('%.0f', timestamp), sequence)
    gone[#gone + 1] = ':' .. ARGV[i]
    ids[#ids + 1] = struct.pack('>BI4', 0xdb, #ARGV[i]) .. ARGV[i]
    characters = characters - c
    tokens = tokens - k
  end
end
if #gone == 0 then return {revision, 0} end

local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000000 + time[2])
revision = revision + 1
if #members > 0 then redis.call('ZREM', messages, unpack(members)) end
redis.call('HDEL', state, unpack(gone))
redis.call('HSET', state, 'r', revision, 'x', token, 'u', now, 'n', known[3] - #gone, 'c', characters, 'k', tokens)
redis.call('ZADD', registry, now, ARGV[5])
redis.call('XADD', log, 'MAXLEN', '~', ARGV[4], revision .. '-0', 't', token, 'k', 'delete', 'p',
           struct.pack('>BI4', 0xdd, #ids) .. table.concat(ids))
return {revision, #gone}
