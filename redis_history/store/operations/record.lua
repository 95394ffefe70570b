-- Creates a conversation with its record, or changes fields of the record. After _change.lua and _documents.lua.
--
-- ARGV  fields: their names, one letter each
--       values: pairs of a field and its value; then, if the new metadata were computed from stored ones: these, as field M must
--         still have them ('': it is absent)
--
-- Returns the revision, or {'revision', current} | {'missing'} | {'exists', current} | {'changed'} | {'late', …};
-- then nothing was written.
use_journal()
use_documents()
local known = redis.call('HMGET', state, 'e', 'r', 'l', 'i', 'a', 'u', 'g', 'U', 'A', 'B', '~', '%')
local epoch, revision = known[1], tonumber(known[2] or 0)
local later = {known[8], known[9], known[10]}
for i = START.values, #ARGV, 2 do
  if ARGV[i] == 'U' then later[1] = ARGV[i + 1] elseif ARGV[i] == 'A' then later[2] = ARGV[i + 1] end
end
local names = lists_of(later)
approvals.take()
for _, name in ipairs(approvals.keys_if_open(later)) do names[#names + 1] = name end
for _, name in ipairs(approvals.lists_if_open({known[8], known[9]})) do names[#names + 1] = name end
if ARG.ttl ~= '' or known[3] then -- a time to live is renewed
  for _, name in ipairs(contents_in(archives_due(known[3], known[5]), known[11])) do names[#names + 1] = name end
end
local moves = known[12] and (later[1] ~= known[8] or later[2] ~= known[9])
if moves then
-- include _usage
  usage.keys({known[8], known[9]}, usage.keys(later, names))
end
local ask = undeclared_keys(lists_and({known[8], known[9], known[10]}, names))
if ask then return ask end
local seen, reply = open_change(epoch, revision, known[6], known[7])
if reply then return reply end
local last = #ARGV
if last % 2 == 1 then
  -- The refusal is kept for late copies of this call, because the metadata may get their former value again.
  if (redis.call('HGET', state, 'M') or '') ~= ARGV[last] then return unchanged(seen, epoch, {'changed'}) end
  last = last - 1
end

local now = clock()
revision = revision + 1
local newest = head_of_entry(KIND.RECORD, now)
local hset = {'r', revision, 'u', now, 'x', newest, 'O', '1'}
for i = 11, last do
  hset[#hset + 1] = ARGV[i]
end
if not epoch then
  for _, value in ipairs({'v', 2, 'e', token, 'b', now, 'q', 0, 't', 0, 'n', 0, 'c', 0, 'k', 0}) do
    hset[#hset + 1] = value
  end
end
redis.call('HSET', state, unpack(hset)) -- at most 60
-- Out of the lists of a former owner or agent.
local function leave(former, present)
  local lists = {}
  for _, list in ipairs(present) do lists[list] = true end
  for _, list in ipairs(former) do
    if not lists[list] then redis.call('ZREM', list, ARG.name) end
  end
end
leave(lists_of({known[8], known[9], known[10]}), lists_of(owners()))
leave(approvals.lists_if_open({known[8], known[9]}), approvals.lists_if_open(owners()))
if moves then usage.move(known[12], {known[8], known[9]}, later) end
if not epoch then
  begin(seen)
  if ARG.ttl == '' then redis.call('PERSIST', registry) end
end
write_log(newest, ARG.fields)
return close_change(seen, revision, revision, now, known[3], known[4], known[5])
