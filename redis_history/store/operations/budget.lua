-- The budget of an owner: its limits, and the reservations of the runs of this owner. What was used is elsewhere (_usage.lua), in
-- as many places as there are buckets, so the caller reads it, and this script decides whether that is still true: each end of a
-- reservation and each new limit raises the version. A run counts its usage before its reservation ends. So whoever has read
-- the usage at the present version has seen the usage of every run without a reservation.
--
-- KEYS  budget: hash
-- ARGV  action: 'set', 'read', 'take', 'keep' or 'end'
--   set    id: a token
--          limits: a MessagePack array: tokens, billionths of the cost (each may be nil), period, tokens and billionths that a run
--            reserves; '' removes the budget
--   take   id: of the run
--          lasts: milliseconds until the reservation ends by itself
--          version: at which the usage was read
--          tokens, cost: used tokens and billionths of the cost
--   keep   id: of the run
--          lasts: milliseconds until the reservation ends by itself
--   end    id: of the run
--
-- Returns {what, limits or '', version, number of reservations, now in milliseconds}: 'set', 'read', 'taken', 'none' (there is no
-- budget), 'stale' (read the usage again), 'exceeded', 'kept', or 'ended'. A run that has a reservation already is judged again, without
-- its own; if it is exceeded, its reservation ends.
--
-- Fields: l  limits   v  version   R  the reservations, a MessagePack array of {run id, until when}   z  the tokens and run ids
--   that late copies may still bring
local key, action, id = KEY.budget, ARG.action, ARG.id
local KEPT_IDS, TOMBSTONE = 64, 120000
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local known = redis.call('HMGET', key, 'l', 'v', 'R', 'z')
local limits, version, seen = known[1], tonumber(known[2] or 0), known[4]
local others, own, ended = {}, nil, false -- the reservations of other runs; that of this one; whether some have ended
for _, one in ipairs(known[3] and cmsgpack.unpack(known[3]) or {}) do
  if one[2] <= now then ended = true elseif one[1] == id then own = one else others[#others + 1] = one end
end

local function answer(what)
  return {what, limits or '', version, #others + (own and 1 or 0), now}
end

-- Stores the version and the reservations. `noted`: late copies of this call do nothing.
local function save(noted)
  if own then others[#others + 1] = own end
  own = nil
  redis.call('HSET', key, 'v', version, 'R', cmsgpack.pack(others))
  if noted then redis.call('HSET', key, 'z', string.sub((seen or '') .. noted .. ';', -KEPT_IDS * (#noted + 1))) end
end

local function is_known(id) return seen and string.find(seen, id, 1, true) end

if ended then version = version + 1 end
if action == 'read' then
  if ended then save() end
  return answer('read')
end

if action == 'set' then
  if is_known(id) then return answer('set') end
  limits, version = ARG.limits ~= '' and ARG.limits or nil, version + 1
  if limits then
    redis.call('HSET', key, 'l', limits)
    redis.call('PERSIST', key)
  else
    redis.call('HDEL', key, 'l')
  end
  save(id)
  if not limits then redis.call('PEXPIRE', key, TOMBSTONE) end
  return answer('set')
end

if action == 'keep' then -- a reservation that has ended stays so
  if own then own[2] = now + ARG.lasts end
  if own or ended then save() end
  return answer('kept')
end

if action == 'end' then
  if own then own, version = nil, version + 1 end
  if limits and not is_known(id) then save(id) end
  return answer('ended')
end

-- take
if not limits then return answer('none') end
if is_known(id) then return answer('stale') end
if ended then save() end
if version ~= tonumber(ARG.version) then return answer('stale') end
local limit = cmsgpack.unpack(limits)
local tokens, cost = ARG.tokens + #others * limit[4], ARG.cost + #others * limit[5]
if limit[1] and tokens >= limit[1] or limit[2] and cost >= limit[2] then
  if own then
    own, version = nil, version + 1
    save()
  end
  return answer('exceeded')
end
own = {id, now + ARG.lasts}
save()
return answer('taken')
