-- Removes all messages of a conversation, also archived ones. After _change.lua, _document.lua and _empty.lua.
--
-- Returns the revision (unchanged if there was nothing to remove),
-- {'pending', revision, generation} if purge.lua must remove search documents,
-- or {'revision', current} | {'missing'} | {'late', …}; then nothing was written.
use_journal()
use_documents()
local known = redis.call('HMGET', state, 'e', 'r', 'n', 'l', 'i', 'm', 'w', 'u', 'g', 'U', 'A', '~', 'B', 'q', 'p')
local epoch, revision = known[1], tonumber(known[2] or 0)
local ask = undeclared(lists_and({known[10], known[11], known[13]}, contents_in(known[7], known[12]))) or moving(known[5])
if ask then return ask end
local seen, reply = open_change(epoch, revision, known[8], known[9])
if reply then return reply end
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
