-- Takes the oldest messages away, and with a tool call its result, so that no pair is torn. Put after _document.lua and
-- _id.lua.
--
-- A result belongs to the nearest earlier call of its id; ids are known here by four bytes of their digest.
local CHUNK = 64

-- The members from rank `first` to `last`, as {member, id, place}.
local function read(first, last)
  local found, fields = redis.call('ZRANGE', messages, first, last), {}
  local items = {}
  for i, member in ipairs(found) do
    local id = id_of(member) or ''
    items[i] = {member, id}
    fields[i] = ':' .. id
  end
  if #fields > 0 then
    for i, place in ipairs(redis.call('HMGET', state, unpack(fields))) do
      items[i][3] = place or ''
    end
  end
  return items
end

-- Calls `each(kind, digest)` for the tool calls and results of a message.
local function tools(place, each)
  for at = 52, #place, 5 do
    each(string.sub(place, at, at), string.sub(place, at + 1, at + 4))
  end
end

-- Removes `excess` messages and what belongs to them, and their search documents; the ids that are gone.
local function trim(excess, life)
  local open, waiting = {}, 0
  local gone = {}
  local function note(item)
    tools(item[3], function(kind, digest)
      if kind == 'u' and not open[digest] then
        open[digest], waiting = true, waiting + 1
      elseif kind == 'r' and open[digest] then
        open[digest], waiting = nil, waiting - 1
      end
    end)
    gone[#gone + 1] = item
  end
  for first = 0, excess - 1, 1000 do
    for _, item in ipairs(read(first, math.min(first + 999, excess - 1))) do note(item) end
  end
  local rank = excess
  while waiting > 0 do
    local items = read(rank, rank + CHUNK - 1)
    if #items == 0 then break end
    for _, item in ipairs(items) do
      local answers = false
      tools(item[3], function(kind, digest)
        if kind == 'r' and open[digest] then answers = true end
      end)
      if answers then
        note(item)
      else
        tools(item[3], function(kind, digest) -- a later call of the same id: what follows answers that one
          if kind == 'u' and open[digest] then open[digest], waiting = nil, waiting - 1 end
        end)
      end
      if waiting == 0 then break end
    end
    rank = rank + CHUNK
  end
  local counts = redis.call('HMGET', state, 'n', 'c', 'k', 's')
  local characters, tokens, ids, sequences = 0, 0, {}, {}
  for first = 1, #gone, 1000 do
    local zrem, hdel = {}, {}
    for i = first, math.min(first + 999, #gone) do
      local item = gone[i]
      zrem[#zrem + 1] = item[1]
      hdel[#hdel + 1] = ':' .. item[2]
      ids[#ids + 1] = item[2]
      local sequence = #item[1] >= 19 and struct.unpack('>I8', string.sub(item[1], 3, 10)) or 0
      if item[2] == counts[4] then -- what it stands for stays in the archive
        redis.call('HDEL', state, 's', '^' .. item[2])
        sequence = -sequence
      end
      sequences[#sequences + 1] = sequence
      if #item[3] >= 35 then
        local c, k = struct.unpack('>I4I4', string.sub(item[3], 28, 35))
        characters, tokens = characters + c, tokens + k
      end
    end
    redis.call('ZREM', messages, unpack(zrem))
    redis.call('HDEL', state, unpack(hdel))
  end
  forget_documents(life, sequences)
  redis.call('HSET', state, 'n', counts[1] - #gone, 'c', counts[2] - characters, 'k', counts[3] - tokens)
  return ids
end
