-- The newest change of a conversation.
--
-- The log of a deleted conversation stays for a while. A new subscriber starts after its last entry, so that it does not
-- get the deleted changes. The head of a conversation that does not exist has the epoch '0000000000000000', and revision 0
-- if there is no log either; then its last 10 bytes are field o, if one of this id ended a short while ago, or what that will
-- be if another one begins (see begin in _life.lua): one that has expired is in the registry for a while.
local NO_EPOCH = string.rep('0', 16)

-- Returns epoch, revision and head of the newest change; field o; and the streaming replies. Sixth, maybe the reply that asks
-- for keys (see _change.lua, "Extra keys").
local function head_of(state, log)
  local head = redis.call('HMGET', state, 'e', 'r', 'x', 'o', '~')
  if head[1] then return head[1], tonumber(head[2]), head[3], head[4], head[5] end
  local last = redis.call('LINDEX', log, -1)
  if last and math.floor(string.byte(last) / 16) == 10 then
    return NO_EPOCH, cmsgpack.unpack(string.sub(last, 11))[1], string.sub(last, 1, 10)
  end
  if head[4] then return NO_EPOCH, 0, head[4] end
  local registry = string.match(state, '^.-}:') .. 'c'
  if KEYS[START.further] ~= registry and KEYS[#KEYS] ~= registry then return NO_EPOCH, 0, '', nil, nil, {'keys', registry} end
  local expired = redis.call('ZSCORE', registry, string.sub(state, #registry, -3))
  return NO_EPOCH, 0, expired and struct.pack('>i7I3', tonumber(expired), 0) or ''
end
