-- Large contents of messages: strings of their own beside the sorted sets. After _declared.lua.
--
-- A content is <conversation>:b:<name>, and its name the first 24 hexadecimal digits of the SHA-1 of the id of its message, and
-- the 32 of the digest of the content. So a content belongs to one message, wherever that moves, and never changes. The
-- client writes it right before the script (SET with NX and a short time to live), because a script that gets a megabyte takes
-- milliseconds. The script that stores the message makes it stay; what no script has made to stay expires.
--
-- The member of a message with contents has the flag 8, and ends with a table (see redis_history/values/beside.py).
-- The state has the names of all contents, for scripts that remove or renew all of them:
--   &        until when (milliseconds) all contents are there, '0': forever
--   &<digits>   the names that begin with these two digits, one behind the other
-- With a time to live, contents have a separate one, as archives: half as long again, so that not every change renews them.
--
-- Functions in a table, because a script has at most 200 locals. `kept`: names that this call links, which stay when it
-- removes all others.
local contents = {kept = {}}

-- Creates these functions; see use_archives.
function contents.use()
  if contents.all then return end
  local NAME, OF_ID, ENTRY = 56, 24, 42 -- bytes of a name, of its first part, and of an entry of the table

  local function key_of(state, name)
    return string.sub(state, 1, -2) .. 'b:' .. name
  end

  local function field_for(name)
    return '&' .. string.sub(name, 1, 2)
  end

  local function names_in(packed)
    local names = {}
    for at = 1, #(packed or ''), NAME do names[#names + 1] = string.sub(packed, at, at + NAME - 1) end
    return names
  end

  -- Whether a member, or what precedes the rest of a body, is of a message with large contents.
  function contents.has(member)
    return #member >= SHORTEST and string.byte(member, 8) % 16 >= 8
  end

  -- The names of the contents of a message, by the table at the end of its body.
  function contents.of(id, body)
    local names, known, first = {}, {}, string.sub(redis.sha1hex(id), 1, OF_ID)
    local count = struct.unpack('>I2', string.sub(body, -2))
    for i = count, 1, -1 do
      local at = #body - 2 - ENTRY * i + 11
      local name = first .. string.sub(body, at, at + 31)
      if not known[name] then names[#names + 1] = name end
      known[name] = true
    end
    return names
  end

  -- The names of the contents of a message that the state knows.
  function contents.held(state, id)
    local first, names = string.sub(redis.sha1hex(id), 1, OF_ID), {}
    for _, name in ipairs(names_in(redis.call('HGET', state, field_for(first)))) do
      if string.sub(name, 1, OF_ID) == first then names[#names + 1] = name end
    end
    return names
  end

  -- The names of all contents of the conversation.
  function contents.all(state)
    if not redis.call('HGET', state, '&') then return {} end
    local fields, names = {}, {}
    for i = 0, 255 do fields[i + 1] = string.format('&%02x', i) end
    for _, packed in ipairs(redis.call('HMGET', state, unpack(fields))) do -- at most 256
      for _, name in ipairs(names_in(packed)) do names[#names + 1] = name end
    end
    return names
  end

  -- Adds the keys of contents to those that a call must declare, and returns these.
  function contents.declare(state, names, keys)
    for _, name in ipairs(names) do keys[#keys + 1] = key_of(state, name) end
    return keys
  end

  -- Whether a content is missing, so that the caller must write it again.
  function contents.lacks(state, names)
    local keys, there = contents.declare(state, names, {}), 0
    for first = 1, #keys, 1000 do
      there = there + redis.call('EXISTS', unpack(keys, first, math.min(first + 999, #keys))) -- at most 1,000
    end
    return there < #keys
  end

  function contents.unlink(state, names)
    in_slices('UNLINK', nil, contents.declare(state, names, {}))
  end

  -- Makes contents stay: with a time to live until `ends` (milliseconds), a decimal string; nil: forever.
  function contents.keep(state, names, ends)
    for _, name in ipairs(names) do
      if ends then
        redis.call('PEXPIREAT', key_of(state, name), ends)
      else
        redis.call('PERSIST', key_of(state, name))
      end
    end
  end

  -- Gives contents of a draft to the conversation: see draft.lua.
  function contents.move(from, state, names)
    for _, name in ipairs(names) do redis.call('RENAME', key_of(from, name), key_of(state, name)) end
  end

  -- When contents expire that get their time to live (milliseconds) now, or nil without one.
  function contents.ends(now, ttl)
    return ttl and string.format('%.0f', math.floor(now / 1000) + math.floor(ttl * 1.5))
  end

  -- Makes these the contents of a message, and removes those that it had. `ttl`: milliseconds or nil.
  function contents.set(state, id, names, now, ttl)
    local field = field_for(redis.sha1hex(id))
    local first, stay, rest, gone = string.sub(redis.sha1hex(id), 1, OF_ID), {}, {}, {}
    for _, name in ipairs(names) do stay[name] = true end
    for _, name in ipairs(names_in(redis.call('HGET', state, field))) do
      if string.sub(name, 1, OF_ID) ~= first then
        rest[#rest + 1] = name
      elseif not stay[name] then
        gone[#gone + 1] = name
      end
    end
    contents.unlink(state, gone)
    local ends = contents.ends(now, ttl)
    contents.keep(state, names, ends)
    for _, name in ipairs(names) do rest[#rest + 1] = name end
    if #rest > 0 then redis.call('HSET', state, field, table.concat(rest)) else redis.call('HDEL', state, field) end
    if #names > 0 then redis.call('HSETNX', state, '&', ends or '0') end
  end

  -- Removes all contents, but not those that this call links. The caller writes the state anew.
  function contents.forget(state)
    local gone = {}
    for _, name in ipairs(contents.all(state)) do
      if not contents.kept[name] then gone[#gone + 1] = name end
    end
    contents.unlink(state, gone)
  end

  -- Gives all contents a new time to live, in milliseconds.
  function contents.renew(state, now, ttl)
    local ends = contents.ends(now, ttl)
    contents.keep(state, contents.all(state), ends)
    redis.call('HSET', state, '&', ends)
  end
end
