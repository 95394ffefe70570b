-- Notes in a conversation that a fork of it begins or has ended, before the fork reads anything, so a removal knows all
-- drafts that may have a copy of its messages. This does not change the conversation.
--
-- KEYS  state: hash
-- ARGV  begins: '1' if the fork begins, '0' if it has ended
--       id: of the new conversation
--       token: of the draft
--       lasts: milliseconds after which a fork counts as dead, and its draft has expired
--
-- Field N of the state has, as MessagePack, {id, token, time in milliseconds} of each. Returns 1, or 0 for a missing
-- conversation.
local state, begins, id, token, lasts = KEY.state, ARG.begins == '1', ARG.id, ARG.token, tonumber(ARG.lasts)
local known, time = redis.call('HMGET', state, 'e', 'N'), redis.call('TIME')
if begins and not known[1] then return 0 end
local now, kept = time[1] * 1000 + math.floor(time[2] / 1000), {}
for _, fork in ipairs(known[2] and cmsgpack.unpack(known[2]) or {}) do
  if fork[2] ~= token and fork[3] > now - lasts then kept[#kept + 1] = fork end
end
if begins then kept[#kept + 1] = {id, token, now} end
if #kept > 0 then
  redis.call('HSET', state, 'N', cmsgpack.pack(kept))
elseif known[2] then
  redis.call('HDEL', state, 'N')
end
return known[1] and 1 or 0
