-- Removes everything of a conversation. After _change.lua, _documents.lua and _empty.lua.
--
-- ARGV  log_lasts: milliseconds that the log outlives the conversation if there are subscribers
--       channel: of subscribers; '': they may have none
--
-- Returns {1} if it existed, {1, generation} if purge.lua must remove search documents, {0} if it did not exist,
-- or {'revision', current} | {'missing'} | {'late', …}; then nothing was written. With forks under way: see with_forks.
use_journal()
use_documents()
local turns = redis.call('HGET', state, 'P')
if turns then
-- include _turns
  turns = owed.read(turns)
  local ask = undeclared_keys(owed.keys(turns))
  if ask then return ask end
end
local known, seen, reply = open_removal()
if reply then return reply end
local revision = tonumber(known[2] or 0)
if not known[1] then return unchanged(seen, false, with_forks({0}, known[7])) end
-- Without subscribers the log is removed too. If the server refuses the question, there may be subscribers.
local function listeners()
  if ARG.channel == '' then return true end
  local exact = redis.pcall('PUBSUB', 'NUMSUB', ARG.channel)
  local patterns = redis.pcall('PUBSUB', 'NUMPAT')
  return type(exact) ~= 'table' or exact.err or exact[2] ~= 0 or type(patterns) ~= 'number' or patterns ~= 0
end
local watched, known_owners = listeners(), {known[10], known[11], known[12]}
free()
if turns then owed.forget(turns) end
local last = head_of_entry(KIND.ENDED, clock())
if watched or change.audit then write_log(last, {revision + 1}) end
if watched then
  redis.call('PEXPIRE', log, ARG.log_lasts)
else
  redis.call('UNLINK', log)
end
note_recent(seen, known[14], known[15])
local pending = schedule_purge(known[5], (known[3] or 0) + (known[6] or 0), known[4])
use_replies()
forget_replies(state)
redis.call('UNLINK', messages)
if redis.call('HGET', state, '%') then redis.call('UNLINK', sub(state, 1, -2) .. 'k') end -- the ledger of usage
archive_index.forget(state)
contents.use()
contents.forget(state)
drop_copy()
local staying = {'o', last}
for _, name in ipairs({'f', 'Z', 'N'}) do -- for late copies of calls that took a lease (run.lua), and for forks (forks.lua)
  local value = redis.call('HGET', state, name)
  if value then staying[#staying + 1], staying[#staying + 2] = name, value end
end
start_over(seen, staying)
redis.call('ZREM', registry, ARG.name)
for _, list in ipairs(approvals.lists_if_open(known_owners)) do redis.call('ZREM', list, ARG.name) end
for _, list in ipairs(lists_of(known_owners)) do redis.call('ZREM', list, ARG.name) end
if ARG.publishing ~= '' then
-- include _publish
  publish(ARG.publishing, log, revision + 1)
end
return concluded(seen, false, with_forks({1, pending}, known[7]))
