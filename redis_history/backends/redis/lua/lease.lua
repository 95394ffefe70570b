-- Takes, extends or releases the lease on a conversation. Does not change the conversation.
--
-- KEYS  1 state (hash)  2 lease (hash: w = '<fence>:<claim>'; missing when the lease has ended)
-- ARGV  1 '<fence>:<claim>' of the present lease, or only the claim to take one   2 milliseconds, 0 to release it
--
-- Taking returns the fence; 0 if another worker has the lease, or the conversation does not exist. Taking it again with the
-- same claim (after a lost reply) returns the same fence. Extending and releasing return 1 if the lease was still valid, else
-- 0. Field f of the state counts the leases.
local state, lease = KEYS[1], KEYS[2]
local held = redis.call('HGET', lease, 'w')
if string.find(ARGV[1], ':', 1, true) then
  if held ~= ARGV[1] then return 0 end
  if ARGV[2] == '0' then redis.call('UNLINK', lease) else redis.call('PEXPIRE', lease, ARGV[2]) end
  return 1
end
if held then
  local fence, claim = string.match(held, '^(%d+):(.*)$')
  return claim == ARGV[1] and tonumber(fence) or 0
end
if redis.call('EXISTS', state) == 0 then return 0 end
local fence = (redis.call('HGET', state, 'f') or 0) + 1
redis.call('HSET', state, 'f', fence)
redis.call('HSET', lease, 'w', fence .. ':' .. ARGV[1])
redis.call('PEXPIRE', lease, ARGV[2])
return fence
