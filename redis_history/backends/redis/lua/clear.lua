-- Removes all messages of a conversation, and keeps the conversation. After _change.lua,
-- _document.lua and _empty.lua.
--
-- Returns the revision (as before, if there was nothing to remove),
-- {'buried', revision, life} if search documents are still to be removed (reap.lua), or {'revision', current} | {'missing'}.
local before = told()
if before then
  touch()
  return before
end
local known = redis.call('HMGET', state, 'e', 'r', 'n', 'l', 'i')
local revision = tonumber(known[2] or 0)
local refusal = refused(known[1], revision)
if refusal then return refusal end
if not known[1] or tonumber(known[3]) == 0 then
  touch()
  return revision
end

local now = clock()
revision = revision + 1
local buried = bury(known[5], tonumber(known[3]), ARGV[6] ~= '' and ARGV[6] or known[4])
empty()
redis.call('HSET', state, 'r', revision, 'x', token, 'u', format('%.0f', now))
announce(revision, now, 'clear', '')
if ARGV[6] ~= '' or known[4] then live(ARGV[6], now, known[4]) end
if buried then return {'buried', revision, buried} end
return revision
