-- Makes a draft (draft.lua) the conversation, as one change. After _change.lua, _documents.lua and _empty.lua.
--
-- The draft's archives already have their final names, which readers do not know yet, and its state has their index. So
-- this script only makes them persistent, whatever they hold.
--
-- KEYS  draft: its state, a hash
--       live: its live messages, a sorted set
--       archives: those of its archives that have messages (sorted sets); then its ledger of usage (hash, see _usage.lua), if it
--         has one; then, with large contents, the names of these (sorted set), those of the draft, and the same of the
--         conversation
-- ARGV  page: the draft's last page
--       created_at, updated_at: times of creation and of the last change in microseconds, or ''
--       revision: of the conversation
--       live_count: how many live messages
--       archive_count: how many archives have messages
--       counts: the number of messages of each of these; then '1' if it has a ledger of usage, and pairs of a field of the state
--         and its value; a (see _archive.lua) if there are archives, % (see _usage.lua) if it has a ledger, and & (see
--         _contents.lua) if there are large contents
--
-- Returns the revision, {'lost'} if the draft is not complete, or was dropped, or {'exists', current} | {'late', …}; then nothing
-- was written.
use_journal()
use_documents()
local draft, live_set, page, created, given_time, revision = KEY.draft, KEY.live, ARG.page, ARG.created_at, ARG.updated_at, tonumber(ARG.revision)
local live_count, count = tonumber(ARG.live_count), tonumber(ARG.archive_count)
local ARCHIVES, PAIRS = START.archives - 1, START.counts + 1 + count -- before the first archive in KEYS; the first pair in ARGV
local values = {}
for i = PAIRS, #ARGV, 2 do values[ARGV[i]] = ARGV[i + 1] end
local new_owners = {values.U, values.A, values.B}
for i = 1, 3 do new_owners[i] = new_owners[i] or false end
-- A run may be older than its conversation, and the journal may mention a former run.
local known = redis.call('HMGET', state, 'e', 'r', 'u', 'g', 'R', 'Q', 'Z', 'f', 'o', 'N')
approvals.take(values['?'] or '')
local own_ledger = ARGV[START.counts + count] == '1' and KEYS[ARCHIVES + count + 1]
local names = lists_and(new_owners, approvals.lists_if_open(new_owners))
if values['%'] then
-- include _usage
  usage.keys(new_owners, names)
end
local ask = undeclared_keys(names)
if ask then return ask end
local seen, reply = open_change(known[1], tonumber(known[2] or 0), known[3], known[4])
if reply then return reply end
local complete = redis.call('HGET', draft, 'page') == page and redis.call('ZCARD', live_set) == live_count
if own_ledger then complete = complete and redis.call('EXISTS', own_ledger) == 1 end
for i = 1, count do
  complete = complete and redis.call('ZCARD', KEYS[ARCHIVES + i]) == tonumber(ARGV[START.counts - 1 + i])
end
local names = {}
if values['&'] then
  contents.use()
  for i = ARCHIVES + count + 1, #KEYS do
    local name = string.match(KEYS[i], ':d:%x+:b:(%x+)$')
    if name then names[#names + 1] = name end
  end
  complete = complete and not contents.lacks(draft .. ':s', names)
end
if not complete then return unchanged(seen, known[1], {'lost'}) end

local now = clock()
local updated = given_time ~= '' and math.min(tonumber(given_time), now) or now
local newest = head_of_entry(KIND.PUBLISHED, now)
local hset = {'v', 2, 'e', token, 'r', revision, 'x', newest, 'h', revision, 'b', created ~= '' and created or now, 'u', updated,
              'n', live_count, 'O', '1', 'p', pack('>I4I6I6', math.floor(now / LIFETIME), values.q, values.q)}
for i = PAIRS, #ARGV do hset[#hset + 1] = ARGV[i] end
for i, name in ipairs({'R', 'Q', 'Z', 'f', 'o', 'N'}) do
  if known[4 + i] then
    hset[#hset + 1], hset[#hset + 2] = name, known[4 + i]
  end
end
-- Messages without a time come after the newest message, unless its time is far ahead of the clock.
local latest = values.F and struct.unpack('>i7', sub(values.F, 8)) or 0
hset[#hset + 1], hset[#hset + 2] = 't', latest < now + LIFETIME and math.max(latest, 0) or 0
take_journal(seen, hset)
in_slices('HSET', draft, hset)
redis.call('HDEL', draft, 'page', 'z', 'archives')
redis.call('RENAME', draft, state)
begin(seen)
if live_count > 0 then
  redis.call('RENAME', live_set, messages)
  redis.call('PERSIST', messages)
end
if own_ledger then
  redis.call('RENAME', own_ledger, sub(state, 1, -2) .. 'k')
  redis.call('PERSIST', sub(state, 1, -2) .. 'k')
end
if values['%'] then usage.move(values['%'], nil, new_owners) end
local archives_end = values.a and ARG.ttl ~= '' and document_ends(now, ARG.ttl)
for i = 1, count do
  if archives_end then
    redis.call('PEXPIREAT', KEYS[ARCHIVES + i], archives_end)
  else
    redis.call('PERSIST', KEYS[ARCHIVES + i])
  end
end
if archives_end then redis.call('HSET', state, 'a', archives_end) end
if values['&'] then
  local ends = contents.ends(now, ARG.ttl ~= '' and ARG.ttl or nil)
  contents.move(draft .. ':s', state, names)
  contents.keep(state, names, ends)
  if ends then redis.call('HSET', state, '&', ends) end
  redis.call('UNLINK', draft .. ':b')
end
if ARG.ttl == '' then redis.call('PERSIST', registry) end
write_log(newest, '')
announce(revision, now, new_owners)
approvals.keep(new_owners, ARG.ttl)
if given_time ~= '' then -- lists are in the order of the changes; no score is there twice
  while updated < now and redis.call('ZCOUNT', registry, updated, updated) > 0 do updated = updated + 1 end
  local lists = lists_of(new_owners)
  lists[#lists + 1] = registry
  for _, list in ipairs(lists) do redis.call('ZADD', list, updated, ARG.name) end
end
live(ARG.ttl, now)
return concluded(seen, true, revision)
