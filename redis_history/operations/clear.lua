-- Removes all messages of a conversation, also archived ones. After _change.lua, _documents.lua and _empty.lua.
--
-- Returns the revision (unchanged if there was nothing to remove),
-- {'pending', revision, generation} if purge.lua must remove search documents,
-- or {'revision', current} | {'missing'} | {'late', …}; then nothing was written.
use_journal()
use_documents()
local known, seen, reply = open_removal()
if reply then return reply end
local epoch, revision = known[1], tonumber(known[2] or 0)
if not epoch or tonumber(known[3]) == 0 and not known[7] then return unchanged(seen, epoch, revision) end

local now = clock()
revision = revision + 1
free()
local newest = head_of_entry(CLEARED, now)
write_log(newest, '')
note_recent(seen, known[14], known[15], known[7])
local pending = schedule_purge(known[5], known[3] + (known[6] or 0), ARGV[6] ~= '' and ARGV[6] or known[4], known[7])
empty(known[7], seen)
redis.call('HSET', state, 'r', revision, 'x', newest, 'u', now, 'h', revision)
return close_change(seen, pending and {'pending', revision, pending} or revision, revision, now, known[4])
