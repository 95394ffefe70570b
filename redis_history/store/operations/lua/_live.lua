-- Streaming replies. After _member.lua.
--
-- The member of a streaming reply has the flag 4 and no content. Field '~' of the state has 33 bytes for each: its token (16
-- hexadecimal digits), sequence (uint32), timestamp (7 bytes), and the time in milliseconds (6 bytes) when its writer counts as
-- dead, unless it renews that. The content is the string <conversation>:t:<token>, which only grows: see values/replies.py.
local is_live, content_of_reply, replies_in, reply_record, reply_at, forget_replies, read_content
local LEASE = 6000 -- milliseconds; a writer renews its lease every two seconds

-- Creates these functions; see use_archives.
local function use_replies()
  function is_live(member)
    return #member >= SHORTEST and string.byte(member, 8) >= 4
  end

  function content_of_reply(state, token)
    return string.sub(state, 1, -2) .. 't:' .. token
  end

  -- The replies as {token, sequence, timestamp, ends}.
  function replies_in(listed)
    local found = {}
    for at = 1, #(listed or ''), 33 do
      local sequence, timestamp, ends = struct.unpack('>I4i7I6', string.sub(listed, at + 16, at + 32))
      found[#found + 1] = {string.sub(listed, at, at + 15), sequence, timestamp, ends}
    end
    return found
  end

  -- An entry of field '~', for a writer that was alive at this time (microseconds).
  function reply_record(token, sequence, timestamp, time)
    return token .. struct.pack('>I4i7I6', sequence, timestamp, math.floor(time / 1000) + LEASE)
  end

  -- The reply with this sequence.
  function reply_at(listed, sequence)
    for _, reply in ipairs(replies_in(listed)) do
      if reply[2] == sequence then return reply end
    end
  end

  -- For scripts that read: the content from byte `from` on, and its size, 0 if it has fewer bytes. A key that is not declared is
  -- added to `missing` (see _change.lua, "Extra keys"). In a cluster it is tried before, because a key that is declared and
  -- leaves at the end of the reply would stop the call while its slot moves; so only absence needs the declaration.
  function read_content(state, token, from, missing, in_cluster)
    local key, declared, before = content_of_reply(state, token), false, math.max(from - 1, 0)
    for _, name in ipairs(KEYS) do declared = declared or name == key end
    if declared or in_cluster then
      local found = (declared and redis.call or redis.pcall)('GETRANGE', key, before, -1) -- with the byte before, if there is one
      if type(found) == 'string' and found ~= '' then return string.sub(found, from - before + 1), before + #found end
    end
    if not declared then missing[#missing + 1] = key end
    return '', 0
  end

  -- Removes replies and their content: those in the set `sequences`, or all.
  function forget_replies(state, sequences)
    local listed = redis.call('HGET', state, '~')
    if not listed then return end
    local rest = ''
    for i, reply in ipairs(replies_in(listed)) do
      if not sequences or sequences[reply[2]] then
        redis.call('UNLINK', content_of_reply(state, reply[1]))
      else
        rest = rest .. string.sub(listed, 33 * i - 32, 33 * i)
      end
    end
    if rest == '' then redis.call('HDEL', state, '~') else redis.call('HSET', state, '~', rest) end
  end
end
