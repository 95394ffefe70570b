-- Reads changes from a subscriber's own change on, and the newest change, in one look.
--
-- KEYS  1 state (hash)  2 change log (stream)
-- ARGV  1 revision to begin with   2 most entries   3 bytes of payload after which no further entry is read
--
-- Returns {epoch, revision, token of the newest change, entries as XRANGE gives them; of the subscriber's own the token}.
local epoch, revision, token = head_of(KEYS[1], KEYS[2])
local entries, bytes, from = {}, 0, ARGV[1] .. '-0'
-- The subscriber's own entry only proves where it is, so its payload is neither sent nor counted.
local most, budget = tonumber(ARGV[2]), tonumber(ARGV[3])
while #entries < most and bytes < budget do
  local some = redis.call('XRANGE', KEYS[2], from, '+', 'COUNT', math.min(16, most - #entries))
  if #some == 0 then break end
  for _, entry in ipairs(some) do
    if entry[1] == ARGV[1] .. '-0' then entry = {entry[1], {entry[2][1], entry[2][2]}} end
    entries[#entries + 1] = entry
    bytes = bytes + #(entry[2][6] or '')
    if bytes >= budget then break end
  end
  from = '(' .. entries[#entries][1]
end
return {epoch, revision, token, entries}
