-- Replaces the oldest messages by a summary, as one change, and moves them to an archive. The client has read them in pages
-- (compact.py); this script checks that they have not changed. After _documents.lua, _locate.lua.
--
-- ARGV  epoch, revision: at the start of reading; the epoch may be ''
--       id: of the summary
--       head: its characters, flags, header byte and tool marks
--       rest: of its body
--       end_timestamp, end_sequence: of the first position after the range
--       held: how many messages are before it
--       replaced: how many of them are replaced, 0: there is nothing to do
--       characters, tokens: of these
--       timestamp, sequence: of the last of these, which the summary gets
--       newest_sequence: that was read, '' if later appends do not matter
--       sequences: the lowest and the highest of those that are replaced, 4 bytes each; then the time (7 bytes) and the sequence
--         (4) of the live summary, if it is one of them
--       field: the state's field of the summary
--       usage: of the summary (see _usage.lua), or ''
--       kept: how many runs of messages stay
--       ranks: of the first and the last message of each of these; then the fields and values of the summary's search document,
--         if there is one
--
-- Returns {'stored', revision, messages replaced, sequence, timestamp, own}: own = 0 if an earlier call with this summary
-- did it; {'nothing', revision} if there was nothing to do; {'stale'} if the range must be read again;
-- {'appended'} if new messages must be read; {'contents'} if a large content is missing, so the caller must write it again;
-- or {'conflict', id} | {'revision', current} | {'missing'} | {'late', …}; then nothing was written.
use_journal()
use_documents()
use_places()
local id, count, replaced = ARG.id, tonumber(ARG.held), tonumber(ARG.replaced)
local known = redis.call('HMGET', state, 'e', 'r', 'n', 'c', 'k', 'l', 'i', 'h', 's', 'a', 'm', ARG.field, '^' .. id, 'q', 'u', 'g', 'j')
local ttl = ARG.ttl ~= '' and ARG.ttl or known[6]
local names = contents_in(archives_due(known[6], known[10] or '0'), ttl and redis.call('HGET', state, '~'))
local record = {(known[2] or 0) + 1, 0, 0, 0, 0, replaced, tonumber(ARG.characters), tonumber(ARG.tokens), token, id, tonumber(ARG.sequence)}
local archive = archive_of(state, record)
names[#names + 1] = archive
if known[12] then note_archives(names, known[12]) end
local of = owners()
if ARG.usage ~= '' then
-- include _usage
  usage.keys(of, names)
end
local ask = undeclared_keys(lists_and(of, names)) or known[7] and moving(known[7])
if ask then return ask end
local seen, reply = decided(known[15], known[16])
if reply then return reply end
local revision, place = tonumber(known[2] or 0), known[12]
if known[13] and place and (ARG.expected_revision == '' or tonumber(ARG.expected_revision) + 1 == tonumber(known[13])) then
  local timestamp, sequence = place_of(place)
  local time = format('%.0f', timestamp)
  local there = locate_live(messages, time, sequence, id) or (find_archived(state, time, sequence, id))
  if there and is_same(there, ARG.head, ARG.rest) then
    force_write()
    local made = archive_index.with(state, tonumber(known[13]))
    return {'stored', made[OF.revision], made[OF.messages], sequence, time, made[OF.token] == token and 1 or 0}
  end
end
local refusal = refused(known[1], revision)
if refusal then return unchanged(seen, known[1], refusal) end
if (known[1] or '') ~= ARG.epoch or known[8] and tonumber(known[8]) > tonumber(ARG.revision) then return {'stale'} end
if rank_of(messages, ARG.end_timestamp, tonumber(ARG.end_sequence)) ~= count then return {'stale'} end
if replaced == 0 then return unchanged(seen, known[1], {'nothing', revision}) end
if ARG.newest_sequence ~= '' and (known[14] or '0') ~= ARG.newest_sequence then return {'appended'} end
if place then return unchanged(seen, known[1], {'conflict', id}) end
contents.use()
local large = math.floor(byte(ARG.head, 4) / 8) % 2 == 1 and contents.of(id, ARG.rest) or {}
if contents.lacks(state, large) then return {'contents'} end

local now = clock()
revision = revision + 1
local member = member_of(tonumber(ARG.sequence), tonumber(ARG.timestamp), ARG.head, ARG.rest)
local newest = head_of_entry(KIND.COMPACTED, now)
write_log(newest, {id, tonumber(ARG.timestamp), tonumber(ARG.sequence), replaced})
if 2 * count > redis.call('ZCARD', messages) then
  redis.call('RENAME', messages, archive)
  redis.call('PERSIST', archive)
  redis.call('ZRANGESTORE', messages, archive, count, -1)
  redis.call('ZREMRANGEBYRANK', archive, count, -1)
else
  redis.call('ZRANGESTORE', archive, messages, 0, count - 1)
  redis.call('ZREMRANGEBYRANK', messages, 0, count - 1)
end
local at, stay = START.ranks, {}
for _ = 1, ARG.kept do
  local run = redis.call('ZRANGE', archive, ARGV[at], ARGV[at + 1], 'WITHSCORES')
  for i = 1, #run, 2 do
    stay[#stay + 1] = {run[i], run[i + 1]}
  end
  at = at + 2
end
for _, one in ipairs(stay) do
  redis.call('ZREM', archive, one[1])
  redis.call('ZADD', messages, one[2], one[1])
end
redis.call('ZADD', messages, ARG.timestamp, member)

local oldest = redis.call('ZRANGE', archive, 0, 0, 'WITHSCORES')
local last = redis.call('ZRANGE', archive, -1, -1, 'WITHSCORES')
record[OF.first], record[OF.last] = tonumber(oldest[2]), tonumber(last[2])
record[OF.low], record[OF.high] = struct.unpack('>I4I4', ARG.sequences)
local former, moved = known[9], #ARG.sequences > 8 -- a pinned summary stays
if former then
  record[OF.former] = former
  if moved then record[OF.former_time], record[OF.former_sequence] = struct.unpack('>i7I4', ARG.sequences, 9) end
end
archive_index.add(state, record)
local characters = struct.unpack('>I3', ARG.head)
redis.call('HSET', state, 'r', revision, 'x', newest, 'u', now, 'n', known[3] - replaced + 1,
           'c', known[4] - ARG.characters + characters, 'k', known[5] - ARG.tokens + math.ceil(characters / 4), 'h', revision, 's', id,
           'O', '1', 'm', (known[11] or 0) + replaced - (moved and 1 or 0),
           ARG.field, pack_place(ARG.timestamp, mark, tonumber(ARG.sequence), revision) .. string.sub(ARG.head, 6), '^' .. id, revision)
if not known[10] or not ttl then redis.call('HSET', state, 'a', 0) end
if ARG.usage ~= '' then usage.count({{usage = ARG.usage, field = ARG.field, time = tonumber(ARG.timestamp)}}, of) end
local generation = known[7]
if generation and former and moved then
  local its = sequence_at(state, former)
  if its then forget_documents(generation, {'-' .. its}) end
end
if #ARGV >= at then
  if not generation then
    generation = token
    redis.call('HSET', state, 'i', generation, 'O', '1')
  end
  document(documents_of(generation), generation, '-' .. ARG.sequence, ARG.timestamp, at, #ARGV, ttl and document_ends(now, ttl))
end
if generation then
  redis.call('HSET', state, 'j', note_move(known[17], revision, record[OF.first], record[OF.last], ttl))
end
if #large > 0 then contents.set(state, id, large, now, ttl) end
announce(revision, now, of)
approvals.keep(of, ttl)
if ttl then
  redis.call('PEXPIREAT', archive, document_ends(now, ttl)) -- the other archives may live long enough
  live(ARG.ttl, now, known[6], generation, known[10] or '0')
end
return concluded(seen, true, {'stored', revision, replaced, tonumber(ARG.sequence), ARG.timestamp, 1})
