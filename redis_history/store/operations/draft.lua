-- Adds messages and fields to the draft of a conversation, which publish.lua makes visible, or removes them again. After
-- _declared.lua, _member.lua, _contents.lua and _locate.lua.
--
-- KEYS  state: of the draft, a hash
--       sets: of messages (sorted sets) of this page: the live ones, or those of an archive; then the large contents of the
--         messages that are added or removed, and the names of those of the draft (sorted set); then the draft's ledger of usage
--         (hash, see _usage.lua), if the page has usage
-- ARGV  page: 1 begins the draft
--       lasts: milliseconds until it expires if it is not used
--       archives: their number
--       removed: how many messages to remove
--       changes: for each of these: which of KEYS, timestamp, sequence, field of the state; then how many fields of the state to
--         set, then these and their values; the same for the ledger; then for each message to add: which of KEYS, score, member,
--         field of the state and its value
--
-- Returns 1; {'contents'} if a large content is missing, so the caller must write it again; 0 if the draft was dropped (drop.lua), if earlier pages are lost (expired, evicted, or a failover lost a part), or if
-- this is a late copy of an earlier page; then nothing was written. A repeated page has the same effect.
local draft, page, lasts, archives, count_removed = KEY.state, tonumber(ARG.page), ARG.lasts, ARG.archives, tonumber(ARG.removed)
local before = tonumber(redis.call('HGET', draft, 'page') or 0)
if before ~= page and before ~= page - 1 then return 0 end
local fields = {'page', page, 'archives', archives}
if page == 1 then -- a long value makes the hash a table, see append.lua
  fields[5], fields[6] = 'z', string.rep('z', 513)
end
local fields_at = START.changes + 4 * count_removed
local ledger_at = fields_at + 1 + 2 * ARGV[fields_at]
for i = fields_at + 1, ledger_at - 1 do fields[#fields + 1] = ARGV[i] end
local added_at, noted = ledger_at + 1 + 2 * ARGV[ledger_at], {}
for i = ledger_at + 1, added_at - 1 do noted[#noted + 1] = ARGV[i] end
local zadd = {}
for i = added_at, #ARGV, 5 do
  local key = KEYS[tonumber(ARGV[i])]
  local to_key = zadd[key] or {}
  zadd[key] = to_key
  to_key[#to_key + 1], to_key[#to_key + 2] = ARGV[i + 1], ARGV[i + 2]
  fields[#fields + 1], fields[#fields + 2] = ARGV[i + 3], ARGV[i + 4]
end
-- The large contents of these messages. They live longer than the draft, so that early ones are there when it is published; the
-- set says which of them to remove if it is dropped. They are the draft's own: the conversation, or another draft of it, may
-- have the same ones. Their names begin with that of the draft, as if its state were `own`.
local own, names, linked = draft .. ':s', {}, {}
for i = added_at, #ARGV, 5 do
  if string.byte(ARGV[i + 2], 8) >= 8 then
    use_places()
    contents.use()
    for _, name in ipairs(contents.of(id_of(ARGV[i + 2]), ARGV[i + 2])) do
      names[#names + 1], linked[name] = name, true
    end
  end
end
if #names > 0 and contents.lacks(own, names) then return {'contents'} end
in_slices('HSET', draft, fields)
for at = START.changes, fields_at - 1, 4 do
  local key, timestamp, sequence, field = KEYS[tonumber(ARGV[at])], ARGV[at + 1], tonumber(ARGV[at + 2]), ARGV[at + 3]
  local member = locate(key, timestamp, sequence)
  if member then
    redis.call('ZREM', key, member)
    redis.call('HDEL', draft, field)
    if string.byte(member, 8) >= 8 then
      use_places()
      contents.use()
      local gone = {}
      for _, name in ipairs(contents.of(id_of(member), member)) do
        if not linked[name] then gone[#gone + 1] = name end
      end
      contents.unlink(own, gone)
      for _, name in ipairs(gone) do redis.call('ZREM', draft .. ':b', name) end
    end
  end
end
if #noted > 0 then in_slices('HSET', KEYS[#KEYS], noted) end
for key, to_key in pairs(zadd) do in_slices('ZADD', key, to_key) end
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, string.find(key, ':b:%x+$') and 6 * lasts or lasts) end
if #names > 0 then
  for _, name in ipairs(names) do redis.call('ZADD', draft .. ':b', 0, name) end
  redis.call('PEXPIRE', draft .. ':b', 6 * lasts)
end
return 1
