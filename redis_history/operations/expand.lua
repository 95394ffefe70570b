-- Restores the messages that the live summary replaced, as one change. After _documents.lua, _archived.lua.
--
-- ARGV  10 id of the summary   11 its field of the state   12 how to join live and archived messages: '' if either are few;
--       '1' if copy.lua has copied all to one set; '2' at once, however many
--       13, 14, 15 with a copy: epoch, revision and sequence of its first page   16 the copy's own token
--
-- Returns {revision, how many messages were restored, revision of the compaction, id of the summary that is live now or ''},
-- {'stale'} if a (new) copy is needed, {'unknown'} if this is not the live summary, or {'revision', current} |
-- {'missing'} | {'late', …}; then nothing was written.
use_journal()
use_documents()
use_places()
local FEW, LOOKED_AT = 1000, 1000
local id, copy = ARGV[10], sub(state, 1, -2) .. 'x'
local known = redis.call('HMGET', state, 'e', 'r', 'n', 'c', 'k', 'l', 'i', 's', 'w', 'a', 'm', ARGV[11], '^' .. id, 'h', 'q', 'u', 'g', 'j')
local revision, place, compaction = tonumber(known[2] or 0), known[12], known[13]
if compaction then
  local names = {archive_of(state, compaction), ARGV[12] == '1' and copy or nil}
  if ARGV[6] ~= '' or known[6] then names = contents_in(known[9], redis.call('HGET', state, '~')) end -- it is renewed
  local ask = undeclared(lists_and(owners(), names)) or moving(known[7])
  if ask then return ask end
end
local seen, reply = open_change(known[1], revision, known[16], known[17])
if reply then return reply end
if known[8] ~= id or not place or not compaction then return unchanged(seen, known[1], {'unknown'}) end
local held, c, k, former = string.match(redis.call('HGET', state, '#' .. compaction), '^(%d+) (%d+) (%d+) %x+ ?(.*)$')
local timestamp, sequence = place_of(place)
local member = locate_live(messages, format('%.0f', timestamp), sequence, id)
local own_c = member and characters_of(member) or 0
local archive, generation = archive_of(state, compaction), known[7]
held = tonumber(held)
local count, live_count = redis.call('ZCARD', archive), redis.call('ZCARD', messages)

-- The messages appended since the copy was started: they have a higher sequence, and nearly always come last.
local function appended(since)
  local wanted, found, rank = known[15] - since, {}, live_count
  while #found < 2 * wanted do
    if rank <= 0 or live_count - rank >= LOOKED_AT + wanted then return nil end
    local some = redis.call('ZRANGE', messages, math.max(0, rank - 100), rank - 1, 'WITHSCORES')
    for i = 1, #some, 2 do
      if sequence_of(some[i]) > since and some[i] ~= member then
        found[#found + 1], found[#found + 2] = some[i + 1], some[i]
      end
    end
    rank = rank - 100
  end
  return found
end

local fresh
if ARGV[12] == '1' then
  if known[1] ~= ARGV[13] or known[14] and tonumber(known[14]) > tonumber(ARGV[14]) then return {'stale'} end
  if redis.call('HGET', state, 'X') ~= ARGV[16] then return {'stale'} end
  fresh = appended(tonumber(ARGV[15]))
  if not fresh or #fresh > 2 * FEW or redis.call('EXISTS', copy) == 0 then return {'stale'} end
  -- The copy is complete: since the revision of its first page there were only appends, so all its members still exist, and
  -- their number is that of both sets.
  if #fresh > 0 then redis.call('ZADD', copy, unpack(fresh)) end
  if redis.call('ZCARD', copy) ~= count + live_count then return {'stale'} end
elseif ARGV[12] == '' and count > FEW and live_count > FEW then
  return {'stale'}
end

-- Adds the members of the smaller set to the larger one.
local function add(few, many)
  local rank = 0
  while true do
    local some, zadd = redis.call('ZRANGE', few, rank, rank + 999, 'WITHSCORES'), {}
    if #some == 0 then break end
    for i = 1, #some, 2 do
      zadd[i], zadd[i + 1] = some[i + 1], some[i]
    end
    redis.call('ZADD', many, unpack(zadd))
    rank = rank + 1000
  end
end

local now = clock()
revision = revision + 1
local newest = head_of_entry(EXPANDED, now)
write_log(newest, {id, held})
-- The messages are never empty and never removed before a RENAME: a node at which a slot is arriving refuses a command on two
-- keys of which one is missing, even in the middle of a script.
local larger = ARGV[12] == '1' and copy or live_count < count and archive
if larger == copy then
  redis.call('HDEL', state, 'X')
elseif larger then
  add(messages, archive)
else
  add(archive, messages)
end
if larger then
  redis.call('RENAME', larger, messages)
  redis.call('PERSIST', messages)
end
if larger ~= archive then redis.call('UNLINK', archive) end
if member then redis.call('ZREM', messages, member) end
local rest, moved = {}, nil
for _, one in ipairs(archives_in(known[9])) do
  if one[1] == compaction then
    moved = one
  else
    rest[#rest + 1] = format('%s %.0f %.0f;', unpack(one))
  end
end
redis.call('HDEL', state, ARGV[11], '^' .. id, '#' .. compaction, 's', 'w', 'm')
if #rest == 0 then redis.call('HDEL', state, 'a') end
local hset = {'r', revision, 'x', newest, 'u', now, 'n', known[3] - 1 + held, 'c', known[4] - own_c + c,
              'k', known[5] - math.ceil(own_c / 4) + k, 'h', revision}
local function set(name, value)
  hset[#hset + 1] = name
  hset[#hset + 1] = value
end
if former ~= '' and redis.call('HGET', state, '^' .. former) then set('s', former) else former = '' end
if #rest > 0 then
  set('w', table.concat(rest))
  set('m', known[11] - held + (former ~= '' and 1 or 0))
end
if generation and moved then
  set('j', note_move(known[18], revision, moved[2], moved[3], ARGV[6] ~= '' and ARGV[6] or known[6]))
end
redis.call('HSET', state, unpack(hset))
forget_documents(generation, {-sequence})
return close_change(seen, {revision, held, tonumber(compaction), former}, revision, now, known[6], generation, #rest > 0 and known[10])
