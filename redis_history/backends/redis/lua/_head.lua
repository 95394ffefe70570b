-- The newest change of a conversation. Put before the scripts that need it.
--
-- The log of a deleted conversation outlives it for a while; its last entry is then where a new subscriber stands, so
-- that it does not take the former life for a new one. Such a head has the epoch '0000000000000000', and no conversation
-- at all has revision 0 as well.
local NO_EPOCH = string.rep('0', 16)

-- Returns epoch, revision, and the head of the newest entry, of the newest change; and whether the log of a former life was
-- there when this one began, and the replies that are being written.
local function head_of(state, log)
  local head = redis.call('HMGET', state, 'e', 'r', 'x', 'o', '~')
  if head[1] then return head[1], tonumber(head[2]), head[3], head[4], head[5] end
  local last = redis.call('LINDEX', log, -1)
  if last and math.floor(string.byte(last) / 16) == 10 then
    return NO_EPOCH, cmsgpack.unpack(string.sub(last, 11))[1], string.sub(last, 1, 10)
  end
  return NO_EPOCH, 0, ''
end
