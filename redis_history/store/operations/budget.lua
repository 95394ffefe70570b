-- The budget of an owner: its limits, and the reservations of the runs of this owner. What was used is elsewhere (_usage.lua), in
-- as many places as there are buckets, so the caller reads it, and this script decides whether that is still true: each end of a
-- reservation and each new limit raises the version. A run counts its usage before its reservation ends. So whoever has read
-- the usage at the present version has seen the usage of every run without a reservation.
--
-- KEYS  1 budget (hash)
-- ARGV  1 action   then its arguments:
--   set   2 token   3 the limits, a MessagePack array: tokens, billionths of the cost (each may be nil), period, tokens and
--         billionths that a run reserves; '' removes the budget
--   read
--   take  2 run id   3 milliseconds until the reservation ends by itself   4 version   5, 6 used tokens and billionths of the cost
--   end   2 run id
--
-- Returns {what, limits or '', version, number of reservations, now in milliseconds}: 'set', 'read', 'taken', 'none' (there is no
-- budget), 'stale' (read the usage again), 'exceeded', or 'ended'. A run that has a reservation already is judged again, without
-- its own; if it is exceeded, its reservation ends.
--
-- Fields: l  limits   v  version   z  the tokens and run ids that late copies may still bring   '=<run id>'  until when
local key, action, id = KEYS[1], ARGV[1], ARGV[2]
local KEPT_IDS, TOMBSTONE = 64, 120000
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local known, running, count = {}, {}, 0
local all = redis.call('HGETALL', key)
for i = 1, #all, 2 do known[all[i]] = all[i + 1] end
local version, ended = tonumber(known.v or 0), {}
for name, ends in pairs(known) do
  if string.byte(name) == 61 then -- '='
    if tonumber(ends) > now then
      running[name] = true
      count = count + 1
    else
      ended[#ended + 1] = name
    end
  end
end

local function answer(what)
  return {what, known.l or '', version, count, now}
end

-- Ends reservations, and notes that late copies of this call do nothing.
local function save(gone, noted)
  if #gone > 0 then
    redis.call('HDEL', key, unpack(gone)) -- at most 1,000
    version = version + 1
  end
  redis.call('HSET', key, 'v', version)
  if noted then redis.call('HSET', key, 'z', string.sub((known.z or '') .. noted .. ';', -KEPT_IDS * (#noted + 1))) end
end

local function is_known(id) return known.z and string.find(known.z, id, 1, true) end

while #ended > 1000 do table.remove(ended) end
if action == 'read' then
  if #ended > 0 then save(ended) end
  return answer('read')
end

if action == 'set' then
  if is_known(id) then return answer('set') end
  known.l, version = ARGV[3] ~= '' and ARGV[3] or nil, version + 1
  if known.l then
    redis.call('HSET', key, 'l', known.l)
    redis.call('PERSIST', key)
  else
    redis.call('HDEL', key, 'l')
  end
  save(ended, id)
  if not known.l then redis.call('PEXPIRE', key, TOMBSTONE) end
  return answer('set')
end

local name = '=' .. id
if action == 'end' then
  if running[name] then
    ended[#ended + 1], count = name, count - 1
  end
  if known.l and not is_known(id) then save(ended, id) end
  return answer('ended')
end

-- take
if not known.l then return answer('none') end
if is_known(id) then return answer('stale') end
if #ended > 0 then save(ended) end
if version ~= tonumber(ARGV[4]) then return answer('stale') end
local limits = cmsgpack.unpack(known.l)
local others = running[name] and count - 1 or count
local tokens, cost = ARGV[5] + others * limits[4], ARGV[6] + others * limits[5]
if limits[1] and tokens >= limits[1] or limits[2] and cost >= limits[2] then
  if running[name] then
    count = others
    save({name})
  end
  return answer('exceeded')
end
redis.call('HSET', key, name, string.format('%.0f', now + ARGV[3]))
count = others + 1
return answer('taken')
