-- Removes all messages, also archived ones, at once: writes the state anew, without their ids. After _archive.lua, _life.lua and
-- _journal.lua.
local KEPT = {'v', 'e', 'r', 'x', 'q', 't', 'b', 'u', 'l', 'f', 'p', 'o', 'R', 'Q', 'W', 'Z', unpack(RECORD)}

-- `listed`: the archives. `seen`: the journal (see look).
local function empty(listed, seen)
  local values = redis.call('HMGET', state, unpack(KEPT))
  local hset = {'n', 0, 'c', 0, 'k', 0}
  for i, name in ipairs(KEPT) do
    if values[i] then
      hset[#hset + 1] = name
      hset[#hset + 1] = values[i]
    end
  end
  use_replies()
  forget_replies(state)
  redis.call('UNLINK', messages)
  forget_archives(state, listed)
  drop_copy()
  start_over(seen, hset)
end
