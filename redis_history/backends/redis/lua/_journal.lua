-- The journal of a conversation (see _change.lua), and other functions that most appends do not need. After _change.lua.
local force_write, free, journal_of, look, late, decided, open_change, close_change
local note, concluded, unchanged, note_places, set_aside

-- Creates these functions; see use_archives.
local function use_journal()
  -- A write without effect, before an outcome without a write: WAITAOF and WAIT cover the last write of a connection, and
  -- another connection may have made the change that this outcome reports.
  function force_write()
    if not string.find(ARGV[9], '1', 1, true) then return end
    local newest = redis.call('HGET', state, 'x')
    redis.call('HSET', state, 'x', newest or '')
    if not newest then redis.call('UNLINK', state) end
  end

  -- A write that takes no memory; after it, a full server accepts the script's other writes.
  function free()
    redis.call('HDEL', state, 'z')
  end

  function journal_of(period)
    return string.sub(state, 1, -2) .. 'j' .. period % 2
  end

  -- Reads the journal for this call. Returns the conversation's clock (never behind its last change), the recorded outcome,
  -- the horizon (calls sent until then cannot be decided), the valid hashes of the journal, and the kept states.
  -- `updated` and `written`: fields u and g of the state, if there is one.
  function look(updated, written)
    local now, found = clock(), {}
    if updated and tonumber(updated) > now then now = tonumber(updated) end
    for i = 0, 1 do
      local values = redis.call('HMGET', journal_of(i), 'b', 'h', 'o', 't' .. token)
      if values[1] then
        found[#found + 1] = values
        now = math.max(now, values[1] * LIFETIME)
      end
    end
    local period = math.floor(now / LIFETIME)
    local seen = {now = now, period = period, horizon = (period - 1) * LIFETIME - 1, hashes = {}, states = {}}
    local last
    for _, values in ipairs(found) do
      if tonumber(values[1]) >= period - 1 then
        seen.hashes[#seen.hashes + 1] = journal_of(values[1])
        last = math.max(last or 0, values[1])
        if values[2] then seen.horizon = math.max(seen.horizon, values[2]) end
        for of in string.gmatch(values[3] or '', '%x+') do
          seen.states[#seen.states + 1] = string.sub(state, 1, -2) .. 'o:' .. of
        end
        if values[4] then seen.outcome = cmsgpack.unpack(values[4]) end
        if tonumber(values[1]) == period then seen.begun, seen.aside = true, values[3] end
      end
    end
    -- A missing hash was evicted, or has expired while the clock was ahead.
    if written and tonumber(written) > seen.horizon and (not last or last < math.floor(written / LIFETIME)) then
      seen.horizon = tonumber(written)
    end
    -- A new call has the conversation's clock (see late), which must be behind the horizon: a clock that was ahead and is set
    -- right must not keep all writes out until it has caught up.
    if seen.now <= seen.horizon then
      seen.now = seen.horizon + 1
      local following = math.floor(seen.now / LIFETIME)
      if following > seen.period then seen.period, seen.begun, seen.aside = following, nil, nil end
    end
    return seen
  end

  -- The reply to a copy that cannot be decided; nil if it can.
  function late(seen)
    if sent <= seen.horizon or sent > seen.now then
      return {'late', format('%.0f', seen.now), format('%.0f', clock())}
    end
  end

  -- The journal for this call (see look), and the reply if there is nothing to do: the outcome of an earlier copy, or 'late'.
  function decided(updated, written)
    local seen = look(updated, written)
    if not seen.outcome then return seen, late(seen) end
    force_write()
    return seen, seen.outcome
  end

  -- The same, and the precondition.
  function open_change(epoch, revision, updated, written)
    local seen, reply = decided(updated, written)
    if reply then return seen, reply end
    local refusal = refused(epoch, revision)
    return seen, refusal and unchanged(seen, epoch, refusal)
  end

  -- The last writes of a change. Returns the outcome. `ttl`, `generation`, `archived`: see live.
  function close_change(seen, outcome, revision, now, ttl, generation, archived)
    announce(revision, now, owners())
    live(ARGV[6], now, ttl, generation, archived)
    return concluded(seen, true, outcome)
  end

  -- Writes fields and values into the journal. `exists`: there is a state.
  function note(seen, exists, ...)
    local key = journal_of(seen.period)
    if not seen.begun then
      redis.call('UNLINK', key)
      seen.begun = true
    end
    if redis.call('HSET', key, 'b', seen.period, ...) > select('#', ...) / 2 then
      redis.call('PEXPIRE', key, 2 * LIFETIME / 1000)
    end
    if exists then redis.call('HSET', state, 'g', seen.now, 'O', '1') end
  end

  -- Keeps the outcome of this call for later copies, and returns it.
  function concluded(seen, exists, outcome)
    note(seen, exists, 't' .. token, cmsgpack.pack(outcome))
    return outcome
  end

  -- Keeps the outcome of a call that changes nothing.
  function unchanged(seen, exists, outcome)
    free()
    concluded(seen, exists, outcome)
    force_write()
    return outcome
  end

  -- Keeps the positions of removed or replaced messages: `places` are {field of the state, its value}. The value from
  -- before an earlier edit stays.
  function note_places(seen, exists, places)
    local key = journal_of(seen.period)
    if #places > 0 then note(seen, exists) end
    for _, one in ipairs(places) do
      redis.call('HSETNX', key, one[1] .. string.sub(one[2], 8, 10), one[2])
    end
  end

  -- Before all messages are removed: renames the state with their ids, to keep it for a while.
  function set_aside(seen)
    local listed = seen.begun and seen.aside or ''
    if #listed >= KEPT_STATES * (#token + 1) then
      note(seen, false, 'h', seen.now)
      redis.call('UNLINK', state)
      return
    end
    local aside = string.sub(state, 1, -2) .. 'o:' .. token
    redis.call('RENAME', state, aside)
    redis.call('HDEL', aside, unpack(RECORD))
    redis.call('PEXPIRE', aside, 2 * LIFETIME / 1000)
    note(seen, false, 'o', listed .. token .. ';')
  end
end
