-- Removes all messages of a conversation, archived ones too, and keeps the conversation. After _change.lua,
-- _document.lua and _empty.lua.
--
-- Returns the revision (unchanged if there was nothing to remove),
-- {'buried', revision, life} if search documents are still to be removed (reap.lua), or {'revision', current} | {'missing'} | {'late', …}; then nothing was written.
use_journal()
use_documents()
local known = redis.call('HMGET', state, 'e', 'r', 'n', 'l', 'i', 'm', 'w', 'u', 'g')
local epoch, revision = known[1], tonumber(known[2] or 0)
local seen = look(known[8], known[9])
if seen.outcome then
  force_write()
  return seen.outcome
end
local refusal = late(seen)
if refusal then return refusal end
refusal = refused(epoch, revision)
if refusal then return unchanged(seen, epoch, refusal) end
if not epoch or tonumber(known[3]) == 0 and not known[7] then return unchanged(seen, epoch, revision) end

local now = clock()
revision = revision + 1
free()
write_log(revision, 'clear', '')
local buried = bury(known[5], known[3] + (known[6] or 0), ARGV[6] ~= '' and ARGV[6] or known[4], known[7])
empty(known[7], seen)
redis.call('HSET', state, 'r', revision, 'x', token, 'u', now, 'h', revision)
announce(revision, now)
if ARGV[6] ~= '' or known[4] then live(ARGV[6], now, known[4]) end
return concluded(seen, true, buried and {'buried', revision, buried} or revision)
