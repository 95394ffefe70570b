-- Removes some of the oldest messages of a conversation that has many more than a cap allows, as one change. An append that
-- removed all of them would hold up the server. After _change.lua, _documents.lua, _locate.lua and _trim.lua.
--
-- ARGV  most_messages: that the cap allows
--
-- Returns {revision, how many were removed}: 0 if there are few enough, or if the oldest messages wait for results of tool
-- calls further on than this script reads; or {'revision', current} | {'missing'} | {'late', …}; then nothing was written.
use_journal()
use_documents()
use_places()
local known = redis.call('HMGET', state, 'e', 'r', 'n', 'l', 'i', 'a', 'u', 'g', 'p', 'q', '~')
local revision = tonumber(known[2] or 0)
local ask = undeclared_keys(lists_and(owners(), contents_in(archives_due(known[4], known[6]), known[11], true))) or known[5] and moving(known[5])
if ask then return ask end
local seen, reply = open_change(known[1], revision, known[7], known[8])
if reply then return reply end
local excess = math.min((known[3] or 0) - ARG.most_messages, TRIMMED_AT_ONCE)
if excess <= 0 then return unchanged(seen, known[1], {revision, 0}) end

local now = clock()
free()
local ids, sequences, places = trim(excess, known[5], 2 * TRIMMED_AT_ONCE)
if #ids == 0 then return unchanged(seen, true, {revision, 0}) end
revision = revision + 1
local newest = head_of_entry(KIND.DELETED, now)
redis.call('HSET', state, 'r', revision, 'x', newest, 'u', now, 'h', revision)
write_log(newest, {ids, sequences})
local period, since = math.floor(now / LIFETIME), tonumber(known[10])
local begun, at_its_start, at_start_before = struct.unpack('>I4I6I6', known[9])
if begun >= period then since = at_start_before elseif begun == period - 1 then since = at_its_start end
note_places(seen, recent_places(places, since))
return close_change(seen, {revision, #ids}, revision, now, known[4], known[5], known[6])
