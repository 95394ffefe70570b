-- Finds messages in the sorted set by position. After _member.lua.
--
-- Members of one score sort by their first bytes, the sequence. Many may share a score (an import without times), so a
-- binary search finds a position.
-- How many members sort before (timestamp, sequence); timestamp is a decimal string.
local function rank_of(messages, timestamp, sequence)
  local low = redis.call('ZCOUNT', messages, '-inf', '(' .. timestamp)
  if sequence <= 1 then return low end
  local high = low + redis.call('ZCOUNT', messages, timestamp, timestamp)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local member = redis.call('ZRANGE', messages, middle, middle)[1]
    if sequence_of(member) < sequence then low = middle + 1 else high = middle end
  end
  return low
end

-- The member at (timestamp, sequence), or nil.
local function locate(messages, timestamp, sequence)
  local alike = redis.call('ZRANGEBYSCORE', messages, timestamp, timestamp, 'LIMIT', 0, 2)
  for _, member in ipairs(alike) do
    if sequence_of(member) == sequence then return member end
  end
  if #alike < 2 then return nil end
  local rank = rank_of(messages, timestamp, sequence)
  local member = redis.call('ZRANGE', messages, rank, rank)[1]
  if member and sequence_of(member) == sequence then return member end
  return nil
end
