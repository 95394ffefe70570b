-- Makes a draft (draft.lua) the conversation, as one change. After _change.lua, _documents.lua.
--
-- KEYS  5 the draft's state (hash)   6 its live messages (sorted set)   then for each archive its messages in the draft, and its key
-- ARGV  10 the draft's last page   11, 12 times of creation and of the last change in microseconds, or ''
--       13 revision   14 how many live messages   15 how many archives, then the number of messages of each
--       then pairs of a field of the state and its value
--
-- Returns the revision, {'lost'} if the draft is not complete, or {'exists', current} | {'late', …}; then nothing was written.
use_journal()
use_documents()
local count, values = tonumber(ARGV[15]), {}
for i = 16 + count, #ARGV, 2 do values[ARGV[i]] = ARGV[i + 1] end
local new_owners = {values.U, values.A, values.B}
for i = 1, 3 do new_owners[i] = new_owners[i] or false end
-- A run may be older than its conversation, and the journal may tell of a former one.
local known = redis.call('HMGET', state, 'e', 'r', 'u', 'g', 'R', 'Q', 'Z', 'f', 'o')
local ask = undeclared(lists_of(new_owners))
if ask then return ask end
local seen, reply = open_change(known[1], tonumber(known[2] or 0), known[3], known[4])
if reply then return reply end
local complete = redis.call('HGET', KEYS[5], 'page') == ARGV[10] and redis.call('ZCARD', KEYS[6]) == tonumber(ARGV[14])
for i = 1, count do
  complete = complete and redis.call('ZCARD', KEYS[5 + 2 * i]) == tonumber(ARGV[15 + i])
end
if not complete then return unchanged(seen, known[1], {'lost'}) end

local now, revision = clock(), tonumber(ARGV[13])
local updated = ARGV[12] ~= '' and math.min(tonumber(ARGV[12]), now) or now
local newest = head_of_entry(PUBLISHED, now)
local hset = {'v', 2, 'e', token, 'r', revision, 'x', newest, 'h', revision, 'b', ARGV[11] ~= '' and ARGV[11] or now, 'u', updated,
              'n', ARGV[14], 'O', '1', 'p', pack('>I4I6I6', math.floor(now / LIFETIME), values.q, values.q)}
for i = 16 + count, #ARGV do hset[#hset + 1] = ARGV[i] end
for i, name in ipairs({'R', 'Q', 'Z', 'f', 'o'}) do
  if known[4 + i] then
    hset[#hset + 1], hset[#hset + 2] = name, known[4 + i]
  end
end
-- Messages without a time come after the newest message, unless its time is far ahead of the clock.
local latest = values.F and struct.unpack('>i7', sub(values.F, 8)) or 0
hset[#hset + 1], hset[#hset + 2] = 't', latest < now + LIFETIME and math.max(latest, 0) or 0
take_journal(seen, hset)
redis.call('HSET', KEYS[5], unpack(hset))
redis.call('HDEL', KEYS[5], 'page', 'z')
redis.call('RENAME', KEYS[5], state)
begin(seen)
local function move(from, to)
  redis.call('RENAME', from, to)
  redis.call('PERSIST', to)
end
if ARGV[14] ~= '0' then move(KEYS[6], messages) end
for i = 1, count do -- all messages of an archive may have been deleted
  if ARGV[15 + i] ~= '0' then move(KEYS[5 + 2 * i], KEYS[6 + 2 * i]) end
end
if ARGV[6] == '' then redis.call('PERSIST', registry) end
write_log(newest, '')
announce(revision, now, new_owners)
if ARGV[12] ~= '' then -- lists are in the order of the changes; no score is there twice
  while updated < now and redis.call('ZCOUNT', registry, updated, updated) > 0 do updated = updated + 1 end
  for _, list in ipairs({registry, unpack(lists_of(new_owners))}) do redis.call('ZADD', list, updated, ARGV[5]) end
end
live(ARGV[6], now, nil, nil, count > 0 and '0')
return concluded(seen, true, revision)
