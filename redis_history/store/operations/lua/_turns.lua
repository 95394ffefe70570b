-- Turns: the answers that a conversation is owed. For scripts with the locals `state` and `log`; other scripts that make a turn
-- owed or waiting include this file, too. After _declared.lua.
--
-- Field P of the state is MessagePack: a list of turns, one for each agent (TURN has the places of its fields), all times in milliseconds.
-- A turn has the messages that asked for it: id, when its answer is due, and 1 if the present attempt answers it, three values
-- for each. A turn is 'owed', 'running' (a worker answers it), 'waiting' (for a person's decision) or 'parked' (its attempts have
-- failed). Without messages, a turn has ended.
--
-- Keys, of the bucket:
--   q                      the conversations with a turn that is owed or running, by the time at which it was asked for
--   h                      those with a turn that is waiting or parked
--   q:<SHA-1 of agent>     the turns of an agent, by the time from which a worker may take them:
--                          'c<name>' of a conversation without an owner; 'u<SHA-1 of owner>' the next of an owner's conversations;
--                          'r<name>' of a conversation with an active run, at the time when the run expires
--   q:<SHA-1>:<SHA-1>      the owed turns of an agent and an owner: conversations, by the time when the turn is due
-- An owner's entry gets the present time whenever one of its turns is taken, so that owners take turns. The entries may be out of
-- date, because a conversation may expire. Whoever takes a turn checks the state.
--
-- An owed turn of a conversation whose run is not of this turn has the entry 'r', too: the end of the run puts it back.
--
-- Idle workers of an agent listen to one of 32 channels each. A script that makes a turn due publishes to one that has
-- listeners, so that it wakes one worker, or a few of very many.
local owed = {most = 64} -- the most agents whose turns a conversation has at a time
do
  local TURN = {agent = 1, status = 2, run = 3, asked = 4, due = 5, attempt = 6, failures = 7, error = 8, failed = 9, fence = 10,
                queue = 11, attempts = 12, first_pause = 13, longest_pause = 14, since = 15, asks = 16}
  local CHANNELS, MOST_ASKS = 32, 256
  local POSTPONED = 1500 -- milliseconds for which a turn waits for the reservations of other runs
  local NOTICED = 120000 -- workers that poll notice a turn that is due later than in so many milliseconds
  local bucket, own_name = string.match(state, '^(.-}:)(.*):s$')
  owed.name, owed.TURN = own_name, TURN

  function owed.read(packed)
    return packed and cmsgpack.unpack(packed) or {}
  end

  local indexes = {} -- by agent, because a digest costs as much as a command
  function owed.index(agent)
    indexes[agent] = indexes[agent] or bucket .. 'q:' .. redis.sha1hex(agent)
    return indexes[agent]
  end

  -- The owner's queue for a new turn; '' for a conversation without an owner. `owner`: field U of the state.
  function owed.queue_of(owner)
    return owner and owner ~= '\192' and redis.sha1hex(owner) or ''
  end

  -- The keys that changes of these turns may touch, which the call must declare.
  function owed.keys(turns)
    local names = {bucket .. 'q', bucket .. 'h'}
    for _, turn in ipairs(turns) do
      local index = owed.index(turn[TURN.agent])
      names[#names + 1] = index
      if turn[TURN.queue] ~= '' then names[#names + 1] = index .. ':' .. turn[TURN.queue] end
    end
    return names
  end

  -- The keys of a new turn.
  function owed.keys_of(agent, owner)
    local index, queue = owed.index(agent), owed.queue_of(owner)
    return {index, queue ~= '' and index .. ':' .. queue or nil}
  end

  -- Until when a run of the conversation is active; 0 if none is. `run`: field R of the state.
  function owed.busy_until(run)
    run = run and cmsgpack.unpack(run) or {}
    return (run[4] == 'active' or run[4] == 'stopping') and run[6] or 0
  end

  function owed.find(turns, agent)
    for i, turn in ipairs(turns) do
      if turn[TURN.agent] == agent then return turn, i end
    end
  end

  -- Adds an owed turn to the turns that workers look at. `is_new`: it has just been created.
  function owed.enqueue(turn, is_new)
    local index, due = owed.index(turn[TURN.agent]), turn[TURN.due]
    if not is_new then redis.call('ZREM', index, 'r' .. own_name) end
    if turn[TURN.queue] == '' then
      redis.call('ZADD', index, due, 'c' .. own_name)
    else
      redis.call('ZADD', index .. ':' .. turn[TURN.queue], due, own_name)
      redis.call('ZADD', index, 'LT', due, 'u' .. turn[TURN.queue])
    end
  end

  -- Removes a turn from them. `taken`: milliseconds, if a worker takes it, else 0.
  function owed.dequeue(agent, queue, taken)
    local index = owed.index(agent)
    redis.call('ZREM', index, 'r' .. own_name)
    if queue == '' then
      redis.call('ZREM', index, 'c' .. own_name)
      return
    end
    local list = index .. ':' .. queue
    redis.call('ZREM', list, own_name)
    local first = redis.call('ZRANGE', list, 0, 0, 'WITHSCORES')
    if first[1] then
      redis.call('ZADD', index, string.format('%.0f', math.max(tonumber(first[2]), taken)), 'u' .. queue)
    else
      redis.call('ZREM', index, 'u' .. queue)
    end
  end

  -- From now on, workers look at the conversation when its run expires.
  function owed.watch(turn, expires, taken)
    owed.dequeue(turn[TURN.agent], turn[TURN.queue], taken)
    redis.call('ZADD', owed.index(turn[TURN.agent]), expires, 'r' .. own_name)
  end

  -- When the earliest of its messages is due.
  function owed.due(turn)
    local due
    for i = 2, #turn[TURN.asks], 3 do due = math.min(due or turn[TURN.asks][i], turn[TURN.asks][i]) end
    return due or 0
  end

  -- Removes the messages for which `leaves(id, due, claimed)` holds. Returns whether any are left.
  function owed.drop_asks(turn, leaves)
    local asks, kept = turn[TURN.asks], {}
    for i = 1, #asks, 3 do
      if not leaves(asks[i], asks[i + 1], asks[i + 2] == 1) then
        kept[#kept + 1], kept[#kept + 2], kept[#kept + 3] = asks[i], asks[i + 1], asks[i + 2]
      end
    end
    turn[TURN.asks] = kept
    return #kept > 0
  end

  -- Removes deleted messages, and the turns without any. Returns whether there were such; with `writes`, their entries are
  -- removed, too. A turn is not due before the messages that are left, unless it has failed.
  function owed.prune(turns, writes)
    local changed = false
    for at = #turns, 1, -1 do
      local asks, fields, exists = turns[at][TURN.asks], {}, {}
      for i = 1, #asks, 3 do
        fields[#fields + 1] = ':' .. (string.gsub(string.sub(redis.sha1hex(asks[i]), 1, 24), '..', function(hex)
          return string.char(tonumber(hex, 16))
        end))
      end
      for i, place in ipairs(redis.call('HMGET', state, unpack(fields))) do -- at most 256
        if place then exists[asks[3 * i - 2]] = true end
      end
      local before = #asks
      if not owed.drop_asks(turns[at], function(id) return not exists[id] end) then
        if writes then owed.dequeue(turns[at][TURN.agent], turns[at][TURN.queue], 0) end
        table.remove(turns, at)
        changed = true
      elseif before ~= #turns[at][TURN.asks] then
        local turn = turns[at]
        local due = owed.due(turn)
        if turn[TURN.status] == 'owed' and turn[TURN.failures] == 0 and due > turn[TURN.due] then
          turn[TURN.due] = due
          if writes then owed.enqueue(turn) end
        end
        changed = true
      end
    end
    return changed
  end

  -- Stores the turns, and lists the conversation where it belongs.
  function owed.save(turns)
    local open, halted
    for _, turn in ipairs(turns) do
      local asked = turn[TURN.asked]
      if turn[TURN.status] == 'owed' or turn[TURN.status] == 'running' then
        open = math.min(open or asked, asked)
      else
        halted = math.min(halted or asked, asked)
      end
    end
    if #turns > 0 then redis.call('HSET', state, 'P', cmsgpack.pack(turns)) else redis.call('HDEL', state, 'P') end
    for key, asked in pairs({q = open or false, h = halted or false}) do
      if asked then redis.call('ZADD', bucket .. key, asked, own_name) else redis.call('ZREM', bucket .. key, own_name) end
    end
  end

  -- Wakes one idle worker of the agent, and tells it the conversation. If nobody listens, all workers are busy, or there are
  -- none: a worker looks for turns before it is idle. `now` chooses among the workers.
  function owed.ring(agent, now)
    local digest = string.sub(owed.index(agent), #bucket + 3)
    local base = string.match(state, '^([^:]*:[^:]*:)') .. '00}:w:' .. digest .. ':'
    local names = {}
    for i = 1, CHANNELS do names[i] = base .. (now + i) % CHANNELS end
    local counts = redis.pcall('PUBSUB', 'NUMSUB', unpack(names)) -- at most 32
    for i, name in ipairs(names) do
      -- A server that refuses the question says how many have received a message.
      if counts.err then
        local heard = redis.pcall('PUBLISH', name, own_name)
        if type(heard) ~= 'number' or heard > 0 then return end
      elseif counts[2 * i] > 0 then
        redis.call('PUBLISH', name, own_name)
        return
      end
    end
  end

  -- From now on, no attempt answers the messages of the turn.
  local function unclaim(turn)
    for i = 3, #turn[TURN.asks], 3 do turn[TURN.asks][i] = 0 end
  end

  -- Makes a turn owed from `due` on. A worker that is woken before that time waits for it.
  function owed.owe(turn, due, now, is_new)
    turn[TURN.status], turn[TURN.due], turn[TURN.fence] = 'owed', due, 0
    unclaim(turn)
    owed.enqueue(turn, is_new)
    if due <= now + NOTICED then owed.ring(turn[TURN.agent], now) end
  end

  -- Makes a turn wait for a call that owes it again: of retry, decide or a further message.
  function owed.halt(turn, status)
    owed.dequeue(turn[TURN.agent], turn[TURN.queue], 0)
    turn[TURN.status], turn[TURN.fence] = status, 0
    unclaim(turn)
  end

  -- For the script of a decision, if no request is open any more: makes all waiting turns owed. `closed`: the highest sequence of
  -- the requests that were closed. A turn that made one, and is owed for a wake-up, is owed now. If it is running, its
  -- messages are answered once more, because the attempt does not know the decision; not if the run with the fence `own` closed
  -- the request itself. Call owed.save afterwards. Returns whether there were such turns.
  function owed.decided(turns, closed, own, now)
    local found = false
    for _, turn in ipairs(turns) do
      local status, made = turn[TURN.status], turn[TURN.since] > 0 and turn[TURN.since] <= closed
      if status == 'waiting' or made and status == 'owed' and turn[TURN.due] > now and turn[TURN.failures] == 0 then
        owed.owe(turn, now, now)
        found = true
      elseif made and status == 'running' and turn[TURN.fence] ~= own then
        unclaim(turn)
        found = true
      end
    end
    return found
  end

  -- Adds messages to the turn of an agent, creates it if necessary, and saves the turns. `due`: milliseconds; what is past is due
  -- now; negative: so many from now. Returns false if the conversation has turns of too many agents. `busy`: until when a run of
  -- the conversation is active, or 0. A turn that is parked or waits is owed again.
  function owed.ask(turns, agent, owner, ids, due, now, busy)
    due = math.max(due < 0 and now - due or due, now)
    local turn = owed.find(turns, agent)
    local is_new = not turn
    if is_new then
      if #turns >= owed.most then return false end
      turn = {agent, 'owed', '', now, due, 0, 0, '', 0, 0, owed.queue_of(owner), 0, 0, 0, 0, {}}
      turns[#turns + 1] = turn
    end
    local asks = turn[TURN.asks]
    for _, one in ipairs(ids) do
      -- The messages of a long queue are in the conversation, even if the turn does not name them all.
      for i = 1, #asks >= 3 * MOST_ASKS and 3 or 0 do table.remove(asks, 1) end
      asks[#asks + 1], asks[#asks + 2], asks[#asks + 3] = one, due, 0
    end
    local status, before = turn[TURN.status], turn[TURN.due]
    if status == 'running' or status == 'owed' and not is_new and (before <= due or turn[TURN.failures] > 0) then
      -- It stays where it is. A further message does not shorten the pause after a failure.
      redis.call('HSET', state, 'P', cmsgpack.pack(turns))
      return true
    end
    if status ~= 'owed' then turn[TURN.failures] = 0 end
    if busy > now then
      turn[TURN.status], turn[TURN.due] = 'owed', due
      owed.watch(turn, busy, 0)
    else
      owed.owe(turn, due, now, is_new)
    end
    if is_new then
      redis.call('HSET', state, 'P', cmsgpack.pack(turns))
      redis.call('ZADD', bucket .. 'q', 'NX', now, own_name) -- other turns were asked for earlier
    else
      owed.save(turns)
    end
    return true
  end

  -- For append.lua, which has no room for more local variables: reads what a question needs. `asked`: agent, time and id.
  function owed.begin_asking(asked)
    local found = redis.call('HMGET', state, 'P', 'U', 'R')
    owed.asked, owed.turns, owed.owner, owed.run = asked, owed.read(found[1]), found[2], found[3]
    owed.refused = #owed.turns >= owed.most and not owed.find(owed.turns, asked[1])
  end

  -- Adds the keys of the turns to `names`.
  function owed.needed(names)
    for _, name in ipairs(owed.keys(owed.turns)) do names[#names + 1] = name end
    for _, name in ipairs(owed.keys_of(owed.asked[1], owed.owner)) do names[#names + 1] = name end
    return names
  end

  function owed.finish_asking(now)
    local agent, due, id = owed.asked[1], owed.asked[2], owed.asked[3]
    owed.ask(owed.turns, agent, owed.owner, {id}, due, now, owed.busy_until(owed.run))
  end

  -- An attempt has failed: the turn is due again after a pause, or parked.
  function owed.fail(turn, error, now)
    local failures = turn[TURN.failures] + 1
    turn[TURN.failures], turn[TURN.error], turn[TURN.failed] = failures, error, now
    if failures >= turn[TURN.attempts] then return owed.halt(turn, 'parked') end
    local pause = turn[TURN.first_pause]
    for _ = 2, failures do pause = math.min(2 * pause, turn[TURN.longest_pause]) end
    owed.owe(turn, now + math.min(pause, turn[TURN.longest_pause]), now)
  end

  -- The attempt could not begin, because other runs have reserved the rest of the owner's budget: it does not count, and workers
  -- leave the owner's turns here alone for a while.
  function owed.postpone(turn, now)
    local due = now + POSTPONED
    turn[TURN.attempt] = turn[TURN.attempt] - 1
    if turn[TURN.attempt] == 0 then turn[TURN.since] = 0 end
    owed.owe(turn, due, now)
    if turn[TURN.queue] ~= '' then redis.call('ZADD', owed.index(turn[TURN.agent]), 'GT', due, 'u' .. turn[TURN.queue]) end
  end

  -- The attempt has answered: its messages leave the turn, and those of `ids` that came in the meantime. The rest is the next turn.
  function owed.close(turn, ids, now)
    local taken = {}
    for _, id in ipairs(ids) do taken[id] = true end
    local more = owed.drop_asks(turn, function(id, due, claimed) return claimed or taken[id] and due <= now end)
    if not more then
      owed.dequeue(turn[TURN.agent], turn[TURN.queue], 0)
      return false
    end
    turn[TURN.asked], turn[TURN.attempt], turn[TURN.failures], turn[TURN.error], turn[TURN.failed] = now, 0, 0, '', 0
    turn[TURN.since] = 0
    owed.owe(turn, owed.due(turn), now)
    return true
  end

  -- Whether a message from this sequence on has a call that waits for approval.
  function owed.needs_approval(since)
    local packed = redis.call('HGET', state, '?')
-- include _requests
    for _, one in ipairs(packed and requests_in(packed) or {}) do
      if one[4] >= since then return true end
    end
    return false
  end

  -- The run with this fence has ended. `how`: 'done', 'back' (the worker stops, so the turn is due at once), 'later' (see postpone),
  -- 'wait', or what fail_turn gets. Turns that waited for the end of a run can be taken now.
  -- A turn whose answer has calls that wait for approval waits, too: see _approvals.lua.
  function owed.settle(turns, fence, how, ids, now)
    for at = #turns, 1, -1 do
      local turn = turns[at]
      if turn[TURN.status] == 'running' and turn[TURN.fence] == fence then
        if how == 'done' and owed.needs_approval(turn[TURN.since]) then how = 'wait' end
        if how == 'done' then
          if not owed.close(turn, ids, now) then table.remove(turns, at) end
        elseif how == 'back' then
          owed.owe(turn, now, now)
        elseif how == 'later' then
          owed.postpone(turn, now)
        elseif how == 'wait' then
          owed.halt(turn, 'waiting')
        else
          owed.fail(turn, how, now)
        end
      elseif turn[TURN.status] == 'owed' then
        owed.owe(turn, turn[TURN.due], now)
      end
    end
    owed.save(turns)
  end

  -- A worker has taken the turn, in the run with this fence. `limits`: failures until it is parked, first and longest pause. Its messages that are due belong to the attempt.
  function owed.begin(turn, fence, run_id, first_sequence, expires, limits, now)
    turn[TURN.status], turn[TURN.fence], turn[TURN.run], turn[TURN.attempt] = 'running', fence, run_id, turn[TURN.attempt] + 1
    turn[TURN.attempts], turn[TURN.first_pause], turn[TURN.longest_pause] = limits[1], limits[2], limits[3]
    if turn[TURN.since] == 0 then turn[TURN.since] = first_sequence end
    local asks = turn[TURN.asks]
    for i = 1, #asks, 3 do
      if asks[i + 1] <= now then asks[i + 2] = 1 end
    end
    owed.watch(turn, expires, now)
  end

  -- Forgets the turns of a conversation that ends.
  function owed.forget(turns)
    for _, turn in ipairs(turns) do owed.dequeue(turn[TURN.agent], turn[TURN.queue], 0) end
    redis.call('ZREM', bucket .. 'q', own_name)
    redis.call('ZREM', bucket .. 'h', own_name)
  end
end
