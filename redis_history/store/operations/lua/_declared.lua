-- The keys that a call must declare, and commands with many arguments. Before _archive.lua and _lists.lua.

-- The reply that asks for keys (see _change.lua, "Extra keys"); nil if all of them are declared.
local function undeclared_keys(names)
  if #names == 0 then return nil end
  local known, missing = {}, {'keys'}
  for i = 1, #KEYS do known[KEYS[i]] = true end
  for i = 1, #names do
    local name = names[i]
    if not known[name] then
      missing[#missing + 1] = name
      known[name] = true
    end
  end
  return #missing > 1 and missing or nil
end

-- Calls a command, with its key unless it is nil, and any number of further arguments: 1,000 at a time, because `unpack` takes
-- less than 8,000, and a script that fails in the middle has made half of its change. Pairs stay together.
local function in_slices(command, key, values)
  for first = 1, #values, 1000 do
    local slice = {unpack(values, first, math.min(first + 999, #values))} -- at most 1,000
    if key then redis.call(command, key, unpack(slice)) else redis.call(command, unpack(slice)) end -- at most 1,000
  end
end
