-- Removes all messages of a conversation, also archived ones. After _change.lua, _documents.lua and _empty.lua.
--
-- Returns the revision (unchanged if there was nothing to remove),
-- {'pending', revision, generation} if purge.lua must remove search documents,
-- or {'revision', current} | {'missing'} | {'late', …}; then nothing was written. With forks under way: see with_forks.
use_journal()
use_documents()
local known, seen, reply = open_removal()
if reply then return reply end
local epoch, revision = known[1], tonumber(known[2] or 0)
if not epoch or tonumber(known[3]) == 0 and #archive_index.blocks(state) == 0 then return unchanged(seen, epoch, with_forks(revision, known[7])) end

local now = clock()
revision = revision + 1
free()
local newest = head_of_entry(KIND.CLEARED, now)
write_log(newest, '')
note_recent(seen, known[14], known[15])
local pending = schedule_purge(known[5], known[3] + (known[6] or 0), ARG.ttl ~= '' and ARG.ttl or known[4])
empty(seen)
redis.call('HSET', state, 'r', revision, 'x', newest, 'u', now, 'h', revision)
local outcome = pending and {'pending', revision, pending} or revision
return close_change(seen, with_forks(outcome, known[7]), revision, now, known[4])
