-- Removes the oldest messages in whole groups, so that no tool result loses its call: see redis_history/values/pairs.py.
-- After _documents.lua.
--
-- Tool calls' ids and the agents of calls and results appear as four bytes of their digests. Calls are numbered in order;
-- stacks of them are linked lists (`below` and `own_below`), because a table for each would cost more.

local TRIMMED_AT_ONCE = 250 -- takes about 5 ms

-- Those of the places (see trim) that a late copy may still ask for: of messages with a sequence above `since`.
local function recent_places(places, since)
  local recent = {}
  for _, one in ipairs(places) do
    if one[3] > since and #one[2] > 0 then recent[#recent + 1] = one end
  end
  return recent
end

-- Removes at least the `excess` oldest messages, in whole groups without pinned messages, and their search documents. Returns the removed ids, their
-- sequences, and {field of the state, place, sequence} of each. `most`: how many messages to read at most, if not as many as
-- it takes; groups that wait for results further on stay then.
local function trim(excess, generation, most)
  local members, ids_of, fields_of, places, count = {}, {}, {}, {}, 0 -- read so far, from the oldest on
  -- By the index of a group's first message: the number of its messages, and of its calls that may still get a result.
  local parent, size, waiting, pinned = {}, {}, {}, {} -- also whether one of its messages is pinned
  -- Calls: the message, the agent, whether it has a result, and whether a result can no longer come.
  local calls, at_of, agents, answered, closed = 0, {}, {}, {}, {}
  local unanswered, below = {}, {} -- the latest call with an id, and the one before
  local own, own_below = {}, {} -- the same for an id and an agent
  local lent = {} -- by agent, the latest call that another agent has answered

  local function first_of(i)
    while parent[i] ~= i do
      parent[i] = parent[parent[i]]
      i = parent[i]
    end
    return i
  end

  local function close(call)
    closed[call] = true
    local first = first_of(at_of[call])
    waiting[first] = waiting[first] - 1
  end

  local function call(i, id, agent)
    calls = calls + 1
    at_of[calls], below[calls], unanswered[id] = i, unanswered[id], calls
    if agent then
      local name = id .. agent
      agents[calls], own_below[calls], own[name] = agent, own[name], calls
    end
    local first = first_of(i)
    waiting[first] = waiting[first] + 1
  end

  local function answer(i, id, agent)
    local found
    if agent then
      local name = id .. agent
      found = own[name]
      while found and closed[found] do found = own_below[found] end
      own[name] = found and own_below[found]
    end
    if not found then
      found = unanswered[id]
      while found and answered[found] do found = below[found] end
      unanswered[id] = found and below[found]
    end
    if not found then return end
    answered[found] = true
    local caller = agents[found]
    if not agent or not caller or caller == agent then
      close(found)
    else
      if lent[caller] and not closed[lent[caller]] then close(lent[caller]) end
      lent[caller] = found
    end
    local one, other = first_of(at_of[found]), first_of(i)
    if one > other then one, other = other, one end
    if one ~= other then
      parent[other] = one
      size[one], waiting[one] = size[one] + size[other], waiting[one] + waiting[other]
      pinned[one] = pinned[one] or pinned[other]
    end
  end

  local function add(i, place)
    parent[i], size[i], waiting[i] = i, 1, 0
    local at, last = 1, 0
    if #place > 0 then
      local _
      _, _, _, _, at = place_of(place)
      last = #place
    end
    if string.byte(place, at) == 112 then -- 'p'
      pinned[i], at = true, at + 1
    end
    while at <= last do
      local kind, id, agent = string.byte(place, at), string.sub(place, at + 1, at + 4), nil
      at = at + 5
      if kind < 97 then -- a capital
        agent = string.sub(place, at, at + 3)
        at = at + 4
      end
      if kind == 114 or kind == 82 then answer(i, id, agent) else call(i, id, agent) end -- 'r' and 'R'
    end
  end

  -- Reads more messages; returns whether there were any.
  local chunk = math.min(excess, 1000)
  local function more()
    if most then chunk = math.min(chunk, most - count) end
    if chunk <= 0 then return false end
    local found, fields = redis.call('ZRANGE', messages, count, count + chunk - 1), {}
    if #found == 0 then return false end
    for i, member in ipairs(found) do
      local id = id_of(member) or ''
      members[count + i], ids_of[count + i] = member, id
      fields[i] = field_of(id)
      fields_of[count + i] = fields[i]
    end
    for i, place in ipairs(redis.call('HMGET', state, unpack(fields))) do -- at most 1,000
      places[count + i] = place or ''
      add(count + i, place or '')
    end
    count = count + #found
    chunk = count < excess and math.min(excess - count, 1000) or math.max(8, math.min(count, 512))
    return true
  end

  local leaving, left, index = {}, excess, 1
  while left > 0 and (index <= count or more()) do
    local first = first_of(index)
    if not leaving[first] and not pinned[first] then
      while waiting[first] > 0 and not pinned[first] and more() do end
      if not pinned[first] and (not most or waiting[first] == 0) then
        leaving[first] = true
        left = left - size[first]
      end
    end
    index = index + 1
  end
  local gone = {}
  for i = 1, count do
    if leaving[first_of(i)] then gone[#gone + 1] = i end
  end
  if #gone == 0 then return {}, {}, {} end
  local counts = redis.call('HMGET', state, 'n', 'c', 'k', 's')
  local characters, tokens, ids, their_sequences, left_places, sequences = 0, 0, {}, {}, {}, {}
  local replies = {}
  for first = 1, #gone, 1000 do
    local zrem, hdel = {}, {}
    for i = first, math.min(first + 999, #gone) do
      local member, id, place = members[gone[i]], ids_of[gone[i]], places[gone[i]]
      zrem[#zrem + 1] = member
      hdel[#hdel + 1] = fields_of[gone[i]]
      ids[#ids + 1] = id
      local sequence = sequence_of(member)
      their_sequences[#ids] = id == counts[4] and 0 or sequence
      if #member >= SHORTEST and string.byte(member, 8) >= 4 then replies[sequence] = true end
      if id == counts[4] then -- the messages it replaced stay in the archive
        redis.call('HDEL', state, 's', '^' .. id)
        sequence = -sequence
      end
      left_places[#left_places + 1] = {fields_of[gone[i]], place, math.abs(sequence)}
      sequences[#sequences + 1] = sequence
      if #place > 0 then -- written by us
        local c = characters_of(member)
        characters, tokens = characters + c, tokens + math.ceil(c / 4)
      end
    end
    redis.call('ZREM', messages, unpack(zrem)) -- at most 1,000
    redis.call('HDEL', state, unpack(hdel)) -- at most 1,000
  end
  if next(replies) then
    use_replies()
    forget_replies(state, replies)
  end
  if generation then forget_documents(generation, sequences) end
  redis.call('HSET', state, 'n', counts[1] - #gone, 'c', counts[2] - characters, 'k', counts[3] - tokens)
  return ids, their_sequences, left_places
end
