-- Removes all messages, also archived ones, at once: writes a new state without their ids. After _archive.lua and
-- _change.lua.
local KEPT = {'v', 'e', 'r', 'x', 'q', 't', 'b', 'u', 'l', 'f', 'p', 'o', 'R', 'Q', 'W', 'Z', unpack(RECORD)}

-- `listed`: the archives. `seen`: the journal (see look).
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
