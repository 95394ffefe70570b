-- Removes everything of a conversation.
--
-- KEYS  1 state (hash)  2 messages (sorted set)  3 change log (stream)  4 registry (sorted set)
-- ARGV  1 token of this change   2 expected revision or ''   3 'exists' or ''
--       4 length of the change log   5 name in the registry
--       6 milliseconds the log outlives the conversation if somebody watches   7 channel of the doorbell
--
-- Returns {1} if it existed, {0} if not, or {'revision', current} | {'missing'}; then nothing was written.
local state, messages, log, registry = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local known = redis.call('HMGET', state, 'e', 'r')
local revision = tonumber(known[2] or 0)
if ARGV[2] ~= '' and tonumber(ARGV[2]) ~= revision then return {'revision', revision} end
if not known[1] then
  if ARGV[3] == 'exists' then return {'missing'} end
  return {0}
end
-- With nobody listening the log goes too. Who may not ask whether somebody listens assumes so.
local function listeners()
  local exact = redis.pcall('PUBSUB', 'NUMSUB', ARGV[7])
  local patterns = redis.pcall('PUBSUB', 'NUMPAT')
  return type(exact) ~= 'table' or exact.err or exact[2] ~= 0 or type(patterns) ~= 'number' or patterns ~= 0
end
if listeners() then
  redis.call('XADD', log, 'MAXLEN', '~', ARGV[4], (revision + 1) .. '-0', 't', ARGV[1], 'k', 'end', 'p', '')
  redis.call('PEXPIRE', log, ARGV[6])
else
  redis.call('UNLINK', log)
end
redis.call('UNLINK', state, messages)
redis.call('ZREM', registry, ARGV[5])
return {1}
