-- Members of the sorted sets of messages, and the fields of messages in the state.
--
-- A member is: sequence (uint32), characters (uint24), flags (1 byte: 1 free-form values, 2 compressed, 4 streaming); then a
-- MessagePack array that begins with its header byte, the sequence as uint32 and the time as a MessagePack timestamp of 64
-- bits, or of 96 bits before 1970. The header byte and the rest of the array, id first, are the body, which the client makes.
--
-- The place of a message is the value of the state's field ':<12 bytes of SHA-1 of its id>': timestamp (7 bytes), mark of the
-- call that appended it (3 bytes), sequence, revision of its content (both 7 bits in each byte, low ones first), then for each
-- tool call ('u', or 'w' if it waits for approval) or result ('r') in it 5 bytes, or 9 (a capital) if an agent wrote the message; before
-- them 'p' if it is pinned.
local SHORTEST = 25 -- of a member

local function sequence_of(member)
  if #member < SHORTEST then return 0 end
  return (struct.unpack('>I4', member))
end

local function characters_of(member)
  return (struct.unpack('>I3', string.sub(member, 5, 7)))
end

local number_at, place_of, field_of, sequence_at, id_at, id_of, is_same

-- Creates these functions. Each takes 0.3 microseconds, so only scripts that need them do.
local function use_places()
  -- A number with 7 bits in each byte, and where it ends.
  function number_at(text, at)
    local number, scale, byte = 0, 1, nil
    repeat
      byte = string.byte(text, at)
      number, scale, at = number + byte % 128 * scale, scale * 128, at + 1
    until byte < 128
    return number, at
  end

  -- Timestamp, sequence, revision, mark, and where the tool marks begin.
  function place_of(place)
    local timestamp, mark = struct.unpack('>i7I3', place)
    local sequence, at = number_at(place, 11)
    local revision
    revision, at = number_at(place, at)
    return timestamp, sequence, revision, mark, at
  end

  -- The field of the state for an id.
  function field_of(id)
    return ':' .. (string.gsub(string.sub(redis.sha1hex(id), 1, 24), '..', function(byte)
      return string.char(tonumber(byte, 16))
    end))
  end

  -- The sequence of the message with an id, or nil.
  function sequence_at(state, id)
    local place = redis.call('HGET', state, field_of(id))
    return place and (number_at(place, 11))
  end

  -- Where the body continues after its header byte.
  local function behind_time(member)
    return string.byte(member, 15) == 0xd7 and 25 or 30
  end

  -- The id that begins at this byte.
  function id_at(text, at)
    local head = string.byte(text, at)
    if not head then return nil end
    if head >= 0xa0 and head <= 0xbf then return string.sub(text, at + 1, at + head - 0xa0) end
    if head == 0xd9 then return string.sub(text, at + 2, at + 1 + string.byte(text, at + 1)) end
    if head == 0xda then
      return string.sub(text, at + 3, at + 2 + struct.unpack('>I2', string.sub(text, at + 1, at + 2)))
    end
  end

  function id_of(member)
    return #member >= SHORTEST and id_at(member, behind_time(member)) or nil
  end

  -- The digest of the rest of a body after the id; a compressed body contains it.
  local function digest_of(flags, rest, id_ends)
    if flags % 4 >= 2 then return string.sub(rest, id_ends + 1, id_ends + 12) end
    return string.sub(field_of(string.sub(rest, id_ends + 1)), 2)
  end

  -- Whether a member has this content: as `what`, characters, flags, the header byte and tool marks, and the rest of the body.
  -- One of them may be compressed, or both by different releases of zstd.
  function is_same(member, what, rest)
    local there = string.sub(member, behind_time(member))
    if string.sub(member, 5, 9) == string.sub(what, 1, 5) and there == rest then return true end
    local flags, others = string.byte(member, 8), string.byte(what, 4)
    if flags % 4 < 2 and others % 4 < 2 or flags % 2 ~= others % 2 or string.sub(member, 5, 7) ~= string.sub(what, 1, 3) or
       string.sub(member, 9, 9) ~= string.sub(what, 5, 5) then
      return false
    end
    local id = id_of(member)
    local id_ends = #id + (#id < 32 and 1 or #id < 256 and 2 or 3)
    return string.sub(there, 1, id_ends) == string.sub(rest, 1, id_ends) and
           digest_of(flags, there, id_ends) == digest_of(others, rest, id_ends)
  end
end
