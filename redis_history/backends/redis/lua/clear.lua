-- Removes all messages of a conversation, archived ones too, and keeps the conversation. After _change.lua,
-- _document.lua and _empty.lua.
--
-- Returns the revision (as before, if there was nothing to remove),
-- {'buried', revision, life} if search documents are still to be removed (reap.lua), or {'revision', current} | {'missing'}.
local before = told()
if before then
  touch()
  return before
end
local known = redis.call('HMGET', state, 'e', 'r', 'n', 'l', 'i', 'm', 'w')
local revision = tonumber(known[2] or 0)
local refusal = refused(known[1], revision)
if refusal then return refusal end
if not known[1] or tonumber(known[3]) == 0 and not known[7] then
  touch()
  return revision
end

local now = clock()
revision = revision + 1
local buried = bury(known[5], known[3] + (known[6] or 0), ARGV[6] ~= '' and ARGV[6] or known[4], known[7])
empty(known[7])
redis.call('HSET', state, 'r', revision, 'x', token, 'u', format('%.0f', now), 'h', revision)
announce(revision, now, 'clear', '')
if ARGV[6] ~= '' or known[4] then live(ARGV[6], now, known[4]) end
if buried then return {'buried', revision, buried} end
return revision
