-- Takes, renews, ends, stops and reads a lease on a conversation: its run, which is the right of one agent to work on it, or
-- that of a compressor. A lease is not part of the history: it creates neither a revision nor an entry in the change
-- log. After _publish.lua and _declared.lua.
--
-- KEYS  state: hash; log: the change log, a list, unless for `keep` and `read`
-- ARGV  action: 'take', 'keep', 'end', 'stop', 'bury', 'leave' or 'read'
--       lease: 'R' the run, 'W' the lease of a compressor, then the command that publishes (_publish.lua)
--   take   lasts: milliseconds until the lease expires, unless it is renewed
--          how: '1' to wait in the queue, '0' not to; of a worker that takes a turn, MessagePack: agent name, failures until the
--            turn is parked, first and longest pause, and the owner's queue in which the worker found the turn, or ''
--          place_lasts: milliseconds for which a place in the queue is kept
--          patience: milliseconds after which a waiter that has not answered is passed over
--          dead: the fence of an expired lease whose holder is dead, or '0'
--          callers: run id and agent name of each, oldest first
--   keep   fence, run_id: of the lease
--          in_time: '1' to renew an expired lease, too
--          renewed_for: milliseconds
--   end    fence, run_id: of the lease
--          status: with which it ends
--          rest: milliseconds until another compressor may take it
--          turn: what becomes of the turn that the run answers, see owed.settle in _turns.lua; may be left out
--          revision: the newest that a write of the run got
--          taken: the ids of the messages that it has taken up
--   stop   stopped: the run id
--          reason: or ''
--          expired_too: '1' to stop an expired lease, too
--   bury   fence: of an expired lease whose holder is dead: the lease ends as 'interrupted'
--   leave  leaving: run ids that do not wait any more, or were cancelled before they knew that they have the lease: then it ends
--
-- Returns {what happened, lease, queue, now, run id}: 'taken', 'busy', 'expired', 'kept', 'lost', 'ended', 'stopping', 'none' or
-- 'read'; for a worker, 'no turn' if there is none to take, and with 'taken' also the turn. Or {'keys', ...}: see _change.lua.
-- `lease` and `queue` are the values of the fields, or ''; all times are milliseconds of this server's clock. The run id
-- is that of a caller of `take` that had the lease before, and has lost it, or that has left.
--
-- An expired lease stays that of its holder until it is taken or buried: the server may have been away, so that nobody could
-- renew it. The callers judge that, see leases.py. Its holder cannot write before it has renewed it.
--
-- Fields of the state: R  the newest run, as MessagePack {fence, run id, agent name, status, started, expires, ended, reason,
--   the first sequence that its messages may have, that of the first of the interrupted runs right before it, or 0, the same of
--   the last runs that ended shortly before, the newest first, because a subscriber may have missed their ends, and
--   since when the next run can begin, or 0}
--   Q  the waiters, oldest first: {{run id, agent name, since, expires}, ...}
--   W  the newest lease of a compressor, like R, but without a queue
--   f  the number of leases so far, which gives each lease its fence
--   Z  the ids of the last leases and of those that left: a delayed retry of `take` must not begin a lease without a
--   holder
local state, log, action, lease, publishing = KEY.state, KEY.log, ARG.action, string.sub(ARG.lease, 1, 1), string.sub(ARG.lease, 2)
local TOMBSTONE, KEPT_IDS, MOST, KEPT_RUNS, KEPT_FOR, WOKEN = 120000, 64, 1000, 16, 60000, 4
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local known = redis.call('HMGET', state, lease, 'Q', 'e', 'Z', 'f', 'q', 'P')
local run = known[1] and cmsgpack.unpack(known[1])
local waiting = lease == 'R' and known[2]
local queue = waiting and cmsgpack.unpack(waiting) or {}
local FENCE, ID, AGENT, STATUS, STARTED, EXPIRES, ENDED, REASON, FIRST, SINCE, FORMER, FREED = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12

local active = run and (run[STATUS] == 'active' or run[STATUS] == 'stopping')
local expired = active and run[EXPIRES] <= now
local claim = action == 'take' and #ARG.how > 1 and cmsgpack.unpack(ARG.how) or nil
local turns, TURN -- those that the end of a run, or a worker, may change; and the places of their fields
if lease == 'R' and (known[7] or claim) and action ~= 'keep' and action ~= 'read' and action ~= 'stop' then
-- include _turns
  turns, TURN = owed.read(known[7]), owed.TURN
  local names = owed.keys(turns)
  if claim then
    names[#names + 1] = owed.index(claim[1])
    if claim[5] ~= '' then names[#names + 1] = owed.index(claim[1]) .. ':' .. claim[5] end
  end
  local ask = undeclared_keys(names)
  if ask then return ask end
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

-- The reply to a caller of `take` whose run is the newest.
local function answer_to_holder()
  local reply = answer(active and 'taken' or 'lost', run[ID])
  for _, turn in ipairs(active and turns or {}) do
    if turn[TURN.status] == 'running' and turn[TURN.fence] == run[FENCE] then reply[6] = cmsgpack.pack(turn) end
  end
  return reply
end

-- Stores lease and queue. A conversation that does not exist keeps them for a while only. The first write takes no memory, so
-- that a full server accepts the others: a run that has begun can be renewed, stopped and ended.
local function store()
  redis.call('HDEL', state, 'z')
  if run then redis.call('HSET', state, lease, cmsgpack.pack(run)) end
  if #queue > 0 then
    redis.call('HSET', state, 'Q', cmsgpack.pack(queue))
  elseif waiting then
    redis.call('HDEL', state, 'Q')
  end
  if not known[3] and redis.call('PTTL', state) < TOMBSTONE then redis.call('PEXPIRE', state, TOMBSTONE) end
end

-- Wakes the subscribers of the conversation, which then read the state of its run. The registry stays as it is: a run
-- is not a change, so it must not move the conversation in lists.
local function announce()
  if lease ~= 'R' then return end
  redis.call('LTRIM', log, 0, -1) -- changes nothing, but causes a notification if there is a log
  publish(publishing, log, 0)
end

-- Wakes one holder or one waiter. Each listens to its own channel, so that a thousand waiters cost no more than one.
local function ring(id) publish(publishing, string.sub(state, 1, -2) .. 'r:' .. id, 0) end

-- Wakes the first waiters, not the first alone, which may be dead.
local function ring_first()
  for i = 1, math.min(WOKEN, #queue) do ring(queue[i][1]) end
end

local function is_known(id) return known[4] and string.find(known[4], id, 1, true) end

local function with_id(id) return string.sub((known[4] or '') .. id .. ';', -KEPT_IDS * (#id + 1)) end

-- The holder has ended the lease, or is dead: the next one may take it from now on. `how`: what becomes of the turn that it
-- answers, `ids`: the messages that it has taken up. The first write takes no memory, see `store`.
local function free(status, ended, how, ids)
  run[STATUS], run[ENDED], run[FREED], active, expired = status, ended, now, false, false
  if turns then
    redis.call('HDEL', state, 'z')
    owed.settle(turns, run[FENCE], how or 'back', ids or {}, now)
  end
end

-- The turn that this worker may take now. What workers see of another one is corrected. A full server refuses to begin, because
-- the answer could not be stored: its turn would be parked.
local function turn_to_take()
  local agent, pruned = claim[1], owed.prune(turns, true)
  local turn = owed.find(turns, agent)
  if turn and turn[TURN.status] == 'running' and not (active and turn[TURN.fence] == run[FENCE]) then
    owed.fail(turn, 'WorkerDied', now) -- a failover has lost the end of its run
    pruned = true
  end
  local is_owed = turn and turn[TURN.status] == 'owed'
  if is_owed and turn[TURN.due] <= now then
    if pruned then owed.save(turns) end
    return turn
  end
  if turn and turn[TURN.status] == 'running' then
    redis.call('ZADD', owed.index(agent), run[EXPIRES], 'r' .. owed.name)
    return expired and turn or nil
  end
  owed.dequeue(agent, '', 0)
  if claim[5] ~= '' then owed.dequeue(agent, claim[5], 0) end
  if is_owed then owed.enqueue(turn) end
  if pruned or not known[7] then owed.save(turns) end
end

local function begin(id, agent, milliseconds, turn)
  local fence, since, former = (known[5] or 0) + 1, 0, {}
  -- A run that was interrupted may not have settled the calls of the one before.
  if run and run[STATUS] == 'interrupted' then since = (run[SINCE] or 0) > 0 and run[SINCE] or run[FIRST] end
  for _, one in ipairs(run and lease == 'R' and {run, unpack(run[FORMER] or {})} or {}) do -- at most 64
    if #former < KEPT_RUNS and one[ENDED] > now - KEPT_FOR then former[#former + 1] = {unpack(one, 1, SINCE)} end -- at most 10
  end
  run = {fence, id, agent, 'active', now, now + milliseconds, 0, '', (known[6] or 0) + 1, since, former, 0}
  active = true
  redis.call('HSET', state, 'f', fence, 'Z', with_id(id))
  store()
  if turn then
    owed.begin(turn, fence, id, run[FIRST], run[EXPIRES], {claim[2], claim[3], claim[4]}, now)
    owed.save(turns)
  end
  announce()
  return answer_to_holder()
end

if action == 'take' then
  local milliseconds, waits, place_lasts, patience, dead = tonumber(ARG.lasts), ARG.how == '1', ARG.place_lasts, tonumber(ARG.patience), ARG.dead
  local CALLERS, LATE, BUSY = START.callers, 250, 1000
  if lease == 'W' and not (known[3] and (active or not run or run[EXPIRES] <= now)) then return answer('busy') end
  if active and lease == 'R' then run[EXPIRES] = math.min(run[EXPIRES], now + milliseconds) end -- if the clock was set back
  if expired and run[FENCE] == tonumber(dead) then
    free('interrupted', run[EXPIRES], 'WorkerDied')
    ring_first()
  end
  local taking = claim and turn_to_take()
  if claim and not taking then
    if run or #queue > 0 or waiting then store() end
    if run and run[ID] == ARGV[CALLERS] then return answer_to_holder() end
    return answer('no turn')
  end

  -- The place of the waiter whose turn it is. A silent one may be dead, and is passed over; it keeps its place until that
  -- expires. Waiters that the server woke when the lease became free must have answered since; the others have missed a
  -- heartbeat, which they send a little more often than that.
  local freed = run and run[FREED] or 0
  local function turn()
    if now - freed < patience then return queue[1] and 1 end
    for i, place in ipairs(queue) do
      local spoke = place[4] - place_lasts
      if i <= WOKEN and spoke > freed or i > WOKEN and now - spoke < patience + LATE then return i end
    end
  end

  local at, changed = {}, left
  for i, place in ipairs(queue) do at[place[1]] = i end
  for i = CALLERS, #ARGV, 2 do
    local id = ARGV[i]
    if run and run[ID] == id then return answer_to_holder() end
    if is_known(id) then return answer('lost', id) end
    if at[id] then
      queue[at[id]][4] = now + place_lasts
    elseif waits or not active and not turn() then
      if #queue >= MOST then break end
      queue[#queue + 1] = {id, ARGV[i + 1], now, now + place_lasts}
      at[id], changed = #queue, true
    end
  end
  local nth = not active and turn()
  if nth then
    local first = queue[nth]
    for i = CALLERS, #ARGV, 2 do
      if ARGV[i] == first[1] then
        table.remove(queue, nth)
        return begin(first[1], first[2], milliseconds, taking)
      end
    end
    ring(first[1]) -- it may have missed the end of the last run
  end
  if not waits then
    local rest = {}
    for _, place in ipairs(queue) do
      local own = false
      for i = CALLERS, #ARGV, 2 do own = own or ARGV[i] == place[1] end
      if own then changed = true else rest[#rest + 1] = place end
    end
    queue = rest
  end
  if run or #queue > 0 or waiting then store() end
  if changed then announce() end
  -- Workers leave the turn alone until the run has ended, or may have expired.
  if taking then owed.watch(taking, active and not expired and run[EXPIRES] or now + BUSY, 0) end
  return answer(expired and 'expired' or 'busy')
end

if action == 'keep' or action == 'end' then
  local fence, id = tonumber(ARG.fence), ARG.run_id
  if not run or run[FENCE] ~= fence or run[ID] ~= id then return answer('lost') end
  if action == 'keep' then
    local in_time, milliseconds = ARG.in_time == '1', ARG.renewed_for
    if not active then return answer('lost') end
    if expired and not in_time then return answer('expired') end
    run[EXPIRES] = now + milliseconds
    store()
    return answer('kept')
  end
  local status, rest = ARG.status, ARG.rest
  if not active then return answer(run[STATUS] == status and 'ended' or 'lost') end
  if run[STATUS] == 'stopping' and status == 'completed' then return answer('stopping') end -- its holder has not seen it yet
  local how = turns and ARG.turn
  if how == 'done' and tonumber(redis.call('HGET', state, 'r') or 0) < tonumber(ARG.revision) then how = 'back' end -- see TurnEnd
  free(status, now, how, turns and {unpack(ARGV, START.taken)}) -- at most 1,000
  run[EXPIRES] = now + rest
  store()
  announce()
  ring_first()
  return answer('ended')
end

if action == 'bury' then
  local fence = tonumber(ARG.fence)
  if expired and run[FENCE] == fence then
    free('interrupted', run[EXPIRES], 'WorkerDied')
    store()
    announce()
    ring_first()
  end
  return answer('read')
end

if action == 'stop' then
  local id, reason, expired_too = ARG.stopped, ARG.reason, ARG.expired_too == '1'
  if not active or run[ID] ~= id then return answer('none') end
  if expired and not expired_too then return answer('expired') end
  if run[STATUS] == 'active' then
    run[STATUS], run[REASON] = 'stopping', reason
    store()
    announce()
  end
  ring(run[ID])
  return answer('stopping')
end

if action == 'leave' then
  local gone, rest, ids = {}, {}, known[4]
  for i = START.leaving, #ARGV do
    gone[ARGV[i]] = true
    if not is_known(ARGV[i]) then known[4] = with_id(ARGV[i]) end
  end
  redis.call('HDEL', state, 'z') -- takes no memory, and after it, a full server accepts the writes below
  if known[4] ~= ids then redis.call('HSET', state, 'Z', known[4]) end
  if active and gone[run[ID]] then
    free('interrupted', now, 'back')
    run[EXPIRES], left = now, true
  end
  for _, place in ipairs(queue) do
    if not gone[place[1]] then rest[#rest + 1] = place end
  end
  left, queue = left or #rest ~= #queue, rest
  if left or known[4] ~= ids then store() end
  if left then announce() end
  if not active then ring_first() end
  return answer('none')
end

return answer('read')
