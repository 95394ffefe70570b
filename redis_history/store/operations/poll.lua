-- Compares conversations with what a subscriber knows of them, so that a poll that finds nothing is one small read.
--
-- KEYS  registries (sorted sets), then states (hashes)
-- ARGV  registries: how many
--       known: for each key what is known: of a registry its mark, of a state its epoch, a colon, its revision, a colon, and the
--         head of its newest log entry
--
-- Returns what differs, in turn the number of the key and its present value. The mark of a registry is the number of its members,
-- a colon, and if there are any the score and the name of the newest, with a blank between. A state with an active run
-- always differs: a run is not a change, but the subscriber may have missed its end.
local registries, found = tonumber(ARG.registries), {}

local function mark_of(registry)
  local newest = redis.call('ZREVRANGE', registry, 0, 0, 'WITHSCORES')
  return redis.call('ZCARD', registry) .. ':' .. (newest[1] and newest[2] .. ' ' .. newest[1] or '')
end

local function head_of(state)
  local epoch, revision, head, run = unpack(redis.call('HMGET', state, 'e', 'r', 'x', 'R')) -- at most 4
  local readable, lease = pcall(cmsgpack.unpack, run or '\192') -- nil
  local status = readable and type(lease) == 'table' and lease[4]
  if not readable or status == 'active' or status == 'stopping' then return '' end
  return (epoch or '') .. ':' .. (revision or '') .. ':' .. (head or '')
end

for i, key in ipairs(KEYS) do
  local value = i <= registries and mark_of(key) or i > registries and head_of(key)
  if value ~= ARGV[i + 1] then
    found[#found + 1] = i
    found[#found + 1] = value
  end
end
return found
