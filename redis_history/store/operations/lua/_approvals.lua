-- The index of open requests for approval. After _lists.lua and _requests.lua.
--
-- They are in field '?' of the state (_requests.lua). These sorted sets of the bucket have the conversation, by the time of the
-- oldest of them:
--   <tag>:a   all; and those of an owner <tag>:a:u<SHA-1>, and of an agent <tag>:a:v<SHA-1>
-- Their names are not those of lists_of: a call declares them only if it needs them.
-- Functions, and `open`: the open requests, each {field, digests, timestamp, sequence}; nil if there are none. `turns`: those of
-- the conversation, if there are any. `closed`: the highest sequence of the requests that this change has closed. In a table
-- because a script has at most 200 locals.
local approvals = {closed = 0}
do
  local MOST = 1000 -- open requests of a conversation, so that no script takes long; as MOST_OPEN in values/approvals.py
  -- Reads the requests once, and the turns, which may wait for them or for messages that this change removes. `packed`: field '?', if
  -- the caller has it; '' if there is none.
  function approvals.take(packed)
    if approvals.taken then return end
    approvals.taken = true
    packed = packed or redis.call('HGET', state, '?')
    approvals.open = packed and packed ~= '' and requests_in(packed) or nil
    local turns = redis.call('HGET', state, 'P')
    if turns then
      if not owed then
-- include _turns
      end
      approvals.turns = owed.turns or owed.read(turns) -- one list, also where a question is appended
    end
  end

  -- The bucket's lists for the owner and the agent.
  function approvals.lists(owners)
    local tag = string.sub(registry, 1, -2) .. 'a'
    local lists = {tag}
    for i, kind in ipairs({':u', ':v'}) do
      if owners[i] and owners[i] ~= '\192' then lists[#lists + 1] = tag .. kind .. redis.sha1hex(owners[i]) end
    end
    return lists
  end

  -- The same if there are open requests.
  function approvals.lists_if_open(owners)
    return approvals.open and approvals.lists(owners) or {}
  end

  -- The same with the keys of the turns, if there are any of either.
  function approvals.keys_if_open(owners)
    return (approvals.open or approvals.turns) and approvals.keys(owners) or {}
  end

  -- The keys that a change of the requests may touch, which the call must declare.
  function approvals.keys(owners)
    local names = approvals.lists(owners)
    for _, name in ipairs(approvals.turns and owed.keys(approvals.turns) or {}) do names[#names + 1] = name end
    return names
  end

  -- Calls a function with the kind and the digests of each mark of a message: see _member.lua.
  local function each_mark(marks, visit)
    local at = string.byte(marks, 1) == 112 and 2 or 1 -- 'p'
    while at <= #marks do
      local kind = string.byte(marks, at)
      local last = at + (kind < 97 and 8 or 4) -- a capital has an agent, too
      visit(kind, string.sub(marks, at + 1, last))
      at = last + 1
    end
  end

  -- Whether the marks of a message have a request.
  function approvals.asks(marks)
    local found = false
    each_mark(marks, function(kind) found = found or kind == 119 or kind == 87 end) -- 'w', 'W'
    return found
  end

  -- Whether a request in this message is open. `call`: 4 bytes of the digest of its id, in hexadecimal.
  function approvals.is_open(field, call)
    for _, one in ipairs(approvals.open or {}) do
      local a, b, c, d = string.byte(one[2], 1, 4)
      if one[1] == field and format('%02x%02x%02x%02x', a, b, c, d) == call then return true end
    end
    return false
  end

  local function close(i)
    approvals.closed = math.max(approvals.closed, table.remove(approvals.open, i)[4])
  end

  -- Removes the latest request of this call and agent, or else of this call.
  local function close_request(mark)
    local open = approvals.open
    for _, length in ipairs({#mark, 4}) do
      for i = #open, 1, -1 do
        if open[i][2] == mark or length == 4 and string.sub(open[i][2], 1, 4) == string.sub(mark, 1, 4) then
          return close(i)
        end
      end
    end
  end

  -- Adds the requests of a message, and removes those that it answers. `former`: the marks of the content that it had before. What
  -- it had then has been noted, and may have been answered since.
  function approvals.note(field, marks, timestamp, sequence, former)
    local open = approvals.open or {}
    approvals.open = open
    local known, kept = {}, {}
    if former then
      each_mark(former, function(kind, mark) known[kind .. mark] = true end)
      each_mark(marks, function(kind, mark) kept[mark] = kept[mark] or kind == 119 or kind == 87 end)
      for i = #open, 1, -1 do
        if open[i][1] == field and not kept[open[i][2]] then close(i) end
      end
    end
    each_mark(marks, function(kind, mark)
      if known[kind .. mark] then return end
      if kind == 119 or kind == 87 then
        open[#open + 1] = {field, mark, timestamp, sequence}
      elseif kind == 114 or kind == 82 then -- 'r', 'R'
        close_request(mark)
      end
    end)
  end

  -- Removes the requests whose messages are gone. (No compaction takes a call that lacks a result, so they are in no archive.)
  local function prune()
    use_places()
    local kept, open = {}, approvals.open
    for start = 1, #open, 1000 do
      local fields = {}
      for i = start, math.min(start + 999, #open) do fields[#fields + 1] = open[i][1] end
      for i, place in ipairs(redis.call('HMGET', state, unpack(fields))) do -- at most 1,000
        local one = open[start + i - 1]
        local _, sequence
        if place then _, sequence = place_of(place) end
        if sequence == one[4] then kept[#kept + 1] = one end
      end
    end
    approvals.open = kept
  end

  -- Writes the requests, and the lists of the owner and the agent. `removed`: messages may have been removed.
  function approvals.keep(owners, ttl, removed)
    local turns = approvals.turns
    if removed and turns and owed.prune(turns, true) then owed.save(turns) end
    if not approvals.open then return end
    if removed then prune() end
    while #approvals.open > MOST do table.remove(approvals.open, 1) end
    local packed, first = {}, nil
    for i, one in ipairs(approvals.open) do
      packed[i] = one[1] .. char(#one[2]) .. one[2] .. pack('>i7I6', one[3], one[4])
      if not first or one[3] < first then first = one[3] end
    end
    if first then
      redis.call('HSET', state, '?', table.concat(packed), 'O', '1')
    else
      redis.call('HDEL', state, '?')
    end
    for _, list in ipairs(approvals.lists(owners)) do
      if not first then
        redis.call('ZREM', list, ARG.name)
      else
        redis.call('ZADD', list, format('%.0f', first), ARG.name)
        if not ttl or ttl == '' then
          redis.call('PERSIST', list)
        else -- as long as the longest-lived of its conversations: see `live`
          local left = redis.call('PTTL', list)
          if left >= 0 and left - ttl < 0 or left == -1 and redis.call('ZCARD', list) == 1 then redis.call('PEXPIRE', list, ttl) end
        end
      end
    end
    if not first then
      approvals.open = nil
      -- Nothing is left to wait for.
      local own = string.match(ARG.condition, 'run:R(%d+):')
      if turns and owed.decided(turns, approvals.closed, tonumber(own), math.floor(clock() / 1000)) then owed.save(turns) end
    end
  end
end
