-- Removes all messages at once, archived ones too, however many: the state is written anew without its ids. Put after
-- _archive.lua and _change.lua.
local KEPT = {'v', 'e', 'r', 'x', 'q', 't', 'b', 'u', 'l', 'f', 'p', 'o', unpack(RECORD)}

-- `listed`: the archives. `seen`: of the journal.
local function empty(listed, seen)
  local values = redis.call('HMGET', state, unpack(KEPT))
  local hset = {'n', 0, 'c', 0, 'k', 0, 'g', seen.now}
  for i, name in ipairs(KEPT) do
    if values[i] then
      hset[#hset + 1] = name
      hset[#hset + 1] = values[i]
    end
  end
  use_replies()
  forget_replies(state)
  redis.call('UNLINK', messages)
  set_aside(seen)
  forget_archives(state, listed)
  redis.call('HSET', state, unpack(hset))
end
