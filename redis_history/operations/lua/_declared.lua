-- The keys that a call must declare. Before _archive.lua and _lists.lua.

-- The reply that asks for keys (see _change.lua, "Extra keys"); nil if all of them are declared, or `cluster` is not 'c'.
local function undeclared_keys(names, cluster)
  if cluster ~= 'c' then return nil end
  local known, missing = {}, {'keys'}
  for _, key in ipairs(KEYS) do known[key] = true end
  for _, name in ipairs(names) do
    if not known[name] then missing[#missing + 1] = name end
  end
  return #missing > 1 and missing or nil
end
