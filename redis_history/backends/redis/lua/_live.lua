-- Replies that are being written. Put after _member.lua, before the scripts that need them.
--
-- The member of such a reply has the flag 4 and no content. Field '~' of the state has 33 bytes for each: its token (16
-- hexadecimal digits), sequence (uint32), timestamp (7 bytes), and until when its writer lives if it is not heard of again, in
-- milliseconds (6 bytes). The content is the string <conversation>:t:<token>, which only grows: records as in model/replies.py.
local is_live, content_of_reply, replies_in, reply_record, reply_at, forget_replies

-- Makes these functions; see use_places.
local function use_replies()
  local LEASE = 6000

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

  -- A reply in the list whose writer was just heard of.
  function reply_record(token, sequence, timestamp, now)
    return token .. struct.pack('>I4i7I6', sequence, timestamp, math.floor(now / 1000) + LEASE)
  end

  -- The reply of a sequence.
  function reply_at(listed, sequence)
    for _, reply in ipairs(replies_in(listed)) do
      if reply[2] == sequence then return reply end
    end
  end

  -- Takes replies out of the list and removes their content: those of `sequences`, a set, or all.
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
