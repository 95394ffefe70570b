-- Takes, lengthens or gives back the lease on a conversation. No change of the conversation: readers see nothing of it.
--
-- KEYS  1 state (hash)  2 lease (hash: w = '<fence>:<claim>'; gone when the lease has ended)
-- ARGV  1 '<fence>:<claim>' of the lease that is held, or the claim alone to take one   2 milliseconds, 0 to give it back
--
-- Returns, to who takes one, its fence, 0 if somebody else has it or there is no such conversation; to who has one, 1 if
-- it was still the present one, else 0. Taken again with the same claim (after a lost reply): the same fence, as before.
-- Field f of the state counts the leases.
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
