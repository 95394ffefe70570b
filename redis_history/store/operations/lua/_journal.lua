-- The journal of a conversation (see _change.lua), and other functions that most appends do not need. After _change.lua.
local force_write, free, look, late, decided, open_change, close_change
local concluded, unchanged, note_places, forget_old, entry_of, names_in, with_forks

-- Creates these functions; see use_archives.
local function use_journal()
  local KEPT, NOTED = 4000, 100 -- entries; names in each

  -- A write without effect, before an outcome without a write: WAITAOF and WAIT cover the last write of a connection, and
  -- another connection may have made the change that this outcome reports.
  function force_write()
    if not string.find(change.flags, '1', 1, true) then return end
    redis.call('HSET', state, 'z', '')
    redis.call('HDEL', state, 'z')
  end

  -- A write that takes no memory; after it, a full server accepts the script's other writes.
  function free()
    redis.call('HDEL', state, 'z')
  end

  function entry_of(number)
    return 'j' .. pack('>I4', number)
  end

  -- The fields that an entry of the queue names.
  function names_in(entry)
    local names = {'J' .. sub(entry, 8, 23)}
    for at = 24, #entry, 15 do names[#names + 1] = ';' .. sub(entry, at, at + 14) end
    return names
  end

  -- Reads the journal for this call. Returns the conversation's clock (never behind its last change), the recorded outcome,
  -- the horizon (calls sent until then cannot be decided), and the state of the queue. `names`: places that are noted, but not
  -- in the queue yet. `updated` and `journal`: fields u and g of the state, if there are any.
  function look(updated, journal)
    local seen = {now = math.max(clock(), tonumber(updated or 0)), forgotten = 0, first = 0, following = 0, oldest = 0, names = {}}
    if journal then
      local written
      written, seen.forgotten, seen.first, seen.following, seen.oldest = struct.unpack('>i7i7I4I4i7', journal)
      seen.now = math.max(seen.now, written)
      local outcome = redis.call('HGET', state, 'J' .. token)
      if outcome then seen.outcome = cmsgpack.unpack(outcome) end
    end
    if not updated then -- a conversation that has expired, journal and all, is in the registry for a while
      local ended = redis.call('ZSCORE', registry, ARG.name)
      if ended then
        seen.expired = tonumber(ended)
        seen.forgotten = math.max(seen.forgotten, seen.expired)
      end
    end
    -- A new call has the conversation's clock (see late), which must be behind the horizon: a clock that was ahead and is set
    -- right must not keep all writes out until it has caught up.
    seen.now = math.max(seen.now, seen.forgotten + 1)
    seen.period = math.floor(seen.now / LIFETIME)
    seen.horizon = math.max(seen.forgotten, (seen.period - 1) * LIFETIME - 1)
    return seen
  end

  -- The reply to a copy that cannot be decided; nil if it can.
  function late(seen)
    if sent <= seen.horizon or sent > seen.now then
      return {'late', format('%.0f', seen.now), format('%.0f', clock())}
    end
  end

  -- The journal for this call (see look), and the reply if there is nothing to do: the outcome of an earlier copy, or 'late'.
  function decided(updated, journal)
    local seen = look(updated, journal)
    if not seen.outcome then return seen, late(seen) end
    force_write()
    return seen, seen.outcome
  end

  -- The same, and the precondition.
  function open_change(epoch, revision, updated, journal)
    local seen, reply = decided(updated, journal)
    if reply then return seen, reply end
    local refusal = refused(epoch, revision)
    return seen, refusal and unchanged(seen, epoch, refusal)
  end

  -- The last writes of a change. Returns the outcome. `ttl`, `generation`, `archived`: see live.
  function close_change(seen, outcome, revision, now, ttl, generation, archived)
    announce(revision, now, owners())
    approvals.keep(owners(), ARG.ttl ~= '' and ARG.ttl or ttl, true)
    live(ARG.ttl, now, ttl, generation, archived)
    return concluded(seen, true, outcome)
  end

  -- Removes entries that are older than the horizon, some at a time, and the oldest of too many.
  function forget_old(seen)
    local removed = 0
    while seen.first < seen.following and removed < 2 * NOTED and
          (seen.oldest <= seen.horizon or seen.following - seen.first > KEPT) do
      local gone = names_in(redis.call('HGET', state, entry_of(seen.first)) or '')
      gone[#gone + 1] = entry_of(seen.first)
      redis.call('HDEL', state, unpack(gone)) -- at most 102
      seen.forgotten = math.max(seen.forgotten, seen.oldest)
      seen.first, removed = seen.first + 1, removed + #gone
      if seen.first < seen.following then
        -- The entry is missing if the server was killed and restored only half of a change (docs/operations.md).
        local entry = redis.call('HGET', state, entry_of(seen.first))
        seen.oldest = entry and struct.unpack('>i7', entry) or seen.oldest
      end
    end
  end

  -- Ends the work on the journal: adds the noted places to the queue, and `outcome`, if it is not nil, for later
  -- copies. `exists`: the conversation exists. Returns the outcome.
  function concluded(seen, exists, outcome)
    forget_old(seen)
    local hset, at = {}, 1
    if outcome ~= nil then hset[1], hset[2] = 'J' .. token, cmsgpack.pack(outcome) end
    if seen.first == seen.following then seen.oldest = seen.now end
    if outcome ~= nil or #seen.names > 0 then
      repeat
        hset[#hset + 1] = entry_of(seen.following)
        hset[#hset + 1] = pack('>i7', seen.now) .. token .. table.concat(seen.names, '', at, math.min(at + NOTED - 1, #seen.names))
        at, seen.following = at + NOTED, seen.following + 1
      until at > #seen.names
    end
    if exists and seen.first == seen.following and seen.forgotten < (seen.period - 1) * LIFETIME then
      redis.call('HDEL', state, 'g')
      return outcome
    end
    hset[#hset + 1] = 'g'
    hset[#hset + 1] = pack('>i7i7I4I4i7', seen.now, seen.forgotten, seen.first, seen.following, seen.oldest)
    if exists then
      hset[#hset + 1], hset[#hset + 2] = 'O', '1'
    end
    in_slices('HSET', state, hset)
    if not exists then redis.call('PEXPIRE', state, math.floor(2 * LIFETIME / 1000)) end
    return outcome
  end

  -- Keeps the outcome of a call that changes nothing.
  function unchanged(seen, exists, outcome)
    free()
    return concluded(seen, exists, outcome)
  end

  -- The outcome of a change that removes content for good. If forks are under way (`forks` is field N, see forks.lua), their
  -- drafts may have copies, which the caller must drop: then {'forks', outcome, N}.
  function with_forks(outcome, forks)
    return forks and {'forks', outcome, forks} or outcome
  end

  -- Keeps the positions of removed or replaced messages: `places` are {field of the state, its value}. The value from
  -- before an earlier edit stays.
  function note_places(seen, places)
    for _, one in ipairs(places) do
      local name = sub(one[1], 2) .. sub(one[2], 8, 10)
      if redis.call('HSETNX', state, ';' .. name, one[2]) == 1 then seen.names[#seen.names + 1] = name end
    end
  end
end
