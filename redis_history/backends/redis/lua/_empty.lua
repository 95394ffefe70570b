-- Takes all messages away at once, archived ones too, however many: the state is written anew without its ids. Put after
-- _archive.lua and _change.lua.
local KEPT = {'v', 'e', 'r', 'x', 'q', 't', 'b', 'u', 'l', unpack(RECORD)}

-- `listed`: the archives.
local function empty(listed)
  local values = redis.call('HMGET', state, unpack(KEPT))
  local hset = {'n', 0, 'c', 0, 'k', 0}
  for i, name in ipairs(KEPT) do
    if values[i] then
      hset[#hset + 1] = name
      hset[#hset + 1] = values[i]
    end
  end
  redis.call('UNLINK', messages, state)
  forget_archives(state, listed)
  redis.call('HSET', state, unpack(hset))
end
