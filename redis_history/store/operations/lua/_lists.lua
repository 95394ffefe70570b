-- The lists of conversations of an owner, an agent or a forked conversation; and the keys that a call must declare. After
-- _change.lua and _declared.lua.

-- The owner, the agent and the forked conversation of the record, which have lists of conversations.
local function owners()
  return redis.call('HMGET', state, 'U', 'A', 'B')
end

-- The bucket's lists of conversations for these values.
function lists_of(owners)
  local lists = {}
  for i, kind in ipairs({'u:', 'v:', 'f:'}) do
    if owners[i] and owners[i] ~= '\192' then
      lists[#lists + 1] = string.sub(registry, 1, -2) .. kind .. redis.sha1hex(owners[i])
    end
  end
  return lists
end

-- The lists of the owner and the agent, and more keys.
local function lists_and(owners, more)
  local names = lists_of(owners)
  for _, name in ipairs(more) do names[#names + 1] = name end
  return names
end
