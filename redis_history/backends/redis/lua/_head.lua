-- The newest change of a conversation. Put before the scripts that need it.
--
-- The log of a deleted conversation outlives it for a while; its last entry is then where a new subscriber stands, so
-- that it does not take the former life for a new one. Such a head has the epoch '0000000000000000', and no conversation
-- at all has revision 0 as well.
local NO_EPOCH = string.rep('0', 16)

-- Returns epoch, revision, token of the newest change.
local function head_of(state, log)
  local head = redis.call('HMGET', state, 'e', 'r', 'x')
  if head[1] then return head[1], tonumber(head[2]), head[3] end
  local last = redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)[1]
  if last then return NO_EPOCH, tonumber(string.match(last[1], '^%d+')), last[2][2] end
  return NO_EPOCH, 0, NO_EPOCH
end
