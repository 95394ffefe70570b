-- Restores the messages that the live summary replaced, as one change. After _documents.lua, _archived.lua.
--
-- ARGV  id: of the summary
--       field: of the state, for the summary
--       how: to join live and archived messages: '' if either are few; '1' if copy.lua has copied all to one set; '2' in this
--         call, however many
--       epoch, revision, sequence: with a copy, those of its first page
--       copy_token: of the copy
--
-- Returns {revision, how many messages were restored, revision of the compaction, id of the summary that is live now or ''},
-- {'stale', key of the archive} if a (new) copy is needed, {'unfinished'} if erased summaries must be removed first (scrub.lua),
-- {'unknown'} if this is not the live summary, or {'revision', current} | {'missing'} | {'late', …}; then nothing was written.
use_journal()
use_documents()
use_places()
local FEW, LOOKED_AT = 1000, 1000
local id, copy = ARG.id, sub(state, 1, -2) .. 'x'
local known = redis.call('HMGET', state, 'e', 'r', 'n', 'c', 'k', 'l', 'i', 's', 'a', 'm', ARG.field, '^' .. id, 'h', 'q', 'u', 'g', 'j', 'E')
local revision, place, compaction = tonumber(known[2] or 0), known[11], tonumber(known[12])
local made, block, index
if compaction then
  made, block, index = archive_index.with(state, compaction)
  local names = {archive_of(state, made), ARG.how == '1' and copy or nil}
  if ARG.ttl ~= '' or known[6] then -- a time to live is renewed
    for _, name in ipairs(contents_in(archives_due(known[6], known[9]), redis.call('HGET', state, '~'))) do
      names[#names + 1] = name
    end
  end
  contents.use()
  contents.declare(state, contents.held(state, id), names)
  local ask = undeclared_keys(lists_and(owners(), names)) or moving(known[7])
  if ask then return ask end
end
local seen, reply = open_change(known[1], revision, known[15], known[16])
if reply then return reply end
if known[8] ~= id or not place or not compaction then return unchanged(seen, known[1], {'unknown'}) end
if known[18] then return {'unfinished'} end
local held, c, k, former = made[OF.messages], made[OF.characters], made[OF.tokens], made[OF.former] or ''
local timestamp, sequence = place_of(place)
local member = locate_live(messages, format('%.0f', timestamp), sequence, id)
local own_c = member and characters_of(member) or 0
local archive, generation = archive_of(state, made), known[7]
local count, live_count = redis.call('ZCARD', archive), redis.call('ZCARD', messages)

-- The messages appended since the copy was started: they have a higher sequence, and nearly always come last.
local function appended(since)
  local wanted, found, rank = known[14] - since, {}, live_count
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
if ARG.how == '1' then
  if known[1] ~= ARG.epoch or known[13] and tonumber(known[13]) > tonumber(ARG.revision) then return {'stale', archive} end
  if redis.call('HGET', state, 'X') ~= ARG.copy_token then return {'stale', archive} end
  fresh = appended(tonumber(ARG.sequence))
  if not fresh or #fresh > 2 * FEW or redis.call('EXISTS', copy) == 0 then return {'stale', archive} end
  -- The copy is complete: since the revision of its first page there were only appends, so all its members still exist, and
  -- their number is that of both sets.
  in_slices('ZADD', copy, fresh)
  if redis.call('ZCARD', copy) ~= count + live_count then return {'stale', archive} end
elseif ARG.how == '' and count > FEW and live_count > FEW then
  return {'stale', archive}
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
    in_slices('ZADD', many, zadd)
    rank = rank + 1000
  end
end

local now = clock()
revision = revision + 1
local newest = head_of_entry(KIND.EXPANDED, now)
write_log(newest, {id, held})
-- The messages are never empty and never removed before a RENAME: a node at which a slot is arriving refuses a command on two
-- keys of which one is missing, even in the middle of a script.
local larger = ARG.how == '1' and copy or live_count < count and archive
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
if member then
  redis.call('ZREM', messages, member)
  if contents.has(member) then contents.set(state, id, {}) end
end
table.remove(archive_index.records(state, block), index)
block.count = block.count - 1
local rest = #archive_index.blocks(state) > 1 or block.count > 0
if index == 1 and block.count > 0 then -- the block has another name then
  redis.call('HDEL', state, format('w%.0f', block.revision))
  block.revision = block.records[1][OF.revision]
end
archive_index.write_block(state, block)
archive_index.write_blocks(state)
redis.call('HDEL', state, ARG.field, '^' .. id, 's', 'm')
if not rest then redis.call('HDEL', state, 'a') end
local hset = {'r', revision, 'x', newest, 'u', now, 'n', known[3] - 1 + held, 'c', known[4] - own_c + c,
              'k', known[5] - math.ceil(own_c / 4) + k, 'h', revision}
local function set(name, value)
  hset[#hset + 1] = name
  hset[#hset + 1] = value
end
if former ~= '' and redis.call('HGET', state, '^' .. former) then set('s', former) else former = '' end
if rest then set('m', known[10] - held + (made[OF.former_time] and 1 or 0)) end
if generation then
  set('j', note_move(known[17], revision, made[OF.first], made[OF.last], ARG.ttl ~= '' and ARG.ttl or known[6]))
end
redis.call('HSET', state, unpack(hset)) -- at most 22
forget_documents(generation, {-sequence})
return close_change(seen, {revision, held, compaction, former}, revision, now, known[6], generation, rest and known[9])
