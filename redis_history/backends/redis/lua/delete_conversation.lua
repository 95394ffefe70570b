-- Removes everything of a conversation. After _change.lua and _document.lua.
--
-- ARGV  10 milliseconds the log outlives the conversation if somebody watches
--       11 channel that those who watch listen to; '': they may do without
--
-- Returns {1} if it existed, {1, generation} if search documents are still to be removed (purge.lua), {0} if not,
-- or {'revision', current} | {'missing'} | {'late', …}; then nothing was written.
use_journal()
use_documents()
local known = redis.call('HMGET', state, 'e', 'r', 'i', 'n', 'l', 'm', 'w', 'u', 'g', 'U', 'A')
local epoch, revision = known[1], tonumber(known[2] or 0)
local seen, reply = open_change(epoch, revision, known[8], known[9])
if reply then return reply end
if not epoch then return unchanged(seen, false, {0}) end
-- With nobody listening the log goes too. If that is not allowed to be asked or cannot be known, somebody may be.
local function listeners()
  if ARGV[11] == '' then return true end
  local exact = redis.pcall('PUBSUB', 'NUMSUB', ARGV[11])
  local patterns = redis.pcall('PUBSUB', 'NUMPAT')
  return type(exact) ~= 'table' or exact.err or exact[2] ~= 0 or type(patterns) ~= 'number' or patterns ~= 0
end
local watched = listeners()
free()
if watched then
  write_log(head_of_entry(ENDED, clock()), {revision + 1})
  redis.call('PEXPIRE', log, ARGV[10])
else
  redis.call('UNLINK', log)
end
local pending = schedule_purge(known[3], (known[4] or 0) + (known[6] or 0), known[5], known[7])
use_replies()
forget_replies(state)
redis.call('UNLINK', messages)
set_aside(seen)
forget_archives(state, known[7])
redis.call('ZREM', registry, ARGV[5])
for _, list in ipairs(lists_of({known[10], known[11]})) do redis.call('ZREM', list, ARGV[5]) end
if ARGV[8] ~= '' then redis.call('PUBLISH', ARGV[8], revision + 1) end
return concluded(seen, false, {1, pending})
