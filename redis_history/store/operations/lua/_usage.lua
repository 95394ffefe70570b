-- What answers cost: totals of a conversation, of its bucket, and of its owner in the bucket. After _change.lua and _lists.lua.
--
-- Each message id of a conversation counts once: the newest usage that a message of this id was stored with.
--   <conversation>:k    the ledger, a hash: by the first 12 bytes of the SHA-1 of an id, the day that its usage was counted for
--                       (3 bytes) and the usage, four numbers with 7 bits in each byte, low ones first: input, output and cached
--                       tokens, billionths of the cost; '' for a message of a fork, which counts where it comes from. It
--                       outlives its messages, so that a message that was removed and stored again counts once
--   field '%' of the state: for each day 31 bytes: its number since 1970 (3), and the four sums (7 each)
--   <bucket>:p          a hash: by '<day>:<agent>' the four sums (7 bytes each) of all conversations of the bucket
--   <bucket>:p:<digest> those of the owner with this digest (see lists_of). Both outlive their conversations
-- The sums of an owner and of an agent are those of the conversations that they have, or had at their end. So a change of
-- the record moves the sums of the conversation.
-- The functions, in a table because a script has at most 200 locals.
local usage = {}

do
  local DAY, SUMS, WIDTH, NO_AGENT = 86400000000, '>i7i7i7i7', 31, ''

  local function totals_of(owner)
    local bucket = sub(registry, 1, -2) .. 'p'
    return owner and owner ~= '\192' and bucket .. ':' .. redis.sha1hex(owner) or bucket
  end

  local function ledger()
    return sub(state, 1, -2) .. 'k'
  end

  local function agent_of(packed)
    return packed and packed ~= '\192' and cmsgpack.unpack(packed) or NO_AGENT
  end

  -- Notes the usage of the messages of an append in `usage.given`, by their indices (see append.lua).
  function usage.read(text, at)
    usage.given = {}
    while at <= #text do
      local index, length = struct.unpack('>I2B', text, at)
      usage.given[index] = {usage = sub(text, at + 3, at + 2 + length)}
      at = at + 3 + length
    end
  end

  -- Notes that the message with this index is stored.
  function usage.note(index, field, time)
    local item = usage.given[index]
    if item then item.field, item.time = field, time end
  end

  -- The hashes of totals for these owners: fields U and A of the state.
  local function totals_for(owners)
    return {totals_of(), owners[1] and owners[1] ~= '\192' and totals_of(owners[1]) or nil}
  end

  -- Adds the keys to `names` that counting needs.
  function usage.keys(owners, names)
    names = names or {}
    names[#names + 1] = ledger()
    for _, name in ipairs(totals_for(owners)) do names[#names + 1] = name end
    return names
  end

  local function read_numbers(text, at)
    local numbers = {0, 0, 0, 0}
    for i = 1, 4 do
      local number, scale, one = 0, 1, nil
      repeat
        one = byte(text, at)
        number, scale, at = number + one % 128 * scale, scale * 128, at + 1
      until one < 128
      numbers[i] = number
    end
    return numbers
  end

  -- The sums with more; none is below 0, also if the server has lost a part of them.
  local function added(packed, more)
    local a, b, c, d = 0, 0, 0, 0
    if packed then a, b, c, d = struct.unpack(SUMS, packed) end
    local sum = math.max
    a, b, c, d = sum(a + more[1], 0), sum(b + more[2], 0), sum(c + more[3], 0), sum(d + more[4], 0)
    return pack(SUMS, a, b, c, d), a + b + c + d == 0
  end

  -- Adds to the totals of an owner and an agent. `days`: four numbers for each day.
  local function add_to_totals(owners, days)
    local agent, names, sums = agent_of(owners[2]), {}, {}
    for day, more in pairs(days) do
      names[#names + 1] = format('%.0f:', day) .. agent
      sums[#sums + 1] = more
    end
    for _, key in ipairs(totals_for(owners)) do
      for first = 1, #names, 500 do
        local last = math.min(first + 499, #names)
        local hset, hdel = {}, {}
        for i, packed in ipairs(redis.call('HMGET', key, unpack(names, first, last))) do -- at most 500
          local name, nothing = names[first + i - 1], nil
          packed, nothing = added(packed, sums[first + i - 1])
          if nothing then hdel[#hdel + 1] = name else hset[#hset + 1], hset[#hset + 2] = name, packed end
        end
        if #hset > 0 then redis.call('HSET', key, unpack(hset)) end -- at most 1,000
        if #hdel > 0 then redis.call('HDEL', key, unpack(hdel)) end -- at most 500
      end
    end
  end

  -- Counts the usage of messages that are stored. `items`: of each its `usage`, its `time` and the `field` of its place; one
  -- without a field does not count. `owners`: fields U and A of the state.
  function usage.count(items, owners)
    local stored, names, key = {}, {}, ledger()
    for _, item in pairs(items) do
      if item.field then
        stored[#stored + 1] = item
        names[#names + 1] = sub(item.field, 2, 13)
      end
    end
    if #stored == 0 then return end
    local sums = redis.call('HGET', state, '%')
    if not sums then redis.call('UNLINK', key) end -- of a conversation that the server has lost
    local days, hset = {}, {}
    for i, before in ipairs(redis.call('HMGET', key, unpack(names))) do -- at most 1,000
      local item = stored[i]
      local numbers, day = read_numbers(item.usage, 1), math.floor(item.time / DAY)
      if before and before ~= '' then
        day = struct.unpack('>i3', before)
        for n, number in ipairs(read_numbers(before, 4)) do numbers[n] = numbers[n] - number end
      end
      if before ~= '' and (not before or sub(before, 4) ~= item.usage) then
        hset[#hset + 1], hset[#hset + 2] = names[i], pack('>i3', day) .. item.usage
        local sum = days[day] or {0, 0, 0, 0}
        days[day] = sum
        for n = 1, 4 do sum[n] = sum[n] + numbers[n] end
      end
    end
    if #hset == 0 then return end
    redis.call('HSET', key, unpack(hset)) -- at most 2,000
    sums = sums or ''
    for day, more in pairs(days) do
      local name, at = pack('>i3', day), #sums - WIDTH + 1
      while at > 0 and sub(sums, at, at + 2) ~= name do at = at - WIDTH end -- usually the last day
      local packed = added(at > 0 and sub(sums, at + 3, at + WIDTH - 1), more)
      sums = at > 0 and sub(sums, 1, at - 1) .. name .. packed .. sub(sums, at + WIDTH) or sums .. name .. packed
    end
    redis.call('HSET', state, '%', sums)
    add_to_totals(owners, days)
  end

  -- Moves the sums of a conversation to another owner and agent. `sums`: field '%'; `before`: nil for a new conversation.
  function usage.move(sums, before, after)
    local days, negative = {}, {}
    for at = 1, #sums, WIDTH do
      local day, a, b, c, d = struct.unpack('>i3i7i7i7i7', sums, at)
      days[day], negative[day] = {a, b, c, d}, {-a, -b, -c, -d}
    end
    if before then add_to_totals(before, negative) end
    add_to_totals(after, days)
  end
end
