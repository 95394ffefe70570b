-- Takes, renews, ends, stops and reads the run of a conversation: the right of one agent to work on it. A run is no part of
-- the history: it has no revision and no entry in the change log.
--
-- KEYS  1 state (hash)   2 change log (list)
-- ARGV  1 action, then its arguments:
--   take   2 milliseconds until the run expires, unless it is renewed   3 '1' to wait in the queue, '0' not to
--          4 milliseconds for which a place in the queue is kept   then run id and agent name of each caller, oldest first
--   keep   2 fence   3 run id   4 milliseconds
--   end    2 fence   3 run id   4 status
--   stop   2 run id   3 reason
--   leave  run ids that do not wait any more
--   read
--
-- Returns {what happened, run, queue, now, run id}: 'taken', 'busy', 'kept', 'lost', 'ended', 'stopping', 'none' or 'read'.
-- `run` and `queue` are the values of the fields R and Q, or ''; all times are milliseconds of this server's clock. The run id
-- is that of a caller of `take` that had the run before, and has lost it.
--
-- Fields of the state: R  the newest run, as MessagePack {fence, run id, agent name, status, started, expires, ended, reason,
--   when the run before it started, if that was interrupted; otherwise 0}
--   Q  who waits, oldest first: {{run id, agent name, since, expires}, ...}
--   f  how many leases there were; the fence of a run or of a compressor's lease is a number of this sequence
--   Z  the ids of the last runs: a late copy of `take` must not begin a run that nobody holds
local state, log, action = KEYS[1], KEYS[2], ARGV[1]
local TOMBSTONE, KEPT_IDS, MOST = 120000, 32, 1000
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local known = redis.call('HMGET', state, 'R', 'Q', 'e', 'Z')
local run = known[1] and cmsgpack.unpack(known[1])
local queue = known[2] and cmsgpack.unpack(known[2]) or {}
local FENCE, ID, AGENT, STATUS, STARTED, EXPIRES, ENDED, REASON = 1, 2, 3, 4, 5, 6, 7, 8

local active = run and (run[STATUS] == 'active' or run[STATUS] == 'stopping')
if active and run[EXPIRES] <= now then -- its holder died or hangs
  run[STATUS], run[ENDED], active = 'interrupted', run[EXPIRES], false
end

local present = {}
for _, place in ipairs(queue) do
  if place[4] > now then present[#present + 1] = place end
end
local left = #queue ~= #present
queue = present

local function answer(what, id)
  return {what, run and cmsgpack.pack(run) or '', #queue > 0 and cmsgpack.pack(queue) or '', now, id or ''}
end

-- Stores run and queue. A conversation that does not exist keeps them for a while only.
local function store()
  if run then redis.call('HSET', state, 'R', cmsgpack.pack(run)) end
  if #queue > 0 then redis.call('HSET', state, 'Q', cmsgpack.pack(queue)) else redis.call('HDEL', state, 'Q') end
  if not known[3] and redis.call('PTTL', state) < TOMBSTONE then redis.call('PEXPIRE', state, TOMBSTONE) end
end

-- Wakes the subscribers of the conversation, who read the state of the run.
local function announce()
  redis.call('LTRIM', log, 0, -1) -- changes nothing, but causes a notification if there is a log
  redis.call('PUBLISH', log, 0)
end

-- Wakes one holder or one waiter: each listens to a channel of its own, so that a thousand waiters cost no more than one.
local function ring(id) redis.call('PUBLISH', string.sub(state, 1, -2) .. 'r:' .. id, 0) end

local function take(id, agent)
  local fence = redis.call('HINCRBY', state, 'f', 1)
  run = {fence, id, agent, 'active', now, now + ARGV[2], 0, '', run and run[STATUS] == 'interrupted' and run[STARTED] or 0}
  active = true
  redis.call('HSET', state, 'Z', string.sub((known[4] or '') .. id .. ';', -KEPT_IDS * (#id + 1)))
  store()
  announce()
  return answer('taken')
end

if action == 'take' then
  local at, waits, changed = {}, ARGV[3] == '1', left
  for i, place in ipairs(queue) do at[place[1]] = i end
  for i = 5, #ARGV, 2 do
    local id = ARGV[i]
    if run and run[ID] == id then return answer(active and 'taken' or 'lost', id) end
    if known[4] and string.find(known[4], id, 1, true) then return answer('lost', id) end
    if at[id] then
      queue[at[id]][4] = now + ARGV[4]
    elseif waits or not active and #queue == 0 then
      if #queue >= MOST then break end
      queue[#queue + 1] = {id, ARGV[i + 1], now, now + ARGV[4]}
      at[id], changed = #queue, true
    end
  end
  local first = queue[1]
  if not active and first then
    for i = 5, #ARGV, 2 do
      if ARGV[i] == first[1] then
        table.remove(queue, 1)
        return take(first[1], first[2])
      end
    end
    ring(first[1]) -- it may have missed the end of the last run
  end
  if not waits then
    local rest = {}
    for _, place in ipairs(queue) do
      local own = false
      for i = 5, #ARGV, 2 do own = own or ARGV[i] == place[1] end
      if own then changed = true else rest[#rest + 1] = place end
    end
    queue = rest
  end
  if run or #queue > 0 or known[2] then store() end
  if changed then announce() end
  return answer('busy')
end

if action == 'keep' or action == 'end' then
  if not run or run[FENCE] ~= tonumber(ARGV[2]) or run[ID] ~= ARGV[3] then return answer('lost') end
  if action == 'keep' then
    if not active then return answer('lost') end
    run[EXPIRES] = math.max(run[EXPIRES], now + ARGV[4])
    store()
    return answer('kept')
  end
  if not active then return answer(run[STATUS] == ARGV[4] and 'ended' or 'lost') end
  run[STATUS], run[ENDED], active = ARGV[4], now, false
  store()
  announce()
  if queue[1] then ring(queue[1][1]) end
  return answer('ended')
end

if action == 'stop' then
  if not active or run[ID] ~= ARGV[2] then return answer('none') end
  if run[STATUS] == 'active' then
    run[STATUS], run[REASON] = 'stopping', ARGV[3]
    store()
    announce()
  end
  ring(run[ID])
  return answer('stopping')
end

if action == 'leave' then
  local gone, rest = {}, {}
  for i = 2, #ARGV do gone[ARGV[i]] = true end
  for _, place in ipairs(queue) do
    if not gone[place[1]] then rest[#rest + 1] = place end
  end
  if #rest ~= #queue or left then
    queue = rest
    store()
    announce()
  end
  if not active and queue[1] then ring(queue[1][1]) end
  return answer('none')
end

return answer('read')
