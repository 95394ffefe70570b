-- Field '?' of a state: the open requests for approval (redis_history/values/approvals.py), oldest first. For each: field of its
-- message (13 bytes), digests of the call and of the agent that made it (their number of bytes as a byte, then these), timestamp
-- (7 bytes) and sequence (6) of the message.

-- The requests as {field, digests, timestamp, sequence}.
local function requests_in(packed)
  local found, at = {}, 1
  while at <= #packed do
    local ends = at + 13 + string.byte(packed, at + 13)
    local timestamp, sequence = struct.unpack('>i7I6', packed, ends + 1)
    found[#found + 1] = {string.sub(packed, at, at + 12), string.sub(packed, at + 14, ends), timestamp, sequence}
    at = ends + 14
  end
  return found
end
