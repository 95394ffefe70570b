-- Before every script: what differs between Lua 5.1 (Redis, Valkey, KeyDB, Kvrocks) and Lua 5.4 (Dragonfly, Garnet).
local unpack = table.unpack or unpack
local struct, cmsgpack = struct, cmsgpack
if math.type then -- Lua 5.4 writes 5.0 for a whole number that is a float, and there these libraries return floats
  local read, decode = struct.unpack, cmsgpack.unpack

  local function whole(value)
    if type(value) == 'table' then
      for key, one in pairs(value) do value[key] = whole(one) end
    end
    return type(value) == 'number' and math.tointeger(value) or value
  end

  local function all_whole(...)
    return unpack(whole({...})) -- at most 64
  end

  struct = {pack = struct.pack, unpack = function(...) return all_whole(read(...)) end}
  cmsgpack = {pack = cmsgpack.pack, unpack = function(...) return all_whole(decode(...)) end}
end
