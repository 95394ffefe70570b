-- Removes everything of a conversation. After _change.lua and _document.lua.
--
-- ARGV  10 milliseconds the log outlives the conversation if somebody watches
--       11 channel that those who watch listen to; '': they may do without
--
-- Returns {1} if it existed, {1, life} if search documents are still to be removed (reap.lua), {0} if not,
-- or {'revision', current} | {'missing'}; then nothing was written.
local known = redis.call('HMGET', state, 'e', 'r', 'i', 'n', 'l', 'm', 'w')
local revision = tonumber(known[2] or 0)
local refusal = refused(known[1], revision)
if refusal then return refusal end
if not known[1] then
  touch()
  return {0}
end
-- With nobody listening the log goes too. Who may not ask whether somebody listens, or cannot know, assumes so.
local function listeners()
  if ARGV[11] == '' then return true end
  local exact = redis.pcall('PUBSUB', 'NUMSUB', ARGV[11])
  local patterns = redis.pcall('PUBSUB', 'NUMPAT')
  return type(exact) ~= 'table' or exact.err or exact[2] ~= 0 or type(patterns) ~= 'number' or patterns ~= 0
end
local watched = listeners()
-- What frees comes first, so that a full server takes it.
local buried = bury(known[3], (known[4] or 0) + (known[6] or 0), known[5], known[7])
redis.call('UNLINK', state, messages)
forget_archives(state, known[7])
if watched then
  redis.call('XADD', log, 'MAXLEN', '~', ARGV[4], (revision + 1) .. '-0', 't', token, 'k', 'end', 'p', '')
  redis.call('PEXPIRE', log, ARGV[10])
else
  redis.call('UNLINK', log)
end
redis.call('ZREM', registry, ARGV[5])
ring(revision + 1)
return {1, buried}
